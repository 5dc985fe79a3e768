"""Faults of the step loop: each is caught, by its shortest story and by a random walk."""

from __future__ import annotations

import pytest

from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.explore import explore
from vidette_fuzz.loop_mutants import LOOP_MUTANTS
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.stepping.loop import ExploredLoop, LoopParts
from vidette_fuzz.stepping.world import LoopWorld
from vidette_fuzz.walks import run_walk

NAMES = [mutant.name for mutant in LOOP_MUTANTS]

NOT_ITS_OWN = "5: vid {} goes on with what is not its own"
IN_FLIGHT = "7: the session takes vids {} for turns in flight, and {} are"

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "shared-prefix-not-locked": (5, "5: 2 blocks are used by live requests, and 1 are held"),
    "duplicates-freed-in-use": (8, NOT_ITS_OWN.format(1)),
    "lock-outlives-retraction": (6, "5: 0 blocks are used by live requests, and 1 are held"),
    "retracted-freed-twice": (6, "ValueError: the node is not locked"),
    "uncomputed-prefix-cached": (6, "5: what is cached was never computed"),
    "rejected-draft-told": (6, "4: vid 0 is told [102, 302] from token 2 on, of [100, 101, 302]"),
    "rejected-draft-computed": (6, NOT_ITS_OWN.format(0)),
    "told-behind-the-stop": (6, "4: vid 0 is told [1, 103] from token 2 on, of [100, 101, 1]"),
    "said-again-after-retraction": (6, "4: vid 0 is told [100, 101] from token 1 on, of [100, 101]"),
    "abandoned-turn-counts": (
        9,
        "3: the turn of vid 1 goes on behind (400, 100, 401), and its caller knows (401,)",
    ),
    "aborted-turn-in-flight": (5, IN_FLIGHT.format("[0]", "[]")),
    "late-abort-ends-the-next-turn": (8, IN_FLIGHT.format("[]", "[1]")),
    "closed-under-a-turn": (5, IN_FLIGHT.format("[]", "[0]")),
    "expired-under-a-turn": (4, IN_FLIGHT.format("[]", "[0]")),
    "replaced-turn-told-of-an-abort": (
        8,
        "RemoteProtocolError: vid 0 is sent: its end answers an abort that was not sent",
    ),
}


@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.small).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])


@pytest.mark.long
@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_random_walk(mutant: Mutant) -> None:
    """Far beyond the bounds of an exploration, within a few hundred histories."""
    assert run_walk(mutant.large, seconds=60, shrink=False).violations


@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=NAMES)
def test_each_has_one_fault(mutant: Mutant) -> None:
    world = mutant.small()
    assert isinstance(world, LoopWorld)
    real = LoopParts(ExploredLoop)
    (changed,) = (part for part, ours in zip(world.loop_parts, real, strict=True) if part is not ours)
    assert len([name for name in vars(changed) if not name.startswith("__")]) == 1


@pytest.mark.parametrize("mutant", LOOP_MUTANTS, ids=NAMES)
def test_each_is_of_a_configuration_that_has_what_it_needs(mutant: Mutant) -> None:
    world, short = mutant.small(), CONFIGURATIONS[mutant.configuration].short()
    assert isinstance(world, LoopWorld)
    assert isinstance(short, LoopWorld)
    for name, value in world.loop_bounds._asdict().items():
        assert value <= short.loop_bounds._asdict()[name], name


def test_a_story_of_a_draft() -> None:
    (mutant,) = (mutant for mutant in LOOP_MUTANTS if mutant.name == "told-behind-the-stop")
    step = (
        "6. a step computes vid 0, 1 of whose drafts are right, whose token 1 of these ends it; "
        "vid 0 says 2 from 2 on and ends"
    )
    assert str(explore(mutant.small).violation).splitlines() == [
        "1. a client submits r1, which is vid 0",
        "2. the front sends the request of vid 0",
        "3. the request of vid 0 reaches the scheduler",
        "4. a step computes vid 0; vid 0 says 1 from 0 on",
        "5. a step computes vid 0; vid 0 says 1 from 1 on",
        step,
        "broken: 4: vid 0 is told [1, 103] from token 2 on, of [100, 101, 1]",
    ]
