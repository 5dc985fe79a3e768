"""Faults of a step loop where a device computes meanwhile: each is caught, shortest first and at random."""

from __future__ import annotations

import pytest

from vidette_fuzz.configurations import CONFIGURATIONS, stepping
from vidette_fuzz.explore import explore
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.mutants import MUTANTS
from vidette_fuzz.overlap_mutants import OVERLAP_MUTANTS
from vidette_fuzz.stepping.overlapped import OverlappedLoop, OverlappedWorld
from vidette_fuzz.walks import run_walk

EACH = pytest.mark.parametrize("mutant", OVERLAP_MUTANTS, ids=[mutant.name for mutant in OVERLAP_MUTANTS])

NOT_LIVE = "5: blocks are held by vids [0], which are not live"
ANOTHER = "RuntimeError: a batch is launched while another is in flight"

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "applied-in-flight": (7, NOT_LIVE),
    "answered-before-what-landed": (8, "RemoteProtocolError: vid 0 is not open, but a row at offset 1 came"),
    "given-back-in-flight": (5, "5: vid 0 goes on with what is not its own"),
    "second-batch-in-flight": (5, ANOTHER),
    "batch-in-flight-forgotten": (6, ANOTHER),
    "asleep-with-a-batch-in-flight": (4, "8: the caller of vid 0 waits, and nothing can happen any more"),
    "failed-launch-forgotten": (5, "8: vid 0 could be computed, and nothing is launched"),
    "landed-lost-with-the-next-launch": (
        5,
        "4: a launch failed, and what had landed before it is never told",
    ),
    "read-before-it-is-there": (4, "RuntimeError: a result is looked at that was not computed yet"),
    "retracted-in-flight": (6, NOT_LIVE),
    "dropped-by-a-pause": (6, "LocalProtocolError: vid 0 cannot be retracted: it is launched"),
    "launched-in-a-pause": (6, "RuntimeError: a batch is launched while generation is paused"),
}


@EACH
def test_each_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.small).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])


@pytest.mark.long
@EACH
def test_each_is_caught_by_a_random_walk(mutant: Mutant) -> None:
    """Far beyond the bounds of an exploration, within a few hundred histories."""
    assert run_walk(mutant.large, seconds=60, shrink=False).violations


@EACH
def test_each_has_one_fault(mutant: Mutant) -> None:
    world = mutant.small()
    assert isinstance(world, OverlappedWorld)
    assert issubclass(world.loop_parts.loop, OverlappedLoop)
    assert len([name for name in vars(world.loop_parts.loop) if not name.startswith("__")]) == 1


@EACH
def test_each_is_of_a_configuration_that_has_what_it_needs(mutant: Mutant) -> None:
    world, short = mutant.small(), CONFIGURATIONS[mutant.configuration].short()
    assert isinstance(world, OverlappedWorld)
    assert isinstance(short, OverlappedWorld)
    for name, value in world.loop_bounds._asdict().items():
        assert value <= short.loop_bounds._asdict()[name], name


@EACH
def test_without_its_fault_the_same_world_breaks_no_rule(mutant: Mutant) -> None:
    world = mutant.small()
    assert isinstance(world, OverlappedWorld)
    assert explore(stepping(world.loop_bounds, world.bounds)).complete


def test_each_is_among_the_others() -> None:
    assert SHORTEST.keys() == {mutant.name for mutant in OVERLAP_MUTANTS}
    assert SHORTEST.keys() < MUTANTS.keys()


def test_a_story_of_an_abort_in_flight() -> None:
    assert str(explore(MUTANTS["applied-in-flight"].small).violation).splitlines()[3:] == [
        "4. the request of vid 0 reaches the scheduler",
        "5. a step is taken; what was posted is applied (1); vid 0 is launched",
        "6. the abort of vid 0 reaches the scheduler",
        "7. a batch lands: vid 0; what was posted is applied (1); vid 0 says 1 from 0 on",
        "broken: 5: blocks are held by vids [0], which are not live",
    ]
