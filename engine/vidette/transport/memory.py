"""`MemoryChannel`: the same frames between two tasks of one loop.

There is no descriptor and no thread in it, so simulations and the virtual clock run over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

import anyio
import anyio.lowlevel

from vidette.transport.framing import LinkClosed


class MemoryChannel:
    """One end of a channel between two tasks of the same loop; made by `pair()`."""

    def __init__(self) -> None:
        self._frames: deque[bytes | bytearray] = deque()
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
        return self._frames.popleft()

    async def run_writer(self) -> None:
        """Do nothing: posting delivers."""
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close both ends; frames that have arrived can still be read."""
        for end in (self, self._peer):
            if end is not None:
                end._closed = True
                end._arrived.set()

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return two ends that are joined."""
        left, right = cls(), cls()
        left._peer, right._peer = right, left
        return left, right
