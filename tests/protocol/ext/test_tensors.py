from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.dtypes import TORCH_DTYPES
from vidette_protocol.ext.layout import join
from vidette_protocol.ext.tensors import (
    encode_torch,
    find_device,
    find_dtype,
    flatten_tensor,
    make_size,
    name_dtype,
    pack_tensor,
    restore_tensor,
    stack_tensors,
    unpack_tensor,
)


def round_trip(value: torch.Tensor, *, copy: bool = True) -> torch.Tensor:
    return unpack_tensor(memoryview(bytearray(pack_tensor(value))), copy=copy, devices=())


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bit by bit: not every dtype can be compared, and no NaN equals itself."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and flatten_tensor(left).raw == flatten_tensor(right).raw
    )


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every dtype that travels, of up to four dimensions, seen through any strides."""
    name = draw(st.sampled_from(sorted(TORCH_DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = torch.Size(shape).numel()
    itemsize = TORCH_DTYPES[name]
    raw = draw(st.binary(min_size=count * itemsize, max_size=count * itemsize))
    if name == "bool":
        raw = bytes(byte & 1 for byte in raw)
    value = restore_tensor(bytearray(raw), shape, name)
    value = value.permute(draw(st.permutations(range(value.dim()))))
    for dim in range(value.dim()):
        value = value[(slice(None),) * dim + (slice(None, None, draw(st.sampled_from([1, 2]))),)]
    return value


@given(value=tensors(), copy=st.booleans())
def test_every_tensor_comes_back(value: torch.Tensor, copy: bool) -> None:
    assert same(round_trip(value, copy=copy), value)


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        (torch.tensor([1, 2], dtype=torch.int16), "0000000d 93 91 02 a5 696e743136 a3 637075 0100 0200"),
        (torch.tensor(True), "0000000b 93 90 a4 626f6f6c a3 637075 01"),
        (
            torch.tensor([[1.0]], dtype=torch.bfloat16),
            "00000011 93 92 01 01 a8 62666c6f61743136 a3 637075 803f",
        ),
        (torch.zeros(0, 2), "00000010 93 92 00 02 a7 666c6f61743332 a3 637075"),
        (
            torch.arange(4, dtype=torch.uint8).reshape(2, 2).T,
            "0000000e 93 92 02 02 a5 75696e7438 a3 637075 00 02 01 03",
        ),
    ],
)
def test_the_golden_bytes(value: torch.Tensor, golden: str) -> None:
    """The first is the published one; metadata is [shape, dtype, device], elements follow in C order."""
    assert pack_tensor(value) == bytes.fromhex(golden)
    assert same(unpack_tensor(memoryview(bytes.fromhex(golden)), copy=True, devices=()), value)


def test_a_lazy_conjugate_or_negative_is_resolved() -> None:
    value = torch.tensor([1 + 2j])
    assert round_trip(value.conj()).tolist() == [1 - 2j]
    assert round_trip(value.conj().imag).tolist() == [-2.0]


def test_a_gradient_stays_behind() -> None:
    back = round_trip(torch.nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert not back.requires_grad


class Odd(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning", "ignore:.*quantize:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda: torch.ones(2).as_subclass(Odd),
        lambda: torch.float32,
        lambda: torch.device("cpu"),
    ],
    ids=["sparse", "meta", "nested", "quantised", "subclass", "dtype", "device"],
)
def test_what_is_no_dense_tensor_does_not_travel(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        encode_torch(make())


# --- whose memory ---------------------------------------------------------------------------------


def test_a_copy_owns_its_memory() -> None:
    frame = bytearray(pack_tensor(torch.tensor([1, 2])))
    value = unpack_tensor(memoryview(frame), copy=True, devices=())
    frame[-8:] = bytes(8)
    assert value.tolist() == [1, 2]
    value += 1


def test_a_view_shares_a_writable_frame() -> None:
    payload = pack_tensor(torch.tensor([1, 2], dtype=torch.uint8))
    frame = bytearray(payload)
    value = unpack_tensor(memoryview(frame), copy=False, devices=())
    value += 1
    assert frame[-2:] == b"\2\3"


def test_what_cannot_be_a_view_is_a_copy() -> None:
    """Of a frame that is read-only, since a tensor never is; and of one that is not aligned."""
    payload = pack_tensor(torch.tensor([1, 2]))
    value = unpack_tensor(memoryview(payload), copy=False, devices=())
    value += 1
    assert payload[-16:] == bytes([1, *bytes(7), 2, *bytes(7)])
    payload = pack_tensor(torch.arange(64).to(torch.complex128))
    for shift in range(16):
        frame = bytearray(bytes(shift) + payload)
        value = unpack_tensor(memoryview(frame)[shift:], copy=False, devices=())
        assert value.tolist() == list(range(64))
        assert value.data_ptr() % 16 == 0


# --- devices --------------------------------------------------------------------------------------


def on(device: str) -> memoryview:
    return memoryview(join([[1], "uint8", device], memoryview(b"\7")))


@pytest.mark.parametrize("device", ["cuda:0", "cuda", "meta", "xpu:12"])
def test_a_tensor_from_elsewhere_lands_on_the_cpu(device: str) -> None:
    value = unpack_tensor(on(device), copy=True, devices={"cpu", "cuda:1"})
    assert (value.device.type, value.item()) == ("cpu", 7)


def test_a_tensor_goes_where_it_may() -> None:
    assert unpack_tensor(on("meta"), copy=True, devices={"meta"}).device.type == "meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_allowed_but_not_there_is_refused() -> None:
    with pytest.raises(DecodeError, match="cannot be put on cuda:0"):
        unpack_tensor(on("cuda:0"), copy=True, devices={"cuda:0"})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_tensor_on_a_device_comes_back_to_it_where_it_may() -> None:
    value = torch.arange(6, device="cuda:0").reshape(2, 3).T
    payload = memoryview(pack_tensor(value))
    assert unpack_tensor(payload, copy=True, devices=()).tolist() == value.tolist()
    assert unpack_tensor(payload, copy=True, devices={"cuda:0"}).device == value.device


@pytest.mark.parametrize("device", ["", "CUDA", "cuda:", "cuda:0000", "cuda:-1", "cpu\n", "a" * 17, "cpu:0;"])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(DecodeError, match="no device"):
        unpack_tensor(on(device), copy=True, devices={device})


def test_a_device_is_named_only_if_it_may() -> None:
    assert find_device("cpu", ()) == torch.device("cpu")
    assert find_device("cuda:3", {"cuda:3"}) == torch.device("cuda", 3)
    with pytest.raises(DecodeError, match="'cuda:3' is not allowed"):
        find_device("cuda:3", {"cuda:0"})
    with pytest.raises(DecodeError, match="'nowhere' is no device"):
        find_device("nowhere", {"nowhere"})


# --- malformed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "raw", "fault"),
    [
        ([[1], "object", "cpu"], bytes(8), "dtype 'object' is not allowed"),
        ([[1], "qint8", "cpu"], bytes(1), "is not allowed"),
        ([[1], "load", "cpu"], bytes(1), "is not allowed"),
        ([[1], "torch.int8", "cpu"], bytes(1), "is not allowed"),
        ([[2], "int32", "cpu"], bytes(4), "takes 8"),
        ([[], "int32", "cpu"], bytes(8), "takes 4"),
        ([[-1], "int32", "cpu"], bytes(4), "invalid metadata: Expected `int` >= 0"),
        ([[0, 1 << 46, 4], "int32", "cpu"], b"", "larger than any memory"),
        ([[1] * 65, "int32", "cpu"], bytes(4), "invalid metadata"),
        ([[1], "int32"], bytes(4), "invalid metadata"),
        ([[1], "int32", "cpu", 0], bytes(4), "invalid metadata"),
        ([[1.0], "int32", "cpu"], bytes(4), "Expected `int`, got `float`"),
        ({"shape": [1]}, bytes(4), "Expected `array`"),
        ([[2], "bool", "cpu"], b"\1\2", "a boolean is neither 0 nor 1"),
    ],
)
def test_what_is_malformed_is_refused(metadata: object, raw: bytes, fault: str) -> None:
    with pytest.raises(DecodeError) as caught:
        unpack_tensor(memoryview(join(metadata, memoryview(raw))), copy=True, devices=())
    assert fault in str(caught.value)


# --- names, sizes, stacks -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_dtypes_have_names(name: str) -> None:
    assert name_dtype(find_dtype(name)) == name
    assert find_dtype(name).itemsize == TORCH_DTYPES[name]


def test_other_dtypes_have_none() -> None:
    with pytest.raises(TypeError, match="does not travel"):
        name_dtype(torch.qint8)
    with pytest.raises(DecodeError, match="is not allowed"):
        find_dtype("qint8")


def test_a_size_is_a_size() -> None:
    assert type(make_size([2, 3])) is torch.Size


def test_tensors_of_one_shape_are_stacked() -> None:
    assert stack_tensors([torch.tensor([1, 2]), torch.tensor([3, 4])]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="equal size"):
        stack_tensors([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match="tensors"):
        stack_tensors([torch.ones(1), torch.float32])
