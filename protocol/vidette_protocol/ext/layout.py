"""The layout of a buffer inside an extension, and every check of a size.

    [u32, big-endian: bytes of metadata][metadata, MessagePack][raw bytes]

It is flat on purpose: raw bytes in an extension of their own, nested in another, are copied once more at
each level, on both sides.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from vidette_protocol.errors import DecodeError

T = TypeVar("T")


class ExtCode:
    """The ids of our extension types; one that was given out never means anything else."""

    ARRAY: Final = 1
    TENSOR: Final = 2
    NDARRAY: Final = 3
    SHM_POINTER: Final = 4
    CUDA_IPC: Final = 5
    OUTSIDE_TENSOR: Final = 6
    OUTSIDE_NDARRAY: Final = 7


MAX_METADATA_BYTES: Final = 1024
"""Longest metadata: room for `MAX_DIMS` dimensions of nine bytes each, a dtype and a device."""

MAX_DIMS: Final = 64
"""As many dimensions as NumPy allows."""

MAX_BYTES: Final = 1 << 47
"""The address space of a process. No shape may describe more, not even one with a zero in it."""

Dim = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Shape = Annotated[tuple[Dim, ...], Meta(max_length=MAX_DIMS)]

_LENGTH: Final = struct.Struct(">I")


class Flat(NamedTuple):
    """What an array or tensor is made of.

    Args:
        shape: its dimensions.
        dtype: name of its element type.
        raw: the bytes of its elements, in C order.
    """

    shape: tuple[int, ...]
    dtype: str
    raw: memoryview


def join(metadata: object, raw: memoryview) -> bytes:
    """Lay out a buffer.

    Args:
        metadata: what MessagePack can say.
        raw: contiguous memory, of any format; copied here, once.
    """
    head = msgspec.msgpack.encode(metadata)
    return b"".join((_LENGTH.pack(len(head)), head, raw))


def split(payload: memoryview) -> tuple[memoryview, memoryview]:
    """Return the metadata and the raw bytes of a buffer, as views.

    Raises:
        DecodeError: it is shorter than it says, or its metadata is longer than any of ours.
    """
    if payload.nbytes < _LENGTH.size:
        raise DecodeError(f"missing metadata: a buffer of {payload.nbytes} bytes has no room for its length")
    (nbytes,) = _LENGTH.unpack(payload[: _LENGTH.size])
    end = _LENGTH.size + nbytes
    if end > payload.nbytes:
        raise DecodeError(f"invalid metadata: {nbytes} bytes of it in a buffer of {payload.nbytes}")
    if nbytes > MAX_METADATA_BYTES:
        raise DecodeError(f"invalid metadata: {nbytes} bytes of it, {MAX_METADATA_BYTES} are allowed")
    return payload[_LENGTH.size : end], payload[end:]


def decode_part(decoder: msgspec.msgpack.Decoder[T], part: memoryview, what: str) -> T:
    """Decode MessagePack inside an extension.

    Args:
        decoder: for the type that is expected.
        part: the bytes.
        what: what they are, for the message.

    Raises:
        DecodeError: they are no such thing.
    """
    try:
        return decoder.decode(part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"invalid {what}: {error}") from error


def nbytes_of(shape: Sequence[int], itemsize: int) -> int:
    """Return how many bytes the elements of a shape take.

    Args:
        shape: dimensions, none negative.
        itemsize: bytes of an element.

    Raises:
        ValueError: more than there can be. Zeros do not count for this, since strides are computed
            without them.
    """
    span = math.prod(dim or 1 for dim in shape) * itemsize
    if span > MAX_BYTES:
        raise ValueError(f"a shape of {list(shape)} with {itemsize} bytes each is larger than any memory")
    return 0 if 0 in shape else span


def check_nbytes(shape: Sequence[int], itemsize: int, raw: memoryview) -> None:
    """See that raw bytes are as many as their shape needs.

    Raises:
        DecodeError: they are not.
    """
    try:
        needed = nbytes_of(shape, itemsize)
    except ValueError as error:
        raise DecodeError(f"invalid metadata: {error}") from error
    if needed != raw.nbytes:
        raise DecodeError(f"{raw.nbytes} bytes for a shape of {list(shape)}, which takes {needed}")


def check_bools(raw: memoryview) -> None:
    """See that the bytes of booleans are zeros and ones.

    Any other value is a boolean that no comparison could have made: code that counts the true ones by
    adding them up, as NumPy's does to size the result of a mask, then counts wrongly.

    Raises:
        DecodeError: one is something else.
    """
    if raw.tobytes().translate(None, b"\0\1"):
        raise DecodeError("a boolean is neither 0 nor 1")
