"""A codec that allows bulk: frames of several parts, read whole or part by part."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidette_fuzz.frames import check_frame, tamper
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.ext.bundle import Part, is_bundle, join_bundle, split_bundle
from vidette_protocol.ext.outside import OUTSIDE_BYTES
from vidette_protocol.messages import Message
from vidette_protocol.messages.bulk import LINK_MESSAGES, ArenaCredit, ArenaOffer
from vidette_protocol.messages.columns import pack_i64


class Blob(Message, tag=1000, kw_only=True, frozen=True):
    """What travels."""

    data: object = None
    more: object = None


BULK = Codec(sends=[Blob], receives=[Blob], bulk=True)
PLAIN = Codec(sends=[Blob], receives=[Blob])
ARRAY = np.arange(OUTSIDE_BYTES, dtype=np.int16)
TENSOR = torch.arange(OUTSIDE_BYTES)


def test_a_message_with_large_buffers_is_one_frame_and_comes_back() -> None:
    frame = bytearray(BULK.encode(Blob(data=TENSOR, more=[ARRAY, "x"])))
    assert is_bundle(frame)
    back = BULK.decode(frame)
    assert isinstance(back, Blob)
    assert isinstance(back.data, torch.Tensor)
    assert torch.equal(back.data, TENSOR)
    assert np.array_equal(back.more[0], ARRAY)  # type: ignore[index]
    back.data[0] = 77  # a view
    assert int(BULK.decode(frame).data[0]) == 77  # type: ignore[attr-defined]


def test_a_message_without_is_the_same_frame_as_ever() -> None:
    for message in (Blob(data=1), Blob(data=ARRAY[:10], more=[TENSOR[:10]])):
        assert BULK.encode(message) == PLAIN.encode(message)
        assert BULK.encode_parts(message) == (PLAIN.encode(message), [])
    assert not is_bundle(PLAIN.encode(Blob(data=ARRAY)))


def test_a_codec_without_bulk_writes_and_reads_no_parts() -> None:
    encoded, buffers = PLAIN.encode_parts(Blob(data=ARRAY))
    assert buffers == []
    assert np.array_equal(PLAIN.decode(encoded).data, ARRAY)  # type: ignore[attr-defined]
    with pytest.raises(DecodeError):
        PLAIN.decode(BULK.encode(Blob(data=ARRAY)))


def test_what_links_say_to_each_other_travels_both_ways_with_bulk_only() -> None:
    offer, credit = ArenaOffer(nbytes=4096), ArenaCredit(packed_places=pack_i64([0, 4096]))
    assert set(LINK_MESSAGES) == {ArenaOffer, ArenaCredit}
    for message in (offer, credit):
        assert BULK.decode(BULK.encode(message)) == message
        with pytest.raises(LocalProtocolError):
            PLAIN.encode(message)
        with pytest.raises(DecodeError):
            PLAIN.decode(BULK.encode(message))
    assert BULK.mirrored().bulk


@pytest.mark.parametrize("nbytes", [0, -1, (1 << 47) + 1])
def test_an_arena_of_no_possible_length_is_refused(nbytes: int) -> None:
    with pytest.raises(DecodeError):
        BULK.decode(BULK.encode(ArenaOffer(nbytes=nbytes)))


def test_half_an_offset_is_refused() -> None:
    with pytest.raises(DecodeError, match="not a multiple of 8"):
        BULK.decode(BULK.encode(ArenaCredit(packed_places=memoryview(bytes(9)))))


def test_nothing_is_left_over_from_a_message_that_was_refused() -> None:
    with pytest.raises(LocalProtocolError):
        BULK.encode(Blob(data=ARRAY, more=[object()]))
    assert len(BULK.encode_parts(Blob(data=ARRAY))[1]) == 1
    frame = BULK.encode(Blob(data=ARRAY))
    message, parts = split_bundle(frame)
    with pytest.raises(DecodeError, match="buffer 0 of 0"):
        BULK.decode(message)
    assert np.array_equal(BULK.decode(frame).data, ARRAY)  # type: ignore[attr-defined]
    assert len(parts) == 1


def test_a_frame_alone_names_no_shared_memory() -> None:
    message, buffers = BULK.encode_parts(Blob(data=ARRAY))
    frame = b"".join(join_bundle(message, [Part(buffers[0].nbytes, place=0)]))
    with pytest.raises(DecodeError, match="a buffer in shared memory, of which there is none"):
        BULK.decode(frame)
    assert np.array_equal(BULK.decode_parts(memoryview(message), buffers).data, ARRAY)  # type: ignore[attr-defined]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes(rest: bytes, bundle: bool) -> None:
    """Any bytes decode to a message of the link or raise DecodeError, never anything else."""
    check_frame(BULK, b"\xc1\0" * bundle + rest)


def test_any_mutated_frame() -> None:
    """Frames of several parts that were tampered with decode to a message or raise DecodeError."""
    random = Random(0)
    frames = [
        BULK.encode(Blob(data=ARRAY[: OUTSIDE_BYTES // 2], more=[TENSOR[: OUTSIDE_BYTES // 8]] * 2)),
        BULK.encode(Blob(data=np.zeros(OUTSIDE_BYTES, bool))),
        msgspec.msgpack.encode([8, bytes(16)]),
    ]
    kept = 0
    for _ in range(3000):
        frame = random.choice(frames)
        # Near the beginning, where what can go wrong is.
        kept += check_frame(BULK, tamper(frame[:120], random, others=frames) + frame[120:])
    assert 100 < kept < 2500
    assert frames == [BULK.encode(BULK.decode(frame)) for frame in frames]
