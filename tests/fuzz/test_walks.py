from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import NamedTuple, Self

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from vidette_fuzz.configurations import CONFIGURATIONS, requests
from vidette_fuzz.front_mutants import SMALL
from vidette_fuzz.machines import LifecycleMachine
from vidette_fuzz.mutants import MUTANTS
from vidette_fuzz.stories import replay
from vidette_fuzz.walks import FAULTS, HISTORIES_A_ROUND, RuleBroken, Walk, run_walk, walk_of


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by a second each time it is read."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


class Move(NamedTuple):
    name: str
    by: int = 1


class Counter:
    """A world that counts up to five, and back again by itself; a faulty one forgets how to."""

    def __init__(self, at: int = 0, *, stuck_at: int = 99) -> None:
        self.at = at
        self.stuck_at = stuck_at

    def enabled(self) -> Sequence[Move]:
        up = [Move("up", by) for by in (1, 2) if self.at + by <= 5]
        return [*up, *self.draining()]

    def draining(self) -> Sequence[Move]:
        return [Move("down", 0 if self.at == self.stuck_at else 1)] if self.at else []

    def apply(self, action: Move) -> Self:
        return type(self)(self.at + action.by * (1 if action.name == "up" else -1), stuck_at=self.stuck_at)

    def key(self) -> tuple[object, ...]:
        return (self.at,)

    def check(self) -> list[str]:
        return [f"1: {self.at} is too much"] if self.at > 4 else []

    def tell(self, action: Move, after: Self) -> str:
        return f"{action.name} to {after.at}"


class Careful(Counter):
    """One that is never broken, and may be stuck."""

    def check(self) -> list[str]:
        return []


def test_any_world_can_be_walked() -> None:
    (found,) = run_walk(Counter, seconds=60).violations
    assert found.rules == ("1: 5 is too much",)
    assert found.story[-1] == "up to 5"
    assert len(found.story) <= 5  # shrunk


def test_a_world_that_never_becomes_quiescent_is_caught() -> None:
    """Rule 8 in a run: what happens when no new work comes has an end."""
    (found,) = run_walk(lambda: Careful(stuck_at=3), seconds=60, shrink=False).violations
    assert found.rules == ("8: no new work comes, and yet it does not become quiescent",)


def test_a_walk_of_a_world_that_is_right_breaks_nothing() -> None:
    report = run_walk(Careful, seconds=2, clock=ticking())
    assert report.violations == ()
    assert report.histories >= 2 * HISTORIES_A_ROUND


def test_a_world_where_nothing_can_happen_rests() -> None:
    class Still(Careful):
        def enabled(self) -> Sequence[Move]:
            return []

    assert run_walk(Still, seconds=0).histories > 0


@pytest.mark.parametrize("kind", [Walk, LifecycleMachine])
def test_the_same_seed_walks_the_same_histories(kind: type[Walk]) -> None:
    make = MUTANTS["double-free-at-landing"].large
    runs = {run_walk(make, 60, seed, kind=kind, shrink=False).violations[0].actions for seed in (5, 5, 6)}
    assert len(runs) == 2


def test_a_story_can_be_shrunk() -> None:
    make = MUTANTS["queued-abort-not-answered"].small
    (found,) = run_walk(make, seconds=60, kind=LifecycleMachine).violations
    assert found.rules[0] == "7: the front still holds 1 at quiescence"
    assert len(found.story) <= 8
    assert found.rules == tuple(replay(make, found.actions)[-1].check())


def test_a_broken_rule_fails_the_test_of_a_machine_with_its_story() -> None:
    kind = walk_of(MUTANTS["queued-abort-not-answered"].small, LifecycleMachine)
    generate = settings(
        max_examples=200,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(RuleBroken, match="7: the front still holds 1 at quiescence") as raised:
        run_state_machine_as_test(kind, settings=generate)
    assert str(raised.value).startswith("1. a client submits r1, which is vid 0")


def test_requests_can_be_walked_as_any_world() -> None:
    assert run_walk(requests(SMALL), seconds=0).violations == ()


def test_faults_are_counted_by_the_names_of_actions() -> None:
    report = run_walk(requests(SMALL), seconds=0)
    assert report.faults["leave"] > 0
    assert report.faults.keys() <= FAULTS


def test_every_fault_can_happen_somewhere() -> None:
    """A fault under a name that no world has would never be counted."""
    random = Random(1)
    missing = set(FAULTS)
    makers = [make for each in CONFIGURATIONS.values() for make in (each.large, each.short)]
    for make in makers * 10:
        world = make()
        for _ in range(60):
            enabled = world.enabled()
            if not enabled:
                break
            missing -= {action.name for action in enabled}
            world = world.apply(random.choice(enabled))
        if not missing:
            return
    assert not missing
