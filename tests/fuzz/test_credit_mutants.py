"""Faults of arenas and of slow consumers: each is caught, by its shortest story and by a random walk."""

from __future__ import annotations

import pytest

from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.credit_mutants import CREDIT_MUTANTS
from vidette_fuzz.explore import explore
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.walks import run_walk
from vidette_protocol.small_worlds.model import Step

NAMES = [mutant.name for mutant in CREDIT_MUTANTS]

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "hold-and-wait": (4, "8: message 1 waits for room, and nothing can happen any more"),
    "credit-of-the-dead": (7, "RemoteProtocolError: a credit for byte 0 of an arena, which is not lent"),
    "dead-consumer-keeps-all": (5, "7: the producer still holds 1 extents at quiescence"),
    "freed-while-produced": (3, "5: byte 0 is being produced in, but is not taken"),
    "released-by-place": (7, "5: byte 0 is being produced in, but is not taken"),
    "freed-while-posted": (3, "5: byte 0 is the consumer's, but its producer takes it for over"),
    "credit-returned-twice": (5, "RemoteProtocolError: a credit for byte 0 of an arena, which is not lent"),
    "credit-at-the-arrays-death": (7, "5: byte 0 is the consumer's, but its producer takes it for over"),
    "dropped-message-leaks": (4, "7: the producer still holds 1 extents at quiescence"),
    "dropped-by-place": (11, "5: byte 0 is the consumer's, but its producer takes it for over"),
    "front-stops-reading-to-send": (12, "8: caller 0 waits with 0 tokens, and nothing can happen any more"),
    "front-waits-for-the-slow": (16, "8: caller 0 waits with 0 tokens, and nothing can happen any more"),
    "parked-until-the-next-step": (9, "8: caller 0 waits with 1 tokens, and nothing can happen any more"),
    "only-the-newest-kept": (12, "4: caller 0 has read tokens (1,), the last as '1'"),
    "taken-twice": (9, "4: caller 0 has read tokens (0, 0), the last as '0'"),
    "deltas-queue": (11, "7: 2 deltas wait for caller 0, who is slow"),
}


@pytest.mark.parametrize("mutant", CREDIT_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.small).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])


@pytest.mark.parametrize("mutant", CREDIT_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_random_walk(mutant: Mutant) -> None:
    """Far beyond the bounds of an exploration, within a few hundred histories."""
    assert run_walk(mutant.large, seconds=60, shrink=False).violations


@pytest.mark.parametrize("mutant", CREDIT_MUTANTS, ids=NAMES)
def test_each_says_where_it_was_seen_and_is_of_a_configuration(mutant: Mutant) -> None:
    assert mutant.report
    assert mutant.story
    assert mutant.configuration in CONFIGURATIONS


def test_a_story_of_a_slice_that_is_silently_overwritten() -> None:
    (mutant,) = (mutant for mutant in CREDIT_MUTANTS if mutant.name == "credit-at-the-arrays-death")
    found = explore(mutant.small).violation
    assert str(found).splitlines() == [
        "1. message 0 has room at 0",
        "2. message 0 is posted",
        "3. message 0 reaches the consumer",
        "4. the consumer makes a slice of what lies at 0",
        "5. the array at 0 dies",
        "6. the consumer sends a credit for 0",
        "7. a credit for 0 reaches the producer",
        "broken: 5: byte 0 is the consumer's, but its producer takes it for over",
    ]
    assert found is not None
    world = mutant.small()
    for step in (*found.actions, Step("begin", (1,))):
        world = world.apply(step)
    assert "5: message 1 is written over message 0, which is looked at" in world.check()
