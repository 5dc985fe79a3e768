from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from vidette_fuzz.configurations import CONFIGURATIONS, requests
from vidette_fuzz.front_mutants import _DeliversByRid
from vidette_fuzz.machines import LARGE, LifecycleMachine, kind_of, lifecycle_machine, run_lifecycle
from vidette_fuzz.walks import HISTORIES_A_ROUND, Walk
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import Row, SchedulerMachine
from vidette_protocol.world import Action, Bounds, Parts, World

GENERATE = settings(
    max_examples=40,
    stateful_step_count=80,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by half a second each time it is read."""
    ticks: Iterator[int] = count()
    return lambda: next(ticks) / 2


@pytest.mark.parametrize(
    "bounds",
    [
        LARGE,
        LARGE._replace(resume=False),
        LARGE._replace(replicas=1, resume=False, fronts=1),
        Bounds(rids=3, uses=12, tokens=4),
        Bounds(rids=2, uses=12, tokens=4, reuse_at_once=False),
    ],
    ids=["large", "told of deaths", "one replica", "plain", "reuse after acknowledgement"],
)
def test_every_rule_holds_in_large_worlds(bounds: Bounds) -> None:
    """No history of up to a dozen requests breaks a rule, and each can be brought to its end."""
    run_state_machine_as_test(lifecycle_machine(requests(bounds)), settings=GENERATE)


def test_the_vid_check_is_not_missed_if_a_rid_waits_for_its_acknowledgement() -> None:
    patient = Bounds(rids=3, uses=12, tokens=4, reuse_at_once=False)
    parts = Parts(front=_DeliversByRid)
    run_state_machine_as_test(lifecycle_machine(requests(patient, parts)), settings=GENERATE)


class _Hanging(SchedulerMachine):
    """Never lets a request come to its own end."""

    def land(self, vid: Vid, count: int, *, end: bool) -> Row | None:
        del count, end
        return super().land(vid, 0, end=False)


def test_a_world_that_never_becomes_quiescent_is_caught() -> None:
    """Rule 8 in a run: what happens when no new work comes has an end."""
    make = partial(World, Parts(scheduler=_Hanging), Bounds())
    (found,) = run_lifecycle(0, make=make, shrink=False).violations
    assert found.rules == ("8: no new work comes, and yet it does not become quiescent",)


def test_a_run_without_a_world_walks_all_of_them_as_far_as_the_time_allows() -> None:
    report = run_lifecycle(0, seed=3)
    assert report.violations == ()
    # One round of one world: Hypothesis gives up after ten times as many, those included that grow too long.
    assert 0 < report.histories <= 10 * HISTORIES_A_ROUND
    slow = run_lifecycle(3, seed=3, clock=ticking())
    assert slow.violations == ()
    assert slow.histories > report.histories


def test_a_world_of_another_kind_is_walked_by_the_walk_for_every_world() -> None:
    assert kind_of(CONFIGURATIONS["core"].large) is LifecycleMachine
    assert kind_of(CONFIGURATIONS["control calls"].large) is Walk
    assert kind_of(CONFIGURATIONS["prefix"].large) is Walk


def test_the_machine_of_the_module_is_that_of_the_real_parts() -> None:
    world = LifecycleMachine.make()
    assert isinstance(world, World)
    assert world.parts == Parts()
    assert world.bounds == LARGE
    features = LARGE._asdict().items()
    assert {name for name, value in features if value == Bounds()._asdict()[name]} == {
        "reuse_at_once",
        "remembered",
    }


def test_what_cannot_happen_is_not_walked() -> None:
    machine = lifecycle_machine(requests(Bounds(rids=1, uses=1)))()
    assert isinstance(machine, LifecycleMachine)
    assert machine.possible("submit") == [Action("submit", rids=("r1",))]  # type: ignore[arg-type]
    assert machine.possible("leave") == []
    assert (machine.launchable, machine.landing, machine.in_flight) == ([], [], [])
    assert machine.anything
    assert not machine.waited_for
