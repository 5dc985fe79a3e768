from __future__ import annotations

from vidette_fuzz.configurations import requests
from vidette_fuzz.stories import Counterexample, counterexample, replay
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.world import Action, Bounds, Parts, World

SUBMIT = Action("submit", rids=(Rid("r1"),))


def test_a_run_is_replayed_world_by_world() -> None:
    worlds = replay(requests(Bounds()), [SUBMIT, Action("send", (Vid(0),))])
    assert len(worlds) == 3
    assert worlds[0].key() == World(Parts(), Bounds()).key()
    assert worlds[2].key() == worlds[1].apply(Action("send", (Vid(0),))).key()


def test_a_run_that_breaks_nothing_is_a_story_without_rules() -> None:
    found = counterexample(requests(Bounds()), [SUBMIT])
    assert found == Counterexample((SUBMIT,), ("a client submits r1, which is vid 0",), ())
    assert str(found) == "1. a client submits r1, which is vid 0"


def test_what_is_broken_stands_below_the_story() -> None:
    found = Counterexample((), ("one", "two"), ("7: something is left", "8: somebody waits"))
    assert str(found) == "1. one\n2. two\nbroken: 7: something is left\nbroken: 8: somebody waits"
