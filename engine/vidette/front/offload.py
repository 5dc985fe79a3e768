"""`Offload`: blocking calls elsewhere than on the loop; `ThreadOffload`: in threads, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import anyio
import anyio.abc
from anyio import to_thread

from vidette.errors import EngineClosed

T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking call somewhere else than on the loop; abandoned when its caller is cancelled."""

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the call returns."""
        ...


class ThreadOffload:
    """Runs blocking calls in threads, at most so many at a time.

    A caller who is cancelled leaves at once, also while waiting for a place, and a call that has not begun
    leaves with him. A call that has begun goes on to its end and keeps its place until then. (The limiter of
    the event loop library gives the place of an abandoned call away on asyncio, so callers who leave could
    start any number.)

    Args:
        tasks: the task group that owns the calls.
        at_once: how many run at the same time.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup, at_once: int) -> None:
        self._tasks = tasks
        self._places = anyio.Semaphore(at_once)
        self._closed = False

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the call returns, or raise what it raises.

        Raises:
            EngineClosed: the task group was cancelled meanwhile.
        """
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise _closed()
        call = _Call(function, self._give_back)
        self._tasks.start_soon(call.run)  # from here on the place is the call's
        await call.ended.wait()
        return call.result()

    def _give_back(self, *, cancelled: bool) -> None:
        self._closed = self._closed or cancelled
        self._places.release()


class GiveBack(Protocol):
    """Takes a place back."""

    def __call__(self, *, cancelled: bool) -> None:
        """Take it; `cancelled` says that the task of the call was."""


class _Call(Generic[T]):
    """One call that has a place."""

    __slots__ = ("_error", "_function", "_give_back", "_value", "ended")

    def __init__(self, function: Callable[[], T], give_back: GiveBack) -> None:
        self._function = function
        self._give_back = give_back
        self._value: list[T] = []
        self._error: Exception | None = None
        self.ended = anyio.Event()

    async def run(self) -> None:
        try:
            # Abandoned only when the engine closes: then nobody waits for it any more.
            limiter = anyio.CapacityLimiter(1)
            self._value.append(
                await to_thread.run_sync(self._function, limiter=limiter, abandon_on_cancel=True)
            )
        except Exception as error:  # noqa: BLE001  handed to the caller, whatever it is
            self._error = error
        finally:
            # With neither, its task was cancelled, and not by its caller: the engine closes.
            self._give_back(cancelled=not self._value and self._error is None)
            self.ended.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._value:
            raise _closed()
        return self._value[0]


def _closed() -> EngineClosed:
    return EngineClosed("the engine was closed; open another one")
