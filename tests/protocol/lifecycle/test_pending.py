"""What waits for a slow caller: one delta, in which nothing is lost, repeated or reordered."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import LocalProtocolError
from vidette_protocol.lifecycle import PendingDelta
from vidette_protocol.lifecycle.pending import UNPACKED, Taken

ROWS = st.lists(
    st.tuples(
        st.text(st.characters() | st.characters(categories=["Cs"]), max_size=3),
        st.lists(st.integers(0, 2**31 - 1), max_size=UNPACKED),
        st.booleans(),
    )
)


@given(rows=ROWS, end=st.booleans())
def test_whenever_it_is_read_all_comes_once_and_in_order(
    rows: list[tuple[str, list[int], bool]], *, end: bool
) -> None:
    """Deliveries and looks in any order: what was read is what was delivered, the end comes once and last,
    and at most one delta waits, with no more in it than was not taken."""
    pending = PendingDelta[str]()
    taken: list[Taken[str]] = []
    for text, ids, look in rows:
        pending.deliver(text, ids)
        assert pending.deltas <= 1
        assert pending.tokens == len((pending.peek() or Taken("", (), None)).token_ids)
        delta = pending.take() if look else None
        taken += [] if delta is None else [delta]
    if end:
        pending.deliver("", [], "stop")
    delta = pending.take()
    taken += [] if delta is None else [delta]
    assert "".join(each.text for each in taken) == "".join(text for text, _, _ in rows)
    assert [one for each in taken for one in each.token_ids] == [one for _, ids, _ in rows for one in ids]
    assert [each.end for each in taken if each.end] == ["stop"] * end
    assert pending.over is end
    assert not end or taken[-1].end == "stop"
    assert pending.deltas == pending.tokens == 0
    assert pending.take() is None


def test_an_empty_row_is_no_news() -> None:
    pending = PendingDelta[str]()
    pending.deliver("", [])
    assert not pending
    assert pending.take() is None


def test_nothing_is_delivered_after_the_end() -> None:
    pending = PendingDelta[str]()
    pending.deliver("a", [1], "stop")
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match=r"^something is delivered after its end$"):
            pending.deliver("b", [2])
        pending.take()


@pytest.mark.parametrize("rows", [1, UNPACKED, UNPACKED + 1])
def test_a_copy_goes_its_own_way(rows: int) -> None:
    pending = PendingDelta[str]()
    for _ in range(rows):
        pending.deliver("a", [1])
    twin = pending.copy()
    assert twin.key() == pending.key()
    pending.deliver("b", [2])
    assert twin.key() != pending.key()
    assert twin.take() == Taken("a" * rows, (1,) * rows, None)
    assert pending.peek() == pending.take() == Taken("a" * rows + "b", (1,) * rows + (2,), None)
    assert twin.key() == pending.key() == PendingDelta[str]().key()


def test_what_waits_is_packed() -> None:
    """What a caller never takes stays as small as its tokens are, and does not keep the rows it came in."""
    tracemalloc.start()
    try:
        pending = PendingDelta[str]()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(10_000):
            pending.deliver(f" {number:04}", [100_000 + number])
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 10_000 * 12  # 9 bytes each, and room to grow
