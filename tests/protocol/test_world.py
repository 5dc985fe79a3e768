from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.ids import Rid, Vid
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import FrontState, SchedulerMachine
from vidette_protocol.world import Action, Bounds, Heard, Parts, World

A, B = Vid(0), Vid(1)
SUBMIT = Action("submit", rid=Rid("r0"))


def walk(world: World, *actions: str | Action) -> World:
    """Return the world after actions; a bare name is the first enabled action of that name."""
    for action in actions:
        enabled = world.enabled()
        chosen = next(each for each in enabled if action in {each, each.name})
        world = world.apply(chosen)
        assert violations(world) == []
    return world


def names(world: World) -> list[str]:
    return [str(action) for action in world.enabled()]


# --- stories ------------------------------------------------------------------------------------------


def test_the_whole_life_of_a_request() -> None:
    world = walk(World(bounds=Bounds(rids=1, uses=1, tokens=2)), "submit", "send", "request arrives")
    world = walk(world, "launch", "land", "row arrives", "text arrives")
    assert world.callers[A] == Heard(Rid("r0"), tokens=1)
    assert world.holding == {A}
    world = walk(world, "launch", Action("land", (A,)), "row arrives", "text arrives")
    assert world.callers[A] == Heard(Rid("r0"), tokens=2, ends=1)
    assert world.holding == frozenset()
    assert world.settled
    assert names(world) == ["leave #0"]
    assert names(walk(world, "leave")) == []


def test_the_last_token_comes_with_the_end() -> None:
    world = walk(
        World(bounds=Bounds(rids=1, uses=1, tokens=1)), "submit", "send", "request arrives", "launch"
    )
    assert world.must_end == {A}
    assert [action for action in world.enabled() if action.name == "land"] == [Action("land", (A,))]


def test_a_chunk_of_a_prefill_makes_no_token() -> None:
    world = walk(
        World(bounds=Bounds(rids=1, uses=1, tokens=1, chunks=2)), "submit", "send", "request arrives"
    )
    world = walk(world, "launch", "land", "launch", "land")
    assert world.rows == ()
    assert world.scheduler.offset(A) == 0
    world = walk(world, "launch", "land")
    assert world.rows[0].tokens == 1
    assert world.chunks == {}


def test_an_abort_on_the_device_is_answered_at_landing() -> None:
    world = walk(World(), "submit", "send", "request arrives", "launch", "leave", "abort arrives")
    assert world.rows == ()
    assert world.holding == {A}
    world = walk(world, "land", "row arrives", "text arrives")
    assert world.holding == frozenset()
    assert world.front.state(A) is FrontState.OVER
    assert world.callers[A] == Heard(Rid("r0"), here=False)


def test_an_abort_may_overtake_its_request_if_senders_are_split() -> None:
    world = walk(World(bounds=Bounds(split_senders=True)), "submit", "send", "leave")
    assert "overtaking abort arrives" in names(world)
    assert "request arrives" in names(world)
    world = walk(world, "overtaking abort arrives", "request arrives", "row arrives", "text arrives")
    assert world.settled


def test_a_request_may_be_refused_while_it_waits() -> None:
    world = walk(World(), "submit", "send", "request arrives", "reject", "row arrives", "text arrives")
    assert world.callers[A].ends == 1


def test_a_loss_ends_what_lives_and_what_was_sent_before_may_still_come() -> None:
    world = walk(World(bounds=Bounds(losses=1)), "submit", "send", "request arrives", "launch", "land")
    world = walk(world, "row arrives", "replica is lost")
    assert world.callers[A].ends == 1
    assert (world.batch, world.holding, len(world.scheduler)) == ((), frozenset(), 0)
    assert "replica is lost" not in names(world)
    world = walk(world, "text arrives")
    assert world.callers[A] == Heard(Rid("r0"), ends=1)
    assert world.settled


# --- what is enabled ------------------------------------------------------------------------------------


def test_slots_that_were_never_used_are_alike() -> None:
    world = World(bounds=Bounds(rids=3, uses=3))
    assert names(world) == ["submit r0"]
    assert [name for name in names(walk(world, "submit")) if "submit" in name] == ["submit r1"]


def test_a_rid_is_reused_at_once_or_after_the_acknowledgement() -> None:
    for at_once in (True, False):
        world = walk(World(bounds=Bounds(rids=1, uses=2, reuse_at_once=at_once)), "submit")
        assert "submit r0" not in names(world)
        world = walk(world, "send", "leave")
        assert ("submit r0" in names(world)) is at_once
        world = walk(world, "request arrives", "abort arrives", "row arrives", "text arrives")
        assert "submit r0" in names(world)


def test_no_more_is_submitted_than_the_bounds_say() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=1)), "submit")
    assert "submit r1" not in names(world)


def test_any_part_of_what_is_ready_may_be_launched_and_any_part_of_a_batch_may_end() -> None:
    world = walk(World(bounds=Bounds(rids=2, uses=2)), "submit", "submit", "send", "send")
    world = walk(world, "request arrives", "request arrives")
    assert world.launchable == [A, B]
    launches = [action.vids for action in world.enabled() if action.name == "launch"]
    assert launches == [(A,), (B,), (A, B)]
    world = walk(world, Action("launch", (A, B)))
    assert world.launchable == []
    landings = [action.vids for action in world.enabled() if action.name == "land"]
    assert landings == [(), (A,), (B,), (A, B)]


def test_singles_are_all_but_the_batches() -> None:
    world = walk(World(), "submit", "send", "request arrives")
    batches = {"launch", "land"}
    assert world.singles() == [action for action in world.enabled() if action.name not in batches]


def test_an_action_reads_as_a_line() -> None:
    assert str(SUBMIT) == "submit r0"
    assert str(Action("launch", (A, B))) == "launch #0 #1"


# --- worlds are values ------------------------------------------------------------------------------------

EVERYTHING = Bounds(rids=2, uses=3, tokens=2, split_senders=True, chunks=1, losses=1)


@given(st.data())
def test_applying_an_action_changes_nothing_but_the_world_that_is_returned(data: st.DataObject) -> None:
    """apply is a function: what it is given stays as it was, and the same action gives equal worlds."""
    world = World(bounds=EVERYTHING)
    for _ in range(30):
        enabled = world.enabled()
        if not enabled:
            break
        before = world.key()
        after = {action: world.apply(action).key() for action in enabled}
        assert before == world.key()
        assert enabled == world.enabled()
        action = data.draw(st.sampled_from(enabled))
        world = world.apply(action)
        assert after[action] == world.key()
        assert before != world.key()
        assert isinstance(hash(world.key()), int)
        twin = world.copy()
        assert world.key() == twin.key()
        assert world.enabled() == twin.enabled()


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^no such action: 'explode'$"):
        World().apply(Action("explode"))


class _Crashing(SchedulerMachine):
    def request(self, vid: Vid, resumed: int = 0) -> None:  # noqa: ARG002  as in the base
        raise KeyError(vid)


def test_what_a_machine_raises_is_a_fault_and_part_of_the_picture() -> None:
    sent = World(Parts(scheduler=_Crashing)).apply(SUBMIT).apply(Action("send", (A,)))
    world = sent.apply(Action("request arrives"))
    assert sent.faults == ()
    assert world.faults == ("KeyError: 0",)
    assert violations(world)[0] == "KeyError: 0"
    healed = world.copy()
    healed.faults = ()
    assert healed.key() != world.key()
