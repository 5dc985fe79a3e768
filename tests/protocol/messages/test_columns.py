from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.messages import pack_i32, pack_i64, view_i32, view_i64
from vidette_protocol.messages.columns import all_natural

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(INT32))
def test_what_is_packed_in_32_bits_can_be_read_again(values: list[int]) -> None:
    """view_i32 is the inverse of pack_i32, at four bytes a number."""
    column = pack_i32(values)
    assert values == view_i32(column).tolist()
    assert 4 * len(values) == column.nbytes


@given(st.lists(INT64))
def test_what_is_packed_in_64_bits_can_be_read_again(values: list[int]) -> None:
    """view_i64 is the inverse of pack_i64, at eight bytes a number."""
    column = pack_i64(values)
    assert values == view_i64(column).tolist()
    assert 8 * len(values) == column.nbytes


def test_columns_are_little_endian() -> None:
    assert bytes(pack_i32([1])) == b"\x01\0\0\0"
    assert bytes(pack_i64([-2])) == b"\xfe" + 7 * b"\xff"


@given(st.binary(min_size=1, max_size=64), st.integers(1, 7))
def test_a_column_can_be_read_where_it_lies(data: bytes, at: int) -> None:
    """A view into a frame needs no alignment and copies nothing."""
    frame = bytearray(at) + bytearray(data * 4)
    column = memoryview(frame)[at:]
    view = view_i32(column)
    first = view[0]
    frame[at] ^= 0xFF
    assert view[0] != first


def test_a_column_cannot_be_written_to() -> None:
    with pytest.raises(TypeError, match="cannot modify read-only memory"):
        pack_i32([1])[0] = 2


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1])
def test_more_than_32_bits_overflow(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_i32([value])


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_more_than_64_bits_overflow(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_i64([value])


@given(st.binary(max_size=64))
def test_a_torn_column_is_refused_with_its_length(data: bytes) -> None:
    """A view is made of whole numbers only, and the error names the bytes there are."""
    for view, width in ((view_i32, 4), (view_i64, 8)):
        if len(data) % width:
            with pytest.raises(ValueError, match=f"has {len(data)} bytes, not a multiple of {width}"):
                view(memoryview(data))
        else:
            assert len(view(memoryview(data))) == len(data) // width


@given(st.lists(INT32), st.lists(INT64))
def test_whether_one_is_negative_is_seen_at_a_glance(short: list[int], long: list[int]) -> None:
    """all_natural is what min() says, for both widths."""
    assert all_natural(pack_i32(short), 4) == (min(short, default=0) >= 0)
    assert all_natural(pack_i64(long), 8) == (min(long, default=0) >= 0)
