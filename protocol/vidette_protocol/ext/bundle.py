"""A frame of several parts: a message, and the buffers beside it.

    u8      0xc1, which no MessagePack begins with
    u8      0
    u16     number of buffers
    u32     length of the message
    (u64 length, u64 place) of each buffer; place 2**64 - 1: it lies in this frame
    the message
    the buffers that lie in this frame, each at a multiple of 16

All numbers are little-endian. A place is an offset in memory that both sides share. What fills the gap up to
a multiple of 16 means nothing; nothing is behind the last part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext.outside import MAX_PARTS

MARK: Final = 0xC1
"""The first byte of such a frame."""
ALIGNMENT: Final = 16
"""Of a buffer within its frame: what the widest element type needs."""

_HEAD: Final = struct.Struct("<BBHI")
_ENTRY: Final = struct.Struct("<QQ")
_HERE: Final = (1 << 64) - 1
_ZEROS: Final = bytes(ALIGNMENT)


class Part(NamedTuple):
    """A buffer beside a message.

    Args:
        nbytes: its length.
        place: where it begins in shared memory.
        raw: its bytes, if they are in the frame; just one of `place` and `raw` is given.
    """

    nbytes: int
    place: int | None = None
    raw: memoryview | None = None


def is_bundle(frame: bytes | bytearray | memoryview) -> bool:
    """Return whether a frame has several parts."""
    return len(frame) > 0 and frame[0] == MARK


def join_bundle(message: bytes, parts: Sequence[Part]) -> list[bytes | memoryview]:
    """Return the pieces of a frame in their order; no buffer is copied.

    Args:
        message: encoded.
        parts: at most `MAX_PARTS`.
    """
    head = bytearray(_HEAD.pack(MARK, 0, len(parts), len(message)))
    for part in parts:
        head += _ENTRY.pack(part.nbytes, _HERE if part.place is None else part.place)
    head += message
    pieces: list[bytes | memoryview] = [memoryview(head)]
    at = len(head)
    for part in parts:
        if part.raw is not None:
            gap = -at % ALIGNMENT
            if gap:
                pieces.append(_ZEROS[:gap])
            pieces.append(part.raw)
            at += gap + part.nbytes
    return pieces


def length_of(pieces: Iterable[bytes | memoryview]) -> int:
    """Return how long a frame of these pieces is."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def split_bundle(frame: bytes | bytearray | memoryview) -> tuple[memoryview, list[Part]]:
    """Return the message of a frame and the buffers beside it, as views of the frame.

    Raises:
        DecodeError: the lengths in it do not fit together, or it is no such frame.
    """
    view = memoryview(frame)
    if view.nbytes < _HEAD.size:
        raise DecodeError(f"a frame of several parts has {view.nbytes} bytes")
    mark, zero, count, length = _HEAD.unpack_from(view)
    start = _HEAD.size + count * _ENTRY.size
    end = start + length
    if (mark, zero) != (MARK, 0) or count > MAX_PARTS or end > view.nbytes:
        raise DecodeError(f"{count} parts beside {length} bytes of message, in a frame of {view.nbytes}")
    parts = []
    at = end
    for number in range(count):
        nbytes, place = _ENTRY.unpack_from(view, _HEAD.size + number * _ENTRY.size)
        if place != _HERE:
            parts.append(Part(nbytes, place=place))
            continue
        begin = at + -at % ALIGNMENT
        at = begin + nbytes
        if at > view.nbytes:
            raise DecodeError(f"part {number} ends at byte {at} of a frame of {view.nbytes}")
        parts.append(Part(nbytes, raw=view[begin:at]))
    if at != view.nbytes:
        raise DecodeError(f"{view.nbytes - at} bytes behind the last part of a frame")
    return view[start:end], parts
