"""A process that stands still is seen within seconds, and ended if it is to be; streams go on either way."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Any, Literal

import anyio
import pytest

from tests.process.conftest import DEADLINE, wait_gone
from vidette import Engine, EngineBroken, Health, open_engine
from vidette.testing import wait_quiescent

Victim = Literal["scheduler", "detokenizer"]
LONG = {"max_new_tokens": 1500, "ignore_eos": True, "sampling_seed": 11}
HASTY: dict[str, Any] = {
    "topology": "processes",
    "stall_timeout": 0.3,
    "watchdog": "restart",
    "hang_timeout": 1.0,
    "restart_delay": 0.01,
}


def pid_of(engine: Engine, role: Victim) -> int:
    return next(process.pid for process in engine.statistics().processes if process.role == role)


async def wait_health(engine: Engine, condition: Callable[[Health], bool]) -> Health:
    """Wait until the engine's health is such; without taking the processor from what is waited for."""
    while not condition(health := engine.statistics().health):  # noqa: ASYNC110  there is no event for it
        await anyio.sleep(0.005)
    return health


async def test_an_engine_that_has_just_opened_is_ready_as_soon_as_it_was_heard() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            health = await wait_health(engine, lambda health: health.ready)
            assert (health.live, health.progress, health.reason) == (True, True, None)
            assert health.silence_s == 0.0
            assert health.heard_s is not None
            await engine.probe()
            assert (await wait_quiescent(engine)).totals.finished == 1
        health = engine.statistics().health
        assert (health.live, health.progress, health.ready) == (False, False, False)
        assert health.reason == "the engine was closed"


@pytest.mark.parametrize("victim", ["scheduler", pytest.param("detokenizer", marks=pytest.mark.long)])
async def test_what_stands_still_is_seen_and_what_hangs_is_killed(
    victim: Victim, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(2 * DEADLINE), caplog.at_level(logging.WARNING):
        async with open_engine("toy", supervision="restart", **HASTY) as engine:
            async with engine.generate("hello", sampling_params=LONG) as stream:
                await anext(stream)
                pid = pid_of(engine, victim)
                os.kill(pid, signal.SIGSTOP)
                health = await wait_health(engine, lambda health: not health.progress)
                assert (health.live, health.ready) == (True, False)
                assert health.silence_s >= 0.3
                assert health.reason == f"no heartbeat has come back for {health.silence_s:.1f} s"
                os.kill(pid, signal.SIGCONT)
                await wait_health(engine, lambda health: health.ready)
                whole = await stream.read()
            assert (whole.completion_tokens, whole.resumed) == (1500, 0)

            async with engine.generate("hello", sampling_params=LONG) as stream:
                await anext(stream)
                pids = [process.pid for process in engine.statistics().processes]
                os.kill(pid_of(engine, victim), signal.SIGSTOP)
                health = await wait_health(engine, lambda health: "started again" in (health.reason or ""))
                assert (health.live, health.progress, health.ready) == (True, False, False)
                assert engine.statistics().processes == ()  # none that is dead
                completion = await stream.read()
            assert (completion.text, completion.resumed) == (whole.text, 1)
            assert completion.token_ids == whole.token_ids
            assert all(wait_gone(pid, 0) for pid in pids)
            await wait_quiescent(engine)
            assert engine.statistics().restarts == 1
            assert engine.statistics().health.ready
    killed = caplog.records[-1].getMessage()
    assert killed.startswith("the engine hung: no heartbeat came back for ")
    assert f"{victim}: stopped" in killed


@pytest.mark.long
async def test_a_hang_is_the_end_if_nothing_is_started_again() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", supervision="fail", **HASTY) as engine:
            async with engine.generate("hello", sampling_params=LONG) as stream:
                await anext(stream)
                os.kill(pid_of(engine, "scheduler"), signal.SIGSTOP)
                with pytest.raises(EngineBroken, match="the engine hung: no heartbeat came back") as caught:
                    await stream.read()
            assert caught.value.role == "scheduler"
            assert "scheduler: stopped" in str(caught.value)
            health = engine.statistics().health
            assert (health.live, health.reason) == (False, str(caught.value))


@pytest.mark.long
async def test_one_that_stands_still_while_nothing_lives_is_found_by_whoever_asks() -> None:
    with anyio.fail_after(2 * DEADLINE):
        async with open_engine("toy", supervision="restart", **HASTY) as engine:
            await wait_health(engine, lambda health: health.ready)
            os.kill(pid_of(engine, "scheduler"), signal.SIGSTOP)
            with anyio.move_on_after(0):
                await engine.heartbeat()  # nobody waits for it
            await wait_health(engine, lambda health: not health.progress)
            await wait_health(engine, lambda _: engine.statistics().restarts == 1)
            await engine.probe()
            assert engine.statistics().restarts == 1


@pytest.mark.long
async def test_by_default_it_is_seen_within_five_seconds_and_nothing_is_killed() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology="processes") as engine:
            async with engine.generate("hello", sampling_params=LONG) as stream:
                await anext(stream)
                pid = pid_of(engine, "scheduler")
                os.kill(pid, signal.SIGSTOP)
                with anyio.fail_after(5):
                    await wait_health(engine, lambda health: not health.progress)
                os.kill(pid, signal.SIGCONT)
                assert (await stream.read()).completion_tokens == 1500
