"""`MemoryChannel`: the same frames between two tasks of one loop.

There is no descriptor and no thread in it, so simulations and the virtual clock run over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

import anyio
import anyio.lowlevel

from vidette.transport.framing import HIGH_WATER_BYTES, LinkClosed


class MemoryChannel:
    """One end of a channel between two tasks of the same loop; made by `pair()`.

    Args:
        high_water: bytes that the other end has not taken from which on `wait_room()` waits.
    """

    def __init__(self, *, high_water: int = HIGH_WATER_BYTES) -> None:
        self._high_water = high_water
        self._frames: deque[bytes | bytearray] = deque()
        self._unread = 0
        self._taken: anyio.Event | None = None
        self._arrived = anyio.Event()
        self._closed = False
        self._peer: MemoryChannel | None = None

    def post(self, frame: bytes) -> None:
        """Hand a frame to the other end."""
        self._hand_over(frame)

    def post_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Join a frame that is in pieces and hand it to the other end: memory of its own, as off a socket."""
        self._hand_over(bytearray().join(pieces))

    def _hand_over(self, frame: bytes | bytearray) -> None:
        peer = self._peer
        if peer is not None and not peer._closed:
            peer._frames.append(frame)
            peer._unread += len(frame)
            peer._arrived.set()

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: one of the ends was closed.
        """
        await anyio.lowlevel.checkpoint()
        while not self._frames:
            if self._closed:
                raise LinkClosed("the link was closed")
            self._arrived = anyio.Event()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._unread -= len(frame)
        self._tell_taken()
        return frame

    def _tell_taken(self) -> None:
        if self._taken is not None:
            self._taken.set()
            self._taken = None

    @property
    def queued_bytes(self) -> int:
        """Bytes that were posted and that the other end has not taken."""
        return 0 if self._peer is None else self._peer._unread

    async def wait_room(self) -> None:
        """Wait until the other end has taken all but less than the high-water mark.

        Raises:
            LinkClosed: one of the ends was closed.
        """
        peer = self._peer
        while peer is not None and peer._unread >= self._high_water:
            if self._closed:
                raise LinkClosed("the link was closed")
            if peer._taken is None:
                peer._taken = anyio.Event()
            await peer._taken.wait()

    async def run_writer(self) -> None:
        """Do nothing: posting delivers."""
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close both ends; frames that have arrived can still be read."""
        for end in (self, self._peer):
            if end is not None:
                end._closed = True
                end._arrived.set()
                end._tell_taken()

    @classmethod
    def pair(cls, *, high_water: int = HIGH_WATER_BYTES) -> tuple[Self, Self]:
        """Return two ends that are joined.

        Args:
            high_water: of both.
        """
        left, right = cls(high_water=high_water), cls(high_water=high_water)
        left._peer, right._peer = right, left
        return left, right
