from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.layout import (
    MAX_BYTES,
    MAX_METADATA_BYTES,
    check_bools,
    check_nbytes,
    join,
    nbytes_of,
    split,
)


@given(metadata=st.text(max_size=200), raw=st.binary(max_size=64))
def test_what_is_joined_is_split_again(metadata: str, raw: bytes) -> None:
    head, tail = split(memoryview(join(metadata, memoryview(raw))))
    assert msgspec.msgpack.decode(head) == metadata
    assert tail == raw


def test_the_length_of_the_metadata_comes_first_and_big_endian() -> None:
    assert join("q", memoryview(b"\1\2")) == b"\x00\x00\x00\x02" + b"\xa1q" + b"\1\2"


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        (b"", "missing metadata"),
        (b"\0\0\0", "missing metadata"),
        (b"\0\0\0\1", "invalid metadata"),
        (b"\xff\xff\xff\xff\xa1q", "invalid metadata"),
        ((MAX_METADATA_BYTES + 1).to_bytes(4) + bytes(2 * MAX_METADATA_BYTES), "invalid metadata"),
    ],
)
def test_metadata_lies_within_the_payload_and_is_short(payload: bytes, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault):
        split(memoryview(payload))


@pytest.mark.parametrize(
    ("shape", "itemsize", "nbytes"),
    [((), 4, 4), ((0,), 4, 0), ((2, 3), 2, 12), ((2, 0, MAX_BYTES // 8), 4, 0), ((1,) * 64, 8, 8)],
)
def test_a_shape_takes_as_many_bytes_as_it_has_elements(
    shape: tuple[int, ...], itemsize: int, nbytes: int
) -> None:
    assert nbytes_of(shape, itemsize) == nbytes
    check_nbytes(shape, itemsize, memoryview(bytes(nbytes)))
    with pytest.raises(DecodeError, match="takes"):
        check_nbytes(shape, itemsize, memoryview(bytes(nbytes + 1)))


@pytest.mark.parametrize("shape", [(MAX_BYTES,) * 64, (MAX_BYTES, 2), (0, MAX_BYTES, 2), (1 << 31, 1 << 31)])
def test_no_shape_is_larger_than_memory_can_be(shape: tuple[int, ...]) -> None:
    """Not even one without elements: strides are computed as if it had some."""
    with pytest.raises(DecodeError, match="larger than any memory"):
        check_nbytes(shape, 1, memoryview(b""))


def test_booleans_are_zeros_and_ones() -> None:
    check_bools(memoryview(b"\0\1\1\0"))
    with pytest.raises(DecodeError, match="boolean"):
        check_bools(memoryview(b"\0\1\2"))
