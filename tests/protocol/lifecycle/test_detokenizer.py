from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import DetokenizerMachine, End, Row

A, B = Vid(1), Vid(2)
ENDS = st.sampled_from([None, *End])


def in_state(expected: int | None) -> DetokenizerMachine:
    """Return a machine that is absent of A, or expects an offset of it."""
    machine = DetokenizerMachine()
    if expected is not None:
        machine.receive(A, 0, expected, None)
    return machine


@given(expected=st.none() | st.integers(0, 9), offset=st.integers(-1, 9), tokens=st.integers(0, 9), end=ENDS)
def test_each_row_is_judged_by_state_and_offset(
    expected: int | None, offset: int, tokens: int, end: End | None
) -> None:
    """A row at the next offset (0 if absent) is taken, any other is a RemoteProtocolError."""
    machine = in_state(expected)
    if offset == (expected or 0):
        assert (expected is None) is machine.receive(A, offset, tokens, end)
        assert (end is None) is (A in machine)
        assert len(machine) == (end is None)
        return
    before = machine.key()
    why = "is not open" if expected is None else f"expects offset {expected}"
    with pytest.raises(RemoteProtocolError, match=f"^vid {A} {why}, but a row at offset {offset} came$"):
        machine.receive(A, offset, tokens, end)
    assert before == machine.key()


def test_an_end_of_a_vid_that_was_never_open_is_passed_on() -> None:
    """An abort in the queue: it opens and closes in one go."""
    machine = DetokenizerMachine()
    assert machine.receive(A, 0, 0, End.ABORT) is True
    assert A not in machine


def test_rows_add_up() -> None:
    machine = DetokenizerMachine()
    assert machine.receive(A, 0, 2, None) is True
    assert machine.receive(A, 2, 1, None) is False
    assert machine.receive(A, 3, 0, End.FINISH) is False
    assert len(machine) == 0


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 2), ENDS)))
def test_vids_do_not_know_of_each_other(rows: list[tuple[Vid, int, End | None]]) -> None:
    """What is open of one vid depends on the rows of that vid alone."""
    together, alone = DetokenizerMachine(), {A: DetokenizerMachine(), B: DetokenizerMachine()}
    offsets = {A: 0, B: 0}
    for vid, tokens, end in rows:
        row = Row(vid, offsets[vid], tokens, end)
        assert alone[vid].receive(*row) is together.receive(*row)
        offsets[vid] = 0 if end else offsets[vid] + tokens
    assert together.key() == alone[A].key() + alone[B].key()


def test_a_copy_is_independent() -> None:
    machine = in_state(3)
    twin = machine.copy()
    assert machine.key() == twin.key()
    twin.receive(B, 0, 1, None)
    assert B not in machine
    machine.receive(A, 3, 0, End.FINISH)
    assert A in twin
    assert machine.key() != twin.key()


def test_the_key_does_not_tell_the_order_of_opening() -> None:
    one, other = DetokenizerMachine(), DetokenizerMachine()
    one.receive(A, 0, 1, None)
    one.receive(B, 0, 1, None)
    other.receive(B, 0, 1, None)
    other.receive(A, 0, 1, None)
    assert one.key() == other.key()
    assert hash(one.key()) == hash(other.key())
