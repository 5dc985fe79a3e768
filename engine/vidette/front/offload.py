"""`Offload`: blocking calls in threads, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.abc
from anyio import to_thread

from vidette.errors import EngineClosed

T = TypeVar("T")


class ThreadOffload:
    """Runs blocking calls in threads, at most so many at a time.

    A caller who is cancelled leaves at once; a call of his that has begun goes on to its end and keeps its
    place until then, and one that has not begun is never made. (The limiter of the event loop library
    gives the place of an abandoned call away on asyncio, so callers who leave could start any number.)

    Args:
        tasks: the task group that owns the calls.
        at_once: how many run at the same time.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup, at_once: int) -> None:
        self._tasks = tasks
        self._places = anyio.Semaphore(at_once)

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the call returns, or raise what it raises.

        Raises:
            EngineClosed: its task group was cancelled meanwhile.
        """
        job = _Job(function)
        self._tasks.start_soon(job.run, self._places)
        try:
            await job.ended.wait()
        finally:
            job.wanted = False
        return job.result()


class _Job(Generic[T]):
    """One call."""

    __slots__ = ("_error", "_function", "_value", "ended", "wanted")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._value: list[T] = []
        self._error: Exception | None = None
        self.wanted = True
        self.ended = anyio.Event()

    async def run(self, places: anyio.Semaphore) -> None:
        try:
            async with places:
                if self.wanted:
                    # Abandoned only when the engine closes: then nobody waits for it any more.
                    limiter = anyio.CapacityLimiter(1)
                    self._value.append(
                        await to_thread.run_sync(self._function, limiter=limiter, abandon_on_cancel=True)
                    )
        except Exception as error:  # noqa: BLE001  handed to the caller, whatever it is
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._value:  # its task was cancelled, and not by its caller
            raise EngineClosed("the engine was closed; open another one")
        return self._value[0]
