"""Extensions 6 and 7: tensors and arrays whose bytes lie outside the message.

Small ones are written into the message (extensions 2 and 3). Of a large one only the description is, with
the number of its buffer; the buffers travel beside the message, in the same frame or in shared memory (see
`bundle`), so that none of their bytes is copied on the way into a frame or out of it.

The payload is MessagePack: [shape, dtype, device, number] of a tensor, [shape, dtype.str, number] of an
array. Shape and element type have to give the length of the buffer, wherever that lies.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from vidette_protocol.errors import DecodeError

OUTSIDE_BYTES: Final = 16 * 1024
"""Buffers from this length on lie outside the message."""

MAX_PARTS: Final = 1024
"""Most buffers beside one message; further ones are written into it."""

Number = Annotated[int, Meta(ge=0, lt=MAX_PARTS)]


class Outside:
    """The buffers beside the one message that is being encoded or decoded just now.

    Encoding and decoding are synchronous, so one of these serves a codec, and the codec one thread.
    """

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def put(self, raw: memoryview) -> int | None:
        """Put a buffer beside the message; return its number, or None if it belongs into it."""
        if raw.nbytes < OUTSIDE_BYTES or len(self.buffers) >= MAX_PARTS:
            return None
        self.buffers.append(raw)
        return len(self.buffers) - 1

    def get(self, number: int) -> memoryview:
        """Return a buffer.

        Raises:
            DecodeError: there is none of this number.
        """
        if number >= len(self.buffers):
            raise DecodeError(f"buffer {number} of {len(self.buffers)} beside the message")
        return self.buffers[number]
