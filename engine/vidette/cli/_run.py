"""Running an async program from a command: the first signal ends it in order, a second one at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import anyio

from vidette._groups import sole_cause
from vidette.transport.mailbox import Mailbox

Backend = Literal["asyncio", "trio"]
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""What asks a program to end."""


class Stop:
    """What a signal asks for: to end, by being cancelled, or, once a program defers that, when it sees fit.

    A second signal ends the process at once, whatever waits, is stuck or is shielded.

    Args:
        leave: ends the process with an exit status.

    Attributes:
        asked: set by the first signal.
        signum: the signal that came.
    """

    def __init__(self, leave: Callable[[int], None]) -> None:
        self.asked = anyio.Event()
        self.signum: signal.Signals | None = None
        self._leave = leave
        self._deferred = False
        self._news: Mailbox[signal.Signals] = Mailbox()

    def defer(self) -> None:
        """From now on the first signal only sets `asked`."""
        self._deferred = True

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals while the block runs; only in the main thread of a process."""
        before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Wait for the first signal, and cancel a scope unless that is deferred."""
        signum = await self._news.receive()
        self.asked.set()
        if not self._deferred:
            scope.cancel(f"stopped by {signum.name}")

    def close(self) -> None:
        """Give the descriptor back; `watch()` has ended, and no signal is handled any more."""
        self._news.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Between any two steps of the main thread, so a loop that is stuck does not matter.
        del frame
        signum = signal.Signals(number)
        if self.signum is not None:
            self._leave(128 + signum)
            return
        self.signum = signum
        self._news.post(signum)


def leave_at_once(status: int) -> None:
    """End this process with its children, and wait for nothing."""
    for pid in _children():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(status)


def run(
    program: Callable[[Stop], Awaitable[int]],
    *,
    backend: Backend = "asyncio",
    uvloop: bool = False,
    leave: Callable[[int], None] = leave_at_once,
) -> int:
    """Run an async program to its end; return its exit status, or 128 and the signal that cut it short.

    Args:
        program: what runs.
        backend: event loop library.
        uvloop: whether the loop is uvloop's, on asyncio.
        leave: what a second signal does, with 128 and its number.
    """
    options = {"use_uvloop": True} if uvloop and backend == "asyncio" else {}
    try:
        return anyio.run(_run, program, leave, backend=backend, backend_options=options)
    except BaseExceptionGroup as group:
        raise sole_cause(group) from None


async def _run(program: Callable[[Stop], Awaitable[int]], leave: Callable[[int], None]) -> int:
    stop = Stop(leave)
    if threading.current_thread() is not threading.main_thread():  # no signal is handled elsewhere
        return await program(stop)
    status: int | None = None
    try:
        with stop.handled():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop.watch, tasks.cancel_scope)
                status = await program(stop)
                tasks.cancel_scope.cancel("the program has ended")
    finally:
        stop.close()
    if status is not None:
        return status
    assert stop.signum is not None
    return 128 + stop.signum


def _children() -> list[int]:
    """Return the processes that this one has started and not reaped."""
    pids: list[int] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids


def say(sentence: str) -> None:
    """Tell the person at the terminal, on stderr."""
    print(sentence, file=sys.stderr, flush=True)
