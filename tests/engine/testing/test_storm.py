"""What the storm command takes, and what it makes of an engine that loses count of its requests."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import msgspec
import pytest

from vidette import open_engine
from vidette.errors import EngineBroken
from vidette.testing.storm import Outcome, _Killer, main, run_storm


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--requests", "0"], "at least 1"),
        (["--cancel", "1.5"], "from 0 to 1"),
        (["--kill-every", "0"], "--kill-every is at least 1"),
        (["--kill-every", "5", "--topology", "inline"], "with --topology inline there are none"),
        (["--requests", "20", "--kill-every", "30"], "--kill-every 30 kills nobody with --requests 20"),
    ],
)
def test_bad_usage_is_told(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(options)
    assert exited.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("by", [-1, 1])
async def test_an_end_too_few_or_too_many_is_an_error(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has one end, by the engine's own count as well."""
    with anyio.fail_after(30):
        async with open_engine("toy") as engine:
            statistics = engine.statistics
            asked = 0

            def miscounting() -> object:
                nonlocal asked
                asked += 1
                picture = statistics()
                totals = picture.totals
                changed = msgspec.structs.replace(totals, finished=totals.finished + by * (asked > 1))
                return msgspec.structs.replace(picture, totals=changed)

            monkeypatch.setattr(engine, "statistics", miscounting)
            outcome = await run_storm(engine, requests=8, cancel=0)
    assert outcome.finished == 8
    assert outcome.errors == [f"the engine counts 8 requests, and {8 + by} ends of requests"]


@pytest.mark.parametrize(("kill_every", "due"), [(4, 2), (9, 0)])
async def test_a_storm_that_killed_nobody_is_an_error(kill_every: int, due: int) -> None:
    with anyio.fail_after(30):
        async with open_engine("toy") as engine:
            outcome = await run_storm(engine, requests=8, cancel=0, kill_every=kill_every)
    assert outcome.finished == 8
    assert outcome.errors == [
        f"{due} processes were to be killed, one after each {kill_every} requests; 0 were"
    ]


class Dying:
    """An engine whose ring is down as often as not."""

    def __init__(self) -> None:
        self.turning = False

    def statistics(self) -> SimpleNamespace:
        processes = [
            SimpleNamespace(role=role, pid=pid) for role, pid in (("scheduler", 1), ("detokenizer", 2))
        ]
        return SimpleNamespace(processes=processes if self.turning else [])

    async def wait_turning(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.turning = True

    async def heartbeat(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.turning = False
        raise EngineBroken("gone")


async def test_all_that_are_due_are_killed_also_if_the_ring_is_down_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, outcome = Dying(), Outcome(killed=[])
    killed: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        assert engine.turning
        killed.append((pid, number))

    monkeypatch.setattr("vidette.testing.storm.os.kill", kill)
    killer = _Killer(engine, outcome, 2, first=0)  # type: ignore[arg-type]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(killer.run)
            for _ in range(7):
                killer.note()
                engine.turning = False
            killer.stop()
    assert killed == [(pid, signal.SIGKILL) for pid in (1, 2, 1)]
    assert (outcome.killed, outcome.errors) == (["scheduler", "detokenizer", "scheduler"], [])
    assert killer.missed() == []
