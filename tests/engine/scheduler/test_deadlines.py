"""Deadlines by vid: in order, exactly once, and in memory that follows what lives."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.deadlines import SLACK, Deadlines
from vidette_protocol.ids import Vid

Event = tuple[str, float]

# Few different times, so that deadlines meet each other and the clock.
TIMES = st.integers(0, 8).map(lambda eighths: eighths / 8)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), TIMES),
        st.tuples(st.just("drop"), st.integers(0, 40)),
        st.tuples(st.just("pass"), TIMES),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_they_are_what_a_table_would_be(events: list[Event]) -> None:
    """After any history: who is due, in which order, and when the next one is, as a plain table has it."""
    deadlines = Deadlines()
    table: dict[Vid, float] = {}
    now = 0.0
    for number, (what, value) in enumerate(events):
        match what:
            case "set":
                table[Vid(number)] = now + value
                deadlines.set(Vid(number), now + value)
            case "drop":
                table.pop(Vid(int(value)), None)
                deadlines.drop(Vid(int(value)))
            case "pass":
                now += value
                due = sorted((when, vid) for vid, when in table.items() if when <= now)
                assert deadlines.passed(now) == [vid for _, vid in due]
                for _, vid in due:
                    del table[vid]
            case _:
                assert deadlines.next == min(table.values(), default=None)
        assert len(deadlines) == len(table)
    assert deadlines.passed(math.inf) == [vid for _, vid in sorted((w, v) for v, w in table.items())]
    assert deadlines.next is None


@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 200), st.sampled_from(["drop", "pass"])), max_size=12
    )
)
def test_what_is_over_is_forgotten(rounds: list[tuple[int, int, str]]) -> None:
    """Whatever came and went: at most twice as many entries as deadlines, and a few."""
    deadlines = Deadlines()
    live: list[Vid] = []
    count = 0
    for new, gone, how in rounds:
        for _ in range(new):
            # The later one comes, the earlier its deadline, so that what is dropped lies deep in the heap.
            deadlines.set(Vid(count), 10.0**6 - count)
            live.append(Vid(count))
            count += 1
        for _ in range(min(gone, len(live))):
            if how == "drop":
                deadlines.drop(live.pop(0))
            else:
                assert deadlines.passed(10.0**6 - live[-1]) == [live.pop()]
            assert len(deadlines._heap) <= 2 * len(deadlines) + SLACK
        assert len(deadlines) == len(live)


def test_of_ten_thousand_that_ended_before_a_few_entries_are_left() -> None:
    deadlines = Deadlines()
    for vid in range(10_000):
        deadlines.set(Vid(vid), 60.0 + vid)
    for vid in range(10_000):
        deadlines.drop(Vid(vid))
    assert len(deadlines) == 0
    assert len(deadlines._heap) <= SLACK
    assert deadlines.next is None


def test_a_deadline_is_due_at_its_time_and_not_before() -> None:
    deadlines = Deadlines()
    deadlines.set(Vid(1), 2.0)
    assert deadlines.passed(math.nextafter(2.0, 0)) == []
    assert deadlines.next == 2.0
    assert deadlines.passed(2.0) == [1]
    assert deadlines.passed(2.0) == []


def test_of_those_due_at_once_the_lowest_vid_is_first() -> None:
    deadlines = Deadlines()
    for vid in (3, 1, 2):
        deadlines.set(Vid(vid), 1.0)
    assert deadlines.passed(1.0) == [1, 2, 3]


def test_dropping_what_has_none_does_nothing() -> None:
    deadlines = Deadlines()
    deadlines.drop(Vid(1))
    deadlines.set(Vid(1), 1.0)
    for _ in range(2):
        deadlines.drop(Vid(1))
    assert (len(deadlines), deadlines.next, deadlines.passed(9.0)) == (0, None, [])
