"""A frame of several parts: its lengths are checked, its parts are views, and nothing is copied into it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.bundle import (
    ALIGNMENT,
    MARK,
    Part,
    is_bundle,
    join_bundle,
    length_of,
    split_bundle,
)

HERE = (1 << 64) - 1


def frame_of(message: bytes, *entries: tuple[int, int], rest: bytes = b"") -> bytes:
    """Lay a frame out by hand."""
    table = b"".join(struct.pack("<QQ", nbytes, place) for nbytes, place in entries)
    return struct.pack("<BBHI", MARK, 0, len(entries), len(message)) + table + message + rest


PARTS = st.lists(
    st.one_of(
        st.binary(max_size=40).map(lambda raw: Part(len(raw), raw=memoryview(raw))),
        st.tuples(st.integers(0, 1 << 63), st.integers(0, 1 << 63)).map(lambda t: Part(t[0], place=t[1])),
    ),
    max_size=5,
)


@given(message=st.binary(max_size=40), parts=PARTS)
def test_splitting_undoes_joining(message: bytes, parts: list[Part]) -> None:
    """What was joined comes back, in order, each buffer where any element type may begin."""
    pieces = join_bundle(message, parts)
    frame = bytearray(b"".join(pieces))
    assert is_bundle(frame)
    assert length_of(pieces) == len(frame)
    back, found = split_bundle(frame)
    assert bytes(back) == message
    assert [(part.nbytes, part.place) for part in parts] == [(part.nbytes, part.place) for part in found]
    base = memoryview(frame)
    for part, one in zip(parts, found, strict=True):
        assert (part.raw is None) == (one.raw is None)
        if part.raw is not None and one.raw is not None:
            assert bytes(part.raw) == bytes(one.raw)
            assert not one.raw.readonly
            assert one.raw.obj is frame
    base.release()


def test_buffers_are_pieces_as_they_are() -> None:
    raws = [memoryview(bytearray(n)) for n in (5, 16)]
    pieces = join_bundle(b"message", [Part(raw.nbytes, raw=raw) for raw in raws])
    assert [piece for piece in pieces if any(piece is raw for raw in raws)] == raws


def test_the_layout_is_the_published_one() -> None:
    frame = b"".join(join_bundle(b"msg", [Part(2, raw=memoryview(b"ab")), Part(9, place=4096)]))
    words = [
        "c100 0200 03000000",
        "0200000000000000 ffffffffffffffff",
        "0900000000000000 0010000000000000",
        "6d7367 0000000000 6162",
    ]
    assert frame == bytes.fromhex("".join(words))
    assert len(frame) % ALIGNMENT == 2


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        frame_of(b"m")[:-1],  # a message that is cut
        frame_of(b"m", rest=b"x"),  # something behind
        frame_of(b"", (1, HERE)),  # a buffer that is not there
        frame_of(b"", (1, HERE), rest=bytes(8)),  # only the gap is
        frame_of(b"", (2, HERE), rest=bytes(9)),
        frame_of(b"", ((1 << 64) - 1, HERE), rest=bytes(9)),
        frame_of(b"", (0, 5), rest=b"x"),  # nothing of that is here
        b"\xc1\x01" + frame_of(b"m")[2:],
        b"\x91\x00" + frame_of(b"m")[2:],
        struct.pack("<BBHI", MARK, 0, 1025, 0) + struct.pack("<QQ", 0, 0) * 1025,  # too many
        struct.pack("<BBHI", MARK, 0, 2, 0) + struct.pack("<QQ", 0, 0),  # a table that is cut
        struct.pack("<BBHI", MARK, 0, 0, 0xFFFFFFFF),
    ],
)
def test_lengths_that_do_not_fit_together_are_refused(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        split_bundle(frame)


@given(
    entries=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([HERE, 0, 4096])), max_size=4),
    rest=st.binary(max_size=80),
    cut=st.integers(0, 80),
)
def test_any_frame_is_split_within_its_bounds(entries: list[tuple[int, int]], rest: bytes, cut: int) -> None:
    """Whatever the table says: parts that lie within the frame, apart, and take all of it, or DecodeError."""
    frame = frame_of(b"message", *entries, rest=rest)
    frame = frame[: len(frame) - cut]
    try:
        _, parts = split_bundle(frame)
    except DecodeError:
        return
    gaps = len(frame) - 8 - 16 * len(entries) - 7 - sum(part.nbytes for part in parts if part.raw is not None)
    here = sum(part.raw is not None for part in parts)
    assert 0 <= gaps <= here * (ALIGNMENT - 1)
    assert [part.nbytes for part in parts] == [nbytes for nbytes, _ in entries]


def test_a_plain_frame_is_none() -> None:
    assert not is_bundle(b"")
    assert not is_bundle(b"\x91\x01")
