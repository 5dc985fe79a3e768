"""`Gate`: which requests are being answered, and whether more are let in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from vidette.errors import EngineClosed


class Gate:
    """Counts who is inside; once closed, it lets nobody in and can be waited for to be empty.

    A server that stops closes its gate, waits a while, and cancels whoever is still inside.
    """

    def __init__(self) -> None:
        self._open = True
        self._inside: set[anyio.CancelScope] = set()
        self._left = anyio.Event()

    def __len__(self) -> int:
        """Return how many requests are inside."""
        return len(self._inside)

    @contextmanager
    def enter(self) -> Iterator[anyio.CancelScope]:
        """Be inside; the scope is cancelled if the server cannot wait for the end.

        Raises:
            EngineClosed: the gate is closed.
        """
        if not self._open:
            raise EngineClosed("the server is stopping and takes no more requests")
        scope = anyio.CancelScope()
        self._inside.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self._inside.discard(scope)
            self._left.set()
            self._left = anyio.Event()

    def close(self) -> None:
        """Let nobody in any more."""
        self._open = False

    def cancel(self) -> None:
        """Cancel everybody inside."""
        for scope in self._inside:
            scope.cancel("the server is stopping")

    async def wait_empty(self) -> None:
        """Wait until nobody is inside."""
        while self._inside:
            await self._left.wait()
        await anyio.lowlevel.checkpoint()
