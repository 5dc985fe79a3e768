"""From thread to loop and from loop to thread, by posting: never a rendezvous, never a poll.

`Mailbox` carries objects from any thread to an event loop, `Bell` wakes a thread. Both are an eventfd
behind a deque: posting costs one append and at most one system call, and cannot block.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Collection
from typing import Final, Generic, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

LONGEST_WAIT: Final = 3600.0
"""Seconds after which a wait with a time limit returns in any case: poll(2) takes no more than 24 days."""


class Mailbox(Generic[T]):
    """Objects from any thread to one reader on an event loop.

    Close it with `close()` once nobody waits and nobody posts any more.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told = False
        """Whether the reader has yet to hear that there is something: then it need not be told again."""

    def post(self, item: T) -> None:
        """Put an object in; from any thread, without blocking."""
        self._items.append(item)
        if not self._told:
            self._told = True
            os.eventfd_write(self._fd, 1)

    async def receive(self) -> T:
        """Wait for the next object."""
        await self._wait()
        return self._items.popleft()

    async def receive_all(self) -> list[T]:
        """Wait for the next object; return it with those that have come behind it."""
        await self._wait()
        return [self._items.popleft() for _ in range(len(self._items))]

    async def _wait(self) -> None:
        if self._items:
            await anyio.lowlevel.checkpoint()
        while not self._items:
            await anyio.wait_readable(self._fd)
            os.eventfd_read(self._fd)
            self._told = False  # before the look: what is posted from here on is told

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Bell:
    """Wakes one thread; rung from anywhere, without blocking."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Wake the thread, now or when it next waits."""
        os.eventfd_write(self._fd, 1)

    def wait(self, writable: Collection[int] = (), seconds: float | None = None) -> None:
        """Block until the bell has rung since the last wait.

        Args:
            writable: descriptors to watch as well; return when one of them can be written.
            seconds: return after so long at the latest, or sooner, where that is longer than LONGEST_WAIT;
                None: however long it takes.
        """
        if writable or seconds is not None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            for descriptor in writable:
                poll.register(descriptor, select.POLLOUT)
            timeout = None if seconds is None else math.ceil(min(seconds, LONGEST_WAIT) * 1000)
            if not any(fd == self._fd for fd, _ in poll.poll(timeout)):
                return
        os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back; nobody waits or rings any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
