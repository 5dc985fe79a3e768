"""Running an async program from a command, so that a signal ends it in order."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio

from vidette._groups import sole_cause

Backend = Literal["asyncio", "trio"]


class Stop:
    """What SIGINT and SIGTERM ask for: to end at once, or, once a program defers it, to stop in order first.

    Attributes:
        asked: set by the first signal.
        signum: the last signal that came.
    """

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.signum: signal.Signals | None = None
        self._deferred = False

    def defer(self) -> None:
        """From now on the first signal only sets `asked`; the second one still cancels the program."""
        self._deferred = True

    async def watch(self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Wait for signals; runs until cancelled."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for signum in signals:
                again, self.signum = self.signum is not None, signum
                self.asked.set()
                if again or not self._deferred:
                    scope.cancel(f"stopped by {signum.name}")
                    return  # the next one has its usual effect, in case something is stuck


def run(
    program: Callable[[Stop], Awaitable[int]], *, backend: Backend = "asyncio", uvloop: bool = False
) -> int:
    """Run an async program to its end; return its exit status, or 128 and the signal that cut it short."""
    options = {"use_uvloop": True} if uvloop and backend == "asyncio" else {}
    try:
        return anyio.run(_run, program, backend=backend, backend_options=options)
    except BaseExceptionGroup as group:
        raise sole_cause(group) from None


async def _run(program: Callable[[Stop], Awaitable[int]]) -> int:
    stop = Stop()
    status: int | None = None
    async with anyio.create_task_group() as tasks:
        if threading.current_thread() is threading.main_thread():  # elsewhere no signal can be received
            await tasks.start(stop.watch, tasks.cancel_scope)
        status = await program(stop)
        tasks.cancel_scope.cancel("the program has ended")
    if status is not None:
        return status
    assert stop.signum is not None
    return 128 + stop.signum


def say(sentence: str) -> None:
    """Tell the person at the terminal, on stderr."""
    print(sentence, file=sys.stderr, flush=True)
