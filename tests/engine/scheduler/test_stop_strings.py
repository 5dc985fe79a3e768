"""Several strings found at once, in bytes that come piece by piece."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.stop_strings import START, Hit, StopStrings

STOPS = st.lists(st.text(alphabet="ab日é", min_size=1, max_size=5), min_size=1, max_size=4, unique=True)
TEXTS = st.text(alphabet="ab日éx", max_size=12).map(str.encode)


def first_end(stops: list[str], text: bytes) -> Hit | None:
    """Return the string that ends first in a text, and where; the longest of several."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if here:
            return Hit(stops.index(max(here, key=lambda stop: len(stop.encode()))), end)
    return None


@given(stops=STOPS, text=TEXTS, cuts=st.lists(st.integers(0, 30), max_size=4).map(sorted))
def test_the_one_that_ends_first_is_found_however_the_text_comes(
    stops: list[str], text: bytes, cuts: list[int]
) -> None:
    """In any text in any pieces, the string that ends first is found there; of several the longest."""
    strings, state, expected = StopStrings(stops), START, first_end(stops, text)
    for start, end in pairwise([0, *cuts, len(text)]):
        state, hit = strings.scan(state, text[start:end])
        if hit is not None:
            assert expected == Hit(hit.string, start + hit.end)
            return
    assert expected is None


@given(stops=STOPS, text=TEXTS)
def test_what_may_become_one_is_the_longest_end_that_one_begins_with(stops: list[str], text: bytes) -> None:
    """After any text: the longest end of it that some string begins with, and is longer than."""
    strings = StopStrings(stops)
    longest = next(
        length
        for length in range(len(text), -1, -1)
        if any(
            len(stop.encode()) > length and stop.encode().startswith(text[len(text) - length :])
            for stop in stops
        )
    )
    assert strings.open(strings.run(START, text)) == longest


@given(stops=STOPS, text=TEXTS, cut=st.integers(0, 30))
def test_running_on_passes_over_what_is_found(stops: list[str], text: bytes, cut: int) -> None:
    """The state after a text is the same in one piece and in two, whatever ends in it."""
    strings = StopStrings(stops)
    assert strings.run(strings.run(START, text[:cut]), text[cut:]) == strings.run(START, text)


def test_lengths_are_in_bytes() -> None:
    strings = StopStrings(["é", "日本", "a"])
    assert strings.lengths == [2, 6, 1]
    assert strings.longest == 6
