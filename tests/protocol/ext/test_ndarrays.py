from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from vidette_protocol.ext.layout import join
from vidette_protocol.ext.ndarrays import (
    encode_numpy,
    find_dtype,
    flatten_ndarray,
    name_dtype,
    pack_ndarray,
    plain_scalar,
    stack_ndarrays,
    unpack_ndarray,
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of every dtype that travels, of up to four dimensions, seen through any strides."""
    dtype = np.dtype(draw(st.sampled_from(sorted(NUMPY_DTYPES))))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    elements = st.integers(0, 1) if dtype.kind == "b" else npst.from_dtype(dtype)
    value = draw(npst.arrays(dtype, shape, elements=elements))
    value = value.transpose(draw(st.permutations(range(value.ndim))))
    for axis in range(value.ndim):
        value = np.moveaxis(np.moveaxis(value, axis, 0)[:: draw(st.sampled_from([1, 2, -1]))], 0, axis)
    return value


@given(value=arrays(), copy=st.booleans())
def test_every_array_comes_back(value: np.ndarray, copy: bool) -> None:
    back = unpack_ndarray(memoryview(pack_ndarray(value)), copy=copy)
    assert back.dtype == value.dtype
    assert back.dtype.byteorder == value.dtype.byteorder
    assert back.shape == value.shape
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        (np.array([1, 2], "<i2"), "00000007 92 91 02 a3 3c6932 0100 0200"),
        (np.array([1, 2], ">i2"), "00000007 92 91 02 a3 3e6932 0001 0002"),
        (np.array(True), "00000006 92 90 a3 7c6231 01"),
        (np.zeros((0, 3), "<f4"), "00000008 92 92 00 03 a3 3c6634"),
        (np.arange(6, dtype="<u1").reshape(2, 3).T, "00000008 92 92 03 02 a3 7c7531 00 03 01 04 02 05"),
        (np.array([[1j]], "<c8"), "00000008 92 92 01 01 a3 3c6338 00000000 0000803f"),
    ],
)
def test_the_golden_bytes(value: np.ndarray, golden: str) -> None:
    """Computed by hand: metadata is [shape, dtype.str]; then elements in C order, in their byte order."""
    assert pack_ndarray(value) == bytes.fromhex(golden)


def test_a_copy_is_writable_and_a_view_is_as_writable_as_its_frame() -> None:
    frame = pack_ndarray(np.array([1, 2]))
    copied = unpack_ndarray(memoryview(frame), copy=True)
    copied += 1
    assert copied.flags.owndata
    assert not unpack_ndarray(memoryview(frame), copy=False).flags.writeable
    writable = bytearray(frame)
    view = unpack_ndarray(memoryview(writable), copy=False)
    view += 1
    assert unpack_ndarray(memoryview(writable), copy=True).tolist() == [2, 3]


def test_a_file_in_memory_travels_as_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a", dtype="<i4", mode="w+", shape=(2,))
    assert type(unpack_ndarray(memoryview(pack_ndarray(mapped)), copy=True)) is np.ndarray


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array(["text"]),
        np.array([b"text"]),
        np.array(["2026-11-29"], "M8[D]"),
        np.zeros(1, [("a", "i4")]),
        np.zeros(1, "V2"),
        np.zeros(1, np.longdouble),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(1, [("a", "i4")]).view(np.recarray),
    ],
    ids=lambda value: str(value.dtype),
)
def test_what_is_more_than_its_elements_does_not_travel(value: np.ndarray) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        pack_ndarray(value)


@pytest.mark.parametrize(
    ("metadata", "raw", "fault"),
    [
        ([[1], "|O"], bytes(8), "dtype '|O' is not allowed"),
        ([[1], "=i4"], bytes(4), "is not allowed"),
        ([[1], "<i4,<i4"], bytes(8), "is not allowed"),
        ([[1], "<U1"], bytes(4), "is not allowed"),
        ([[2], "<i4"], bytes(4), "takes 8"),
        ([[-1], "<i4"], bytes(4), "invalid metadata: Expected `int` >= 0"),
        ([[1 << 62], "<i4"], bytes(4), "invalid metadata"),
        ([[1 << 40, 1 << 40], "<i4"], bytes(4), "larger than any memory"),
        ([[1] * 65, "<i4"], bytes(4), "invalid metadata: Expected `array` of length <= 64"),
        ([[True], "<i4"], bytes(4), "Expected `int`, got `bool`"),
        ([[1], 4], bytes(4), "Expected `str`"),
        ([[1]], bytes(4), "invalid metadata"),
        ([[1], "<i4", "cpu"], bytes(4), "invalid metadata"),
        ([[2], "|b1"], b"\1\2", "a boolean is neither 0 nor 1"),
    ],
)
def test_what_is_malformed_is_refused(metadata: object, raw: bytes, fault: str) -> None:
    payload = memoryview(join(metadata, memoryview(raw)))
    for copy in (True, False):
        with pytest.raises(DecodeError) as caught:
            unpack_ndarray(payload, copy=copy)
        assert fault in str(caught.value)


# --- scalars, dtypes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.str_("text"), "text"),
        (np.bytes_(b"text"), b"text"),
    ],
)
def test_scalars_become_what_python_has(value: np.generic, plain: object) -> None:
    assert encode_numpy(value) == plain
    assert type(plain_scalar(value)) is type(plain)


@pytest.mark.parametrize("value", [np.complex64(1), np.datetime64("2026-11-29"), np.dtype("i4"), np.ufunc])
def test_what_python_lacks_does_not_travel(value: object) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        encode_numpy(value)


@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES))
def test_dtypes_have_names(name: str) -> None:
    assert name_dtype(find_dtype(name)) == name
    assert find_dtype(name).itemsize == NUMPY_DTYPES[name]


def test_other_dtypes_have_none() -> None:
    with pytest.raises(TypeError, match="does not travel"):
        name_dtype(np.dtype("O"))
    with pytest.raises(TypeError, match="does not travel"):
        name_dtype("<i4")
    with pytest.raises(DecodeError, match="is not allowed"):
        find_dtype("|O")


# --- flat, stacked --------------------------------------------------------------------------------


@given(value=arrays())
def test_flat_is_in_the_byte_order_of_this_machine_under_torch_names(value: np.ndarray) -> None:
    flat = flatten_ndarray(value)
    assert flat.shape == value.shape
    assert TORCH_DTYPES[flat.dtype] == value.dtype.itemsize
    assert flat.raw.tobytes() == value.astype(value.dtype.newbyteorder("=")).tobytes()


def test_arrays_of_one_shape_are_stacked() -> None:
    assert stack_ndarrays([np.array([1, 2]), np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="same shape"):
        stack_ndarrays([np.array([1, 2]), np.array([3])])
    with pytest.raises(TypeError, match="does not travel"):
        stack_ndarrays([np.float32(1), np.array([3])])


def test_metadata_is_msgpack() -> None:
    payload = pack_ndarray(np.zeros((2, 3), "<f4"))
    nbytes = int.from_bytes(payload[:4])
    assert msgspec.msgpack.decode(payload[4 : 4 + nbytes]) == [[2, 3], "<f4"]
