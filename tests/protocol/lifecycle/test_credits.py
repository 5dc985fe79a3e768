"""The two ends of an arena: all extents of a message or none, and one way back for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.lifecycle import BorrowMachine, CreditMachine, Extent
from vidette_protocol.lifecycle import BorrowState as Held
from vidette_protocol.lifecycle import CreditState as State
from vidette_protocol.lifecycle.credits import BORROW_TABLE, CREDIT_TABLE
from vidette_protocol.lifecycle.credits import BorrowEvent as View
from vidette_protocol.lifecycle.credits import CreditEvent as Event
from vidette_protocol.lifecycle.extents import GRANULE

A = Extent(0, 2, 0)


def producer(state: State) -> CreditMachine:
    """Return a machine of four granules of a byte, whose extent A, the first two, is in a state."""
    machine = CreditMachine(4, 1)
    assert machine.take([2]) == [A]
    if state is State.LENT:
        machine.lend([A])
    if state is State.OVER:
        machine.release([A])
    return machine


INPUTS: dict[Event, Callable[[CreditMachine], object]] = {
    Event.LEND: lambda machine: machine.lend([A]),
    Event.RELEASE: lambda machine: machine.release([A]),
    Event.CREDIT: lambda machine: machine.credit([A.start]),
    Event.LOST: lambda machine: machine.lost(),
    Event.CLOSE: lambda machine: machine.close(),
}
REFUSED: dict[Event, tuple[type[Exception], str]] = {
    Event.LEND: (LocalProtocolError, "^memory of an arena is sent after it was sent or given back$"),
    Event.CREDIT: (RemoteProtocolError, "^a credit for byte 0 of an arena, which is not lent$"),
}


@given(state=st.sampled_from(State), event=st.sampled_from(Event))
def test_each_input_of_the_producer_is_in_the_table_or_refused(state: State, event: Event) -> None:
    """An input leads where the table says; else it changes nothing, silently or with an error."""
    machine = producer(state)
    expected = CREDIT_TABLE.get((state, event), state)
    if (state, event) not in CREDIT_TABLE and event in REFUSED:
        error, match = REFUSED[event]
        with pytest.raises(error, match=match):
            INPUTS[event](machine)
    else:
        INPUTS[event](machine)
    assert machine.state(A.start) is expected
    assert machine.free == (4 if expected is State.OVER else 2)
    assert machine.free + machine.used == machine.nbytes == 4


def test_a_message_gets_all_its_extents_or_none() -> None:
    machine = CreditMachine(4, 1)
    first = machine.take([1, 2])
    assert first == [Extent(0, 1, 0), Extent(1, 2, 1)]
    assert machine.take([1, 1]) is None
    assert (len(machine), machine.lent, machine.free) == (2, 0, 1)
    machine.lend(first)
    assert (len(machine), machine.lent, machine.free) == (2, 2, 1)
    assert machine.credit([1, 0])
    assert machine.take([4]) == [Extent(0, 4, 2)]


def test_for_what_never_fits_no_one_need_wait() -> None:
    machine = producer(State.LENT)
    assert machine.fits([2, 2])
    assert not machine.fits([2, 2, 1])
    assert CreditMachine(GRANULE).fits([1])
    assert not CreditMachine(GRANULE).fits([1, 1])


def test_a_late_end_of_a_block_gives_nothing_of_the_next_back() -> None:
    """The same bytes may be another's by then: each use of them has a serial number of its own."""
    machine = producer(State.LENT)
    machine.credit([A.start])
    again = machine.take([2])
    assert again == [A._replace(serial=1)]
    assert not machine.holds(A)
    assert not machine.release([A])
    with pytest.raises(LocalProtocolError):
        machine.lend([A])
    assert machine.holds(again[0])
    assert machine.release(again)
    assert not machine.release(again)


def test_a_message_or_a_credit_names_nothing_twice() -> None:
    machine = producer(State.TAKEN)
    with pytest.raises(LocalProtocolError):
        machine.lend([A, A])
    assert machine.state(0) is State.TAKEN
    machine.lend([A])
    with pytest.raises(RemoteProtocolError):
        machine.credit([0, 0])
    assert machine.state(0) is State.LENT


def test_a_credit_is_taken_as_a_whole_or_refused() -> None:
    machine = producer(State.LENT)
    machine.take([1])
    with pytest.raises(RemoteProtocolError, match=r"byte 2 "):
        machine.credit([0, 2])
    assert machine.state(0) is State.LENT
    assert not machine.credit([])


def test_a_dead_consumer_holds_nothing_and_says_nothing_that_counts() -> None:
    machine = CreditMachine(4, 1)
    taken, lent = machine.take([1]), machine.take([2])
    assert taken is not None
    assert lent is not None
    machine.lend(lent)
    assert machine.lost()
    assert (machine.generation, machine.state(0), machine.state(1)) == (1, State.TAKEN, State.OVER)
    machine.lend(machine.take([2]) or [])
    assert not machine.credit([1])  # of the dead, about what is the next one's now
    assert machine.state(1) is State.LENT
    assert machine.credit([1], generation=1)
    assert not machine.lost()


def test_of_an_arena_that_is_closed_nothing_is_held_or_taken() -> None:
    machine = producer(State.LENT)
    taken = machine.take([1]) or []
    for _ in range(2):
        machine.close()
        assert (len(machine), machine.free) == (0, 4)
    assert machine.take([1]) is None
    assert not machine.fits([1])
    assert not machine.release(taken)
    assert not machine.credit([A.start])
    assert machine.copy().key() == machine.key() != producer(State.OVER).key()
    assert machine.copy().take([1]) is None


def test_an_offset_is_found_in_what_is_taken() -> None:
    machine = CreditMachine(4, 1)
    first, second = machine.take([2, 2]) or []
    assert machine.find(0) == machine.find(1) == first
    assert machine.find(2) == machine.find(3) == second
    machine.lend([first])
    machine.release([second])
    for offset in range(5):
        with pytest.raises(LocalProtocolError, match=r"^memory of an arena is used after it was sent"):
            machine.find(offset)


def test_what_is_between_two_extents_is_not_found() -> None:
    machine = CreditMachine(2 * GRANULE)
    machine.take([10, 10])
    assert machine.find(9).start == 0
    with pytest.raises(LocalProtocolError):
        machine.find(10)


def test_a_copy_of_the_producer_goes_its_own_way() -> None:
    machine = producer(State.TAKEN)
    twin = machine.copy()
    assert twin.key() == machine.key()
    twin.lend([A])
    assert twin.key() != machine.key()
    assert machine.state(0) is State.TAKEN
    assert twin.take([1]) == [Extent(2, 1, 1)]
    assert machine.free == 2


# --- the consumer -----------------------------------------------------------------------------------------


def consumer(state: Held) -> BorrowMachine:
    """Return a machine of four granules of a byte, whose loan A is in a state, with at most one view."""
    machine = BorrowMachine(4, 1)
    assert machine.borrow(0, 2) == A
    if state is Held.DUE:
        machine.drop(A)
    if state is Held.ORPHANED:
        machine.lost()
    if state is Held.OVER:
        machine.give_back(A)
        machine.credits()
    return machine


def dies(machine: BorrowMachine) -> None:
    machine.view(A)
    assert not machine.drop(A)


VIEWS: dict[View, Callable[[BorrowMachine], object]] = {
    View.VIEW: lambda machine: machine.view(A),
    View.DIES: dies,
    View.LAST_DIES: lambda machine: machine.drop(A),
    View.GIVE_BACK: lambda machine: machine.give_back(A),
    View.CREDIT: lambda machine: machine.credits(),
    View.LOST: lambda machine: machine.lost(),
}


@given(state=st.sampled_from(Held), event=st.sampled_from(View))
def test_each_input_of_the_consumer_is_in_the_table_or_nothing(state: Held, event: View) -> None:
    """An input leads where the table says; a view of what is not viewed is an error, all else is silence."""
    machine = consumer(state)
    before = machine.key()
    expected = BORROW_TABLE.get((state, event), state)
    if (state, event) in BORROW_TABLE or event not in {View.VIEW, View.DIES}:
        VIEWS[event](machine)
    else:
        with pytest.raises(LocalProtocolError, match=r"^byte 0 of an arena is not viewed$"):
            VIEWS[event](machine)
    if (state, event) not in BORROW_TABLE:
        assert machine.key() == before
    assert machine.state(0) is expected
    assert machine.due == (expected is Held.DUE)
    assert len(machine) == (expected is not Held.OVER)
    assert (machine.views(A) > 0) == (expected in {Held.VIEWED, Held.ORPHANED})


def test_the_last_view_makes_one_credit_due() -> None:
    machine = consumer(Held.VIEWED)
    machine.view(A)
    assert machine.views(A) == 2
    assert not machine.drop(A)
    assert machine.credits() == []
    assert machine.drop(A)
    assert machine.credits() == [0]
    assert machine.credits() == []
    assert not machine.drop(A)


def test_credits_come_in_the_order_of_death() -> None:
    machine = BorrowMachine(4, 1)
    loans = [machine.borrow(start, 1) for start in range(4)]
    for number in (2, 0, 3):
        machine.drop(loans[number])
    assert (len(machine), machine.due) == (4, 3)
    assert machine.credits() == [2, 0, 3]
    assert len(machine) == 1


def test_a_view_that_is_left_of_what_was_given_back_returns_nothing_of_the_next() -> None:
    """An error keeps half-made views for a while; their place may be another message's when they die."""
    machine = consumer(Held.VIEWED)
    machine.view(A)
    machine.give_back(A)
    machine.give_back(A)
    assert machine.credits() == [0]
    again = machine.borrow(0, 2)
    assert again == A._replace(serial=1)
    assert not machine.drop(A)
    assert machine.views(again) == 1
    with pytest.raises(LocalProtocolError):
        machine.view(A)
    assert machine.drop(again)


@pytest.mark.parametrize(
    ("start", "nbytes"), [(-1, 1), (4, 1), (3, 2), (0, 5), (0, 0), (1, 1), (0, 1), (0, 4), (2, 1), (3, 1)]
)
def test_what_is_not_there_or_is_held_already_is_no_extent(start: int, nbytes: int) -> None:
    machine = BorrowMachine(4, 1)
    machine.borrow(0, 2)
    machine.borrow(2, 2)
    before = machine.key()
    with pytest.raises(DecodeError, match=r"of an arena"):
        machine.borrow(start, nbytes)
    assert machine.key() == before


def test_an_extent_begins_at_a_granule() -> None:
    machine = BorrowMachine(2 * GRANULE)
    with pytest.raises(DecodeError):
        machine.borrow(1, 1)
    machine.borrow(GRANULE, 1)
    machine.borrow(0, GRANULE)
    assert len(machine) == 2


def test_nothing_is_due_to_a_producer_that_is_gone() -> None:
    machine = consumer(Held.DUE)
    loan = machine.borrow(2, 1)
    machine.lost()
    machine.lost()
    assert (len(machine), machine.due, machine.state(2)) == (1, 0, Held.ORPHANED)
    assert machine.drop(loan)
    assert machine.credits() == []
    assert len(machine) == 0


def test_a_copy_of_the_consumer_goes_its_own_way() -> None:
    machine = consumer(Held.DUE)
    loan = machine.borrow(2, 1)
    twin = machine.copy()
    assert twin.key() == machine.key()
    twin.drop(loan)
    assert (machine.state(2), twin.state(2)) == (Held.VIEWED, Held.DUE)
    assert twin.credits() == [0, 2]
    assert machine.credits() == [0]
    assert machine.borrow(0, 1).serial == twin.borrow(0, 1).serial == 2


# --- both -------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99)), max_size=60)


@given(steps=STEPS)
def test_what_is_lent_and_credited_is_whole_again(steps: list[tuple[int, int]]) -> None:
    """Whatever is taken, posted, dropped, viewed and credited, in any order: bytes are conserved, no two
    extents overlap, and once all is let go, all is free."""
    ours, theirs = CreditMachine(12, 2), BorrowMachine(12, 2)
    taken: list[Extent] = []
    viewed: list[Extent] = []
    for step, number in steps:
        if step == 0:
            taken += ours.take([1 + number % 5, 1 + number % 3]) or []
        elif step == 1 and taken:
            extent = taken.pop(number % len(taken))
            ours.lend([extent])
            viewed.append(theirs.borrow(extent.start, extent.nbytes))
        elif step == 2 and taken:
            assert ours.release([taken.pop(number % len(taken))])
        elif step == 3 and viewed:
            assert theirs.drop(viewed.pop(number % len(viewed)))
        elif step == 4:
            ours.credit(theirs.credits())
        assert ours.free + ours.used == 12
        assert len(ours) == len(taken) + len(theirs)
    ours.release(taken)
    for loan in viewed:
        theirs.give_back(loan)
    ours.credit(theirs.credits())
    assert (ours.free, len(ours), len(theirs)) == (12, 0, 0)
