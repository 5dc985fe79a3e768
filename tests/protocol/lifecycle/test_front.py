from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DuplicateRid, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid, make_vid
from vidette_protocol.lifecycle import End, FrontMachine, How
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
        assert state is State.OVER
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
