from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.ids import Vid, make_vid
from vidette_protocol.lifecycle import End, Row, SchedulerMachine
from vidette_protocol.lifecycle import SchedulerState as State
from vidette_protocol.lifecycle.scheduler import SCHEDULER_TABLE
from vidette_protocol.lifecycle.scheduler import SchedulerEvent as Event

A, B = Vid(1), Vid(2)


def in_state(state: State, *, offset: int = 0) -> SchedulerMachine:
    """Return a machine with A in a state, with so many tokens made."""
    machine = SchedulerMachine()
    if state is State.OVER:
        return machine
    machine.request(A)
    if offset:
        machine.launch([A])
        machine.land(A, offset, end=False)
    if state is State.WAITING:
        return machine
    machine.launch([A])
    if state is State.RUNNING:
        machine.land(A, 0, end=False)
    if state is State.FREEING:
        machine.abort(A)
    return machine


INPUTS: dict[Event, Callable[[SchedulerMachine], Row | None]] = {
    Event.ABORT: lambda machine: machine.abort(A),
    Event.LAUNCH: lambda machine: machine.launch([A]),
    Event.LAND: lambda machine: machine.land(A, 1, end=False),
    Event.END: lambda machine: machine.land(A, 1, end=True),
    Event.REJECT: lambda machine: machine.reject(A),
    Event.EXPIRE: lambda machine: machine.expire(A),
    Event.RETRACT: lambda machine: machine.retract(A),
}


@given(state=st.sampled_from(State), event=st.sampled_from(Event), offset=st.integers(0, 3))
def test_each_input_in_each_state_is_in_the_table_or_refused(state: State, event: Event, offset: int) -> None:
    """An input leads where the table says; any other is a LocalProtocolError and no change."""
    offset = offset if state in {State.RUNNING, State.LAUNCHED, State.FREEING} else 0
    machine = in_state(state, offset=offset)
    assert state is machine.state(A)
    before = machine.key()
    expected = SCHEDULER_TABLE.get((state, event))
    if state is State.FREEING and event is Event.END:
        # Whether it has come to its own end as well does not matter any more.
        expected = SCHEDULER_TABLE[state, Event.LAND]
    if state is State.OVER and event in {Event.ABORT, Event.EXPIRE}:
        # Not refused: an abort is remembered, since the request may be on its way; a deadline is idle.
        expected = State.OVER
    if expected is None:
        with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot .*: it is {state.value}$"):
            INPUTS[event](machine)
        assert before == machine.key()
        return
    row = INPUTS[event](machine)
    assert expected is machine.state(A)
    if state is State.OVER:
        assert row is None
        assert machine.tombstones == (event is Event.ABORT)
    elif expected is State.OVER:
        aborted = state is State.FREEING or event is Event.ABORT
        tokens = 1 if event is Event.END and not aborted else 0
        assert row == Row(A, offset, tokens, End.ABORT if aborted else End.FINISH)
    else:
        assert row == (Row(A, offset, 1, None) if event is Event.LAND else None)
        assert machine.offset(A) == offset + (event is Event.LAND)


def test_the_table_has_no_way_out_of_the_end() -> None:
    assert all(state is not State.OVER for state, _ in SCHEDULER_TABLE)


# --- admission and tombstones ---------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if state is not State.OVER])
def test_a_live_vid_cannot_be_requested_again(state: State) -> None:
    machine = in_state(state)
    before = machine.key()
    with pytest.raises(RemoteProtocolError, match=f"^vid {A} was sent twice$"):
        machine.request(A)
    assert before == machine.key()


def test_an_abort_may_overtake_its_request() -> None:
    machine = SchedulerMachine()
    assert machine.abort(A) is None
    assert machine.request(A) == Row(A, 0, 0, End.ABORT)
    assert len(machine) == 0
    assert machine.tombstones == 0


def test_aborts_are_idempotent() -> None:
    for state in State:
        machine = in_state(state)
        machine.abort(A)
        before = machine.key()
        assert machine.abort(A) is None
        assert before == machine.key()


def test_an_abort_that_crosses_the_end_is_silence() -> None:
    machine = in_state(State.LAUNCHED)
    assert machine.land(A, 1, end=True) == Row(A, 0, 1, End.FINISH)
    assert machine.abort(A) is None
    assert machine.tombstones == 0
    with pytest.raises(RemoteProtocolError, match="twice"):
        machine.request(A)


def test_the_memory_of_ends_is_bounded() -> None:
    machine = SchedulerMachine(remembered=1)
    for vid in (A, B):
        machine.request(vid)
        machine.abort(vid)
    assert machine.abort(B) is None  # the last one is remembered
    assert machine.tombstones == 0
    assert machine.abort(A) is None  # this one is not any more: it might come yet
    assert machine.tombstones == 1
    twin = machine.copy()
    assert twin.key() == machine.key()


def test_a_machine_that_remembers_nothing_keeps_a_tombstone() -> None:
    machine = SchedulerMachine(remembered=0)
    machine.request(A)
    machine.abort(A)
    assert machine.abort(A) is None
    assert machine.tombstones == 1


def test_a_tombstone_lives_until_the_floor_has_passed_it() -> None:
    machine = SchedulerMachine()
    machine.abort(A)
    machine.abort(B)
    machine.pass_floor(A)
    assert machine.tombstones == 2
    machine.pass_floor(B)
    assert machine.tombstones == 1
    assert machine.request(B) == Row(B, 0, 0, End.ABORT)


def test_a_floor_is_that_of_one_front() -> None:
    machine = SchedulerMachine()
    machine.abort(make_vid(1, 5))
    machine.pass_floor(make_vid(2, 0))
    machine.pass_floor(make_vid(0, 9))
    assert machine.tombstones == 1
    machine.pass_floor(make_vid(1, 6))
    assert machine.tombstones == 0


def test_a_floor_lets_live_vids_be() -> None:
    machine = in_state(State.RUNNING)
    machine.pass_floor(Vid(A + 1))
    assert machine.state(A) is State.RUNNING


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_is_launched_as_a_whole_or_not_at_all() -> None:
    machine = in_state(State.LAUNCHED)
    machine.request(B)
    before = machine.key()
    with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot be launched: it is launched$"):
        machine.launch([B, A])
    assert before == machine.key()


def test_a_batch_names_a_vid_once() -> None:
    machine = in_state(State.WAITING)
    before = machine.key()
    with pytest.raises(LocalProtocolError, match=r"^a batch names a vid twice: \[1, 1\]$"):
        machine.launch([A, A])
    assert before == machine.key()


def test_a_batch_may_be_any_iterable() -> None:
    machine = in_state(State.WAITING)
    machine.launch(vid for vid in [A])
    assert machine.state(A) is State.LAUNCHED


def test_a_chunk_of_a_prefill_says_nothing() -> None:
    machine = in_state(State.LAUNCHED)
    assert machine.land(A, 0, end=False) is None
    assert machine.state(A) is State.RUNNING


def test_a_request_may_end_without_a_token() -> None:
    machine = in_state(State.LAUNCHED)
    assert machine.land(A, 0, end=True) == Row(A, 0, 0, End.FINISH)


@pytest.mark.parametrize("end", [False, True])
def test_what_an_aborted_request_made_on_the_device_is_dropped(end: bool) -> None:
    machine = in_state(State.FREEING, offset=2)
    assert machine.land(A, 1, end=end) == Row(A, 2, 0, End.ABORT)
    assert len(machine) == 0


def test_a_negative_count_is_refused() -> None:
    """Else the offset would run back, and the detokenizer would take the blame."""
    machine = in_state(State.LAUNCHED)
    before = machine.key()
    with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot land with -1 tokens$"):
        machine.land(A, -1, end=False)
    assert before == machine.key()


def test_what_is_not_live_has_no_offset() -> None:
    with pytest.raises(LocalProtocolError, match=f"^vid {A} has no offset: it is over$"):
        SchedulerMachine().offset(A)


def test_vids_are_listed_as_they_came() -> None:
    machine = SchedulerMachine()
    for vid in (B, A):
        machine.request(vid)
    machine.launch([A])
    machine.land(A, 1, end=False)
    assert machine.vids() == [B, A]
    assert len(machine) == 2


# --- deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
def test_a_deadline_ends_what_is_not_on_the_device_by_itself(state: State) -> None:
    machine = in_state(state)
    assert machine.expire(A) == Row(A, 0, 0, End.FINISH)
    assert machine.abort(A) is None
    assert machine.tombstones == 0


@pytest.mark.parametrize("end", [False, True])
def test_what_expires_on_the_device_ends_when_it_lands_without_its_tokens(end: bool) -> None:
    machine = in_state(State.LAUNCHED, offset=2)
    assert machine.expire(A) is None
    assert machine.state(A) is State.FREEING
    with pytest.raises(LocalProtocolError, match="cannot be launched: it is freeing"):
        machine.launch([A])
    assert machine.land(A, 1, end=end) == Row(A, 2, 0, End.FINISH)
    assert len(machine) == 0


@pytest.mark.parametrize(
    "events",
    [(Event.EXPIRE, Event.ABORT), (Event.ABORT, Event.EXPIRE), (Event.EXPIRE, Event.ABORT, Event.EXPIRE)],
)
def test_an_abort_on_the_device_is_answered_whether_the_deadline_passes_before_or_after(
    events: tuple[Event, ...],
) -> None:
    machine = in_state(State.LAUNCHED)
    for event in events:
        assert INPUTS[event](machine) is None
        assert machine.state(A) is State.FREEING
    assert machine.land(A, 1, end=True) == Row(A, 0, 0, End.ABORT)


def test_a_deadline_of_what_is_not_there_leaves_nothing() -> None:
    machine = SchedulerMachine()
    assert machine.expire(A) is None
    assert machine.key() == SchedulerMachine().key()
    assert machine.request(A) is None


def test_deadlines_are_told_from_aborts_in_the_key() -> None:
    expired, aborted = in_state(State.LAUNCHED), in_state(State.LAUNCHED)
    expired.expire(A)
    aborted.abort(A)
    assert expired.key() != aborted.key()


# --- retraction -------------------------------------------------------------------------------------


def test_what_is_retracted_waits_with_its_tokens_and_goes_on_behind_them() -> None:
    machine = in_state(State.RUNNING, offset=2)
    machine.retract(A)
    assert machine.state(A) is State.WAITING
    assert machine.offset(A) == 2
    machine.launch([A])
    assert machine.land(A, 0, end=False) is None
    machine.launch([A])
    assert machine.land(A, 1, end=True) == Row(A, 2, 1, End.FINISH)


def test_what_is_retracted_keeps_its_place_in_the_order_of_arrival() -> None:
    machine = in_state(State.RUNNING)
    machine.request(B)
    machine.retract(A)
    assert machine.vids() == [A, B]


@pytest.mark.parametrize("make", [Event.ABORT, Event.EXPIRE, Event.REJECT])
def test_what_is_retracted_ends_behind_its_tokens(make: Event) -> None:
    machine = in_state(State.RUNNING, offset=3)
    machine.retract(A)
    assert INPUTS[make](machine) == Row(A, 3, 0, End.ABORT if make is Event.ABORT else End.FINISH)


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_only_what_runs_can_be_retracted(state: State) -> None:
    machine = in_state(state)
    before = machine.key()
    with pytest.raises(LocalProtocolError, match=f"^vid {A} cannot be retracted: it is {state.value}$"):
        machine.retract(A)
    assert before == machine.key()


# --- going on from elsewhere ------------------------------------------------------------------------


def test_what_is_resumed_is_said_again_and_goes_on_behind() -> None:
    machine = SchedulerMachine()
    assert machine.request(A, 3) == Row(A, 0, 3, None)
    assert machine.state(A) is State.WAITING
    assert machine.offset(A) == 3
    machine.launch([A])
    assert machine.land(A, 1, end=False) == Row(A, 3, 1, None)


def test_what_is_resumed_and_ends_at_once_ends_behind_what_was_said_again() -> None:
    for event in (Event.ABORT, Event.EXPIRE, Event.REJECT):
        machine = SchedulerMachine()
        machine.request(A, 3)
        assert INPUTS[event](machine) == Row(A, 3, 0, End.ABORT if event is Event.ABORT else End.FINISH)


def test_what_is_resumed_without_a_token_begins() -> None:
    assert SchedulerMachine().request(A, 0) is None


def test_an_abort_that_overtook_what_is_resumed_ends_it_before_a_word_is_said() -> None:
    machine = SchedulerMachine()
    machine.abort(A)
    assert machine.request(A, 3) == Row(A, 0, 0, End.ABORT)
    assert len(machine) == 0
    assert machine.tombstones == 0


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_is_independent() -> None:
    machine = in_state(State.RUNNING)
    machine.abort(B)
    twin = machine.copy()
    assert machine.key() == twin.key()
    twin.abort(A)
    assert machine.state(A) is State.RUNNING
    machine.pass_floor(Vid(9))
    assert twin.tombstones == 1


@given(left=st.sampled_from(State), right=st.sampled_from(State))
def test_keys_tell_states_apart(left: State, right: State) -> None:
    """Machines in different states have different keys, in equal states equal ones."""
    assert (left is right) == (in_state(left).key() == in_state(right).key())
    assert isinstance(hash(in_state(left).key()), int)


def test_a_tombstone_is_in_the_key() -> None:
    machine = SchedulerMachine()
    machine.abort(A)
    assert machine.key() != SchedulerMachine().key()
