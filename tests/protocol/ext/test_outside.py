"""Tensors and arrays beside the message: the same values come back, over memory that is not copied."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext import CudaIpcHandle, ExtCode, ExtHooks, ModelData, Outside
from vidette_protocol.ext.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from vidette_protocol.ext.outside import MAX_PARTS, OUTSIDE_BYTES


class Wire:
    """An encoder and a decoder, and the buffers beside what they encode and decode."""

    def __init__(self, **options: Any) -> None:
        self.outside = Outside()
        self.hooks = ExtHooks(outside=self.outside, **options)

    def encode(self, value: object) -> tuple[bytes, list[memoryview]]:
        self.outside.buffers = []
        return msgspec.msgpack.Encoder(enc_hook=self.hooks.enc_hook).encode(value), self.outside.buffers

    def decode(self, encoded: bytes, buffers: list[memoryview], kind: Any = object) -> Any:
        self.outside.buffers = buffers
        hooks = self.hooks
        return msgspec.msgpack.Decoder(kind, ext_hook=hooks.ext_hook, dec_hook=hooks.dec_hook).decode(encoded)


COUNT = OUTSIDE_BYTES  # of elements: enough of any type


def ext(code: int, *state: object) -> bytes:
    return msgspec.msgpack.encode(Ext(code, msgspec.msgpack.encode(state)))


def as_raw(value: torch.Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_a_tensor_of_every_type_lies_outside_and_comes_back_as_a_view(name: str) -> None:
    dtype = getattr(torch, name)
    value = (torch.arange(COUNT) % 2).to(dtype).reshape(2, -1)
    encoded, buffers = Wire().encode([value])
    assert len(encoded) < 100
    (raw,) = buffers
    assert raw.nbytes == value.nbytes
    memory = bytearray(raw)
    (back,) = Wire().decode(encoded, [memoryview(memory)])
    assert back.dtype == dtype
    assert back.shape == value.shape
    assert as_raw(back) == as_raw(value)
    memory[0] ^= 1  # of the first element: it was zero
    assert as_raw(back)[:1] == b"\1"


@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES))
def test_an_array_of_every_type_lies_outside_and_comes_back_as_a_view(name: str) -> None:
    value = (np.arange(COUNT) % 2).astype(name).reshape(2, -1)
    encoded, (raw,) = Wire().encode([value])
    memory = bytearray(raw)
    (back,) = Wire().decode(encoded, [memoryview(memory)])
    assert back.dtype.str == name
    assert np.array_equal(back, value)
    assert np.shares_memory(back, np.frombuffer(memory, np.uint8))


@pytest.mark.parametrize(
    "value", [torch.arange(COUNT), np.arange(COUNT), torch.arange(COUNT).to(torch.bfloat16)], ids=str
)
def test_nothing_is_copied_on_the_way_out(value: Any) -> None:
    _, (raw,) = Wire().encode([value])
    value += 1
    assert bytes(raw[:1]) == (b"\x01" if value.dtype != torch.bfloat16 else b"\x80")


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(4 * COUNT).reshape(COUNT, 4).t(),
        torch.arange(COUNT, dtype=torch.float32, requires_grad=True),
        torch.arange(COUNT).to(torch.complex64).conj(),
        torch.arange(2 * COUNT)[::2],
    ],
    ids=["transposed", "with a gradient", "conjugate", "every other"],
)
def test_whatever_its_memory_looks_like_its_elements_travel(value: torch.Tensor) -> None:
    encoded, (raw,) = Wire().encode([value])
    (back,) = Wire().decode(encoded, [memoryview(bytearray(raw))])
    assert torch.equal(back, value.detach().resolve_conj())


def test_what_is_small_lies_in_the_message() -> None:
    wire = Wire()
    values = [np.zeros(OUTSIDE_BYTES - 1, "u1"), torch.zeros(OUTSIDE_BYTES - 1, dtype=torch.uint8)]
    assert wire.encode(values)[1] == []
    assert wire.encode(values)[0] == msgspec.msgpack.Encoder(enc_hook=ExtHooks().enc_hook).encode(values)
    assert len(wire.encode([np.zeros(OUTSIDE_BYTES, "u1")])[1]) == 1
    # Packed integers are copied in any case.
    assert wire.encode([array("q", range(OUTSIDE_BYTES))])[1] == []


def test_more_buffers_than_may_lie_outside_lie_in_the_message() -> None:
    value = torch.zeros(OUTSIDE_BYTES, dtype=torch.uint8)
    encoded, buffers = Wire().encode([value] * (MAX_PARTS + 2))
    assert len(buffers) == MAX_PARTS
    back = Wire().decode(encoded, [memoryview(bytearray(raw)) for raw in buffers])
    assert all(torch.equal(one, value) for one in back)


def test_inside_model_data_too() -> None:
    data = ModelData({"pixels": np.ones(COUNT), "shape": (1, 2)})
    encoded, buffers = Wire().encode(data)
    back = Wire().decode(encoded, buffers, ModelData)
    assert np.array_equal(back["pixels"], np.ones(COUNT))
    assert back["shape"] == (1, 2)


def test_what_a_pointer_carries_lies_in_it() -> None:
    handle = CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.ones(COUNT)}, {})
    encoded, buffers = Wire().encode(handle)
    assert not buffers
    assert torch.equal(Wire().decode(encoded, []).proxy_state["tensor_data"], torch.ones(COUNT))


def test_a_read_only_buffer_gives_a_read_only_array_and_a_tensor_of_its_own() -> None:
    encoded, buffers = Wire().encode([np.zeros(COUNT, "u1"), torch.zeros(COUNT, dtype=torch.uint8)])
    frozen = [memoryview(bytes(raw)) for raw in buffers]
    left, right = Wire().decode(encoded, frozen)
    with pytest.raises(ValueError, match="read-only"):
        left += 1
    right += 1
    assert bytes(frozen[1]) == bytes(COUNT)


def test_a_tensor_goes_to_a_device_that_is_allowed() -> None:
    payload = ext(ExtCode.OUTSIDE_TENSOR, [2], "int8", "meta", 0)
    buffers = [memoryview(bytearray(2))]
    assert Wire().decode(payload, buffers).device.type == "cpu"
    assert Wire(devices=["meta"]).decode(payload, buffers).device.type == "meta"


MALFORMED = [
    ext(ExtCode.OUTSIDE_TENSOR, [4], "int8", "cpu", 1),  # no such buffer
    ext(ExtCode.OUTSIDE_TENSOR, [4], "int8", "cpu", -1),
    ext(ExtCode.OUTSIDE_TENSOR, [4], "int8", "cpu", 1 << 40),
    ext(ExtCode.OUTSIDE_TENSOR, [5], "int8", "cpu", 0),  # another length
    ext(ExtCode.OUTSIDE_TENSOR, [2], "int8", "cpu", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [1 << 60, 0], "int8", "cpu", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [-1], "int8", "cpu", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [4], "qint8", "cpu", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [4], "__class__", "cpu", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [4], "bool", "cpu", 0),  # a boolean of 7
    ext(ExtCode.OUTSIDE_TENSOR, [4], "int8", "no device!", 0),
    ext(ExtCode.OUTSIDE_TENSOR, [4], "int8", "cpu"),
    ext(ExtCode.OUTSIDE_TENSOR),
    ext(ExtCode.OUTSIDE_NDARRAY, [4], "|i1", 1),
    ext(ExtCode.OUTSIDE_NDARRAY, [3], "|i1", 0),
    ext(ExtCode.OUTSIDE_NDARRAY, [4], "|b1", 0),
    ext(ExtCode.OUTSIDE_NDARRAY, [1], "|O4", 0),
    ext(ExtCode.OUTSIDE_NDARRAY, [1], "<M8[s]", 0),
    ext(ExtCode.OUTSIDE_NDARRAY, [0], "|i1", 0),
    msgspec.msgpack.encode(Ext(ExtCode.OUTSIDE_NDARRAY, b"\xc1")),
]


@pytest.mark.parametrize("payload", MALFORMED)
def test_what_does_not_describe_the_buffer_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        Wire().decode(payload, [memoryview(bytearray(b"\7\7\7\7"))])


@pytest.mark.parametrize("code", [ExtCode.OUTSIDE_TENSOR, ExtCode.OUTSIDE_NDARRAY])
def test_nothing_lies_outside_where_nothing_may(code: int) -> None:
    payload = msgspec.msgpack.encode(Ext(code, b""))
    hooks = ExtHooks()
    with pytest.raises(DecodeError, match="beside the message, where nothing may be"):
        msgspec.msgpack.Decoder(ext_hook=hooks.ext_hook).decode(payload)


def test_a_pointer_carries_nothing_that_lies_outside() -> None:
    inner = msgspec.msgpack.encode(
        {
            "proxy_state": {
                "tensor_data": Ext(ExtCode.OUTSIDE_NDARRAY, msgspec.msgpack.encode([[4], "|i1", 0]))
            },
            "sync_data_meta": {},
        }
    )
    with pytest.raises(DecodeError, match="beside the message, where nothing may be"):
        Wire().decode(msgspec.msgpack.encode(Ext(ExtCode.CUDA_IPC, inner)), [memoryview(bytearray(4))])


@given(
    code=st.sampled_from([ExtCode.OUTSIDE_TENSOR, ExtCode.OUTSIDE_NDARRAY]),
    payload=st.one_of(
        st.binary(max_size=60),
        st.tuples(
            st.lists(st.integers(-2, 1 << 62), max_size=3),
            st.sampled_from(["int8", "bool", "float32", "|i1", "<f4", "|b1", "|O", ""]),
            st.one_of(st.sampled_from(["cpu", "cuda:0", ""]), st.integers(-1, 3)),
            st.integers(-1, 3),
        ).map(msgspec.msgpack.encode),
    ),
    buffers=st.lists(st.binary(max_size=8), max_size=3),
)
def test_any_description_is_a_value_or_a_decode_error(
    code: int, payload: bytes, buffers: list[bytes]
) -> None:
    """Whatever describes whatever buffers: a tensor or array of just those bytes, or DecodeError."""
    views = [memoryview(bytearray(raw)) for raw in buffers]
    try:
        value = Wire().decode(msgspec.msgpack.encode(Ext(code, payload)), views)
    except DecodeError:
        return
    raw = bytes(value.tobytes() if isinstance(value, np.ndarray) else value.numpy().tobytes())
    assert raw in buffers


def test_a_device_that_is_there_but_has_no_room_is_a_decode_error() -> None:
    payload = ext(ExtCode.OUTSIDE_TENSOR, [2], "int8", "cuda:99", 0)
    with pytest.raises(DecodeError, match="cannot be put on cuda:99"):
        Wire(devices=["cuda:99"]).decode(payload, [memoryview(bytearray(2))])
