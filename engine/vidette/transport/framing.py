"""Frames and bytes, without any I/O: a frame is a little-endian u32 length, then that many bytes."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from vidette_protocol.errors import RemoteProtocolError

HEADER: Final = struct.Struct("<I")
RECEIVE_BYTES: Final = 256 * 1024
"""Size of the buffer that small frames share."""
GROW_BYTES: Final = 64 * 1024
"""What is allocated at first for a larger frame, whatever length it announces."""
BUFFERS_PER_SEND: Final = 256
"""Frames put into one sendmsg (IOV_MAX is 1024; each takes two buffers)."""


class LinkClosed(Exception):  # noqa: N818  a state, not a fault: every link ends this way
    """The other side is gone: end of file, or its socket is broken."""


class FrameReader:
    """Collects bytes until frames are complete.

    The owner asks for `buffer()`, receives into it, reports with `advance()` and takes frames with `pop()`.
    Small frames share one buffer and are copied out of it; a frame that does not fit gets memory of its
    own, which grows as its bytes arrive, so that a length alone allocates next to nothing.

    Args:
        max_frame: longest frame that is accepted.
    """

    __slots__ = (
        "_end",
        "_fault",
        "_frames",
        "_large",
        "_large_end",
        "_large_length",
        "_max_frame",
        "_shared",
    )

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._shared = bytearray(RECEIVE_BYTES)
        self._end = 0
        self._large: bytearray | None = None
        self._large_end = 0
        self._large_length = 0
        self._frames: deque[bytes | bytearray] = deque()
        self._fault: str | None = None

    def buffer(self) -> memoryview:
        """Return the memory to receive into next; never empty. Release it before `advance()`."""
        if self._large is None:
            return memoryview(self._shared)[self._end :]
        if self._large_end == len(self._large):
            room = min(max(len(self._large), GROW_BYTES), self._large_length - len(self._large))
            self._large.extend(bytes(room))
        return memoryview(self._large)[self._large_end :]

    def advance(self, count: int) -> None:
        """Report that `count` bytes were put into the buffer."""
        if self._large is None:
            self._end += count
            self._split()
        else:
            self._large_end += count
            if self._large_end == self._large_length:
                self._frames.append(self._large)
                self._large = None

    def pop(self) -> bytes | bytearray | None:
        """Return the next complete frame, or None.

        Raises:
            RemoteProtocolError: the other side announces a frame longer than is accepted; from then on.
        """
        if self._frames:
            return self._frames.popleft()
        if self._fault is not None:
            raise RemoteProtocolError(self._fault)
        return None

    @property
    def partial(self) -> bool:
        """Whether part of a frame has come and the rest has not."""
        return self._end > 0 or self._large is not None

    def _split(self) -> None:
        start = 0
        while self._end - start >= HEADER.size:
            (length,) = HEADER.unpack_from(self._shared, start)
            if length > self._max_frame:
                # Told when the frames before it are taken, however the bytes came in pieces.
                self._fault = f"a frame of {length} bytes is announced; {self._max_frame} is the limit"
                return
            body = start + HEADER.size
            if HEADER.size + length > RECEIVE_BYTES:
                self._large = self._shared[body : self._end]
                self._large_end = self._end - body
                self._large_length = length
                self._end = 0
                return
            if self._end - body < length:
                break
            self._frames.append(bytes(memoryview(self._shared)[body : body + length]))
            start = body + length
        if start:
            rest = self._end - start
            self._shared[:rest] = self._shared[start : self._end]
            self._end = rest


class Outbox:
    """Frames waiting to be written to a socket, and the one way to write them."""

    __slots__ = ("_buffers", "nbytes")

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()
        self.nbytes = 0
        """Bytes that wait, headers included."""

    def put(self, frame: bytes | bytearray | memoryview) -> None:
        """Append a frame."""
        body = memoryview(frame)
        self._buffers.append(memoryview(HEADER.pack(body.nbytes)))
        if body.nbytes:
            self._buffers.append(body.cast("B"))
        self.nbytes += HEADER.size + body.nbytes

    def flush(self, sock: socket.socket) -> bool:
        """Write as much as a non-blocking socket takes.

        Returns:
            Whether nothing is left; False says that the socket is full.

        Raises:
            OSError: the other side is gone.
        """
        while self._buffers:
            try:
                sent = sock.sendmsg(self._first(), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self._drop(sent)
        return True

    def _first(self) -> list[memoryview]:
        return [buffer for buffer, _ in zip(self._buffers, range(2 * BUFFERS_PER_SEND), strict=False)]

    def _drop(self, sent: int) -> None:
        self.nbytes -= sent
        while sent:
            head = self._buffers[0]
            if sent < head.nbytes:
                self._buffers[0] = head[sent:]
                return
            sent -= head.nbytes
            self._buffers.popleft()


def split(data: bytes, *, max_frame: int) -> Iterator[bytes | bytearray]:
    """Yield the frames of a complete byte string; for tests and captured links."""
    reader = FrameReader(max_frame)
    rest = memoryview(data)
    while rest:
        with reader.buffer() as buffer:
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
        reader.advance(count)
        rest = rest[count:]
        while (frame := reader.pop()) is not None:
            yield frame
