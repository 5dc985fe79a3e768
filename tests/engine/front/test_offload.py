"""Blocking calls in threads: few at a time, whoever leaves, and none that nobody wants."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from vidette.errors import EngineClosed
from vidette.front.offload import ThreadOffload

DEADLINE = 20.0


class Calls:
    """Calls that block until they are let go, and are counted."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self.now = 0
        self.most = 0
        self.threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.current_thread())
        assert self.go_on.wait(DEADLINE)
        with self._lock:
            self.now -= 1
        return threading.get_ident()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@asynccontextmanager
async def offloading(at_once: int) -> AsyncGenerator[ThreadOffload]:
    """Have an offload, and end what owns it behind the block."""
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            yield ThreadOffload(tasks, at_once)
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Give others their turn until something is so."""
    with anyio.fail_after(DEADLINE):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_a_call_is_made_in_another_thread_and_returns_what_it_returns(calls: Calls) -> None:
    calls.go_on.set()
    async with offloading(1) as offload:
        assert await offload(calls) != threading.get_ident()


async def test_what_a_call_raises_its_caller_gets_and_nobody_else() -> None:
    def fail() -> None:
        raise KeyError("no such token")

    async with offloading(1) as offload:
        with pytest.raises(KeyError, match="no such token"):
            await offload(fail)
        assert await offload(lambda: 5) == 5


async def test_no_more_are_made_at_once_than_was_said(calls: Calls) -> None:
    async with offloading(2) as offload, anyio.create_task_group() as callers:
        for _ in range(6):
            callers.start_soon(offload, calls)
        await until(lambda: calls.begun == 2)
        calls.go_on.set()
    assert calls.begun == 6
    assert calls.most <= 2


async def test_many_that_end_together_all_return_what_is_theirs() -> None:
    returned: dict[int, int] = {}

    async def call(offload: ThreadOffload, number: int) -> None:
        returned[number] = await offload(lambda: number)

    async with offloading(2) as offload, anyio.create_task_group() as callers:
        for number in range(500):
            callers.start_soon(call, offload, number)
    assert returned == {number: number for number in range(500)}


async def test_a_caller_who_is_cancelled_leaves_at_once_and_his_call_keeps_its_thread(calls: Calls) -> None:
    async with offloading(1) as offload:
        async with anyio.create_task_group() as callers:
            callers.start_soon(offload, calls)
            await until(lambda: calls.begun == 1)
            callers.cancel_scope.cancel()
        assert calls.now == 1  # it goes on
        async with anyio.create_task_group() as callers:
            callers.start_soon(offload, calls)
            await anyio.wait_all_tasks_blocked()
            assert calls.begun == 1
            calls.go_on.set()
    assert calls.begun == 2
    assert calls.most == 1


async def test_a_call_that_nobody_wants_any_more_is_never_made(calls: Calls) -> None:
    async with offloading(1) as offload, anyio.create_task_group() as others:
        others.start_soon(offload, calls)
        await until(lambda: calls.begun == 1)
        async with anyio.create_task_group() as callers:
            callers.start_soon(offload, calls)
            await anyio.wait_all_tasks_blocked()
            callers.cancel_scope.cancel()
        calls.go_on.set()
        assert await offload(lambda: 5) == 5  # behind both
    assert calls.begun == 1


async def test_who_is_cancelled_already_has_nothing_called(calls: Calls) -> None:
    async with offloading(1) as offload:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await offload(calls)
        assert await offload(lambda: 5) == 5
    assert calls.begun == 0


async def test_a_caller_who_waits_when_the_engine_closes_is_told(calls: Calls) -> None:
    told = 0

    async def call(offload: ThreadOffload) -> None:
        nonlocal told
        with pytest.raises(EngineClosed):
            await offload(calls)
        told += 1

    async with anyio.create_task_group() as callers:
        async with offloading(1) as offload:
            callers.start_soon(call, offload)
            callers.start_soon(call, offload)
            await until(lambda: calls.begun == 1)
        calls.go_on.set()
    await call(offload)
    assert (told, calls.begun) == (3, 1)


async def test_threads_are_given_back_behind_the_engine_and_one_that_is_busy_after_its_call(
    calls: Calls,
) -> None:
    """A thread that the event loop library gets back makes calls for others; one that is stuck would not."""
    async with offloading(2) as offload, anyio.create_task_group() as callers:
        callers.start_soon(offload, calls)
        await until(lambda: calls.begun == 1)
        callers.cancel_scope.cancel()
    (busy,) = calls.threads
    calls.go_on.set()
    await until(lambda: calls.now == 0)
    seen: set[threading.Thread] = set()
    with anyio.fail_after(DEADLINE):
        while busy in threading.enumerate() and busy not in seen:
            seen.add(await anyio.to_thread.run_sync(threading.current_thread))


class Large:
    """What one would not want to be kept."""


async def test_a_call_that_is_over_is_kept_by_nobody() -> None:
    async with offloading(1) as offload:
        held = weakref.ref(await offload(Large))
        gc.collect()
        await until(lambda: held() is None)


async def test_of_a_caller_who_has_left_nothing_is_kept_however_busy_threads_are(calls: Calls) -> None:
    async with offloading(1) as offload, anyio.create_task_group() as others:
        others.start_soon(offload, calls)
        await until(lambda: calls.begun == 1)
        large = Large()
        held = weakref.ref(large)
        async with anyio.create_task_group() as callers:
            callers.start_soon(offload, partial(id, large))
            await anyio.wait_all_tasks_blocked()
            callers.cancel_scope.cancel()
        del large, callers
        gc.collect()
        assert held() is None
        calls.go_on.set()


async def test_a_call_has_the_context_of_its_caller() -> None:
    whose: ContextVar[str] = ContextVar("whose")
    whose.set("a caller's")
    async with offloading(1) as offload:
        assert await offload(whose.get) == "a caller's"
        whose.set("another one's")
        assert await offload(whose.get) == "another one's"
