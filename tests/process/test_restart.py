"""With `supervision="restart"`, the death of a process is a pause: no stream has a seam, nothing is kept."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.process.conftest import DEADLINE, wait_gone
from vidette import Completion, Engine, EngineBroken, SamplingParams, Stream, open_engine
from vidette.testing import storm, wait_quiescent
from vidette.testing.crash import Victim, run_crash
from vidette.testing.storm import run_storm

LONG = 3 * DEADLINE
RESTARTING: dict[str, Any] = {"topology": "processes", "supervision": "restart", "restart_delay": 0.01}
SLOW = {"max_new_tokens": 3000, "ignore_eos": True, "sampling_seed": 11}
SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}


def pid_of(engine: Engine, role: str) -> int:
    return next(process.pid for process in engine.statistics().processes if process.role == role)


async def read_tokens(stream: Stream, count: int) -> None:
    wanted = len(stream.token_ids) + count
    while len(stream.token_ids) < wanted:
        assert (await anext(stream)).finish_reason is None


async def answer(engine: Engine, **params: Any) -> Completion:
    async with engine.generate("hello", sampling_params={**SHORT, **params}) as stream:
        return await stream.read()


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def names_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


async def wait_lost(engine: Engine) -> None:
    while engine.statistics().turning:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
async def test_eight_streams_go_on_without_a_seam(victim: Victim) -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            before = {process.pid for process in engine.statistics().processes}
            outcome = await run_crash(engine, victim=victim, streams=8, tokens=1500)
            assert outcome.errors == []
            assert outcome.differences == []
            assert (outcome.finished, outcome.resumed) == (8, 8)
            statistics = await wait_quiescent(engine)
            assert (statistics.restarts, statistics.incarnation) == (1, 1)
            assert (statistics.totals.submitted, statistics.totals.finished) == (16, 16)
            assert {process.incarnation for process in statistics.processes} == {1}
            # Both are others, the one that was not killed included.
            assert before.isdisjoint(process.pid for process in statistics.processes)
            assert all(wait_gone(pid, 0) for pid in before)


@pytest.mark.long
async def test_several_deaths_in_a_row() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            descriptors = count_descriptors()
            outcome = await run_crash(engine, victim="scheduler", streams=4, tokens=3000, kills=3)
            assert (outcome.errors, outcome.differences) == ([], [])
            assert (outcome.finished, outcome.resumed) == (4, 4)
            statistics = await wait_quiescent(engine)
            assert (statistics.restarts, statistics.totals.resumed) == (3, 12)
            assert count_descriptors() == descriptors


@pytest.mark.long
async def test_a_death_while_it_starts_again_is_another_one() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            whole = await answer(engine, **SLOW)
            async with engine.generate("hello", sampling_params={**SHORT, **SLOW}) as stream:
                await read_tokens(stream, 3)
                os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
                while engine.statistics().incarnation == 0 or not (starting := engine.statistics().processes):
                    await anyio.lowlevel.checkpoint()
                os.kill(starting[0].pid, signal.SIGKILL)
                completion = await stream.read()
            assert completion.token_ids == whole.token_ids
            assert (completion.text, completion.resumed) == (whole.text, 1)
            statistics = await wait_quiescent(engine)
            assert (statistics.restarts, statistics.incarnation) == (1, 2)


async def test_too_many_deaths_end_it_with_the_last_words_of_the_last() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", max_restarts=1, **RESTARTING) as engine:
            async with engine.generate("hello", sampling_params={**SLOW, "max_new_tokens": 8000}) as stream:
                await read_tokens(stream, 3)
                os.kill(pid_of(engine, "detokenizer"), signal.SIGKILL)
                while not stream.resumed:
                    await read_tokens(stream, 1)
                await engine.wait_turning()
                # It computes while the stacks are written, which takes long, and would come to its end.
                await engine.pause_generation("in_place")
                os.kill(pid_of(engine, "scheduler"), signal.SIGSEGV)
                with pytest.raises(EngineBroken, match="the scheduler was killed by SIGSEGV") as caught:
                    await stream.read()
            error = caught.value
            assert (error.role, error.exit_status) == ("scheduler", -signal.SIGSEGV)
            assert "its last words: Fatal Python error: Segmentation fault" in str(error)
            assert str(error).endswith("it is not started again (max_restarts is 1)")
            assert "most recent call first" in error.last_words  # the stacks
            assert str(await engine.wait_broken()) == str(error)
            for wait in (lambda: answer(engine), engine.wait_turning):
                with pytest.raises(EngineBroken, match="SIGSEGV"):
                    await wait()
            assert engine.statistics().ledgers.total() == 0


async def test_what_comes_meanwhile_waits_and_what_is_asked_fails() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            expected = await answer(engine)
            os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
            await wait_lost(engine)
            with pytest.raises(EngineBroken, match="the scheduler was killed by SIGKILL"):
                await engine.heartbeat()
            with anyio.move_on_after(0.05) as impatient:
                await answer(engine)
            assert impatient.cancelled_caught
            assert engine.statistics().ledgers.total() == 0
            completion = await answer(engine)
            assert completion.token_ids == expected.token_ids
            assert (completion.text, completion.resumed) == (expected.text, 0)
            await wait_quiescent(engine)


async def test_a_question_that_waits_hears_of_the_death_and_the_engine_lives() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            scheduler = pid_of(engine, "scheduler")
            os.kill(scheduler, signal.SIGSTOP)  # so that the question is on its way when the process dies
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    with pytest.raises(EngineBroken, match="SIGKILL"):
                        await engine.heartbeat()

                tasks.start_soon(ask)
                await anyio.lowlevel.checkpoint()
                os.kill(scheduler, signal.SIGKILL)
            await engine.wait_turning()
            await engine.heartbeat()


async def test_a_request_that_is_left_meanwhile_does_not_come_back() -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            async with engine.generate("hello", sampling_params=SLOW, rid="r") as stream:
                await read_tokens(stream, 3)
                os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
                await wait_lost(engine)
            async with engine.generate("hello", sampling_params=SHORT, rid="r") as stream:
                assert (await stream.read()).completion_tokens == 4
            statistics = await wait_quiescent(engine)
            assert (statistics.totals.resumed, statistics.totals.aborted) == (0, 1)


async def test_an_engine_that_starts_again_can_be_closed() -> None:
    with anyio.fail_after(LONG):
        descriptors = count_descriptors()
        for wait_for in (0, 1):  # in the delay, and in the handshake
            options = {**RESTARTING, "restart_delay": 5.0 if wait_for == 0 else 0.01}
            async with open_engine("toy", **options) as engine:
                os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
                await wait_lost(engine)
                while engine.statistics().incarnation < wait_for:
                    await anyio.lowlevel.checkpoint()
                pids = [process.pid for process in engine.statistics().processes]
            assert all(wait_gone(pid, 0) for pid in pids)
        assert count_descriptors() <= descriptors + 1  # the loop's own may come late


async def test_a_storm_with_a_death_leaves_nothing(anyio_backend_name: str) -> None:
    seed, victim = {"asyncio": (8, "scheduler"), "trio": (7, "detokenizer")}[anyio_backend_name]
    with anyio.fail_after(2 * LONG):
        async with open_engine("toy", kv_tokens=4096, **RESTARTING) as engine:
            outcome = await run_storm(engine, requests=120, cancel=0.5, seed=seed, kill_every=70)
            assert outcome.errors == []
            assert outcome.finished + outcome.cancelled == 120
            assert outcome.killed == [victim]
            assert outcome.resumed > 0
            statistics = await wait_quiescent(engine)
            assert statistics.restarts == 1
            assert statistics.totals.resumed >= outcome.resumed
            assert (await answer(engine)).completion_tokens == 4


@pytest.mark.long
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_great_storm_with_deaths(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = "--requests 10000 --cancel 0.5 --kill-every 2000 --model toy --json --backend"
    assert storm.main([*command.split(), backend]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    values = {check["name"]: check["value"] for check in report["checks"]}
    assert values["finished"] + values["cancelled"] == 10_000
    assert (values["errors"], values["leaks"], values["kills"]) == (0, 0, 5)
    assert set(report["ledgers"].values()) == {0}


async def test_a_role_that_fails_in_this_process_is_started_again() -> None:
    """Also with the topology "inline": a scheduler that is asked twice for the same vid gives up."""
    with anyio.fail_after(LONG):
        async with open_engine("toy", topology="inline", supervision="restart", restart_delay=0.01) as engine:
            whole = await answer(engine, **SLOW)
            async with engine.generate("hello", sampling_params={**SHORT, **SLOW}) as stream:
                await read_tokens(stream, 3)
                route = engine._manager._routes[stream.vid]
                engine._supervisor.ring.scheduler.post(route.message)  # behind the engine's back
                completion = await stream.read()
            assert completion.token_ids == whole.token_ids
            assert (completion.text, completion.resumed) == (whole.text, 1)
            statistics = await wait_quiescent(engine)
            assert statistics.restarts == 1
            assert (await answer(engine, **SLOW)).text == whole.text


async def test_each_start_is_recorded_in_files_of_its_own(tmp_path: Path) -> None:
    with anyio.fail_after(LONG):
        async with open_engine("toy", capture=str(tmp_path), **RESTARTING) as engine:
            os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
            await wait_lost(engine)
            await engine.wait_turning()
            assert (await answer(engine)).completion_tokens == 4
    names = names_in(tmp_path)
    first = {name for name in names if not name.endswith("-1")}
    assert len(first) == 4
    assert names == first | {f"{name}-1" for name in first}


async def test_a_seed_that_was_drawn_is_kept() -> None:
    """A request without a seed goes on with the one that the front drew for it."""
    params = SamplingParams(max_new_tokens=1500, temperature=1.0, ignore_eos=True)
    with anyio.fail_after(LONG):
        async with open_engine("toy", **RESTARTING) as engine:
            async with engine.generate("hello", sampling_params=params) as stream:
                await read_tokens(stream, 3)
                seed = engine._manager._routes[stream.vid].message.sampling_params.sampling_seed
                os.kill(pid_of(engine, "scheduler"), signal.SIGKILL)
                completion = await stream.read()
            assert completion.resumed == 1
            again = await answer(engine, max_new_tokens=1500, temperature=1.0, sampling_seed=seed)
            assert again.token_ids == completion.token_ids
