from __future__ import annotations

from vidette_fuzz.stories import Counterexample, counterexample, replay, tell
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.world import Action, Bounds, Parts

A, B = Vid(0), Vid(1)


def told(bounds: Bounds, *actions: Action) -> list[str]:
    worlds = replay(Parts(), bounds, actions)
    return [
        tell(before, action, after)
        for before, action, after in zip(worlds, actions, worlds[1:], strict=False)
    ]


def test_a_life_is_told() -> None:
    assert told(
        Bounds(tokens=2),
        Action("submit", rid=Rid("r0")),
        Action("send", (A,)),
        Action("request arrives"),
        Action("launch", (A,)),
        Action("land"),
        Action("row arrives"),
        Action("text arrives"),
        Action("launch", (A,)),
        Action("land", (A,)),
        Action("row arrives"),
        Action("text arrives"),
        Action("leave", (A,)),
    ) == [
        "a client submits r0, which is vid 0",
        "the front sends the request of vid 0",
        "the request of vid 0 reaches the scheduler",
        "a batch of vid 0 is launched",
        "the batch of vid 0 lands at the scheduler, which says token 0 of vid 0",
        "token 0 of vid 0 reaches the detokenizer",
        "token 0 of vid 0 reaches the front; the caller of vid 0 hears it",
        "a batch of vid 0 is launched",
        "the batch of vid 0 lands at the scheduler, which says the end of vid 0 (finish, token 1)",
        "the end of vid 0 (finish, token 1) reaches the detokenizer",
        "the end of vid 0 (finish, token 1) reaches the front; the caller of vid 0 hears it",
        "the caller of vid 0 leaves",
    ]


def test_aborts_refusals_and_losses_are_told() -> None:
    assert told(
        Bounds(split_senders=True, losses=1),
        Action("submit", rid=Rid("r0")),
        Action("submit", rid=Rid("r1")),
        Action("send", (A,)),
        Action("send", (B,)),
        Action("leave", (A,)),
        Action("overtaking abort arrives"),
        Action("request arrives"),
        Action("request arrives"),
        Action("reject", (B,)),
        Action("row arrives"),
        Action("text arrives"),
        Action("replica is lost"),
    )[4:] == [
        "the caller of vid 0 leaves; an abort is sent",
        "the abort of vid 0 takes its own link to the scheduler",
        "the request of vid 0 reaches the scheduler, which says the end of vid 0 (abort)",
        "the request of vid 1 reaches the scheduler",
        "vid 1 cannot be served by the scheduler, which says the end of vid 1 (finish)",
        "the end of vid 0 (abort) reaches the detokenizer",
        "the end of vid 0 (abort) reaches the front; nobody hears it",
        "scheduler and detokenizer die; told: vid 1",
    ]


def test_an_abort_that_keeps_its_place_is_told() -> None:
    assert (
        told(
            Bounds(),
            Action("submit", rid=Rid("r0")),
            Action("send", (A,)),
            Action("leave", (A,)),
            Action("request arrives"),
            Action("abort arrives"),
        )[-1]
        == "the abort of vid 0 reaches the scheduler, which says the end of vid 0 (abort)"
    )


def test_a_loss_that_hurts_nobody_is_told() -> None:
    assert told(Bounds(losses=1), Action("replica is lost")) == ["scheduler and detokenizer die"]


def test_a_run_that_breaks_nothing_is_a_story_without_rules() -> None:
    actions = [Action("submit", rid=Rid("r0"))]
    found = counterexample(Parts(), Bounds(), actions)
    assert found == Counterexample(tuple(actions), ("a client submits r0, which is vid 0",), ())
    assert str(found) == "1. a client submits r0, which is vid 0"
