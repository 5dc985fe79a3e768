"""`ExtHooks`: what a msgspec encoder and decoder call for the types that MessagePack lacks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, TypeVar, get_origin

import msgspec
from msgspec import Struct
from msgspec.msgpack import Ext

from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.ext import either, ndarrays, tensors
from vidette_protocol.ext.arrays import pack_array, unpack_array
from vidette_protocol.ext.descriptors import Acknowledgement, CudaIpcHandle, ShmPointer
from vidette_protocol.ext.layout import ExtCode, Shape, decode_part
from vidette_protocol.ext.markers import SIZE, TORCH_DTYPE, TUPLE, ModelData, mark_values, unmark_values
from vidette_protocol.ext.outside import Outside

T = TypeVar("T", str, tuple[int, ...])


class _ShmState(Struct, kw_only=True):
    """The payload of extension 4; shape and dtype are marked, or, from others, plain."""

    shm_name: str
    shape: Shape | dict[str, Shape]
    dtype: str | dict[str, str]
    precomputed_hash: int | None = None


class _CudaState(Struct, kw_only=True):
    """The payload of extension 5."""

    proxy_state: dict[str, object]
    sync_data_meta: dict[str, object]


_SHM_STATE: Final = msgspec.msgpack.Decoder(_ShmState)


class ExtHooks:
    """The hooks of one codec, built once: `enc_hook`, `ext_hook` and `dec_hook`, and what they allow.

    Args:
        devices: where a sender may put a tensor, beside the CPU, as `str(device)` gives it. A tensor that
            states another device lands on the CPU; a device that is only named, as a value, is refused.
        copy: whether what is decoded owns its memory. Else arrays and tensors are views of the frame where
            that is possible (see `unpack_ndarray` and `unpack_tensor`) and keep all of it alive.
        outside: what lies beside the message; arrays and tensors over it are views in any case. None: nothing
            does, and large ones are written into the message.
    """

    __slots__ = ("_cuda_decoder", "_encoder", "copy", "devices", "outside")

    def __init__(
        self, *, devices: Iterable[str] = ("cpu",), copy: bool = True, outside: Outside | None = None
    ) -> None:
        self.devices: Final = frozenset(devices)
        self.copy: Final = copy
        self.outside: Final = outside
        # A pointer's state may carry a tensor, never another pointer: so nothing nests.
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_leaf)
        self._cuda_decoder = msgspec.msgpack.Decoder(_CudaState, ext_hook=self._decode_leaf)

    def enc_hook(self, value: object) -> object:
        """Return what is encoded in place of a value.

        Raises:
            TypeError: nothing of its type travels.
            ValueError: it would be refused by whoever receives it.
            LocalProtocolError: it is a pointer that was acknowledged.
        """
        match value:
            case ModelData():
                return mark_values(value, self.devices)
            case ShmPointer():
                _check_open(value.acknowledgement)
                return Ext(ExtCode.SHM_POINTER, self._encoder.encode(_shm_state(value)))
            case CudaIpcHandle():
                _check_open(value.acknowledgement)
                value.check()
                state = {
                    "proxy_state": mark_values(value.proxy_state, self.devices),
                    "sync_data_meta": mark_values(value.sync_data_meta, self.devices),
                }
                return Ext(ExtCode.CUDA_IPC, self._encoder.encode(state))
            case array():
                return self._encode_leaf(value)
        return either.encode(value, self.outside)

    def _encode_leaf(self, value: object) -> object:
        if isinstance(value, array):
            return Ext(ExtCode.ARRAY, pack_array(value))
        return either.encode(value)

    def ext_hook(self, code: int, data: memoryview) -> object:
        """Return the value of an extension.

        Raises:
            DecodeError: the payload is malformed or not allowed, or what it needs is not installed here.
        """
        try:
            match code:
                case ExtCode.SHM_POINTER:
                    return _read_shm_pointer(data)
                case ExtCode.CUDA_IPC:
                    return self._read_cuda_handle(data)
                case ExtCode.OUTSIDE_TENSOR if self.outside is not None:
                    return tensors.unpack_outside_tensor(data, self.outside, devices=self.devices)
                case ExtCode.OUTSIDE_NDARRAY if self.outside is not None:
                    return ndarrays.unpack_outside_ndarray(data, self.outside)
            return self._decode_leaf(code, data)
        except ImportError as error:
            raise DecodeError(f"extension {code} needs what is not installed here: {error}") from error

    def _decode_leaf(self, code: int, data: memoryview) -> object:
        match code:
            case ExtCode.ARRAY:
                return unpack_array(data)
            case ExtCode.TENSOR:
                return tensors.unpack_tensor(data, copy=self.copy, devices=self.devices)
            case ExtCode.NDARRAY:
                return ndarrays.unpack_ndarray(data, copy=self.copy)
            case ExtCode.SHM_POINTER | ExtCode.CUDA_IPC:
                raise DecodeError("a pointer inside the state of a pointer")
            case ExtCode.OUTSIDE_TENSOR | ExtCode.OUTSIDE_NDARRAY:
                raise DecodeError("something beside the message, where nothing may be")
        return Ext(code, bytes(data) if self.copy else data)

    def _read_cuda_handle(self, data: memoryview) -> CudaIpcHandle:
        state = decode_part(self._cuda_decoder, data, "state of a CUDA handle")
        handle = CudaIpcHandle(
            unmark_values(state.proxy_state, self.devices), unmark_values(state.sync_data_meta, self.devices)
        )
        try:
            handle.check()
        except ValueError as error:
            raise DecodeError(f"invalid state of a CUDA handle: {error}") from error
        return handle

    def dec_hook(self, kind: type, value: object) -> object:
        """Return the value of a field whose type msgspec does not know.

        Args:
            kind: the type of the field; `object` takes anything.
            value: what was decoded, extensions already resolved.

        Raises:
            DecodeError: it is ModelData, and malformed.
            TypeError: it is of another type; msgspec adds where.
        """
        if kind is ModelData:
            try:
                return ModelData(unmark_values(value, self.devices))
            except ImportError as error:
                raise DecodeError(f"a marker needs what is not installed here: {error}") from error
        plain = get_origin(kind) or kind  # of NDArray[float32], only that it is an array is checked
        if not isinstance(value, plain):
            raise TypeError(f"Expected `{plain.__qualname__}`, got `{type(value).__qualname__}`")
        return value


def _check_open(acknowledgement: Acknowledgement) -> None:
    if acknowledgement.taken:
        raise LocalProtocolError("a pointer that was acknowledged points at nothing any more")


def _shm_state(pointer: ShmPointer) -> dict[str, object]:
    return {
        "shm_name": pointer.shm_name,
        "shape": {TUPLE: pointer.shape},
        "dtype": {TORCH_DTYPE: pointer.dtype},
        "precomputed_hash": pointer.precomputed_hash,
    }


def _read_shm_pointer(data: memoryview) -> ShmPointer:
    """Return a pointer; its markers are read by name, since naming a dtype takes no torch."""
    state = decode_part(_SHM_STATE, data, "state of a pointer")
    shape = _inner(state.shape, TUPLE, SIZE)
    dtype = _inner(state.dtype, TORCH_DTYPE)
    try:
        return ShmPointer(state.shm_name, shape, dtype, state.precomputed_hash)
    except ValueError as error:
        raise DecodeError(f"invalid state of a pointer: {error}") from error


def _inner(value: T | dict[str, T], *markers: str) -> T:
    """Return what is marked, or what is not."""
    if not isinstance(value, dict):
        return value
    for marker in markers:
        if value.keys() == {marker}:
            return value[marker]
    raise DecodeError(f"invalid state of a pointer: none of {markers} marks {value!r}")
