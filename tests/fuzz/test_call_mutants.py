"""Faults of control calls and handshakes: each is caught, by its shortest story and by a random walk."""

from __future__ import annotations

import pytest

from vidette_fuzz.call_mutants import CALL_MUTANTS
from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.explore import explore
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.walks import run_walk

NAMES = [mutant.name for mutant in CALL_MUTANTS]

# Name: length of the shortest story, and the first rule it breaks.
SHORTEST = {
    "reply-matched-by-type": (6, "3: caller 0 hears the answer to caller 1"),
    "reply-of-the-cancelled-passed-on": (6, "3: caller 1 hears the answer to caller 0"),
    "late-reply-is-fatal": (5, "RemoteProtocolError: Kind0 1 answers nothing that is due"),
    "caller-not-told-of-death": (3, "9: caller 0 waits, and nothing can happen any more"),
    "cancelled-call-outlives-the-replica": (4, "7: front 0 still holds 1 questions at quiescence"),
    "one-death-taken-for-all": (6, "RemoteProtocolError: Kind0 1 answers nothing that is due"),
    "one-place-for-a-kind": (5, "RemoteProtocolError: Kind0 1 answers nothing that is due"),
    "unsent-question-kept": (1, "7: front 0 still holds 1 questions at quiescence"),
    "message-before-hello": (2, "4: end 1 is told of Ready after 0 messages"),
    "message-before-ready": (4, "4: end 1 is told of Message after 1 messages"),
    "failure-before-hello-refused": (2, "RemoteProtocolError: a link opens with Hello, not with Failed"),
    "heard-after-failed": (8, "4: end 1 is told of Failed after 3 messages"),
    "second-ready-taken": (6, "4: end 1 is told of Ready after 2 messages"),
    "second-hello-taken": (4, "4: end 1 is told of Hello after 1 messages"),
}


@pytest.mark.parametrize("mutant", CALL_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_shortest_story(mutant: Mutant) -> None:
    found = explore(mutant.small).violation
    assert found is not None
    assert SHORTEST[mutant.name] == (len(found.story), found.rules[0])


@pytest.mark.parametrize("mutant", CALL_MUTANTS, ids=NAMES)
def test_each_is_caught_by_a_random_walk(mutant: Mutant) -> None:
    """Far beyond the bounds of an exploration, within a few hundred histories."""
    assert run_walk(mutant.large, seconds=60, shrink=False).violations


@pytest.mark.parametrize("mutant", CALL_MUTANTS, ids=NAMES)
def test_each_says_where_it_was_seen_and_is_of_a_configuration(mutant: Mutant) -> None:
    assert mutant.report
    assert mutant.story
    assert mutant.configuration in CONFIGURATIONS


def test_a_story_of_the_wrong_caller() -> None:
    (mutant,) = (mutant for mutant in CALL_MUTANTS if mutant.name == "reply-of-the-cancelled-passed-on")
    assert str(explore(mutant.small).violation).splitlines() == [
        "1. caller 0 asks question 1 (Kind0) of replica 0 by front 0",
        "2. question 1 of front 0 reaches replica 0",
        "3. replica 0 answers question 1 of front 0",
        "4. caller 1 asks question 2 (Kind0) of replica 0 by front 0",
        "5. caller 0 leaves",
        "6. the answer to question 1 reaches front 0; caller 1 hears of it",
        "broken: 3: caller 1 hears the answer to caller 0",
    ]
