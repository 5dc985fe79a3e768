from __future__ import annotations

import pytest

from vidette_fuzz.back_mutants import BACK_MUTANTS
from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.explore import explore
from vidette_fuzz.front_mutants import FRONT_MUTANTS
from vidette_fuzz.machines import run_lifecycle
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.mutants import MUTANTS
from vidette_fuzz.stories import replay
from vidette_protocol.lifecycle import DetokenizerMachine, FrontMachine, SchedulerMachine, unheard
from vidette_protocol.world import World

OF_REQUESTS = (*FRONT_MUTANTS, *BACK_MUTANTS)
EACH_OF_REQUESTS = pytest.mark.parametrize("mutant", OF_REQUESTS, ids=[mutant.name for mutant in OF_REQUESTS])

LAUNCHED_AFTER_ABORT = "6: vid 0 was launched after its abort was applied"
FREED_ON_THE_DEVICE = "6: blocks of vid 0 were freed while it is in a batch on the device"
FRONT_HOLDS = "7: the front still holds 1 at quiescence"
WAITS = "8: the caller of vid {} waits, and nothing can happen any more"

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "missing-vid-check": (8, "3: the caller of vid 1 hears what belongs to vid 0"),
    "delivered-after-leaving": (7, "2: vid 0 hears something after its scope has ended"),
    "state-dropped-before-abort": (4, "5: the scheduler works for vids [0], which the front has let go of"),
    "abort-of-the-unsent": (3, FRONT_HOLDS),
    "floor-runs-ahead": (6, LAUNCHED_AFTER_ABORT),
    "waiters-not-told-of-death": (3, WAITS.format(0)),
    "children-orphaned": (2, FRONT_HOLDS),
    "group-half-taken": (2, "7: a group that was refused has left something behind"),
    "abort-matches-by-prefix": (3, WAITS.format(1)),
    "replaced-not-told": (2, WAITS.format(0)),
    "successor-aborted": (8, WAITS.format(1)),
    "replacing-refused": (2, "DuplicateRid: rid 'r1' is live"),
    "abort-all-misses-the-unsent": (2, "9: the caller of vid 0 is not told that all were aborted"),
    "one-death-ends-all": (3, "9: the caller of vid 0 is told of the death of another's replica"),
    "resumed-for-nobody": (5, FRONT_HOLDS),
    "silent-not-resumed": (4, "9: the caller of vid 0 waits for a replica that is dead"),
    "moved-delivered-late": (
        8,
        "LookupError: vid 0 carries no request any more, and yet something of it is heard",
    ),
    "resume-repeats-tokens": (13, "4: vid 1 has 1 tokens and hears of token 0"),
    "double-free-at-landing": (6, FREED_ON_THE_DEVICE),
    "abort-forgotten-in-transition": (8, LAUNCHED_AFTER_ABORT),
    "abort-forgotten-in-prefill": (8, LAUNCHED_AFTER_ABORT),
    "abort-forgotten-in-retraction": (9, LAUNCHED_AFTER_ABORT),
    "queued-abort-not-answered": (5, FRONT_HOLDS),
    "second-answer-to-an-abort": (
        10,
        "RemoteProtocolError: vid 0 is over (ended), nothing of it can follow",
    ),
    "abort-hits-another": (11, LAUNCHED_AFTER_ABORT),
    "abort-all-hits-other-fronts": (
        10,
        "RemoteProtocolError: vid 0 is sent: its end answers an abort that was not sent",
    ),
    "early-abort-forgotten": (6, LAUNCHED_AFTER_ABORT),
    "tombstones-never-die": (8, "7: the memory of overtaking aborts still holds 1 at quiescence"),
    "floor-of-another-front": (11, LAUNCHED_AFTER_ABORT),
    "deadline-frees-on-the-device": (5, FREED_ON_THE_DEVICE),
    "deadline-taken-for-abort": (
        6,
        "RemoteProtocolError: vid 0 is sent: its end answers an abort that was not sent",
    ),
    "retraction-begins-anew": (9, "RemoteProtocolError: vid 0 expects offset 1, but a row at offset 0 came"),
    "resumed-without-its-beginning": (
        13,
        "RemoteProtocolError: vid 1 is not open, but a row at offset 1 came",
    ),
    "detokenizer-state-kept-after-abort": (7, "7: the detokenizer still holds 1 at quiescence"),
    "live-state-evicted": (13, "RemoteProtocolError: vid 0 is not open, but a row at offset 1 came"),
}


@EACH_OF_REQUESTS
def test_each_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.small).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])
    worlds = replay(mutant.small, found.actions)
    assert [world.check() for world in worlds[:-1]] == [[]] * len(found.actions)
    assert found.rules == tuple(worlds[-1].check())


@EACH_OF_REQUESTS
def test_each_is_caught_by_a_random_walk(mutant: Mutant) -> None:
    (found,) = run_lifecycle(60, make=mutant.large, shrink=False).violations
    assert found.rules == tuple(replay(mutant.large, found.actions)[-1].check())


@EACH_OF_REQUESTS
def test_each_has_one_fault(mutant: Mutant) -> None:
    world = mutant.small()
    assert isinstance(world, World)
    real = (FrontMachine, SchedulerMachine, DetokenizerMachine, unheard)
    (changed,) = (part for part, ours in zip(world.parts, real, strict=True) if part is not ours)
    if isinstance(changed, type):
        assert len([name for name in vars(changed) if not name.startswith("__")]) == 1


@EACH_OF_REQUESTS
def test_each_is_caught_in_its_configuration_as_well(mutant: Mutant) -> None:
    """What a mutant needs can happen in its configuration, so that what is explored on every push has it."""
    world, short = mutant.small(), CONFIGURATIONS[mutant.configuration].short()
    assert isinstance(world, World)
    assert isinstance(short, World)
    for name, value in world.bounds._asdict().items():
        if isinstance(value, bool) and name != "resume":
            assert value <= short.bounds._asdict()[name], name


def test_each_is_in_the_table() -> None:
    assert SHORTEST.keys() == {mutant.name for mutant in OF_REQUESTS}
    assert SHORTEST.keys() < MUTANTS.keys()


def test_each_has_a_name_of_its_own_and_says_where_it_was_seen() -> None:
    assert len(MUTANTS) >= 33
    for name, mutant in MUTANTS.items():
        assert name == mutant.name
        assert mutant.report
        assert mutant.story
        assert mutant.configuration in CONFIGURATIONS


def test_every_configuration_but_one_has_a_mutant() -> None:
    """In "reuse after acknowledgement" a vid is redundant, which is a test of its own."""
    shown = {mutant.configuration for mutant in MUTANTS.values()}
    assert CONFIGURATIONS.keys() - shown == {"reuse after acknowledgement"}
