from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable

import anyio.lowlevel
import pytest

from vidette.bench.interleave import Effort, time_calls, time_trips
from vidette.bench.results import OURS, compare


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what lets time pass, as far as `time_calls` can tell."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    return wait


def test_calls_are_timed_one_by_one_however_many_fill_a_turn(
    effort: Effort, clock: Callable[[float], None]
) -> None:
    samples = time_calls({"quick": lambda: clock(1e-6), "slow": lambda: clock(0.25)}, effort)
    assert samples == {"quick": [pytest.approx(1e-6)] * 2, "slow": [pytest.approx(0.25)] * 2}


def test_what_comes_in_between_now_and_then_does_not_count(clock: Callable[[float], None]) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock(5.0 if calls % 3 == 0 else 1.0)  # a neighbour, in one turn of three

    assert time_calls({"it": call}, Effort.seeded(0, runs=4, turns=9)) == {"it": [1.0] * 4}


def test_the_collector_rests_while_calls_are_timed(effort: Effort) -> None:
    seen = []
    assert gc.isenabled()
    time_calls({"it": lambda: seen.append(gc.isenabled())}, effort)
    assert gc.isenabled()
    assert not any(seen)


async def test_trips_take_turns_in_an_order_that_changes() -> None:
    order: list[str] = []

    def trip(name: str) -> Callable[[], Awaitable[float]]:
        async def take() -> float:
            await anyio.lowlevel.checkpoint()
            order.append(name)
            return float(len(order))

        return take

    names = ["a", "b", "c"]
    samples = await time_trips({name: trip(name) for name in names}, Effort.seeded(1, runs=2, turns=8))
    turns = ["".join(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert len(turns) == 16
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) > 2
    assert all(len(values) == 2 for values in samples.values())


def test_ratios_are_of_the_same_run() -> None:
    results = compare("thing", {OURS: [1.0, 2.0], "other": [10.0, 40.0], "third": [0.5, 1.0]})
    assert [(found.name, found.unit, found.values) for found in results.findings] == [
        ("thing_vs_other", "x", [10.0, 20.0]),
        ("thing_vs_third", "x", [0.5, 0.5]),
    ]
    assert results.notes == ["thing, microseconds: ours 1.5e+06, other 2.5e+07, third 7.5e+05"]
