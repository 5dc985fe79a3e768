"""Several detokenizers: each has its share of the requests, and all of it lives and dies as with one."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from tests.process.conftest import DEADLINE, wait_gone
from vidette import Completion, Engine, UsageError, open_engine
from vidette.cli import main
from vidette.testing import wait_quiescent
from vidette.testing.crash import run_crash

PARAMS = {"max_new_tokens": 40, "ignore_eos": True, "sampling_seed": 5}
ROLES = ("detokenizer-0", "detokenizer-1")


async def answer_many(engine: Engine, count: int) -> list[tuple[str, list[int]]]:
    """Return what so many requests at once are answered."""
    answers: dict[int, Completion] = {}

    async def ask(number: int) -> None:
        async with engine.generate(f"number {number}", sampling_params=PARAMS) as stream:
            answers[number] = await stream.read()

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(ask, number)
    return [(answers[number].text, list(answers[number].token_ids)) for number in range(count)]


async def test_texts_are_the_same_and_nothing_is_kept(tmp_path: Path) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            expected = await answer_many(engine, 24)
        async with open_engine("toy", detokenizers=2, capture=str(tmp_path)) as engine:
            assert await answer_many(engine, 24) == expected
            async with engine.generate("left", sampling_params={**PARAMS, "max_new_tokens": 4000}) as stream:
                await anext(stream)
            await engine.wait_quiet()
            assert engine.statistics().ledgers.total() == 0  # without asking round the ring
            await wait_quiescent(engine)
    assert names_in(tmp_path) == {"front-to-scheduler", "scheduler-to-front"} | {
        name for role in ROLES for name in (f"scheduler-to-{role}", f"{role}-to-front")
    }


def names_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


def test_what_was_recorded_is_read_and_each_has_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use() -> None:
        async with open_engine("toy", detokenizers=2, capture=str(tmp_path)) as engine:
            await answer_many(engine, 4)

    anyio.run(use)
    assert main(["wire", "replay", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert "4 requested, 0 aborted, 4 ended; 0 without an end, 0 faults" in printed.err
    told: dict[str, set[int]] = {}
    for line in printed.out.splitlines():
        entry = json.loads(line)
        if entry["class"] == "BatchTokenIDOutput":
            told.setdefault(entry["way"], set()).update(map(int, entry["fields"]["packed_vids"]))
    first, second = (told[f"scheduler > {role}"] for role in ROLES)
    assert len(first) == len(second) == 2
    assert {vid % 2 for vid in first} == {0}
    assert {vid % 2 for vid in second} == {1}


async def test_streams_of_both_go_on_when_one_dies(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(3 * DEADLINE):
        async with open_engine(
            "toy", topology="processes", detokenizers=2, supervision="restart", restart_delay=0.01
        ) as engine:
            pids = {process.role: process.pid for process in engine.statistics().processes}
            assert set(pids) == {"scheduler", *ROLES}
            outcome = await run_crash(engine, victim="detokenizer-1", streams=6, tokens=600)
            assert (outcome.errors, outcome.differences) == ([], [])
            assert (outcome.finished, outcome.resumed) == (6, 6)
            assert "the detokenizer-1 was killed by SIGKILL" in caplog.text
            statistics = await wait_quiescent(engine)
            assert statistics.restarts == 1
            assert all(wait_gone(pid, 0) for pid in pids.values())
            report = await engine.freeze_gc()
            assert len(report.detokenizers) == 2
            assert all(state.frozen > 1000 for state in report.detokenizers)


@pytest.mark.parametrize("count", [0, 17])
async def test_more_than_there_may_be_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"detokenizers is {count}; it must be from 1 to 16"):
        async with open_engine("toy", detokenizers=count):
            pass
