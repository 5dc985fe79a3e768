"""Frames and bytes, without any I/O: a frame is a little-endian u32 length, then that many bytes."""

from __future__ import annotations

import array
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import islice
from typing import Final

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ext.bundle import MARK

HEADER: Final = struct.Struct("<I")
_HEADER_BYTES: Final = HEADER.size
_unpack_header: Final = HEADER.unpack_from
RECEIVE_BYTES: Final = 256 * 1024
"""Size of the buffer that small frames share."""
GROW_BYTES: Final = 64 * 1024
"""What is allocated at first for a larger frame, whatever length it announces."""
BUFFERS_PER_SEND: Final = 512
"""Buffers put into one sendmsg (IOV_MAX is 1024)."""
HIGH_WATER_BYTES: Final = 4 * 1024 * 1024
"""With so much waiting to be sent, whoever makes it makes no more until the reader has caught up."""
JOINED_BYTES: Final = 4096
"""A shorter frame is copied behind its header: one buffer costs less than two, by more than the copy."""


_ZEROS: Final = memoryview(bytes(64 * 1024))


class LinkClosed(Exception):  # noqa: N818  a state, not a fault: every link ends this way
    """The other side is gone: end of file, or its socket is broken."""


class FrameReader:
    """Collects bytes until frames are complete.

    The owner asks for `buffer()`, receives into it, reports with `advance()` and takes frames with `pop()`.
    Small frames share one buffer and are copied out of it; a frame that does not fit gets memory of its
    own, which grows as its bytes arrive, so that a length alone allocates next to nothing. A frame of several
    parts is writable, since arrays and tensors will be views of it.

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
        self._shared = memoryview(bytearray(RECEIVE_BYTES))
        self._end = 0
        self._large: bytearray | None = None
        self._large_end = 0
        self._large_length = 0
        self._frames: deque[bytes | bytearray] = deque()
        self._fault: str | None = None

    def buffer(self) -> memoryview:
        """Return the memory to receive into next; never empty. Release it before `advance()`."""
        if self._large is None:
            return self._shared[self._end :]
        if self._large_end == len(self._large):
            room = min(max(len(self._large), GROW_BYTES), self._large_length - len(self._large))
            while room:
                # From memory that is there: fresh zeros would cost a fault a page, as much as all the rest.
                self._large += _ZEROS[:room]
                room -= min(room, _ZEROS.nbytes)
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
        shared, end, start = self._shared, self._end, 0
        while end - start >= _HEADER_BYTES:
            (length,) = _unpack_header(shared, start)
            if length > self._max_frame:
                # Told when the frames before it are taken, however the bytes came in pieces.
                self._fault = f"a frame of {length} bytes is announced; {self._max_frame} is the limit"
                return
            body = start + _HEADER_BYTES
            if _HEADER_BYTES + length > RECEIVE_BYTES:
                self._large = bytearray(shared[body:end])
                self._large_end = end - body
                self._large_length = length
                self._end = 0
                return
            after = body + length
            if after > end:
                break
            marked = length and shared[body] == MARK
            self._frames.append(bytearray(shared[body:after]) if marked else shared[body:after].tobytes())
            start = after
        if start:
            rest = end - start
            shared[:rest] = shared[start:end]  # they may overlap
            self._end = rest


class Outbox:
    """Frames waiting to be written to a socket, and the one way to write them."""

    __slots__ = ("_buffers", "_descriptors", "_gone", "nbytes")

    def __init__(self) -> None:
        self._buffers: deque[bytes | memoryview] = deque()
        self._gone = 0  # buffers that have left
        self._descriptors: deque[tuple[int, FileIO]] = deque()  # with the number of the frame's first buffer
        self.nbytes = 0
        """Bytes that wait, headers included."""

    def put(self, frame: bytes | bytearray | memoryview) -> None:
        """Append a frame."""
        if isinstance(frame, bytes) and len(frame) < JOINED_BYTES:
            self._buffers.append(HEADER.pack(len(frame)) + frame)
            self.nbytes += HEADER.size + len(frame)
            return
        body = memoryview(frame).cast("B")
        self._buffers += (HEADER.pack(len(body)), body) if body else (HEADER.pack(0),)
        self.nbytes += HEADER.size + len(body)

    def put_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append a frame that is in pieces; none of them may change until it is sent."""
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        length = sum(view.nbytes for view in views)
        self._buffers += (HEADER.pack(length), *views)
        self.nbytes += HEADER.size + length

    def put_with_descriptor(self, frame: bytes, descriptor: FileIO) -> None:
        """Append a frame and a descriptor that goes along with it.

        Args:
            frame: whatever it is.
            descriptor: closed here, once it is sent or in `close()`.
        """
        self._descriptors.append((self._gone + len(self._buffers), descriptor))
        self.put(frame)

    def flush(self, sock: socket.socket) -> bool:
        """Write as much as a non-blocking socket takes.

        Returns:
            Whether nothing is left; False says that the socket is full.

        Raises:
            OSError: the other side is gone.
        """
        while self._buffers:
            try:
                if self._descriptors:
                    sent = self._send_descriptor(sock)
                elif len(self._buffers) == 1:
                    sent = sock.send(self._buffers[0], socket.MSG_NOSIGNAL)
                else:
                    sent = sock.sendmsg(self._first(BUFFERS_PER_SEND), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            if sent < self.nbytes:
                self._drop(sent)
            else:
                self._gone += len(self._buffers)
                self._buffers.clear()
                self.nbytes = 0
        return True

    def close(self) -> None:
        """Close the descriptors that were not sent; idempotent."""
        while self._descriptors:
            self._descriptors.popleft()[1].close()

    def _send_descriptor(self, sock: socket.socket) -> int:
        """Send up to the frame that a descriptor goes with, or from it on, with the descriptor."""
        number, descriptor = self._descriptors[0]
        before = number - self._gone
        if before > 0:
            return sock.sendmsg(self._first(min(before, BUFFERS_PER_SEND)), (), socket.MSG_NOSIGNAL)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor.fileno()]))
        sent = sock.sendmsg(self._first(2), [rights], socket.MSG_NOSIGNAL)
        # It went with the first byte; what is left of the frame goes alone.
        self._descriptors.popleft()
        descriptor.close()
        return sent

    def _first(self, most: int) -> Iterable[bytes | memoryview]:
        return self._buffers if len(self._buffers) <= most else islice(self._buffers, most)

    def _drop(self, sent: int) -> None:
        self.nbytes -= sent
        while sent:
            head = memoryview(self._buffers[0])
            if sent < len(head):
                self._buffers[0] = head[sent:]
                return
            sent -= len(head)
            self._buffers.popleft()
            self._gone += 1


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
