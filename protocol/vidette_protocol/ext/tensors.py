"""Extension 2: torch.Tensor; torch is imported here, when something of it travels."""

# ruff: noqa: PLC0415

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.msgpack import Ext

from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.ext import ndarrays
from vidette_protocol.ext.dtypes import TORCH_DTYPES, UNKNOWN_TO_NUMPY
from vidette_protocol.ext.layout import (
    ExtCode,
    Flat,
    Shape,
    check_bools,
    check_nbytes,
    decode_part,
    join,
    split,
)
from vidette_protocol.ext.outside import Number, Outside

if TYPE_CHECKING:
    import torch

_METADATA: Final = msgspec.msgpack.Decoder(tuple[Shape, str, str])
_OUTSIDE: Final = msgspec.msgpack.Decoder(tuple[Shape, str, str, Number])
_DEVICE: Final = re.compile(r"[a-z]{1,16}(:[0-9]{1,3})?")


def encode_torch(value: object, outside: Outside | None = None) -> object:
    """Return what is encoded in place of something of torch's.

    Args:
        value: the value.
        outside: where a large buffer goes; None: into the message.

    Raises:
        TypeError: it does not travel.
    """
    import torch

    if isinstance(value, torch.Tensor):
        flat = flatten_tensor(value)
        number = None if outside is None else outside.put(flat.raw)
        if number is None:
            return Ext(ExtCode.TENSOR, join([flat.shape, flat.dtype, str(value.device)], flat.raw))
        state = [flat.shape, flat.dtype, str(value.device), number]
        return Ext(ExtCode.OUTSIDE_TENSOR, msgspec.msgpack.encode(state))
    raise TypeError(f"{value!r} does not travel, except inside ModelData if it is a dtype or device")


def pack_tensor(value: torch.Tensor) -> bytes:
    """Return the payload of a tensor, whatever its strides and device; its gradient stays behind.

    Raises:
        TypeError: it is of a subclass, layout or dtype that does not travel, or has no data.
    """
    flat = flatten_tensor(value)
    return join([flat.shape, flat.dtype, str(value.device)], flat.raw)


def flatten_tensor(value: object) -> Flat:
    """Return what a tensor is made of, copied to the CPU if it is elsewhere.

    Raises:
        TypeError: as `pack_tensor`.
    """
    import torch

    if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"a {type(value).__name__} does not travel; send a plain tensor")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype in TORCH_DTYPES and dtype not in UNKNOWN_TO_NUMPY:
        # Few operations of torch: each takes some 40 us once large tensors have filled the caches (measured).
        try:
            return Flat(tuple(value.shape), dtype, ndarrays.bytes_of(value.numpy()))
        except (RuntimeError, TypeError):  # elsewhere, or with a gradient, or its memory holds something else
            pass
    if value.layout is not torch.strided or value.is_nested or value.is_meta:
        raise TypeError(f"a tensor of layout {value.layout} on {value.device} does not travel; make it dense")
    name_dtype(value.dtype)
    # A lazy conjugate or negative is only a bit of the view; its memory holds the other value.
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return Flat(tuple(value.shape), dtype, as_bytes(plain).numpy().data)


def as_bytes(value: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a tensor of one dimension, a view.

    `reshape(-1).view(torch.uint8)` does the same but for tensors of one element or none, which are contiguous
    whatever their strides are.
    """
    import torch

    return value.as_strided((value.numel(),), (1,)).view(torch.uint8)


def unpack_tensor(payload: memoryview, *, copy: bool, devices: Collection[str]) -> torch.Tensor:
    """Return a tensor.

    Args:
        payload: as `pack_tensor` returns it.
        copy: whether it owns its memory; else it is a view of the payload where that is writable, since
            torch knows no read-only tensor, and aligned.
        devices: where the sender may put it; a tensor that states another device lands on the CPU.

    Raises:
        DecodeError: the payload is no tensor, or its device, though allowed, does not take it.
        ImportError: torch is not installed here.
    """
    metadata, raw = split(payload)
    shape, dtype, device = decode_part(_METADATA, metadata, "metadata")
    return _land(bytearray(raw) if copy else raw, shape, dtype, device, devices)


def unpack_outside_tensor(payload: memoryview, outside: Outside, *, devices: Collection[str]) -> torch.Tensor:
    """Return a tensor over a buffer that lies beside the message.

    Args:
        payload: its description.
        outside: where the buffer is; it is copied if it is read-only, since torch knows no such tensor.
        devices: as for `unpack_tensor`.

    Raises:
        DecodeError: the payload describes no tensor, or not this buffer, or its device does not take it.
        ImportError: torch is not installed here.
    """
    shape, dtype, device, number = decode_part(_OUTSIDE, payload, "description of a tensor")
    return _land(outside.get(number), shape, dtype, device, devices)


def _land(
    raw: bytearray | memoryview, shape: Sequence[int], dtype: str, device: str, devices: Collection[str]
) -> torch.Tensor:
    if device != "cpu" and not _DEVICE.fullmatch(device):
        raise DecodeError(f"a tensor on {device!r}, which is no device")
    if isinstance(raw, memoryview) and raw.readonly:
        raw = bytearray(raw)
    value = restore_tensor(raw, shape, dtype)
    if device == "cpu" or device not in devices:
        return value
    try:
        return value.to(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DecodeError(f"a tensor cannot be put on {device}: {error}") from error


def restore_tensor(raw: bytearray | memoryview, shape: Sequence[int], name: str) -> torch.Tensor:
    """Return a tensor over writable memory, which is copied only if it is not aligned.

    Args:
        raw: its elements in C order.
        shape: its dimensions, none negative.
        name: its dtype, without `torch.`.

    Raises:
        DecodeError: the dtype is not allowed, or the memory is not as long as the shape needs.
        ImportError: torch is not installed here.
    """
    import torch

    if name not in TORCH_DTYPES:
        raise DecodeError(f"a torch dtype {name!r} is not allowed")
    check_nbytes(shape, TORCH_DTYPES[name], memoryview(raw))
    if name == "bool":
        check_bools(memoryview(raw))
    # NumPy calls a complex number aligned that its parts could be.
    if 0 not in shape and name not in UNKNOWN_TO_NUMPY and not name.startswith("complex"):
        array = ndarrays.new_ndarray(shape, name, memoryview(raw))
        if array.flags.aligned:
            return torch.from_numpy(array)
    dtype = find_dtype(name)
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    flat = torch.frombuffer(raw, dtype=dtype)
    if flat.data_ptr() % dtype.itemsize:
        # Not `clone()`: torch reads as if it were aligned, and for some dtypes that is a fault.
        flat = torch.frombuffer(bytearray(raw), dtype=dtype)
    return flat.reshape(tuple(shape))


def new_tensor(shape: Sequence[int], name: str, raw: memoryview | None) -> torch.Tensor:
    """Return a tensor that is to be filled.

    Raises:
        LocalProtocolError: there are no such elements.
    """
    import torch

    if name not in TORCH_DTYPES:
        raise LocalProtocolError(f"dtype {name!r} does not travel")
    dtype = find_dtype(name)
    if raw is None or 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(tuple(shape))


def stack_tensors(values: Sequence[object]) -> torch.Tensor:
    """Join tensors of one shape along a new first axis.

    Raises:
        TypeError: one is no tensor.
        ValueError: their shapes, dtypes or devices differ.
    """
    import torch

    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != len(values):
        raise TypeError("not all of them are tensors")
    try:
        return torch.stack(tensors)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def name_dtype(value: object) -> str:
    """Return what is written for a dtype.

    Raises:
        TypeError: it does not travel.
    """
    name = str(value).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        raise TypeError(f"dtype {value!r} does not travel")
    return name


def find_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        DecodeError: it is not allowed.
        ImportError: torch is not installed here.
    """
    import torch

    # Spelled out, so that no name off a wire is ever looked up in a module.
    dtypes = {
        "bool": torch.bool,
        "uint8": torch.uint8,
        "uint16": torch.uint16,
        "uint32": torch.uint32,
        "uint64": torch.uint64,
        "int8": torch.int8,
        "int16": torch.int16,
        "int32": torch.int32,
        "int64": torch.int64,
        "float8_e4m3fn": torch.float8_e4m3fn,
        "float8_e4m3fnuz": torch.float8_e4m3fnuz,
        "float8_e5m2": torch.float8_e5m2,
        "float8_e5m2fnuz": torch.float8_e5m2fnuz,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
        "float64": torch.float64,
        "complex64": torch.complex64,
        "complex128": torch.complex128,
    }
    found = dtypes.get(name)
    if found is None:
        raise DecodeError(f"a torch dtype {name!r} is not allowed")
    return found


def find_device(name: str, devices: Collection[str]) -> torch.device:
    """Return the device of a name; naming one neither looks for it nor starts it.

    Args:
        name: as `str(device)` gives it.
        devices: those that may be named, beside the CPU.

    Raises:
        DecodeError: it is not among them, or torch knows no such device.
        ImportError: torch is not installed here.
    """
    import torch

    if name != "cpu" and name not in devices:
        raise DecodeError(f"device {name!r} is not allowed")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise DecodeError(f"{name!r} is no device: {error}") from error


def make_size(dims: Sequence[int]) -> torch.Size:
    """Return a torch.Size.

    Raises:
        ImportError: torch is not installed here.
    """
    import torch

    return torch.Size(dims)
