from __future__ import annotations

from typing import Any

import pytest

from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_fuzz.stepping.loop import LoopParts
from vidette_fuzz.stepping.overlapped import OverlappedLoop, OverlappedReplica, OverlappedWorld
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import End, Row, SchedulerState
from vidette_protocol.world import Action, Bounds

A, B = Vid(0), Vid(1)
ASK = ("submit", "send", "request arrives")
HOME = ("row arrives", "text arrives")
LAUNCH_A = Action("step", (A,))
GOES_ON = (0, 0)


def made(loop_bounds: LoopBounds = LoopBounds(), **bounds: Any) -> OverlappedWorld:  # noqa: B008  immutable
    return OverlappedWorld(LoopParts(OverlappedLoop), loop_bounds._replace(overlaps=True), Bounds(**bounds))


def walk(world: OverlappedWorld, *actions: str | Action) -> OverlappedWorld:
    """Return the world after actions; a bare name is the first enabled action of that name."""
    for action in actions:
        world = world.apply(next(each for each in world.enabled() if action in {each, each.name}))
        assert world.check() == []
    return world


def at(world: OverlappedWorld) -> OverlappedReplica:
    replica = world.replicas[0]
    assert isinstance(replica, OverlappedReplica)
    return replica


def names(world: OverlappedWorld) -> set[str]:
    return {action.name for action in world.enabled()}


def test_a_batch_lands_by_a_move_of_its_own() -> None:
    world = walk(made(rids=1, uses=1, tokens=2), *ASK, LAUNCH_A)
    assert at(world).batch == (A,)
    assert at(world).scheduler.state(A) is SchedulerState.LAUNCHED
    assert at(world).rows == ()
    world = walk(world, Action("land", (A,), counts=GOES_ON))
    assert at(world).rows == (Row(A, 0, 1, None),)  # is told while the next one is in flight
    assert at(world).batch == (A,)
    world = walk(world, *HOME, "land", *HOME, "leave")
    assert world.streams[A].heard == 2
    assert world.enabled() == []


def test_all_that_can_happen_happens_while_a_batch_is_in_flight() -> None:
    world = made(LoopBounds(pauses=1, prompt=17, chunk=32, flushes=True), rids=3, uses=3, tokens=2, losses=1)
    world = walk(world, *ASK, "submit", "send", LAUNCH_A, "leave")
    meanwhile = {"submit", "leave", "request arrives", "replica is lost", "pause", "land", "launch fails"}
    assert names(world) == meanwhile
    assert "flush" in names(walk(world, Action("land", counts=(0, 1))))


def test_what_comes_meanwhile_is_applied_when_the_batch_has_landed() -> None:
    world = walk(made(rids=2, uses=2, tokens=2), *ASK, LAUNCH_A, "leave", "abort arrives", *ASK)
    assert at(world).scheduler.state(A) is SchedulerState.LAUNCHED
    assert [(ask.vid, ask.abort) for ask in at(world).posted] == [(A, True), (B, False)]
    landings = {action.vids for action in world.enabled() if action.name == "land"}
    assert landings == {(), (B,)}
    world = walk(world, Action("land", (B,), counts=GOES_ON))
    assert at(world).rows == (Row(A, 0, 1, None), Row(A, 1, 0, End.ABORT))
    assert at(world).batch == ()  # an answer goes out before the next batch
    assert at(walk(world, Action("step", (B,)))).batch == (B,)


def test_a_launch_that_fails_ends_the_scheduler_when_it_is_waited_for() -> None:
    world = walk(made(rids=1, uses=1, tokens=2, losses=1), *ASK, LAUNCH_A)
    world = walk(world, Action("launch fails", (A,), counts=GOES_ON))
    assert at(world).rows == (Row(A, 0, 1, None),)
    world = walk(world, *HOME)
    assert world.streams[A].heard == 1
    assert names(world) == {"leave", "land", "replica is lost"}
    dead = walk(world, "land", "loss is noticed")
    assert (dead.losses, dead.streams[A].ends) == (1, 1)
    assert world.tell(Action("land"), walk(world, "land")) == (
        "the launch that failed is waited for; the scheduler and its detokenizer die"
    )


def test_a_first_launch_that_fails_ends_it_at_once() -> None:
    world = walk(made(rids=1, uses=1, tokens=2, losses=1), *ASK, "launch fails")
    assert names(world) == {"leave", "loss is noticed"}


@pytest.mark.parametrize(
    ("mode", "left"), [(0, SchedulerState.OVER), (1, SchedulerState.WAITING), (2, SchedulerState.RUNNING)]
)
def test_a_pause_comes_behind_the_landing(mode: int, left: SchedulerState) -> None:
    world = walk(made(LoopBounds(pauses=1), rids=1, uses=1, tokens=3), *ASK, LAUNCH_A)
    world = walk(world, Action("pause", counts=(mode,)))
    assert at(world).scheduler.state(A) is SchedulerState.LAUNCHED
    world = walk(world, Action("land", (A,), counts=GOES_ON))
    assert at(world).scheduler.state(A) is left
    assert at(world).batch == ()
    assert names(walk(world, *HOME)) <= {"continue", "row arrives", "text arrives", "leave"}
    while ahead := world.draining():
        world = walk(world, ahead[0])
    assert world.streams[A].ends == 1
