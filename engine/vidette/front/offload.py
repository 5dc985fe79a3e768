"""`Offload`: blocking calls elsewhere than on the loop; `ThreadOffload`: in threads, a few at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
from anyio import to_thread

from vidette.errors import EngineClosed
from vidette.transport.mailbox import Mailbox

T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking call somewhere else than on the loop; abandoned when its caller is cancelled."""

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the call returns."""
        ...


class ThreadOffload:
    """Runs blocking calls in threads that wait for them, as many as may be made at once.

    A caller who is cancelled leaves at once, and a call that has not begun leaves with him. A call that has
    begun goes on to its end, and its thread takes no other until then. (A thread of the event loop library's
    for each call costs three times as much: tasks and scopes, and two wake-ups for each, where many calls
    that come or end together share theirs.)

    Args:
        tasks: the task group that owns the threads; they end when it is cancelled.
        at_once: how many calls run at the same time.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup, at_once: int) -> None:
        self._turns: SimpleQueue[bool] = SimpleQueue()
        """A True for each call that came, also if it has left since; a False ends a thread."""
        self._calls: OrderedDict[_Call[Any], None] = OrderedDict()
        """Those that have not begun, the oldest first."""
        self._ended: Mailbox[_Call[Any]] = Mailbox()
        self._waited_for: set[_Call[Any]] = set()
        self._closed = False
        self._lock = Lock()
        """Held while calls are put in and taken, and while a thread posts: one that is abandoned may be done
        when the mailbox is closed."""
        tasks.start_soon(self._run, at_once)

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the call returns, or raise what it raises; it has the context of its caller.

        Raises:
            EngineClosed: the threads end, or have ended.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise _closed()
        call = _Call(function)
        self._waited_for.add(call)
        with self._lock:
            self._calls[call] = None
        self._turns.put(True)
        try:
            await call.ended.wait()
        finally:
            self._waited_for.discard(call)
            with self._lock:
                self._calls.pop(call, None)
        return call.result()

    async def _run(self, at_once: int) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(at_once):
                    tasks.start_soon(self._work)
                while True:
                    for call in await self._ended.receive_all():
                        call.ended.set()
                        del call  # while this waits, nothing keeps it
        finally:
            with self._lock:
                self._closed = True
                self._ended.close()
                self._calls.clear()
            for call in self._waited_for:
                call.ended.set()

    async def _work(self) -> None:
        limiter = anyio.CapacityLimiter(1)
        try:
            await to_thread.run_sync(self._make_calls, limiter=limiter, abandon_on_cancel=True)
        finally:
            self._turns.put(False)

    def _make_calls(self) -> None:
        """Make calls until it is over; in a thread."""
        while self._turns.get():
            call = self._next()
            if call is not None:
                call.make()
                with self._lock:
                    if not self._closed:
                        self._ended.post(call)
            del call  # as above

    def _next(self) -> _Call[Any] | None:
        """Take the oldest call; None: whoever had this turn has left."""
        with self._lock:
            return self._calls.popitem(last=False)[0] if self._calls else None


class _Call(Generic[T]):
    """One call."""

    __slots__ = ("_context", "_error", "_function", "_value", "ended")

    def __init__(self, function: Callable[[], T]) -> None:
        self._context = copy_context()
        self._function = function
        self._value: list[T] = []
        self._error: Exception | None = None
        self.ended = anyio.Event()

    def make(self) -> None:
        try:
            self._value.append(self._context.run(self._function))
        except Exception as error:  # noqa: BLE001  handed to the caller, whatever it is
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._value:
            raise _closed()
        return self._value[0]


def _closed() -> EngineClosed:
    return EngineClosed("the engine was closed; open another one")
