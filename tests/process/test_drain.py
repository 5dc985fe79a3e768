"""An engine that is emptied: whatever its processes and callers do, it takes as long as it was told."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from tests.process.conftest import DEADLINE, wait_gone
from vidette import Engine, EngineDraining, RequestAborted, UsageError, open_engine
from vidette.testing import wait_quiescent

ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}
SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
MANY = 500


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a test froze: it is the one of all tests."""
    yield
    gc.unfreeze()


EITHER = pytest.mark.parametrize("topology", ["inline", pytest.param("processes", marks=pytest.mark.long)])


class Callers:
    """Callers who read requests that have no end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.begun = 0
        self.aborted: list[str] = []

    async def read(self) -> None:
        try:
            async with self._engine.generate("x", sampling_params=ENDLESS) as stream:
                self.begun += 1
                await stream.read()
        except RequestAborted as error:
            self.aborted.append(str(error))

    async def wait_begun(self, count: int) -> None:
        while self.begun < count:
            await anyio.lowlevel.checkpoint()


async def check_refused(engine: Engine) -> None:
    with pytest.raises(EngineDraining) as caught:
        async with engine.generate("late"):
            pytest.fail("it was taken")
    assert caught.value.retry_after >= 1.0


@EITHER
async def test_what_lives_may_end_and_nothing_new_is_taken(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            for wrong in (-1.0, float("nan"), float("inf")):
                with pytest.raises(UsageError, match="seconds"):
                    await engine.drain(wrong)
            assert not engine.draining
            async with engine.generate("x", sampling_params={**SHORT, "max_new_tokens": 500}) as stream:
                with anyio.move_on_after(0):  # cancelled, it leaves requests alone
                    await engine.drain(0.0)
                assert engine.draining
                assert engine.statistics().draining
                await check_refused(engine)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(engine.drain, DEADLINE)
                    assert await engine.drain(DEADLINE) == 0
                assert (await stream.read()).completion_tokens == 500
            await check_refused(engine)
            assert (await engine.heartbeat()).ledgers.total() == 0
            assert await engine.drain(0.0) == 0


@EITHER
async def test_what_does_not_end_in_time_is_ended_also_what_waits_for_its_turn(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, max_running=4, kv_tokens=1 << 20) as engine:
            callers = Callers(engine)
            async with anyio.create_task_group() as tasks:
                for _ in range(MANY):
                    tasks.start_soon(callers.read)
                await callers.wait_begun(MANY)
                assert await engine.drain(0.01) == MANY
            assert len(callers.aborted) == MANY
            await wait_quiescent(engine)
            assert engine.statistics().totals.aborted == MANY


@pytest.mark.long
async def test_it_is_bounded_while_the_scheduler_is_stopped_and_so_is_closing() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology="processes", stop_timeout=0.1) as engine:
            pids = {process.role: process.pid for process in engine.statistics().processes}
            callers = Callers(engine)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.read)
                await callers.wait_begun(1)
                os.kill(pids["scheduler"], signal.SIGSTOP)
                assert await engine.drain(0.05) == 1
            assert len(callers.aborted) == 1
        assert all(map(wait_gone, pids.values()))


@pytest.mark.long
async def test_it_is_bounded_while_processes_are_started_again() -> None:
    options = {"topology": "processes", "supervision": "restart", "restart_delay": 60.0}
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", max_restart_delay=60.0, **options) as engine:  # type: ignore[arg-type]
            callers = Callers(engine)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.read)
                await callers.wait_begun(1)
                pid = next(each.pid for each in engine.statistics().processes if each.role == "scheduler")
                os.kill(pid, signal.SIGKILL)
                while engine.statistics().turning:
                    await anyio.lowlevel.checkpoint()
                assert await engine.drain(0.05) == 1
            assert len(callers.aborted) == 1
            assert engine.statistics().ledgers.total() == 0


async def test_all_are_ended_at_once_and_garbage_is_left_out(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            await end_all(engine)
            await freeze(engine, topology)
            await engine.freeze_gc()
        assert gc.get_freeze_count() == 0  # closing gives it back


async def end_all(engine: Engine) -> None:
    async with engine.generate("x", sampling_params=ENDLESS, rid="r") as stream:
        heard = (await anext(stream)).token_ids
        assert engine.abort_all("the weights change") == 1
        with pytest.raises(RequestAborted, match=r"'r' was ended.*: the weights change"):
            await stream.read()
        assert stream.token_ids[: len(heard)] == heard
        async with engine.generate("hello", sampling_params=SHORT, rid="r") as next_one:
            assert (await next_one.read()).text == "sA/s"
    await wait_quiescent(engine)


async def freeze(engine: Engine, topology: str) -> None:
    report = await engine.freeze_gc(duration_s=0.05)
    others = (report.scheduler, *report.detokenizers)
    assert report.front.frozen >= gc.get_freeze_count()
    if topology == "inline":
        assert others == (None,)
    else:
        assert all(other is not None and other.frozen > 1000 for other in others)
    while gc.get_freeze_count():  # the time passes by itself
        await anyio.lowlevel.checkpoint()
    await engine.freeze_gc()
    assert gc.get_freeze_count() > 0
    report = await engine.unfreeze_gc()
    assert report.front.frozen == gc.get_freeze_count() == 0
    assert all(other is None or other.frozen == 0 for other in (report.scheduler, *report.detokenizers))
    for wrong in (-1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match="duration_s"):
            await engine.freeze_gc(wrong)
