"""`Channel`: frames over a socket, with one reader and one writer.

Anyone on the loop may `post()`; only `run_writer()` touches the write side. A send that is cancelled half
way tears a frame in two, so no request ever sends: it posts, and the writer, which lives as long as the
channel, sends.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from vidette.transport.framing import FrameReader, LinkClosed, Outbox
from vidette_protocol.limits import Limits

SEND_BUFFER_BYTES: Final = 1024 * 1024
"""SO_SNDBUF: measured, 1 MiB moves large frames two to four times faster than the default; 4 MiB no more."""
FRAMES_PER_CHECKPOINT: Final = 16
"""A peer that floods us must not starve the loop: after so many frames, or reads of the socket, without
waiting, others get a turn."""


class FrameChannel(Protocol):
    """Frames both ways; what a Link needs, whatever carries them."""

    def post(self, frame: bytes) -> None:
        """Queue a frame for sending; synchronous, never blocks."""

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: none will come any more.
        """

    async def run_writer(self) -> None:
        """Send what is posted until cancelled or until the other side is gone."""

    def close(self) -> None:
        """Close this end; idempotent. Nobody may be waiting in `receive()`."""


class Channel:
    """Frames over a connected stream socket.

    Args:
        sock: an AF_UNIX stream socket; the channel owns it from here on.
        max_frame: longest frame that is accepted.
    """

    def __init__(self, sock: socket.socket, *, max_frame: int = Limits().frame_bytes) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock = sock
        self._reader = FrameReader(max_frame)
        self._outbox = Outbox()
        self._posted = anyio.Event()
        self._unwaited = 0

    def post(self, frame: bytes) -> None:
        """Queue a frame for sending; synchronous, never blocks."""
        self._outbox.put(frame)
        self._posted.set()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._outbox.nbytes

    def flush_nowait(self) -> bool:
        """Send what the socket takes at once; return whether nothing is left. Not while `run_writer` runs.

        Raises:
            LinkClosed: the other side is gone.
        """
        try:
            return self._outbox.flush(self._sock)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    async def run_writer(self) -> None:
        """Send what is posted until cancelled or until the other side is gone (the reader tells)."""
        while True:
            # First of all: a writer that was cancelled may have left part of a frame.
            try:
                while not self._outbox.flush(self._sock):
                    await anyio.wait_writable(self._sock)
            except OSError:
                return
            await self._posted.wait()
            self._posted = anyio.Event()

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: none will come any more; one that has come in part is lost with its sender.
            RemoteProtocolError: the other side announced too long a frame.
        """
        await self._give_turn()
        while (frame := self._reader.pop()) is None:
            try:
                with self._reader.buffer() as buffer:
                    count = self._sock.recv_into(buffer)
            except BlockingIOError:
                self._unwaited = 0
                await anyio.wait_readable(self._sock)
                continue
            except OSError as error:
                raise LinkClosed(str(error)) from error
            if count == 0:
                # In the middle of a frame as well: that is how the death of a process looks from here.
                where = ", in the middle of a frame" if self._reader.partial else ""
                raise LinkClosed(f"the other side closed the link{where}")
            self._reader.advance(count)
            await self._give_turn()  # cancelled here, what has come stays in the reader
        return frame

    def close(self) -> None:
        """Close this end; idempotent. Nobody may be waiting in `receive()`."""
        self._sock.close()

    def detach(self) -> socket.socket:
        """Give the socket to another owner; nothing may be queued."""
        assert self._outbox.nbytes == 0
        return self._sock

    async def _give_turn(self) -> None:
        self._unwaited += 1
        if self._unwaited >= FRAMES_PER_CHECKPOINT:
            self._unwaited = 0
            await anyio.lowlevel.checkpoint()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a nameless link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
