"""Extension 1: array.array, with the sizes of this machine."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.dtypes import ARRAY_TYPECODES
from vidette_protocol.ext.layout import decode_part, join, split

_METADATA: Final = msgspec.msgpack.Decoder(str)


def pack_array(value: array[int] | array[float]) -> bytes:
    """Return the payload of an array.

    Raises:
        TypeError: its elements are characters.
    """
    if value.typecode not in ARRAY_TYPECODES:
        raise TypeError(f"an array of typecode {value.typecode!r} does not travel; send its text")
    return join(value.typecode, memoryview(value))


def unpack_array(payload: memoryview) -> array[int] | array[float]:
    """Return an array of its own memory.

    Raises:
        DecodeError: the payload is no array.
    """
    metadata, raw = split(payload)
    typecode = decode_part(_METADATA, metadata, "metadata")
    if typecode not in ARRAY_TYPECODES:
        raise DecodeError(f"an array of typecode {typecode!r} is not allowed")
    value: array[int] | array[float] = array(typecode)
    if raw.nbytes % value.itemsize:
        raise DecodeError(f"{raw.nbytes} bytes are no array of {value.itemsize} bytes an element")
    value.frombytes(raw)
    return value
