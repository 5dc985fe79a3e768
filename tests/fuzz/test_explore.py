from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from vidette_fuzz.explore import CONFIGURATIONS, LONG_CONFIGURATIONS, Exploration, explore, explore_all
from vidette_fuzz.mutants import MUTANTS, Mutant
from vidette_fuzz.stories import replay
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import DetokenizerMachine, FrontMachine, SchedulerMachine
from vidette_protocol.world import Bounds, Parts

TINY = Bounds(rids=1, uses=1, tokens=1)


def ticking(step: float = 1.0) -> Callable[[], float]:
    """Return a clock that goes on by a step each time it is read."""
    ticks: Iterator[int] = count()
    return lambda: step * next(ticks)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_rule_holds_in_every_world_of_a_configuration(name: str) -> None:
    found = explore(bounds=CONFIGURATIONS[name])
    assert found.violation is None, str(found.violation)
    assert found.complete


def test_each_feature_of_a_world_is_in_a_configuration() -> None:
    """So that a table which shrinks is noticed."""
    bounds = CONFIGURATIONS.values()
    assert {each.reuse_at_once for each in bounds} == {True, False}
    assert {each.split_senders for each in bounds} == {True, False}
    assert max(each.rids for each in bounds) == 2
    assert max(each.uses for each in bounds) == 3
    assert max(each.chunks for each in bounds) == 1
    assert max(each.losses for each in bounds) == 1


def test_the_number_of_worlds_is_known() -> None:
    """So that a change which makes worlds unreachable, and rules hold for nothing, is noticed."""
    found = explore(bounds=TINY)
    assert (found.states, found.depth, found.complete) == (30, 8, True)


# --- mutants ----------------------------------------------------------------------------------------------

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "missing-vid-check": (8, "3: the caller of vid 1 hears what belongs to vid 0"),
    "delivered-after-leaving": (7, "2: vid 0 hears something after its scope has ended"),
    "state-dropped-before-abort": (4, "5: the scheduler works for vids [0], which the front has let go of"),
    "abort-of-the-unsent": (3, "7: the front still holds 1 at quiescence"),
    "floor-runs-ahead": (6, "6: vid 0 was launched after its abort was applied"),
    "waiters-not-told-of-death": (2, "8: the caller of vid 0 waits, and nothing can happen any more"),
    "double-free-at-landing": (6, "6: blocks of vid 0 were freed while it is in a batch on the device"),
    "abort-forgotten-in-transition": (8, "6: vid 0 was launched after its abort was applied"),
    "abort-forgotten-in-prefill": (8, "6: vid 0 was launched after its abort was applied"),
    "queued-abort-not-answered": (5, "7: the front still holds 1 at quiescence"),
    "second-answer-to-an-abort": (
        10,
        "RemoteProtocolError: vid 0 is over (ended), nothing of it can follow",
    ),
    "abort-hits-another": (11, "6: vid 0 was launched after its abort was applied"),
    "early-abort-forgotten": (6, "6: vid 0 was launched after its abort was applied"),
    "tombstones-never-die": (8, "7: the memory of overtaking aborts still holds 1 at quiescence"),
    "detokenizer-state-kept-after-abort": (7, "7: the detokenizer still holds 1 at quiescence"),
    "live-state-evicted": (13, "RemoteProtocolError: vid 0 is not open, but a row at offset 1 came"),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_each_mutant_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.parts, mutant.bounds).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])
    worlds = replay(mutant.parts, mutant.bounds, found.actions)
    assert [violations(world) for world in worlds[:-1]] == [[]] * len(found.actions)
    assert found.rules == tuple(violations(worlds[-1]))


def test_each_mutant_is_in_the_table() -> None:
    assert SHORTEST.keys() == MUTANTS.keys()


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_one_machine_with_one_fault_and_says_where_it_was_seen(mutant: Mutant) -> None:
    real = (FrontMachine, SchedulerMachine, DetokenizerMachine)
    changed = [part for part, machine in zip(mutant.parts, real, strict=True) if part is not machine]
    assert len(changed) == 1
    assert len([name for name in vars(changed[0]) if not name.startswith("__")]) == 1
    assert mutant.report
    assert mutant.story


def test_what_the_vid_buys_is_reuse_without_waiting_a_round_trip() -> None:
    """Delivering by rid is wrong if a rid is reused at once, right if it waits for the acknowledgement."""
    parts = MUTANTS["missing-vid-check"].parts
    assert explore(parts, CONFIGURATIONS["reuse at once"]).violation is not None
    patient = explore(parts, CONFIGURATIONS["reuse after acknowledgement"])
    assert patient.violation is None
    assert patient.complete


def test_a_counterexample_reads_as_a_story() -> None:
    mutant = MUTANTS["missing-vid-check"]
    assert str(explore(mutant.parts, mutant.bounds).violation).splitlines() == [
        "1. a client submits r0, which is vid 0",
        "2. the front sends the request of vid 0",
        "3. the caller of vid 0 leaves; an abort is sent",
        "4. a client submits r0, which is vid 1",
        "5. the request of vid 0 reaches the scheduler",
        "6. the abort of vid 0 reaches the scheduler, which says the end of vid 0 (abort)",
        "7. the end of vid 0 (abort) reaches the detokenizer",
        "8. the end of vid 0 (abort) reaches the front; the caller of vid 1 hears it",
        "broken: 3: the caller of vid 1 hears what belongs to vid 0",
        "broken: 3: the caller of vid 1 hears of an abort that it never asked for",
    ]


# --- budgets ------------------------------------------------------------------------------------------------


def test_an_exploration_stops_at_a_number_of_states() -> None:
    found = explore(max_states=50)
    assert not found.complete
    assert found.violation is None
    # The world in hand is explored to its end, so there may be a few more.
    assert 50 <= found.states < 60


def test_an_exploration_stops_when_its_time_is_up() -> None:
    found = explore(budget_s=20, clock=ticking())
    assert not found.complete
    assert 1 < found.states < 200


def test_a_mutant_is_not_caught_without_time() -> None:
    mutant = MUTANTS["missing-vid-check"]
    found = explore(mutant.parts, mutant.bounds, budget_s=0, clock=ticking(0))
    assert (found.states, found.complete, found.violation) == (1, False, None)
    assert found.states_per_s == 0


def test_speed_is_states_by_seconds() -> None:
    assert Exploration(states=30, depth=9, complete=True, seconds=2).states_per_s == 15


def test_all_configurations_are_explored_in_order() -> None:
    table = {"one": TINY, "two": TINY._replace(tokens=2)}
    found = explore_all(configurations=table)
    assert [name for name, _ in found] == ["one", "two"]
    assert all(exploration.complete for _, exploration in found)


def test_configurations_share_one_budget() -> None:
    found = dict(explore_all(40, clock=ticking()))
    assert found.keys() == CONFIGURATIONS.keys()
    assert not any(exploration.complete for exploration in found.values())
    assert sum(exploration.states for exploration in found.values()) < 400


def test_the_configurations_for_long_runs_start_well() -> None:
    for name, exploration in explore_all(configurations=LONG_CONFIGURATIONS, budget_s=0.5):
        assert exploration.violation is None, name
    assert not LONG_CONFIGURATIONS.keys() & CONFIGURATIONS.keys()


def test_parts_may_be_mutants_in_all_configurations() -> None:
    parts: Parts = MUTANTS["queued-abort-not-answered"].parts
    assert all(exploration.violation for _, exploration in explore_all(parts=parts))
