"""`Gate`: which requests are being answered, and whether more are let in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio

from vidette.errors import EngineDraining

PARTING_SECONDS: Final = 0.5
"""How long those inside have to tell their clients that the engine did not wait for them."""
SHORTEST_RETRY: Final = 1.0
"""Seconds after which another try is said to be sensible, at least."""


class Gate:
    """Counts who is inside; once closed, it lets nobody in and can be waited for to be empty.

    A server that stops closes its gate, waits a while, and cancels whoever is still inside.
    """

    def __init__(self) -> None:
        self._until: float | None = None
        self._inside: set[anyio.CancelScope] = set()
        self._left: anyio.Event | None = None
        """Set when one leaves, for whoever waits for that."""
        self._closed = anyio.Event()

    def __len__(self) -> int:
        """Return how many requests are inside."""
        return len(self._inside)

    @contextmanager
    def enter(self) -> Iterator[anyio.CancelScope]:
        """Be inside; the scope is cancelled if the server cannot wait for the end.

        Raises:
            EngineDraining: the gate is closed.
        """
        retry_after = self.retry_after
        if retry_after is not None:
            raise EngineDraining("the server is stopping and takes no more requests", retry_after=retry_after)
        scope = anyio.CancelScope()
        self._inside.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self._inside.discard(scope)
            if self._left is not None:
                self._left.set()

    @property
    def retry_after(self) -> float | None:
        """Seconds after which another server may have taken this one's place; None while the gate is open."""
        return None if self._until is None else max(SHORTEST_RETRY, self._until - anyio.current_time())

    def close(self, seconds: float = 0.0) -> None:
        """Let nobody in any more; those inside have so many seconds, as far as is known."""
        if self._until is None:
            self._until = anyio.current_time() + seconds
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until it is closed."""
        await self._closed.wait()

    async def drain(
        self, seconds: float, end: Callable[[float], Coroutine[Any, Any, object]] | None = None
    ) -> None:
        """Close, and wait until nobody is inside, for so many seconds.

        Args:
            seconds: how long.
            end: ends what those inside wait for, after so many seconds; `Engine.drain`. They have half a
                second more then to say so.
        """
        self.close(seconds)
        with anyio.move_on_after(seconds if end is None else seconds + PARTING_SECONDS):
            async with anyio.create_task_group() as tasks:
                if end is not None:
                    tasks.start_soon(end, seconds)
                await self.wait_empty()
                tasks.cancel_scope.cancel("nobody is inside")

    def cancel(self) -> None:
        """Cancel everybody inside."""
        for scope in self._inside:
            scope.cancel("the server is stopping")

    async def wait_empty(self) -> None:
        """Wait until nobody is inside."""
        while self._inside:
            if self._left is None or self._left.is_set():
                self._left = anyio.Event()
            await self._left.wait()
        await anyio.lowlevel.checkpoint()
