from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DuplicateRid, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid, make_vid
from vidette_protocol.lifecycle import End, FrontMachine, How, Move, Replaced
from vidette_protocol.lifecycle import FrontState as State
from vidette_protocol.lifecycle.front import FRONT_TABLE
from vidette_protocol.lifecycle.front import FrontEvent as Event

R, S = Rid("r"), Rid("s")
A = Vid(0)


def in_state(state: State, *, offset: int = 0) -> FrontMachine:
    """Return a machine whose vid A, of rid R, is in a state, with so many tokens heard."""
    machine = FrontMachine()
    machine.submit(R)
    if state is State.NEW:
        return machine
    machine.send(A)
    if offset or state is State.LIVE:
        machine.receive(A, 0, offset, None)
    if state is State.CLOSING:
        machine.abort(A)
    if state is State.OVER:
        machine.receive(A, offset, 0, End.FINISH)
    return machine


INPUTS: dict[Event, Callable[[FrontMachine, int], object]] = {
    Event.SEND: lambda machine, _: machine.send(A),
    Event.ABORT: lambda machine, _: machine.abort(A),
    Event.TEXT: lambda machine, offset: machine.receive(A, offset, 1, None),
    Event.END: lambda machine, offset: machine.receive(A, offset, 1, End.FINISH),
    Event.LOST: lambda machine, _: machine.lost(),
    Event.MOVE: lambda machine, _: machine.moved(0),
}


@given(state=st.sampled_from(State), event=st.sampled_from(Event), offset=st.integers(0, 3))
def test_each_input_in_each_state_is_in_the_table_or_refused(state: State, event: Event, offset: int) -> None:
    """An input leads where the table says; one that is not in it changes nothing, and is refused with its vid
    by an error that names the side, or is silence after the end."""
    offset = offset if state in {State.LIVE, State.CLOSING, State.OVER} else 0
    machine = in_state(state, offset=offset)
    assert state is machine.state(A)
    before = machine.key()
    expected = FRONT_TABLE.get((state, event))
    if event is Event.MOVE and state is State.CLOSING:
        expected = FRONT_TABLE[state, Event.LOST]  # who has left does not go on
    if expected is not None:
        INPUTS[event](machine, offset)
        assert expected is machine.state(A)
        return
    if event is Event.SEND:
        with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot be sent: it is {state.value}$"):
            INPUTS[event](machine, offset)
    elif event in {Event.TEXT, Event.END}:
        with pytest.raises(
            RemoteProtocolError, match=f"^vid {A} (was not sent yet|is over \\(ended\\)), nothing of it"
        ):
            INPUTS[event](machine, offset)
    else:
        # Nothing of it is at a replica that could die; or it is over.
        assert state is State.OVER or (state is State.NEW and event is Event.MOVE)
        INPUTS[event](machine, offset)
    assert before == machine.key()


def test_the_table_has_no_way_out_of_the_end() -> None:
    assert all(state is not State.OVER for state, _ in FRONT_TABLE)


# --- what callers hear ----------------------------------------------------------------------------


def test_a_present_caller_hears_all_up_to_the_end() -> None:
    machine = in_state(State.SENT)
    assert machine.receive(A, 0, 2, None) == A
    assert machine.receive(A, 2, 1, End.FINISH) == A
    assert machine.state(A) is State.OVER
    assert machine.how(A) is How.ENDED
    assert machine.dropped == 0


@pytest.mark.parametrize("end", End)
def test_a_caller_who_left_hears_nothing_and_the_first_end_closes(end: End) -> None:
    machine = in_state(State.CLOSING)
    assert machine.receive(A, 0, 1, None) is None
    assert machine.receive(A, 1, 0, end) is None
    assert machine.dropped == 2
    assert machine.how(A) is How.ENDED
    assert len(machine) == 0


@pytest.mark.parametrize("state", [State.SENT, State.LIVE, State.CLOSING])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_gap_or_a_repeat_is_refused(state: State, wrong: int) -> None:
    machine = in_state(state, offset=0 if state is State.SENT else 2)
    due = 0 if state is State.SENT else 2
    before = machine.key()
    with pytest.raises(
        RemoteProtocolError, match=f"^vid {A}: tokens from {due + wrong} on, but {due} is next$"
    ):
        machine.receive(A, due + wrong, 1, None)
    assert before == machine.key()


@pytest.mark.parametrize("vid", [make_vid(7, 1), make_vid(6, 0), Vid(-1), Vid(1 << 63)])
def test_a_vid_that_was_never_issued_is_refused(vid: Vid) -> None:
    machine = FrontMachine(front_id=7)
    machine.submit(R)
    with pytest.raises(RemoteProtocolError, match=f"^vid {vid} was never issued by front 7$"):
        machine.receive(vid, 0, 1, None)


# --- aborts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "posted", "after"),
    [
        (State.NEW, False, State.OVER),
        (State.SENT, True, State.CLOSING),
        (State.LIVE, True, State.CLOSING),
        (State.CLOSING, False, State.CLOSING),
        (State.OVER, False, State.OVER),
    ],
)
def test_an_abort_is_posted_once_and_only_if_there_is_something_to_abort(
    state: State, posted: bool, after: State
) -> None:
    machine = in_state(state)
    assert posted is machine.abort(A)
    assert after is machine.state(A)
    before = machine.key()
    assert machine.abort(A) is False
    assert before == machine.key()


@pytest.mark.parametrize("live", [State.SENT, State.LIVE])
def test_the_answer_to_an_abort_that_was_not_sent_is_refused(live: State) -> None:
    """A caller who is still there must not be told that he has left."""
    machine = in_state(live)
    with pytest.raises(RemoteProtocolError, match="abort that was not sent"):
        machine.receive(A, 0, 0, End.ABORT)
    assert machine.state(A) is live


def test_an_abort_of_a_vid_that_was_never_issued_is_silence() -> None:
    assert FrontMachine().abort(Vid(5)) is False


def test_an_abort_before_sending_is_the_end() -> None:
    machine = in_state(State.NEW)
    machine.abort(A)
    assert machine.how(A) is How.UNSENT
    with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot be sent: it is over$"):
        machine.send(A)
    with pytest.raises(RemoteProtocolError, match=rf"^vid {A} is over \(unsent\), nothing of it can follow$"):
        machine.receive(A, 0, 1, None)


# --- rid slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.NEW, State.SENT, State.LIVE])
def test_a_live_request_holds_its_rid(state: State) -> None:
    machine = in_state(state)
    assert machine.holder(R) == A
    before = machine.key()
    with pytest.raises(DuplicateRid, match=r"^rid 'r' is live$") as raised:
        machine.submit(R)
    assert raised.value.rid == R
    assert raised.value.error_status_hint == 409
    assert before == machine.key()


def test_a_rid_is_free_from_the_moment_of_the_abort() -> None:
    machine = in_state(State.SENT)
    machine.abort(A)
    assert machine.holder(R) is None
    successor = machine.submit(R)
    assert successor != A
    assert machine.holder(R) == successor


def test_the_end_of_a_predecessor_leaves_the_slot_to_its_successor() -> None:
    machine = in_state(State.CLOSING)
    successor = machine.submit(R)
    assert machine.receive(A, 0, 0, End.ABORT) is None
    assert machine.holder(R) == successor
    assert machine.state(successor) is State.NEW


def test_vids_count_up_within_the_front() -> None:
    machine = FrontMachine(front_id=3)
    assert [machine.submit(Rid(name)) for name in "abc"] == [make_vid(3, count) for count in range(3)]


# --- floor ----------------------------------------------------------------------------------------


def test_the_floor_is_the_oldest_that_is_not_over() -> None:
    machine = FrontMachine(front_id=1)
    assert machine.floor == make_vid(1, 0)
    first, second = machine.submit(R), machine.submit(S)
    assert machine.floor == first
    machine.send(first)
    machine.abort(second)
    assert machine.floor == first
    machine.abort(first)
    assert machine.floor == first
    machine.receive(first, 0, 0, End.ABORT)
    assert machine.floor == make_vid(1, 2)


# --- loss -----------------------------------------------------------------------------------------


def test_after_a_loss_present_callers_are_told_and_late_rows_are_dropped() -> None:
    machine = FrontMachine()
    vids = [machine.submit(Rid(name)) for name in "abcd"]
    new, sent, live, closing = vids
    for vid in (sent, live, closing):
        machine.send(vid)
    machine.receive(live, 0, 1, None)
    machine.abort(closing)
    assert machine.lost() == [new, sent, live]
    assert len(machine) == 0
    assert [machine.how(vid) for vid in vids] == [How.LOST] * 4
    assert machine.receive(live, 1, 1, None) is None
    assert machine.receive(closing, 0, 0, End.ABORT) is None
    assert machine.dropped == 2
    assert machine.lost() == []
    assert machine.holder(Rid("b")) is None


@pytest.mark.parametrize("state", [State.SENT, State.LIVE])
def test_the_death_of_a_replica_concerns_those_who_wait_for_it(state: State) -> None:
    machine = FrontMachine()
    here, there, new = (machine.submit(Rid(name)) for name in "abc")
    machine.send(here, 1)
    machine.send(there, 2)
    if state is State.LIVE:
        machine.receive(here, 0, 1, None)
    assert machine.lost(1) == [here]
    assert machine.how(here) is How.LOST
    assert machine.state(there) is State.SENT
    assert machine.state(new) is State.NEW
    assert machine.lost(1) == []
    machine.send(new, 1)
    assert machine.lost() == [there, new]


def test_where_a_vid_was_sent_is_known_while_it_lives() -> None:
    machine = in_state(State.NEW)
    assert machine.replica_of(A) is None
    machine.send(A, 3)
    assert machine.replica_of(A) == 3
    machine.receive(A, 0, 1, None)
    assert machine.replica_of(A) == 3
    machine.abort(A)
    assert machine.replica_of(A) == 3
    machine.receive(A, 1, 0, End.ABORT)
    assert machine.replica_of(A) is None


# --- going on elsewhere -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.SENT, State.LIVE])
def test_what_is_waited_for_goes_on_under_the_next_vid(state: State) -> None:
    machine = in_state(state, offset=2 if state is State.LIVE else 0)
    assert machine.moved(0) == [Move(A, Vid(1))]
    assert machine.how(A) is How.MOVED
    assert machine.state(Vid(1)) is State.NEW
    assert machine.holder(R) == Vid(1)
    assert machine.floor == Vid(1)
    machine.send(Vid(1), 5)
    assert machine.receive(Vid(1), 0, 2, None) == Vid(1)  # a new life, from offset 0


def test_late_rows_of_what_was_moved_reach_nobody() -> None:
    machine = in_state(State.LIVE, offset=2)
    machine.moved(0)
    assert machine.receive(A, 2, 1, None) is None
    assert machine.receive(A, 3, 0, End.FINISH) is None
    assert machine.dropped == 2
    assert machine.state(Vid(1)) is State.NEW


def test_who_has_left_does_not_go_on() -> None:
    machine = in_state(State.CLOSING)
    successor = machine.submit(R)
    machine.send(successor)
    assert machine.moved(0) == [Move(successor, Vid(2))]
    assert machine.how(A) is How.LOST
    assert machine.holder(R) == Vid(2)
    assert len(machine) == 1


def test_what_is_elsewhere_or_was_not_sent_stays_where_it_is() -> None:
    machine = FrontMachine()
    elsewhere, unsent = machine.submit(R), machine.submit(S)
    machine.send(elsewhere, 1)
    before = machine.key()
    assert machine.moved(0) == []
    assert before == machine.key()
    assert machine.state(unsent) is State.NEW


def test_a_request_may_be_moved_again_and_left_after_that() -> None:
    machine = in_state(State.SENT)
    (move,) = machine.moved(0)
    machine.send(move.new, 1)
    (again,) = machine.moved(1)
    assert again.old == move.new
    machine.send(again.new, 2)
    assert machine.abort(A) is False  # its caller knows which vid it is now
    assert machine.abort(move.new) is False
    assert machine.abort(again.new) is True


# --- replacing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "post", "after"),
    [(State.NEW, False, State.OVER), (State.SENT, True, State.CLOSING), (State.LIVE, True, State.CLOSING)],
)
def test_the_holder_of_a_rid_is_aborted_for_its_successor(state: State, post: bool, after: State) -> None:
    machine = in_state(state)
    successor, replaced = machine.replace(R)
    assert replaced == Replaced(A, post)
    assert machine.state(A) is after
    assert machine.holder(R) == successor == Vid(1)
    assert machine.state(successor) is State.NEW
    before = machine.key()
    assert machine.abort(A) is False  # the exit of the first caller is its own, never its successor's
    assert before == machine.key()
    assert machine.floor == (A if post else successor)


@pytest.mark.parametrize("state", [State.CLOSING, State.OVER])
def test_a_free_rid_is_taken_as_by_submit(state: State) -> None:
    machine = in_state(state)
    twin = machine.copy()
    assert machine.replace(R) == (twin.submit(R), None)
    assert machine.key() == twin.key()


# --- groups -----------------------------------------------------------------------------------------

T = Rid("t")


def group_of(*rids: Rid) -> tuple[FrontMachine, tuple[Vid, ...]]:
    """Return a machine with a group, all of which is sent."""
    machine = FrontMachine(front_id=2)
    vids = machine.submit_group(rids)
    for vid in vids:
        machine.send(vid)
    return machine, vids


def test_a_group_is_several_requests_submitted_together() -> None:
    machine, vids = group_of(R, S, T)
    assert vids == tuple(make_vid(2, count) for count in range(3))
    assert [machine.holder(rid) for rid in (R, S, T)] == list(vids)
    assert [machine.group(vid) for vid in vids] == [vids[0]] * 3
    alone = machine.submit(Rid("alone"))
    assert (machine.group(alone), machine.group(Vid(999))) == (None, None)


@pytest.mark.parametrize("rids", [(S, R), (R, S), (T, S, S), (S, S)])
def test_a_group_takes_all_of_its_slots_or_none(rids: tuple[Rid, ...]) -> None:
    machine = in_state(State.LIVE)
    before = machine.key()
    with pytest.raises(DuplicateRid) as raised:
        machine.submit_group(rids)
    assert raised.value.rid in rids
    assert before == machine.key()


def test_a_group_of_nothing_is_refused() -> None:
    machine = FrontMachine()
    with pytest.raises(LocalProtocolError, match=r"^a group has at least one request$"):
        machine.submit_group([])
    assert machine.key() == FrontMachine().key()


def test_a_group_is_aborted_as_a_whole() -> None:
    machine, vids = group_of(R, S, T)
    machine.receive(vids[1], 0, 1, None)
    assert machine.abort_group(vids[0]) == list(vids)
    assert all(machine.state(vid) is State.CLOSING for vid in vids)
    assert machine.abort_group(vids[0]) == []


def test_nothing_is_posted_for_what_was_not_sent_or_is_over() -> None:
    machine = FrontMachine()
    over, new, sent, left = vids = machine.submit_group([R, S, T, Rid("u")])
    for vid in (over, sent, left):
        machine.send(vid)
    machine.receive(over, 0, 1, End.FINISH)
    machine.abort(left)
    assert machine.abort_group(over) == [sent]
    assert machine.how(new) is How.UNSENT
    assert [machine.state(vid) for vid in vids] == [State.OVER, State.OVER, State.CLOSING, State.CLOSING]


def test_what_is_in_a_group_ends_one_by_one() -> None:
    machine, vids = group_of(R, S)
    assert machine.receive(vids[0], 0, 1, End.FINISH) == vids[0]
    assert machine.state(vids[1]) is State.SENT
    assert machine.key().groups == ((vids[0], (vids[1],)),)
    assert machine.receive(vids[1], 0, 1, End.FINISH) == vids[1]
    assert machine.key().groups == ()
    assert machine.abort_group(vids[0]) == []


def test_a_group_that_never_was_is_silence() -> None:
    machine = in_state(State.SENT)
    assert machine.abort_group(A) == []  # a request on its own is no group
    assert machine.state(A) is State.SENT


def test_one_of_a_group_may_be_replaced_and_the_rest_stays() -> None:
    machine, vids = group_of(R, S)
    successor, replaced = machine.replace(S)
    assert replaced == Replaced(vids[1], True)
    assert machine.abort_group(vids[0]) == [vids[0]]
    assert machine.state(successor) is State.NEW


def test_a_group_goes_on_elsewhere_as_a_group() -> None:
    machine, vids = group_of(R, S, T)
    machine.receive(vids[0], 0, 2, None)
    machine.receive(vids[1], 0, 1, End.FINISH)
    moves = machine.moved(0)
    assert [move.old for move in moves] == [vids[0], vids[2]]
    new = [move.new for move in moves]
    assert machine.key().groups == ((vids[0], tuple(new)),)
    machine.send(new[1], 1)
    assert machine.abort_group(vids[0]) == [new[1]]
    machine.receive(new[1], 0, 0, End.ABORT)
    assert machine.key().groups == ()
    assert len(machine) == 0


def test_the_last_of_a_group_goes_on_in_it() -> None:
    machine, vids = group_of(R)
    (move,) = machine.moved(0)
    assert machine.key().groups == ((vids[0], (move.new,)),)


def test_one_of_a_group_whose_caller_has_left_does_not_go_on() -> None:
    machine, vids = group_of(R, S)
    machine.abort(vids[0])
    (move,) = machine.moved(0)
    assert move.old == vids[1]
    assert machine.key().groups == ((vids[0], (move.new,)),)
    machine.abort_group(vids[0])
    assert machine.key().groups == ()


def test_a_group_that_is_lost_leaves_nothing() -> None:
    machine, vids = group_of(R, S)
    machine.abort(vids[0])
    assert machine.lost(0) == [vids[1]]
    assert machine.key().groups == ()


# --- memory of the ended --------------------------------------------------------------------------


@pytest.mark.parametrize("remembered", [0, 1, 2])
def test_the_memory_of_ends_is_bounded_and_forgets_the_oldest(remembered: int) -> None:
    machine = FrontMachine(remembered=remembered)
    vids = [machine.submit(Rid(name)) for name in "abc"]
    for vid in vids:
        machine.abort(vid)
    kept = vids[3 - remembered :]
    assert [machine.how(vid) for vid in vids] == [How.UNSENT if vid in kept else None for vid in vids]


def test_what_is_forgotten_is_dropped_in_silence() -> None:
    machine = FrontMachine(remembered=0)
    machine.submit(R)
    machine.send(A)
    machine.receive(A, 0, 0, End.FINISH)
    assert machine.receive(A, 0, 1, None) is None
    assert machine.dropped == 1


def test_how_is_none_while_it_is_not_over() -> None:
    assert in_state(State.LIVE).how(A) is None
    assert FrontMachine().how(A) is None


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_is_independent() -> None:
    machine = in_state(State.LIVE)
    twin = machine.copy()
    assert machine.key() == twin.key()
    assert twin.submit(S) == machine.submit(S)
    twin.abort(A)
    assert machine.state(A) is State.LIVE
    assert machine.holder(R) == A
    machine.receive(A, 0, 0, End.FINISH)
    assert twin.state(A) is State.CLOSING
    assert twin.how(A) is None


def test_what_lives_is_told_of_in_the_order_it_came() -> None:
    machine = in_state(State.LIVE, offset=3)
    other = machine.submit(S)
    machine.abort(A)
    told = [(vid, entry.state, entry.rid, entry.offset) for vid, entry in machine.live()]
    assert told == [(A, State.CLOSING, R, 3), (other, State.NEW, S, 0)]
    machine.receive(A, 3, 0, End.ABORT)
    assert [vid for vid, _ in machine.live()] == [other]


def test_a_copy_has_groups_of_its_own() -> None:
    machine, vids = group_of(R, S)
    twin = machine.copy()
    assert twin.key() == machine.key()
    assert twin.abort_group(vids[0]) == list(vids)
    assert machine.key().groups == ((vids[0], vids),)
    assert machine.state(vids[0]) is State.SENT


def test_a_copy_keeps_the_front_id_and_the_size_of_its_memory() -> None:
    twin = FrontMachine(front_id=5, remembered=0).copy()
    vid = twin.submit(R)
    assert vid == make_vid(5, 0)
    twin.abort(vid)
    assert twin.how(vid) is None


@given(left=st.sampled_from(State), right=st.sampled_from(State))
def test_keys_tell_states_apart(left: State, right: State) -> None:
    """Machines in different states have different keys, in equal states equal ones."""
    assert (left is right) == (in_state(left).key() == in_state(right).key())
    assert isinstance(hash(in_state(left).key()), int)
