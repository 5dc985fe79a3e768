from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from vidette_fuzz.machines import (
    HISTORIES_A_ROUND,
    LARGE,
    LifecycleMachine,
    RuleBroken,
    lifecycle_machine,
    run_lifecycle,
)
from vidette_fuzz.mutants import MUTANTS, Mutant
from vidette_fuzz.stories import replay
from vidette_protocol.ids import Vid
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import Row, SchedulerMachine
from vidette_protocol.world import Bounds, Parts

# Shrinking is off: a mutant is to be caught, not to be explained, and that takes minutes.
GENERATE = settings(
    max_examples=1000,
    stateful_step_count=80,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by a second each time it is read."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


@pytest.mark.parametrize(
    "bounds",
    [LARGE, Bounds(rids=3, uses=12, tokens=4), Bounds(rids=2, uses=12, tokens=4, reuse_at_once=False)],
    ids=["large", "one sender", "reuse after acknowledgement"],
)
def test_every_rule_holds_in_large_worlds(bounds: Bounds) -> None:
    """No history of up to a dozen requests breaks a rule, and each can be brought to its end."""
    run_state_machine_as_test(lifecycle_machine(bounds=bounds), settings=settings(GENERATE, max_examples=60))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_each_mutant_is_caught(mutant: Mutant) -> None:
    bounds = mutant.bounds._replace(rids=3, uses=12, tokens=4)
    with pytest.raises(RuleBroken) as raised:
        run_state_machine_as_test(lifecycle_machine(mutant.parts, bounds), settings=GENERATE)
    found = raised.value.counterexample
    assert found.rules
    assert found.rules == tuple(violations(replay(mutant.parts, bounds, found.actions)[-1]))


def test_the_vid_check_is_not_missed_if_a_rid_waits_for_its_acknowledgement() -> None:
    parts = MUTANTS["missing-vid-check"].parts
    patient = LARGE._replace(reuse_at_once=False)
    run_state_machine_as_test(
        lifecycle_machine(parts, patient), settings=settings(GENERATE, max_examples=100)
    )


class _Hanging(SchedulerMachine):
    """Never lets a request come to its own end."""

    def land(self, vid: Vid, count: int, *, end: bool) -> Row | None:
        del count, end
        return super().land(vid, 0, end=False)


def test_a_world_that_never_becomes_quiescent_is_caught() -> None:
    """Rule 8 in a run: what happens when no new work comes has an end."""
    (found,) = run_lifecycle(Parts(scheduler=_Hanging), seconds=0).violations
    assert found.rules == ("8: no new work comes, and yet it does not become quiescent",)


# --- runs of a given time -----------------------------------------------------------------------------------


def test_a_run_walks_whole_rounds_until_its_time_is_up() -> None:
    report = run_lifecycle(seconds=2, clock=ticking())
    assert report.violations == ()
    assert report.histories >= 2 * HISTORIES_A_ROUND


def test_a_run_of_a_mutant_ends_with_its_story() -> None:
    mutant = MUTANTS["missing-vid-check"]
    report = run_lifecycle(mutant.parts, seconds=60, seed=3)
    (found,) = report.violations
    assert report.histories > 0
    assert "hears what belongs to vid" in str(found)


def test_the_same_seed_walks_the_same_histories() -> None:
    parts = MUTANTS["double-free-at-landing"].parts
    runs = {run_lifecycle(parts, seconds=60, seed=seed).violations[0].actions for seed in (5, 5, 6)}
    assert len(runs) == 2


def test_a_story_can_be_shrunk() -> None:
    parts = MUTANTS["queued-abort-not-answered"].parts
    (long,) = run_lifecycle(parts, seconds=1).violations
    (short,) = run_lifecycle(parts, seconds=1, shrink=True).violations
    assert len(short.story) < len(long.story)
    assert short.rules == ("7: the front still holds 1 at quiescence",)


def test_the_machine_of_the_module_is_that_of_the_real_parts() -> None:
    assert LifecycleMachine.parts == Parts()
    assert lifecycle_machine().parts == Parts()
    assert lifecycle_machine().bounds == LARGE == Bounds(3, 12, 4, split_senders=True, chunks=1, losses=1)
