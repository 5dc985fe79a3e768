from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.ids import Rid, Vid, make_vid
from vidette_protocol.lifecycle import (
    FrontMachine,
    FrontState,
    How,
    Row,
    SchedulerMachine,
    SchedulerState,
)
from vidette_protocol.world import Action, Ask, Bounds, Parts, Stream, World

A, B = Vid(0), Vid(1)
R, S = Rid("r1"), Rid("r12")
SUBMIT = Action("submit", rids=(R,))


def walk(world: World, *actions: str | Action) -> World:
    """Return the world after actions; a bare name is the first enabled action of that name."""
    for action in actions:
        enabled = world.enabled()
        chosen = next(each for each in enabled if action in {each, each.name})
        world = world.apply(chosen)
        assert world.check() == []
    return world


def names(world: World) -> list[str]:
    return [str(action) for action in world.enabled()]


def caller(world: World, first: Vid = A) -> tuple[bool, int, int]:
    """Return whether a caller is there, and how many tokens and ends he has heard."""
    stream = world.streams[first]
    return stream.here, stream.heard, stream.ends


ASK = ("submit", "send", "request arrives")
HOME = ("row arrives", "text arrives")


# --- stories ------------------------------------------------------------------------------------------


def test_the_whole_life_of_a_request() -> None:
    world = walk(World(bounds=Bounds(rids=1, uses=1, tokens=2)), *ASK, "launch", "land", *HOME)
    assert caller(world) == (True, 1, 0)
    assert world.replicas[0].holding == {A}
    world = walk(world, "launch", Action("land", (A,)), *HOME)
    assert caller(world) == (True, 2, 1)
    assert world.replicas[0].holding == frozenset()
    assert world.settled
    assert names(world) == ["leave #0"]
    assert names(walk(world, "leave")) == []


def test_an_abort_on_the_device_is_answered_at_landing() -> None:
    world = walk(World(), *ASK, "launch", "leave", "abort arrives")
    assert world.replicas[0].rows == ()
    assert world.replicas[0].holding == {A}
    world = walk(world, "land", *HOME)
    assert world.replicas[0].holding == frozenset()
    assert world.front_state(A) is FrontState.OVER
    assert caller(world) == (False, 0, 0)


def test_an_abort_may_overtake_its_request_if_senders_are_split() -> None:
    world = walk(World(bounds=Bounds(split_senders=True)), "submit", "send", "leave")
    assert {"overtaking abort arrives", "request arrives"} < set(names(world))
    world = walk(world, "overtaking abort arrives", "request arrives", *HOME)
    assert world.settled


def test_a_request_may_be_refused_while_it_waits() -> None:
    assert caller(walk(World(), *ASK, "reject", *HOME)) == (True, 0, 1)


def test_a_deadline_ends_a_request_whose_caller_is_still_there() -> None:
    world = walk(World(bounds=Bounds(deadlines=True)), *ASK, "launch", "expire")
    assert world.replicas[0].scheduler.state(A) is SchedulerState.FREEING
    assert caller(walk(world, "land", *HOME)) == (True, 0, 1)


def test_what_is_retracted_goes_on_behind_what_it_has_said() -> None:
    world = walk(World(bounds=Bounds(tokens=2, retractions=1)), *ASK, "launch", "land", "retract", *HOME)
    assert world.replicas[0].holding == frozenset()
    assert "retract #0" not in names(world)
    world = walk(world, "launch", "land", *HOME)
    assert caller(world) == (True, 2, 1)


def test_who_is_replaced_is_told_and_his_leaving_ends_nothing_else() -> None:
    world = walk(World(bounds=Bounds(replace=True)), "submit", "send", "replace")
    assert caller(world) == (True, 0, 1)
    assert world.front_state(A) is FrontState.CLOSING
    assert world.fronts[0].holder(R) == B
    world = walk(world, Action("leave", (A,)))
    assert world.front_state(B) is FrontState.NEW
    assert len(world.asks[0, 0]) == 2


def test_who_is_replaced_before_his_request_was_sent_has_nothing_aborted() -> None:
    world = walk(World(bounds=Bounds(replace=True)), "submit", "replace")
    assert caller(world) == (True, 0, 1)
    assert world.asks == {}


def test_a_group_is_left_as_a_whole_and_ends_one_by_one() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=2, group=2)), "submit group", "send", "send")
    assert {stream.scope for stream in world.streams.values()} == {A}
    world = walk(world, "request arrives", "reject", *HOME)
    assert (caller(world, A), caller(world, B)) == ((True, 0, 1), (True, 0, 0))
    world = walk(world, "leave")
    assert (caller(world, A), caller(world, B)) == ((False, 0, 1), (False, 0, 0))
    assert [ask for ask in world.asks[0, 0] if ask.abort] == [Ask(B, abort=True, floor=B)]


def test_a_group_that_is_refused_leaves_nothing() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=3, group=2)), "submit")
    refused = walk(world, "group is refused")
    assert refused.key() == world.key()


# --- death --------------------------------------------------------------------------------------------


def test_a_loss_ends_what_lives_and_what_was_sent_before_may_still_come() -> None:
    world = walk(World(bounds=Bounds(losses=1)), "submit", *ASK, "launch", "land", "row arrives")
    world = walk(world, "replica is lost")
    replica = world.replicas[0]
    assert (replica.batch, replica.holding, len(replica.scheduler)) == ((), frozenset(), 0)
    assert "replica is lost" not in names(world)
    assert not world.settled
    world = walk(world, "loss is noticed")
    assert (caller(world, A), caller(world, B)) == ((True, 0, 1), (True, 0, 1))
    world = walk(world, "text arrives")
    assert caller(world) == (True, 0, 1)
    assert world.settled


def test_all_are_aborted_by_one_message_behind_their_requests() -> None:
    bounds = Bounds(rids=3, uses=3, split_senders=True, abort_all=True)
    world = walk(World(bounds=bounds), "submit", "submit", "submit", "send", "send", "abort all")
    assert world.aborts == {}
    assert world.asks[0, 0][-1] == Ask(B, abort=True, floor=A, every=True)
    assert [caller(world, vid) for vid in (A, B, Vid(2))] == [(True, 0, 1)] * 3
    world = walk(world, "request arrives", "request arrives", "abort arrives", *HOME, *HOME)
    assert world.settled
    assert len(world.fronts[0]) == 0
    assert [caller(world, vid) for vid in (A, B, Vid(2))] == [(True, 0, 1)] * 3


def test_what_is_sent_to_one_who_is_dead_does_not_come() -> None:
    world = walk(World(bounds=Bounds(losses=1)), "replica is lost", "submit", "send", "leave")
    assert world.asks == {}
    world = walk(world, "loss is noticed")
    assert world.settled
    assert len(world.fronts[0]) == 0


def test_with_several_replicas_a_death_is_told_to_those_who_wait_for_that_one() -> None:
    bounds = Bounds(replicas=2, losses=1)
    world = walk(World(bounds=bounds), "submit", "submit", Action("send", (A,)))
    world = walk(
        world, Action("send", (B,), replica=1), Action("replica is lost", replica=1), "loss is noticed"
    )
    assert (caller(world, A), caller(world, B)) == ((True, 0, 0), (True, 0, 1))


def test_each_front_finds_out_by_itself() -> None:
    other = make_vid(1, 0)
    world = walk(World(bounds=Bounds(rids=1, uses=2, fronts=2, losses=1)), "submit", "send")
    world = walk(world, Action("submit", rids=(R,), front=1), Action("send", (other,)), "replica is lost")
    world = walk(world, Action("loss is noticed", front=1))
    assert (caller(world, A), caller(world, other)) == ((True, 0, 0), (True, 0, 1))
    assert world.cut == {(0, 0)}
    world = walk(world, "loss is noticed")
    assert caller(world, A) == (True, 0, 1)


def test_what_a_caller_waits_for_goes_on_and_each_token_is_heard_once() -> None:
    bounds = Bounds(rids=1, uses=1, tokens=3, losses=1, resume=True)
    world = walk(World(bounds=bounds), *ASK, "launch", "land", *HOME, "launch", "land", "row arrives")
    world = walk(world, "replica is lost", "loss is noticed")
    assert world.streams[A] == Stream(B, R, A, heard=1)
    assert world.fronts[0].how(A) is How.MOVED
    world = walk(world, "text arrives")  # the second token, late: nobody hears it
    assert caller(world) == (True, 1, 0)
    world = walk(world, "send")
    assert world.asks == {(0, 0): (Ask(B, abort=False, floor=B, resumed=1),)}
    world = walk(world, "request arrives", *HOME)
    assert caller(world) == (True, 1, 0)
    world = walk(world, "launch", "land", *HOME)
    assert caller(world) == (True, 2, 0)
    world = walk(world, "launch", "land", *HOME)
    assert caller(world) == (True, 3, 1)
    assert world.settled


def test_a_moved_request_is_left_under_its_new_vid() -> None:
    bounds = Bounds(rids=1, uses=1, losses=1, resume=True)
    world = walk(
        World(bounds=bounds), "submit", "send", "replica is lost", "loss is noticed", "send", "leave"
    )
    assert [ask.vid for ask in world.asks[0, 0]] == [B, B]


def test_who_has_left_before_the_death_is_found_out_does_not_go_on() -> None:
    bounds = Bounds(rids=1, uses=1, losses=1, resume=True)
    world = walk(World(bounds=bounds), "submit", "send", "replica is lost", "leave", "loss is noticed")
    assert world.streams[A].vid == A
    assert len(world.fronts[0]) == 0
    assert world.settled


# --- worlds are values ------------------------------------------------------------------------------------

EVERYTHING = Bounds(
    rids=2,
    uses=4,
    tokens=2,
    fronts=2,
    replicas=2,
    replace=True,
    group=2,
    split_senders=True,
    chunks=1,
    deadlines=True,
    retractions=1,
    losses=2,
    resume=True,
)


@given(st.data())
def test_applying_an_action_changes_nothing_but_the_world_that_is_returned(data: st.DataObject) -> None:
    """apply is a function: what it is given stays as it was, and the same action gives equal worlds."""
    world = World(bounds=EVERYTHING)
    for _ in range(25):
        enabled = world.enabled()
        if not enabled:
            break
        before = world.key()
        after = {action: world.apply(action).key() for action in enabled}
        assert before == world.key()
        assert enabled == world.enabled()
        action = data.draw(st.sampled_from(enabled))
        world = world.apply(action)
        assert world.check() == []
        assert after[action] == world.key()
        assert isinstance(hash(world.key()), int)
        assert len(world.key()) == len(before)
        twin = world.copy()
        assert world.key() == twin.key()
        assert world.enabled() == twin.enabled()


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no such action: 'explode'$"):
        World().apply(Action("explode"))


class _Crashing(SchedulerMachine):
    def request(self, vid: Vid, *_: object) -> None:
        raise KeyError(vid)


def test_what_a_machine_raises_is_a_fault_and_part_of_the_picture() -> None:
    sent = World(Parts(scheduler=_Crashing)).apply(SUBMIT).apply(Action("send", (A,)))
    world = sent.apply(Action("request arrives"))
    assert sent.faults == ()
    assert world.faults == ("KeyError: 0",)
    assert world.check()[0] == "KeyError: 0"
    healed = world.copy()
    healed.faults = ()
    assert healed.key() != world.key()


class _Muddled(FrontMachine):
    def receive(self, vid: Vid, *_: object, **__: object) -> Vid | None:
        return Vid(vid + 7)


def test_what_is_delivered_for_a_vid_that_carries_nothing_is_a_fault() -> None:
    world = World(Parts(front=_Muddled)).apply(SUBMIT).apply(Action("send", (A,)))
    world.texts = {(0, 0): (Row(A, 0, 1, None),)}
    assert world.apply(Action("text arrives")).faults == (
        "3: the caller of vid 7 hears what belongs to vid 0",
        "LookupError: vid 7 carries no request any more, and yet something of it is heard",
    )


def test_replacing_where_there_is_nothing_tells_nobody() -> None:
    world = World().apply(Action("replace", rids=(R,)))
    assert world.faults == ()
    assert world.key() == World().apply(SUBMIT).key()


# --- pictures -----------------------------------------------------------------------------------------


def test_slots_have_no_names_in_a_picture() -> None:
    """A rid that is free again may be used, or a new one: it makes no difference."""
    world = World(bounds=Bounds(rids=2, uses=2))
    # The second of two leaves before anything was sent, or the first does: one request under one rid is left.
    one = walk(world, "submit", "leave", "submit")
    assert one.streams[B].rid == R
    other = walk(world, "submit", "submit", Action("leave", (A,)))
    assert other.streams[B].rid == S
    assert one.key() == other.key()
    two_names = walk(world, "submit", "submit")
    assert two_names.key() != one.key()


def test_how_a_vid_ended_is_forgotten_when_nothing_of_it_can_come() -> None:
    world = World(bounds=Bounds(rids=1, uses=2))
    unsent = walk(world, "submit", "leave")
    finished = walk(world, *ASK, "reject", *HOME, "leave")
    assert unsent.fronts[0].key() != finished.fronts[0].key()
    ended = finished.replicas[0].scheduler.key().ended
    assert ended == (A,)
    assert unsent.key()[:1] == finished.key()[:1]


def test_what_may_still_come_keeps_a_vid_in_the_picture() -> None:
    bounds = Bounds(rids=1, uses=1, tokens=2, losses=1)
    there = walk(World(bounds=bounds), *ASK, "launch", "land", "row arrives", "leave")
    there = walk(there, "replica is lost", "loss is noticed")
    assert there.texts
    assert walk(there, "text arrives").key()[0] != there.key()[0]


def test_in_which_order_requests_came_makes_no_difference() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=2)), "submit", "submit")
    one = walk(world, Action("send", (A,)), Action("send", (B,)), "request arrives", "request arrives")
    other = walk(world, Action("send", (B,)), Action("send", (A,)), "request arrives", "request arrives")
    assert one.key() == other.key()
    assert one.replicas[0].scheduler.key() != other.replicas[0].scheduler.key()


def test_which_link_was_used_first_makes_no_difference() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=2, replicas=2)), "submit", "submit")
    one = walk(world, Action("send", (A,)), Action("send", (B,), replica=1))
    other = walk(world, Action("send", (A,)), "leave", Action("send", (B,), replica=1))
    swapped = one.copy()
    swapped.asks = dict(reversed(one.asks.items()))
    assert list(swapped.asks) != list(one.asks)
    assert swapped.key() == one.key() != other.key()


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(rids=2, uses=2, tokens=1, replace=True, group=2, deadlines=True),
        Bounds(rids=2, uses=2, tokens=1, split_senders=True, chunks=1, retractions=1),
        Bounds(rids=1, uses=2, tokens=1, losses=1, resume=True),
        Bounds(rids=1, uses=2, tokens=1, fronts=2, replicas=2),
        Bounds(rids=1, uses=2, tokens=1, losses=1),
    ],
    ids=["groups", "core", "resume", "two", "loss"],
)
def test_worlds_of_one_picture_have_like_futures(bounds: Bounds) -> None:
    """Whatever is left out of a picture decides about nothing: equal ones are followed by equal ones."""
    worlds = [World(bounds=bounds)]
    futures: dict[object, frozenset[object]] = {}
    alike = 0
    for world in worlds:
        followers = [world.apply(action) for action in world.enabled()]
        future = frozenset(follower.key() for follower in followers)
        known = futures.setdefault(world.key(), future)
        assert known == future
        if known is not future:
            alike += 1
        else:
            worlds += followers
    assert alike > 100
