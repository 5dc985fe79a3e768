"""A sorted set: what a sorted list would be, at a price that does not grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.ordered import Ordered


@given(
    events=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=120),
    chunk=st.sampled_from([2, 4, 8, 16]),
)
def test_it_is_what_a_sorted_list_would_be(events: list[tuple[bool, int]], chunk: int) -> None:
    """After any additions and removals: its order, its first and its length; and no chunk is too large."""
    ordered: Ordered[tuple[int, str]] = Ordered(chunk)
    model: set[tuple[int, str]] = set()
    for add, number in events:
        item = (number, "x")
        if add and item not in model:
            ordered.add(item)
            model.add(item)
        elif item in model:
            ordered.remove(item)
            model.remove(item)
        assert list(ordered) == sorted(model)
        assert len(ordered) == len(model)
        assert ordered.first == min(model, default=None)
        chunks = ordered._chunks
        assert [chunk[-1] for chunk in chunks] == ordered._lasts
        assert all(1 <= len(part) <= chunk for part in chunks)
        assert len(chunks) <= 1 or all(len(part) >= chunk // 4 for part in chunks)


@pytest.mark.parametrize("there", [[], [1], [1, 3], [3]])
def test_what_is_not_there_cannot_be_taken_out(there: list[int]) -> None:
    ordered: Ordered[tuple[int]] = Ordered()
    for number in there:
        ordered.add((number,))
    with pytest.raises(KeyError, match="2"):
        ordered.remove((2,))
    assert list(ordered) == [(number,) for number in there]


def test_of_ten_thousand_that_came_and_went_nothing_is_left() -> None:
    ordered: Ordered[tuple[int]] = Ordered()
    for number in range(10_000):
        ordered.add((number * 7919 % 10_007,))
    assert len(ordered._chunks) < 10_000 // 128
    for number in range(9_000):
        ordered.remove((number * 7919 % 10_007,))
    assert len(ordered._chunks) < 1_000 // 128 + 1
    for number in range(9_000, 10_000):
        ordered.remove((number * 7919 % 10_007,))
    assert (len(ordered), ordered.first, ordered._chunks, ordered._lasts) == (0, None, [], [])
