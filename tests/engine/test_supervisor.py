"""When a ring is started again, and when no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette._supervisor import WINDOW_SECONDS, Backoff
from vidette.config import EngineConfig


def backoff(**options: float) -> Backoff:
    return Backoff(EngineConfig(**{"max_restarts": 5, **options}))  # type: ignore[arg-type]


def test_delays_double_up_to_the_largest() -> None:
    policy = backoff(max_restarts=8)
    delays = [policy.note(float(second)) for second in range(9)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, None]


def test_a_death_is_forgotten_after_a_minute() -> None:
    policy = backoff(max_restarts=2)
    assert [policy.note(now) for now in (0.0, 10.0, 20.0)] == [0.1, 0.2, None]
    assert policy.note(WINDOW_SECONDS) == 0.2  # that of 10.0 counts still
    assert policy.note(WINDOW_SECONDS + 9) is None
    assert policy.note(2 * WINDOW_SECONDS) == 0.1


def test_with_no_restarts_the_first_death_is_the_end() -> None:
    assert backoff(max_restarts=0).note(0.0) is None


def test_a_large_number_of_restarts_is_no_overflow() -> None:
    policy = backoff(max_restarts=3000)
    assert {policy.note(0.0) for _ in range(3000)} == {0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0}
    assert policy.note(0.0) is None


@pytest.mark.parametrize("most", [0, 1, 5])
@given(gaps=st.lists(st.floats(0, 40), max_size=40))
def test_within_a_minute_there_are_never_more_restarts_than_allowed(most: int, gaps: list[float]) -> None:
    """In no window of a minute are there more restarts than `max_restarts`; no delay is above the largest."""
    policy = backoff(max_restarts=most)
    now, restarts = 0.0, []
    for gap in gaps:
        now += gap
        delay = policy.note(now)
        if delay is not None:
            assert 0.1 <= delay <= 5.0
            restarts.append(now)
    for first in restarts:
        assert sum(first <= at < first + WINDOW_SECONDS for at in restarts) <= most
