"""Blocking calls in threads: few at a time, whoever leaves, and none that nobody wants."""

from __future__ import annotations

import threading
from collections.abc import Callable

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
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go_on.wait(DEADLINE)
        with self._lock:
            self.now -= 1
        return threading.get_ident()


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def until(condition: Callable[[], bool]) -> None:
    """Give others their turn until something is so."""
    with anyio.fail_after(DEADLINE):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_a_call_is_made_in_another_thread_and_returns_what_it_returns(calls: Calls) -> None:
    calls.go_on.set()
    async with anyio.create_task_group() as tasks:
        assert await ThreadOffload(tasks, 1)(calls) != threading.get_ident()


async def test_what_a_call_raises_its_caller_gets_and_nobody_else() -> None:
    def fail() -> None:
        raise KeyError("no such token")

    async with anyio.create_task_group() as tasks:
        offload = ThreadOffload(tasks, 1)
        with pytest.raises(KeyError, match="no such token"):
            await offload(fail)
        assert await offload(lambda: 5) == 5


async def test_no_more_are_made_at_once_than_there_are_places(calls: Calls) -> None:
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as callers:
            offload = ThreadOffload(tasks, 2)
            for _ in range(6):
                callers.start_soon(offload, calls)
            await until(lambda: calls.begun == 2)
            calls.go_on.set()
    assert calls.begun == 6
    assert calls.most <= 2


async def test_a_caller_who_is_cancelled_leaves_at_once_and_his_call_keeps_its_place(calls: Calls) -> None:
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            offload = ThreadOffload(tasks, 1)
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
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            offload = ThreadOffload(tasks, 1)
            tasks.start_soon(offload, calls)
            await until(lambda: calls.begun == 1)
            async with anyio.create_task_group() as callers:
                callers.start_soon(offload, calls)
                await anyio.wait_all_tasks_blocked()
                callers.cancel_scope.cancel()
            calls.go_on.set()
    assert calls.begun == 1


async def test_a_caller_who_waits_when_the_engine_closes_is_told(calls: Calls) -> None:
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as callers:
            async with anyio.create_task_group() as tasks:
                offload = ThreadOffload(tasks, 1)

                async def call() -> None:
                    with pytest.raises(EngineClosed):
                        await offload(calls)

                callers.start_soon(call)
                callers.start_soon(call)
                await until(lambda: calls.begun == 1)
                tasks.cancel_scope.cancel()
            calls.go_on.set()
