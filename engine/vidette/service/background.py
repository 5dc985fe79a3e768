"""`Background`: what goes on when the request that began it was answered, and ends with the app."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from vidette._groups import Body, bare
from vidette.service.errors import NotYet


class Background:
    """The tasks of one app; they run in its lifespan, and nothing of them outlives it."""

    def __init__(self) -> None:
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Let tasks run in this block; leaving it cancels them and waits for their ends."""
        body = Body()
        with bare(body):
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    with body.watched():
                        yield
                finally:
                    self._tasks = None
                    tasks.cancel_scope.cancel("the app is ending")

    async def start(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Start a task, and wait until it has begun; what it raises until then is raised here.

        Args:
            function: called with the arguments and `task_status`, as by `TaskGroup.start()`. From where it
                has begun on, it raises nothing.
            args: for it.

        Raises:
            NotYet: the server does not run the lifespan of the app.
        """
        if self._tasks is None:
            raise NotYet(
                "nothing can go on in the background here: the server does not run the lifespan of the app"
            )
        await self._tasks.start(function, *args)
