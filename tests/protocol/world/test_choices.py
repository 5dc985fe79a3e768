from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.ids import Rid, Vid, make_vid
from vidette_protocol.world import Action, Bounds, World
from vidette_protocol.world.choices import NAMES, rid_of

A, B = Vid(0), Vid(1)
R, S, T = (rid_of(number) for number in range(3))
ASK = ("submit", "send", "request arrives")
HOME = ("row arrives", "text arrives")


def walk(world: World, *actions: str | Action) -> World:
    """Return the world after actions; a bare name is the first enabled action of that name."""
    for action in actions:
        world = world.apply(next(each for each in world.enabled() if action in {each, each.name}))
        assert world.check() == []
    return world


def of(world: World, name: str) -> list[Action]:
    return [action for action in world.enabled() if action.name == name]


def test_each_rid_is_the_beginning_of_the_next() -> None:
    rids = [rid_of(number) for number in range(9)]
    assert rids[:3] == [Rid("r1"), Rid("r12"), Rid("r123")]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(rids))


def test_slots_of_which_nothing_is_known_are_alike() -> None:
    world = World(bounds=Bounds(rids=3, uses=3))
    assert of(world, "submit") == [Action("submit", rids=(R,))]
    world = walk(world, "submit")
    assert of(world, "submit") == [Action("submit", rids=(S,))]
    assert of(walk(world, "leave"), "submit") == [Action("submit", rids=(R,))]


def test_a_rid_is_reused_at_once_or_after_the_acknowledgement() -> None:
    for at_once in (True, False):
        world = walk(World(bounds=Bounds(rids=1, uses=2, reuse_at_once=at_once)), "submit")
        assert of(world, "submit") == []
        world = walk(world, "send", "leave")
        assert bool(of(world, "submit")) is at_once
        world = walk(world, "request arrives", "abort arrives", *HOME)
        assert of(world, "submit")


def test_no_more_is_submitted_than_the_bounds_say() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=1, replace=True, group=2)), "submit")
    assert not {"submit", "replace", "submit group"} & {action.name for action in world.enabled()}


def test_a_rid_that_is_held_may_be_taken_over() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=3, replace=True)), "submit", "submit")
    assert of(world, "replace") == [Action("replace", rids=(R,)), Action("replace", rids=(S,))]
    assert of(walk(World(), "submit"), "replace") == []


def test_all_are_aborted_as_long_as_anybody_waits() -> None:
    world = World(bounds=Bounds(rids=2, uses=3, fronts=2, abort_all=True))
    assert of(world, "abort all") == []
    world = walk(world, "submit")
    assert of(world, "abort all") == [Action("abort all")]
    assert of(walk(world, "leave"), "abort all") == []
    world = walk(world, Action("submit", rids=(R,), front=1), "abort all")
    assert of(world, "abort all") == [Action("abort all", front=1)]
    assert of(walk(World(), "submit"), "abort all") == []


def test_a_group_takes_free_slots_and_those_first_that_are_closing() -> None:
    world = World(bounds=Bounds(rids=3, uses=4, group=2))
    assert of(world, "submit group") == [Action("submit group", rids=(R, S))]
    assert of(world, "group is refused") == []
    world = walk(world, "submit", "submit", "send", "leave")
    assert of(world, "submit group") == [Action("submit group", rids=(R, T))]
    assert of(world, "group is refused") == [Action("group is refused", rids=(R, S))]


def test_a_group_for_which_there_is_no_room_is_not_submitted() -> None:
    assert of(World(bounds=Bounds(rids=1, uses=4, group=2)), "submit group") == []
    assert of(World(bounds=Bounds(rids=2, uses=1, group=2)), "submit group") == []
    world = walk(World(bounds=Bounds(rids=1, uses=4, group=2)), "submit")
    assert of(world, "group is refused") == []


def test_fronts_and_replicas_of_which_nothing_was_asked_are_alike() -> None:
    world = World(bounds=Bounds(rids=2, uses=2, fronts=2, replicas=3))
    assert of(world, "submit") == [Action("submit", rids=(R,))]
    world = walk(world, "submit")
    assert [action.front for action in of(world, "submit")] == [0, 1]
    assert [action.replica for action in of(world, "send")] == [0, 1]
    world = walk(world, Action("send", (A,), replica=1), Action("submit", rids=(R,), front=1))
    assert [action.replica for action in of(world, "send")] == [0, 1, 2]
    assert of(world, "send")[0].vids == (make_vid(1, 0),)


def test_any_part_of_what_is_ready_may_be_launched_and_any_part_of_a_batch_may_end() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=2)), "submit", "submit", "send", "send")
    world = walk(world, "request arrives", "request arrives")
    assert [action.vids for action in of(world, "launch")] == [(A,), (B,), (A, B)]
    world = walk(world, Action("launch", (A, B)))
    assert of(world, "launch") == []
    assert [action.vids for action in of(world, "land")] == [(), (A,), (B,), (A, B)]


def test_the_last_token_comes_with_the_end() -> None:
    world = walk(World(bounds=Bounds(rids=1, uses=1, tokens=1)), *ASK, "launch")
    assert of(world, "land") == [Action("land", (A,))]


def test_deadlines_and_retractions_happen_where_the_bounds_let_them() -> None:
    plain = walk(World(), *ASK)
    assert (of(plain, "expire"), of(plain, "retract"), of(plain, "reject")) == (
        [],
        [],
        [Action("reject", (A,))],
    )
    world = walk(World(bounds=Bounds(deadlines=True, retractions=1)), *ASK)
    assert of(world, "expire") == [Action("expire", (A,))]
    assert of(world, "retract") == []
    world = walk(world, "launch", "land")
    assert of(world, "retract") == [Action("retract", (A,))]
    assert of(world, "reject") == []
    assert of(walk(world, "retract"), "retract") == []


def test_a_replica_dies_as_often_as_the_bounds_say_and_when_the_last_death_is_known() -> None:
    world = World(bounds=Bounds(losses=2, replicas=2))
    assert of(world, "replica is lost") == [Action("replica is lost")]
    world = walk(world, "replica is lost")
    assert of(world, "replica is lost") == []
    world = walk(world, "loss is noticed", "replica is lost", "loss is noticed")
    assert of(world, "replica is lost") == []


def test_singles_are_all_but_the_batches() -> None:
    world = walk(World(), *ASK)
    batches = {"launch", "land"}
    assert world.singles() == [action for action in world.enabled() if action.name not in batches]


EVERYTHING = Bounds(
    rids=2,
    uses=5,
    tokens=2,
    fronts=2,
    replicas=2,
    replace=True,
    group=2,
    abort_all=True,
    split_senders=True,
    chunks=1,
    deadlines=True,
    retractions=2,
    losses=2,
    resume=True,
)


@given(st.data())
def test_what_drains_is_enabled_and_comes_to_an_end(data: st.DataObject) -> None:
    """Whatever has happened, draining comes to an end, and then nobody waits and nothing is held."""
    world = World(bounds=EVERYTHING)
    for _ in range(data.draw(st.integers(0, 30))):
        world = world.apply(data.draw(st.sampled_from(world.enabled() or [Action("submit", rids=(R,))])))
    for _ in range(500):
        draining = world.draining()
        if not draining:
            break
        assert all(action.name in NAMES for action in draining)
        assert set(draining) <= set(world.enabled()) | set(_all_ending(world))
        world = world.apply(draining[-1])
        assert world.check() == []
    assert world.settled
    assert all(len(front) == 0 for front in world.fronts)


def _all_ending(world: World) -> list[Action]:
    """Landings that end what is on the device, that included which is not to be launched any more."""
    return [Action("land", replica.batch, replica=number) for number, replica in enumerate(world.replicas)]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_whatever_can_happen_does_happen_somewhere(name: str) -> None:
    """So that an action which is never enabled is noticed; breadth first, so that it is found soon."""
    bounds = EVERYTHING._replace(
        fronts=1, replicas=1, uses=2, chunks=0, split_senders=name != "abort arrives"
    )
    worlds, seen = [World(bounds=bounds)], set()
    for _ in range(12):
        following: list[World] = []
        for world in worlds:
            for action in world.enabled():
                if action.name == name:
                    return
                after = world.apply(action)
                if after.key() not in seen and len(following) < 400:
                    seen.add(after.key())
                    following.append(after)
        worlds = following
    pytest.fail(f"{name} never happens")


def test_an_action_reads_as_a_few_words() -> None:
    assert str(Action("submit", rids=(R,))) == "submit r1"
    assert str(Action("launch", (A, make_vid(1, 2)))) == "launch #0 #1:2"


def test_a_batch_may_land_with_several_tokens() -> None:
    world = walk(World(bounds=Bounds(tokens=3, several=2)), *ASK, "launch")
    assert of(world, "land") == [
        Action("land", counts=(1,)),
        Action("land", counts=(2,)),
        Action("land", (A,), counts=(1,)),
        Action("land", (A,), counts=(2,)),
    ]
    assert str(of(world, "land")[-1]) == "land #0 2"
    world = walk(world, Action("land", counts=(2,)), "row arrives", "text arrives")
    assert world.streams[A].heard == 2
