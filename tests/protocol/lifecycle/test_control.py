"""Control calls: each question is answered once, to whoever asked it, if he is still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle import CallId, CallMachine
from vidette_protocol.lifecycle import CallState as State
from vidette_protocol.lifecycle.control import CALL_TABLE
from vidette_protocol.lifecycle.control import CallEvent as Event

A = CallId(1)


def in_state(state: State) -> CallMachine:
    """Return a machine whose question A is in a state."""
    machine = CallMachine()
    assert machine.ask("Flushed") == A
    if state is State.LEFT:
        machine.leave(A)
    if state is State.OVER:
        machine.lost()
    return machine


INPUTS: dict[Event, Callable[[CallMachine], object]] = {
    Event.ANSWER: lambda machine: machine.answer(A, "Flushed"),
    Event.LEAVE: lambda machine: machine.leave(A),
    Event.WITHDRAW: lambda machine: machine.withdraw(A),
    Event.LOST: lambda machine: machine.lost(),
}


@given(state=st.sampled_from(State), event=st.sampled_from(Event))
def test_each_input_in_each_state_is_in_the_table_or_refused(state: State, event: Event) -> None:
    """An input leads where the table says; an answer that is not due is refused, anything else is silence."""
    machine = in_state(state)
    expected = CALL_TABLE.get((state, event))
    before = machine.key()
    if expected is not None:
        INPUTS[event](machine)
        assert machine.state(A) is expected
        return
    if event is Event.ANSWER:
        with pytest.raises(RemoteProtocolError, match=r"^Flushed 1 answers nothing that is due$"):
            INPUTS[event](machine)
    else:
        INPUTS[event](machine)
    assert machine.key() == before


def test_an_answer_is_heard_by_whoever_asked() -> None:
    machine = CallMachine()
    first, second = machine.ask("Flushed"), machine.ask("Flushed")
    assert machine.answer(second, "Flushed") == second
    assert machine.answer(first, "Flushed") == first
    assert len(machine) == 0


def test_nobody_hears_the_answer_to_whoever_left() -> None:
    machine = in_state(State.LEFT)
    assert len(machine) == 1
    assert machine.answer(A, "Flushed") is None
    assert len(machine) == 0


def test_no_answer_is_due_to_what_was_not_sent() -> None:
    machine = in_state(State.WAITING)
    machine.withdraw(A)
    assert len(machine) == 0
    with pytest.raises(RemoteProtocolError, match=r"^Flushed 1 answers nothing that is due$"):
        machine.answer(A, "Flushed")
    assert machine.lost() == []


def test_a_death_is_told_to_those_who_wait_for_that_replica() -> None:
    machine = CallMachine()
    here, left, elsewhere = machine.ask("Flushed"), machine.ask("Flushed"), machine.ask("Flushed", 1)
    machine.leave(left)
    assert machine.lost(0) == [here]
    assert (machine.state(here), machine.state(left)) == (State.OVER, State.OVER)
    assert machine.answer(elsewhere, "Flushed", 1) == elsewhere
    machine.ask("Flushed", 1)
    assert machine.lost() == [CallId(4)]
    assert len(machine) == 0


def test_an_answer_of_another_replica_or_kind_is_refused() -> None:
    machine = in_state(State.WAITING)
    with pytest.raises(RemoteProtocolError, match=r"answers nothing that is due"):
        machine.answer(A, "Flushed", 1)
    with pytest.raises(RemoteProtocolError, match=r"^Paused 1 came back, but Flushed was expected$"):
        machine.answer(A, "Paused")
    assert machine.state(A) is State.WAITING


def test_a_copy_goes_its_own_way() -> None:
    machine = in_state(State.WAITING)
    twin = machine.copy()
    assert twin.key() == machine.key()
    twin.answer(A, "Flushed")
    assert machine.state(A) is State.WAITING
    assert twin.key() != machine.key()
    assert twin.ask("Flushed") == CallId(2)
