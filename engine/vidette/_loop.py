"""An event loop in a thread of its own, and calls to it that block: what `vidette.sync` stands on."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from vidette.errors import EngineClosed

T = TypeVar("T")


@contextmanager
def open_portal(backend: str) -> Iterator[BlockingPortal]:
    """Run an event loop in a thread while the block runs.

    Like `anyio.from_thread.start_blocking_portal`, which hangs if it is interrupted while the thread starts.
    Whatever still waits on the loop at the end is cancelled.

    Args:
        backend: the event loop library.
    """
    opened: Future[BlockingPortal] = Future()

    async def main() -> None:
        async with BlockingPortal() as portal:
            if opened.set_running_or_notify_cancel():
                opened.set_result(portal)
                await portal.sleep_until_stopped()

    def run() -> None:
        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=run, name="vidette loop")
    try:
        thread.start()
        yield opened.result()
    finally:
        if not opened.cancel() and opened.exception() is None:
            portal = opened.result()
            portal.call(portal.stop, True)
        with suppress(RuntimeError):  # interrupted before it had begun: it will find that nobody waits
            thread.join()


class Loop:
    """The event loop of an engine, as seen from other threads.

    Args:
        portal: into it.
    """

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return what a function returns when it runs on the loop; cancel it there if we are interrupted.

        Raises:
            EngineClosed: the loop has ended, or ends before the function does.
        """
        future = self._start(function, *args)
        try:
            return self._wait(future)
        except BaseException:
            future.cancel()  # no effect if it has ended by itself
            raise

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter a context manager; if we are interrupted meanwhile, it is left again."""
        gone = threading.Event()

        async def enter() -> T:
            value = await manager.__aenter__()
            if gone.is_set():  # too late to be cancelled, and nobody takes the value
                await manager.__aexit__(None, None, None)
            return value

        future = self._start(enter)
        try:
            return self._wait(future)
        except BaseException:
            gone.set()
            if not future.cancel() and not future.cancelled() and future.exception() is None:
                self.call(manager.__aexit__, None, None, None)
            raise

    @contextmanager
    def inside(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Be inside of a context manager while the block runs."""
        value = self.enter(manager)
        try:
            yield value
        finally:
            with suppress(EngineClosed):  # then the request was ended with the engine
                self.call(manager.__aexit__, None, None, None)

    def _start(self, function: Callable[..., Awaitable[T]], *args: object) -> Future[T]:
        try:
            return self._portal.start_task_soon(function, *args)
        except RuntimeError as error:  # the portal has stopped
            raise EngineClosed("the engine was closed; open another one") from error

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError as error:  # by the end of the loop: nobody else cancels it
            raise EngineClosed("the engine was closed while this call waited") from error
