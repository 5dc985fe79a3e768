"""`Channel`: frames over a socket, with one reader and one writer.

Anyone on the loop may `post()`; only the channel touches the write side. A send that is cancelled half way
tears a frame in two, so no request ever waits for one: it posts, and what the socket does not take at once is
sent by the writer, which lives as long as the channel.
"""

from __future__ import annotations

import contextlib
import os
import socket
from array import array
from collections.abc import Sequence
from io import FileIO
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from vidette.transport.framing import HIGH_WATER_BYTES, FrameReader, LinkClosed, Outbox
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.limits import Limits

SEND_BUFFER_BYTES: Final = 1024 * 1024
"""SO_SNDBUF: measured, 1 MiB moves large frames two to four times faster than the default; 4 MiB no more."""
FRAMES_PER_CHECKPOINT: Final = 64
"""A peer that floods us must not starve the loop: after so many frames without waiting, others get a turn."""
FRAMES_PER_READ: Final = 4
"""As how many frames a read of the socket counts: it may bring 256 KiB of a large one."""


_ROOM_FOR_DESCRIPTOR: Final = socket.CMSG_SPACE(array("i").itemsize)


class FrameChannel(Protocol):
    """Frames both ways; what a Link needs, whatever carries them."""

    def post(self, frame: bytes) -> None:
        """Queue a frame for sending; synchronous, never blocks."""

    def post_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Queue a frame that is in pieces; they are not copied, and may not change until they are sent."""

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: none will come any more.
        """
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes that were posted and wait."""
        ...

    async def wait_room(self) -> None:
        """Wait until less than the high-water mark waits to be sent; a checkpoint only if it has to wait.

        Raises:
            LinkClosed: the other side is gone.
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
        high_water: bytes that wait to be sent from which on `wait_room()` waits.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_frame: int = Limits().frame_bytes,
        high_water: int = HIGH_WATER_BYTES,
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock = sock
        self._reader = FrameReader(max_frame)
        self._outbox = Outbox()
        self.high_water = high_water
        self._posted = anyio.Event()
        self._room: anyio.Event | None = None
        self._unwritable = False
        self._unwaited = 0
        self._prompt = True
        self._expects_descriptor = False
        self._descriptor: FileIO | None = None

    def post(self, frame: bytes) -> None:
        """Queue a frame for sending; synchronous, never blocks."""
        self._outbox.put(frame)
        self._send_soon()

    def post_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Queue a frame that is in pieces; they are not copied, and may not change until they are sent."""
        self._outbox.put_pieces(pieces)
        self._send_soon()

    def post_with_descriptor(self, frame: bytes, descriptor: FileIO) -> None:
        """Queue a frame and a descriptor that goes along with it; the channel closes it."""
        self._outbox.put_with_descriptor(frame, descriptor)
        self._send_soon()

    def expect_descriptor(self) -> None:
        """Take a descriptor when one comes, until `take_descriptor()`; otherwise the kernel drops it."""
        self._expects_descriptor = True

    def take_descriptor(self) -> FileIO | None:
        """Return the descriptor that has come, for the caller to close, and expect no more."""
        self._expects_descriptor = False
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def _send_soon(self) -> None:
        """Send at once what comes alone, or wake the writer for it.

        Measured, to wake the writer takes longer than to send. So what is posted first after something was
        read, or the writer has written, is sent right here, as far as the socket takes it; what is posted
        behind it leaves together. No await is in this, so no frame can be torn.
        """
        if self._prompt:
            self._prompt = False
            if self._flush_quietly():
                return
        self._posted.set()

    def _flush_quietly(self) -> bool:
        try:
            return self._outbox.flush(self._sock)
        except OSError:  # the writer will see it, and the reader tells
            return False

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._outbox.nbytes

    async def wait_room(self) -> None:
        """Wait until less than the high-water mark waits to be sent; a checkpoint only if it has to wait.

        Raises:
            LinkClosed: the other side is gone.
        """
        while self._outbox.nbytes >= self.high_water:
            if self._unwritable:
                raise LinkClosed("the other side is gone")
            if self._room is None:
                self._room = anyio.Event()
            await self._room.wait()

    def _tell_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

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
                    self._tell_room()
                    await anyio.wait_writable(self._sock)
            except OSError:
                self._unwritable = True
                self._tell_room()
                return
            self._tell_room()
            self._prompt = True
            await self._posted.wait()
            self._posted = anyio.Event()

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: none will come any more; one that has come in part is lost with its sender.
            RemoteProtocolError: the other side announced too long a frame, or sent descriptors that nobody
                expects.
        """
        self._unwaited += 1
        if self._unwaited >= FRAMES_PER_CHECKPOINT:
            await self._give_turn()
        while (frame := self._reader.pop()) is None:
            if self._outbox.nbytes:
                self._flush_quietly()  # before it waits for an answer, and sooner than the writer would
            with self._reader.buffer() as buffer:
                count = await self._read(buffer)
            if count == 0:
                # In the middle of a frame as well: that is how the death of a process looks from here.
                where = ", in the middle of a frame" if self._reader.partial else ""
                raise LinkClosed(f"the other side closed the link{where}")
            self._reader.advance(count)
            self._prompt = True
            self._unwaited += FRAMES_PER_READ
            if self._unwaited >= FRAMES_PER_CHECKPOINT:
                await self._give_turn()  # cancelled here, what has come stays in the reader
        return frame

    async def _read(self, buffer: memoryview) -> int:
        while True:
            try:
                if self._expects_descriptor:
                    return self._receive_with_descriptor(buffer)
                return self._sock.recv_into(buffer)
            except BlockingIOError:
                self._unwaited = 0
                await anyio.wait_readable(self._sock)
            except OSError as error:
                raise LinkClosed(str(error)) from error

    def close(self) -> None:
        """Close this end; idempotent. Nobody may be waiting in `receive()`."""
        self._sock.close()
        self._outbox.close()
        descriptor = self.take_descriptor()
        if descriptor is not None:
            descriptor.close()

    def _receive_with_descriptor(self, buffer: memoryview) -> int:
        count, ancillary, flags, _ = self._sock.recvmsg_into(
            [buffer], _ROOM_FOR_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC
        )
        if ancillary or flags & socket.MSG_CTRUNC:
            self._keep_descriptor(ancillary, flags)
        return count

    def _keep_descriptor(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        came: list[int] = []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came += array("i", data[: len(data) - len(data) % array("i").itemsize])
        if len(came) == 1 and self._descriptor is None and not flags & socket.MSG_CTRUNC:
            with contextlib.suppress(OSError):  # of a directory
                self._descriptor = FileIO(came[0], "r+")
                return
        for descriptor in came:
            os.close(descriptor)
        raise RemoteProtocolError("other descriptors came than the one file that is expected")

    def detach(self) -> socket.socket:
        """Give the socket to another owner; nothing may be queued."""
        assert self._outbox.nbytes == 0
        return self._sock

    async def _give_turn(self) -> None:
        self._unwaited = 0
        await anyio.lowlevel.checkpoint()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a nameless link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
