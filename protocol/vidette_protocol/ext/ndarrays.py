"""Extension 3: numpy.ndarray, and NumPy scalars; NumPy is imported here, when something of it travels."""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.msgpack import Ext

from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.ext.dtypes import NUMPY_DTYPES, TORCH_DTYPES, UNKNOWN_TO_NUMPY
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
    import numpy as np

_METADATA: Final = msgspec.msgpack.Decoder(tuple[Shape, str])
_OUTSIDE: Final = msgspec.msgpack.Decoder(tuple[Shape, str, Number])


def encode_numpy(value: object, outside: Outside | None = None) -> object:
    """Return what is encoded in place of something of NumPy's.

    Args:
        value: the value.
        outside: where a large buffer goes; None: into the message.

    Raises:
        TypeError: it does not travel.
    """
    import numpy as np

    match value:
        case np.ndarray():
            plain = _plain_ndarray(value)
            raw = bytes_of(plain)
            number = None if outside is None else outside.put(raw)
            if number is None:
                return Ext(ExtCode.NDARRAY, join([plain.shape, plain.dtype.str], raw))
            state = [plain.shape, plain.dtype.str, number]
            return Ext(ExtCode.OUTSIDE_NDARRAY, msgspec.msgpack.encode(state))
        case np.generic():
            return plain_scalar(value)
    raise TypeError(f"{value!r} does not travel, except inside ModelData if it is a dtype")


def pack_ndarray(value: object) -> bytes:
    """Return the payload of an array, whatever its strides and byte order.

    Raises:
        TypeError: it is of a subclass that means more than its elements do, or of a dtype that does not
            travel.
    """
    plain = _plain_ndarray(value)
    return join([plain.shape, plain.dtype.str], bytes_of(plain))


def flatten_ndarray(value: object) -> Flat:
    """Return what an array is made of, in the byte order of this machine, its dtype under torch's name.

    Raises:
        TypeError: as `pack_ndarray`.
    """
    plain = _plain_ndarray(value)
    native = plain.dtype.newbyteorder("=")
    return Flat(plain.shape, native.name, bytes_of(plain.astype(native, copy=False)))


def _plain_ndarray(value: object) -> np.ndarray:
    import numpy as np

    if not isinstance(value, np.ndarray) or type(value) not in (np.ndarray, np.memmap):
        raise TypeError(f"a {type(value).__name__} does not travel; send `numpy.asarray()` of it")
    if value.dtype.str not in NUMPY_DTYPES:
        raise TypeError(f"an array of dtype {value.dtype} does not travel")
    return value


def bytes_of(value: np.ndarray) -> memoryview:
    """Return the bytes of an array, which are copied only if they do not lie in C order."""
    try:
        return value.data.cast("B")
    except (TypeError, ValueError):  # another order, or no elements, or such as memoryview does not know
        import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def unpack_ndarray(payload: memoryview, *, copy: bool) -> np.ndarray:
    """Return an array.

    Args:
        payload: as `pack_ndarray` returns it.
        copy: whether it owns its memory; else it is a view of the payload, as writable as that is, and
            not always aligned.

    Raises:
        DecodeError: the payload is no array.
        ImportError: NumPy is not installed here.
    """
    metadata, raw = split(payload)
    shape, name = decode_part(_METADATA, metadata, "metadata")
    value = _view(raw, shape, name)
    return value.copy() if copy else value


def unpack_outside_ndarray(payload: memoryview, outside: Outside) -> np.ndarray:
    """Return an array over a buffer that lies beside the message, as writable as that is.

    Raises:
        DecodeError: the payload describes no array, or not this buffer.
        ImportError: NumPy is not installed here.
    """
    shape, name, number = decode_part(_OUTSIDE, payload, "description of an array")
    return _view(outside.get(number), shape, name)


def _view(raw: memoryview, shape: Sequence[int], name: str) -> np.ndarray:
    import numpy as np

    if name not in NUMPY_DTYPES:
        raise DecodeError(f"an array of dtype {name!r} is not allowed")
    check_nbytes(shape, NUMPY_DTYPES[name], raw)
    if name == "|b1":
        check_bools(raw)
    return np.ndarray(shape, name, buffer=raw)


def new_ndarray(shape: Sequence[int], name: str, raw: memoryview | None) -> np.ndarray:
    """Return an array that is to be filled, in the byte order of this machine.

    Raises:
        LocalProtocolError: NumPy has no such elements.
    """
    import numpy as np

    if name not in TORCH_DTYPES or name in UNKNOWN_TO_NUMPY:
        raise LocalProtocolError(f"NumPy has no dtype {name!r} that travels")
    return np.ndarray(shape, name, buffer=raw)


def stack_ndarrays(values: Sequence[object]) -> np.ndarray:
    """Join arrays of one shape along a new first axis.

    Raises:
        TypeError: as `pack_ndarray`.
        ValueError: their shapes differ.
    """
    import numpy as np

    return np.stack([_plain_ndarray(value) for value in values])


def plain_scalar(value: np.generic) -> bool | int | float | str | bytes:
    """Return what Python has for a NumPy scalar.

    Raises:
        TypeError: Python has nothing that travels.
    """
    import numpy as np

    match value:
        case np.bool_():
            return bool(value)
        case np.integer():
            return int(value)
        case np.floating():
            return float(value)
        case np.str_():
            return str(value)
        case np.bytes_():
            return bytes(value)
    raise TypeError(f"a scalar of dtype {value.dtype} does not travel")


def name_dtype(value: object) -> str:
    """Return what is written for a dtype.

    Raises:
        TypeError: it does not travel.
    """
    import numpy as np

    if not isinstance(value, np.dtype) or value.str not in NUMPY_DTYPES:
        raise TypeError(f"dtype {value!r} does not travel")
    return value.str


def find_dtype(name: str) -> np.dtype:
    """Return the dtype of a name.

    Raises:
        DecodeError: it is not allowed.
        ImportError: NumPy is not installed here.
    """
    import numpy as np

    if name not in NUMPY_DTYPES:
        raise DecodeError(f"a NumPy dtype {name!r} is not allowed")
    return np.dtype(name)
