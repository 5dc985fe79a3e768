from __future__ import annotations

import sys
import tracemalloc
from array import array
from random import Random
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from vidette_fuzz.frames import tamper
from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.ext import (
    CudaIpcHandle,
    ExtCode,
    ExtHooks,
    ModelData,
    ShmPointer,
    flatten,
    restore_tensor,
    stack,
)
from vidette_protocol.ext.layout import MAX_BYTES, join

IPC = (0, b"handle", 96, 0, b"counter", 0, b"event", True)
STATE: dict[str, object] = {
    "ipc_extra": {
        "handle": IPC,
        "device_index": 0,
        "shape": torch.Size([2, 3]),
        "stride": (3, 1),
        "dtype": torch.float32,
        "storage_offset": 0,
        "recons_shape": torch.Size([2, 3]),
        "recons_dtype": torch.float32,
        "anything": {"__tuple__": "a dict of the caller's"},
    },
    "tensor_data": None,
}
META: dict[str, object] = {"handle": "psm_1", "shape": (1,), "dtype": "int64"}


class Wire:
    """An encoder and a decoder over the same hooks, as a codec has them."""

    def __init__(self, hooks: ExtHooks) -> None:
        self.encode = msgspec.msgpack.Encoder(enc_hook=hooks.enc_hook).encode
        self._hooks = hooks

    def decode(self, frame: bytes | bytearray, kind: Any = object) -> Any:
        hooks = self._hooks
        decoder = msgspec.msgpack.Decoder(kind, ext_hook=hooks.ext_hook, dec_hook=hooks.dec_hook)
        return decoder.decode(frame)


WIRE = Wire(ExtHooks())


# --- what comes back ------------------------------------------------------------------------------


def test_everything_travels_in_one_field() -> None:
    values = [array("q", [1]), np.array([[1.5]]), torch.tensor([True]), np.int16(3), "text", None]
    back = WIRE.decode(WIRE.encode(values))
    assert back[0] == array("q", [1])
    assert np.array_equal(back[1], np.array([[1.5]]))
    assert torch.equal(back[2], torch.tensor([True]))
    assert back[3:] == [3, "text", None]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (array("b", [1]), ExtCode.ARRAY),
        (torch.ones(1), ExtCode.TENSOR),
        (np.ones(1), ExtCode.NDARRAY),
        (ShmPointer("psm_1", (1,), "int8"), ExtCode.SHM_POINTER),
        (CudaIpcHandle(STATE, META), ExtCode.CUDA_IPC),
    ],
    ids=["array", "tensor", "ndarray", "shm", "cuda"],
)
def test_ids_are_stable(value: object, code: int) -> None:
    ext = ExtHooks().enc_hook(value)
    assert isinstance(ext, Ext)
    assert ext.code == code


def test_the_ids_of_the_table() -> None:
    ids = {name: value for name, value in vars(ExtCode).items() if name.isupper()}
    assert ids == {
        "ARRAY": 1,
        "TENSOR": 2,
        "NDARRAY": 3,
        "SHM_POINTER": 4,
        "CUDA_IPC": 5,
        "OUTSIDE_TENSOR": 6,
        "OUTSIDE_NDARRAY": 7,
    }


def test_an_int16_tensor_has_the_published_bytes() -> None:
    payload = bytes.fromhex("0000000d 93 91 02 a5 696e743136 a3 637075 0100 0200")
    frame = bytes([0xC7, len(payload), 2]) + payload
    assert WIRE.encode(torch.tensor([1, 2], dtype=torch.int16)) == frame
    assert WIRE.decode(frame).tolist() == [1, 2]


@pytest.mark.parametrize("code", [-128, -2, 0, 8, 42, 127])
def test_an_unknown_extension_is_kept(code: int) -> None:
    frame = msgspec.msgpack.encode([Ext(code, b"payload")])
    for wire in (WIRE, Wire(ExtHooks(copy=False))):
        back = wire.decode(frame)
        assert back == [Ext(code, b"payload")]
        assert wire.encode(back) == frame
    assert isinstance(WIRE.decode(frame)[0].data, bytes)


def test_views_are_views_of_the_frame() -> None:
    wire = Wire(ExtHooks(copy=False))
    frame = bytearray(wire.encode([np.array([1, 2], "u1"), torch.tensor([3], dtype=torch.uint8)]))
    left, right = wire.decode(frame)
    left += 1
    right += 1
    assert [value.tolist() for value in WIRE.decode(frame)] == [[2, 3], [4]]


def test_a_tensor_lands_on_the_cpu_unless_it_may_go_elsewhere() -> None:
    frame = (
        WIRE.encode(torch.tensor([1])).replace(b"\xa3cpu", b"\xa4meta").replace(b"\0\0\0\x0d", b"\0\0\0\x0e")
    )
    frame = bytes([frame[0], frame[1] + 1]) + frame[2:]
    assert WIRE.decode(frame).device.type == "cpu"
    assert Wire(ExtHooks(devices=["meta"])).decode(frame).device.type == "meta"


@pytest.mark.parametrize("value", [object(), torch.float32, np.dtype("i4"), torch.device("cpu"), Random, 1j])
def test_what_does_not_travel_says_so(value: object) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        WIRE.encode([value])


# --- typed fields ---------------------------------------------------------------------------------


class Typed(msgspec.Struct):
    ids: array | None = None  # type: ignore[type-arg]
    pixels: npt.NDArray[np.float64] | None = None
    embeds: torch.Tensor | None = None
    pointer: ShmPointer | None = None
    data: ModelData | None = None
    anything: object = None


def test_fields_may_be_typed() -> None:
    value = Typed(
        ids=array("i", [1]),
        pixels=np.ones(2),
        embeds=torch.ones(2),
        pointer=ShmPointer("psm_1", (1,), "int8"),
        data=ModelData({"grid": (1, 2)}),
        anything=[np.ones(1)],
    )
    back = WIRE.decode(WIRE.encode(value), Typed)
    assert (back.ids, back.pointer, back.data) == (value.ids, value.pointer, {"grid": (1, 2)})
    assert back.pixels.tolist() == back.embeds.tolist() == [1.0, 1.0]
    assert back.anything == [np.ones(1)]


@pytest.mark.parametrize("name", ["pixels", "embeds", "pointer"])
def test_another_type_is_refused_with_where_it_was(name: str) -> None:
    frame = WIRE.encode({name: array("i", [1])})
    with pytest.raises(msgspec.ValidationError, match=rf"got `array` - at `\$\.{name}`"):
        WIRE.decode(frame, Typed)


def test_model_data_is_a_mapping() -> None:
    with pytest.raises(DecodeError, match="no mapping of names"):
        WIRE.decode(WIRE.encode({"data": [1]}), Typed)


def test_what_is_not_installed_is_missed_by_what_needs_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, pixels = WIRE.encode(torch.ones(1)), WIRE.encode(np.ones(1))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert WIRE.decode(pixels) == np.ones(1)
    with pytest.raises(DecodeError, match="extension 2 needs what is not installed"):
        WIRE.decode(tensor)
    with pytest.raises(DecodeError, match="a marker needs what is not installed"):
        ExtHooks().dec_hook(ModelData, {"x": {"__torch_dtype__": "int8"}})


# --- pointers -------------------------------------------------------------------------------------


def test_the_state_of_a_pointer_is_marked() -> None:
    pointer = ShmPointer("psm_1", (2, 3), "bfloat16", 9)
    ext = ExtHooks().enc_hook(pointer)
    assert isinstance(ext, Ext)
    assert msgspec.msgpack.decode(ext.data) == {
        "shm_name": "psm_1",
        "shape": {"__tuple__": [2, 3]},
        "dtype": {"__torch_dtype__": "bfloat16"},
        "precomputed_hash": 9,
    }


@pytest.mark.parametrize("shape", [[2, 3], {"__tuple__": [2, 3]}, {"__torch_size__": [2, 3]}])
@pytest.mark.parametrize("dtype", ["int8", {"__torch_dtype__": "int8"}])
def test_a_pointer_is_read_marked_or_plain(shape: object, dtype: object) -> None:
    state = {"shm_name": "psm_1", "shape": shape, "dtype": dtype, "newer": 1}
    frame = msgspec.msgpack.encode(Ext(4, msgspec.msgpack.encode(state)))
    pointer = WIRE.decode(frame)
    assert pointer == ShmPointer("psm_1", (2, 3), "int8")
    assert not pointer.acknowledgement.taken


@pytest.mark.parametrize(
    "changes",
    [
        {"shm_name": "../../etc/passwd"},
        {"shape": {"__tuple__": [2], "more": [3]}},
        {"shape": {"__np_dtype__": [2]}},
        {"shape": {}},
        {"shape": [1 << 46, 4]},
        {"shape": [-1]},
        {"dtype": "object"},
        {"dtype": {"__np_dtype__": "<i4"}},
        {"precomputed_hash": "a"},
        {"shm_name": None},
    ],
)
def test_a_malformed_pointer_is_refused(changes: dict[str, object]) -> None:
    state = {"shm_name": "psm_1", "shape": [2], "dtype": "int8"} | changes
    with pytest.raises(DecodeError, match="invalid state of a pointer"):
        ExtHooks().ext_hook(4, memoryview(msgspec.msgpack.encode(state)))


def test_the_state_of_a_cuda_handle_comes_back() -> None:
    """Sizes, tuples and dtypes as they were; the reader starts with nothing acknowledged."""
    handle = WIRE.decode(WIRE.encode(CudaIpcHandle(STATE, META)))
    assert (handle.proxy_state, handle.sync_data_meta) == (STATE, META)
    extra = handle.proxy_state["ipc_extra"]
    assert type(extra["shape"]) is torch.Size
    assert type(extra["stride"]) is type(extra["handle"]) is tuple
    assert extra["dtype"] is torch.float32
    assert not handle.acknowledgement.taken
    assert handle.memory() is not None


def test_a_cuda_handle_may_carry_the_tensor() -> None:
    sent = CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.tensor([1, 2])}, {})
    back = WIRE.decode(WIRE.encode(sent))
    assert back.memory() is None
    assert back.proxy_state["tensor_data"].tolist() == [1, 2]


@pytest.mark.parametrize("pointer", [ShmPointer("psm_1", (1,), "int8"), CudaIpcHandle(STATE, META)])
def test_a_pointer_that_was_acknowledged_is_not_sent_on(pointer: ShmPointer | CudaIpcHandle) -> None:
    back = WIRE.decode(WIRE.encode(pointer))
    WIRE.encode(back)
    back.acknowledgement.take()
    with pytest.raises(LocalProtocolError, match="points at nothing"):
        WIRE.encode(back)


def test_a_cuda_handle_that_would_be_refused_is_not_sent() -> None:
    with pytest.raises(ValueError, match="neither"):
        WIRE.encode(CudaIpcHandle({}, {}))


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({}, "missing required field"),
        ({"proxy_state": {}, "sync_data_meta": {}}, "neither ipc_extra nor tensor_data"),
        ({"proxy_state": {"ipc_extra": {}}, "sync_data_meta": {}}, "missing required field"),
        ({"proxy_state": {"ipc_extra": {1: 2}}, "sync_data_meta": {}}, "invalid state"),
        ({"proxy_state": {"ipc_extra": {"__tuple__": 1}}, "sync_data_meta": {}}, "malformed"),
    ],
)
def test_a_malformed_cuda_handle_is_refused(state: object, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault):
        ExtHooks().ext_hook(5, memoryview(msgspec.msgpack.encode(state)))


@pytest.mark.parametrize("code", [4, 5])
def test_no_pointer_lies_in_a_pointer(code: int) -> None:
    state = {"proxy_state": {"ipc_extra": None, "tensor_data": Ext(code, b"")}, "sync_data_meta": {}}
    with pytest.raises(DecodeError, match="inside the state of a pointer"):
        ExtHooks().ext_hook(5, memoryview(msgspec.msgpack.encode(state)))
    for pointer in (ShmPointer("psm_1", (1,), "int8"), CudaIpcHandle(STATE, META)):
        with pytest.raises(TypeError, match="does not travel"):
            WIRE.encode(CudaIpcHandle({"ipc_extra": None, "tensor_data": pointer}, {}))


# --- hostile --------------------------------------------------------------------------------------

SAMPLES: list[object] = [
    array("q", [1, 2]),
    torch.arange(6, dtype=torch.int16).reshape(2, 3),
    torch.tensor([True, False]),
    torch.tensor(1.5, dtype=torch.bfloat16),
    np.arange(4, dtype=">u4"),
    np.array([True]),
    np.zeros((0, 2)),
    ShmPointer("psm_1", (2, 3), "float32", 7),
    CudaIpcHandle(STATE, META),
    CudaIpcHandle({"ipc_extra": None, "tensor_data": torch.ones(2)}, {}),
]
PAYLOADS = [ext for ext in map(ExtHooks().enc_hook, SAMPLES) if isinstance(ext, Ext)]


def use(value: object) -> None:
    """Look at all of a value that was decoded: none of it may lie outside the frame."""
    if isinstance(value, np.ndarray | torch.Tensor | array):
        value.tolist()
    else:
        repr(value)


@given(
    ext=st.sampled_from(PAYLOADS),
    other=st.sampled_from(PAYLOADS),
    code=st.none() | st.integers(1, 5),
    seed=st.integers(0, (1 << 32) - 1),
    copy=st.booleans(),
)
def test_any_payload_is_a_value_or_refused(
    ext: Ext, other: Ext, code: int | None, seed: int, copy: bool
) -> None:
    """No matter what garbage a payload is, it is a value or raises `DecodeError`, never anything else."""
    payload = tamper(bytes(ext.data), Random(seed), others=[bytes(other.data)])
    try:
        value = ExtHooks(copy=copy).ext_hook(code or ext.code, memoryview(bytearray(payload)))
    except DecodeError:
        return
    use(value)


@given(data=st.binary(max_size=64), code=st.integers(1, 5))
def test_any_bytes_are_a_value_or_refused(data: bytes, code: int) -> None:
    """No matter what bytes a payload is, it is a value or raises `DecodeError`, never anything else."""
    try:
        value = ExtHooks().ext_hook(code, memoryview(data))
    except DecodeError:
        return
    use(value)


@given(seed=st.integers(0, (1 << 32) - 1))
def test_any_frame_is_a_message_or_refused(seed: int) -> None:
    """No matter what garbage a frame is, decoding raises only what a codec turns into `DecodeError`."""
    value = Typed(data=ModelData({"a": (1, {"__tuple__": torch.Size([1])})}), anything=SAMPLES)
    frame = tamper(WIRE.encode(value), Random(seed))
    try:
        back = WIRE.decode(frame, Typed)
    except (DecodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    use(back)


@pytest.mark.parametrize(
    ("code", "metadata"),
    [
        (1, "q"),
        (2, [[1 << 40], "uint8", "cpu"]),
        (2, [[MAX_BYTES], "uint8", "cpu"]),
        (2, [[1 << 20, 1 << 20], "int8", "cuda:0"]),
        (3, [[1 << 40], "|u1"]),
        (3, [[1 << 20, 1 << 20], "|i1"]),
    ],
)
def test_a_size_is_believed_only_when_the_bytes_are_there(code: int, metadata: object) -> None:
    payload = memoryview(join(metadata, memoryview(bytes(7))))
    hooks = ExtHooks()
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            hooks.ext_hook(code, payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_a_pointer_costs_nothing_however_much_it_points_at() -> None:
    frame = WIRE.encode(ShmPointer("psm_1", (1 << 40,), "uint8"))
    tracemalloc.start()
    try:
        pointer = WIRE.decode(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pointer.nbytes == 1 << 40
    assert peak < 64 * 1024


def test_nested_frames_end_in_an_error() -> None:
    for depth in (1, 10, 2000):
        state = b"\x82\xabproxy_state\x81\xa1a" + b"\x91" * depth
        with pytest.raises(DecodeError):
            ExtHooks().ext_hook(5, memoryview(state))


# --- arrays and tensors alike ---------------------------------------------------------------------


def test_either_is_flattened_and_restored() -> None:
    for value in (np.arange(6, dtype=">i2").reshape(2, 3), torch.arange(6, dtype=torch.int16).reshape(2, 3)):
        flat = flatten(value)
        assert (flat.shape, flat.dtype) == ((2, 3), "int16")
        assert restore_tensor(bytearray(flat.raw), flat.shape, flat.dtype).tolist() == value.tolist()
    for other in ([1], np.float32(1), torch.float32):
        with pytest.raises(TypeError, match="does not travel"):
            flatten(other)


def test_either_is_stacked_but_not_both() -> None:
    assert isinstance(stack([np.ones(1), np.ones(1)]), np.ndarray)
    assert isinstance(stack([torch.ones(1), torch.ones(1)]), torch.Tensor)
    for values in ([], [1.0], [np.ones(1), torch.ones(1)]):
        with pytest.raises(TypeError, match="neither arrays nor tensors"):
            stack(values)
