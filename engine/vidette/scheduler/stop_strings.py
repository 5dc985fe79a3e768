"""`StopStrings`: one automaton that finds any of several strings in bytes as they come (Aho and Corasick).

Its state after some text is the longest end of the text that some string begins with. So a string that ends
is noticed at its last byte, how much could still become one is known at each byte, and a byte costs the same
however many strings there are. States and moves are made when they are first needed: most texts need few, and
all of them would take long to make where the strings are long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

START: Final = 0
"""The state in which nothing has begun."""

MOST_MOVES: Final = 1 << 14
"""How many moves are remembered before they are forgotten and found anew; 2 MB or so."""


class Hit(NamedTuple):
    """A string that was found.

    Args:
        string: its place in the list of them; of several that end together it is the longest.
        end: bytes of the piece up to its end.
    """

    string: int
    end: int


class StopStrings:
    """The automaton; several texts may share it, in one thread.

    Args:
        stops: one or several, none empty or there twice, no lone surrogates.

    Attributes:
        lengths: bytes of each string.
        longest: bytes of the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._strings = [stop.encode() for stop in stops]
        self.lengths = [len(string) for string in self._strings]
        self.longest = max(self.lengths)
        self._first = frozenset([string[0] for string in self._strings])
        # In order, those with the same beginning are neighbours.
        self._sorted = sorted(self._strings)
        # A state is the beginning of a sorted string: which of them first, and how many bytes.
        self._beginnings = [(0, 0)]
        self._states = {(0, 0): START}
        self._ends = [-1]
        self._open = [0]
        # By 256 * state + byte.
        self._moves: dict[int, int] = {}

    def run(self, state: int, piece: bytes) -> int:
        """Return the state after some more text, whatever is found in it."""
        if state == START and self._first.isdisjoint(piece):
            return START
        moves = self._moves
        for byte in piece:
            after = moves.get(state << 8 | byte)
            state = self._move(state, byte) if after is None else after
        return state

    def scan(self, state: int, piece: bytes) -> tuple[int, Hit | None]:
        """Return the state after some more text, or at the first string that ends in it, and that string."""
        if state == START and self._first.isdisjoint(piece):
            return START, None
        moves, ends = self._moves, self._ends
        for end, byte in enumerate(piece, 1):
            after = moves.get(state << 8 | byte)
            state = self._move(state, byte) if after is None else after
            if ends[state] >= 0:
                return state, Hit(ends[state], end)
        return state, None

    def open(self, state: int) -> int:
        """Return how many bytes at the end of the text some string begins with, and does not end with."""
        return self._open[state]

    def _move(self, state: int, byte: int) -> int:
        if len(self._moves) >= MOST_MOVES:
            self._moves.clear()
        string, length = self._beginnings[state]
        text = self._sorted[string][:length] + bytes((byte,))
        after = START
        for start in range(len(text)):
            if text[start] in self._first and (found := self._begins(text[start:])) is not None:
                after = self._state(found, len(text) - start)
                break
        self._moves[state << 8 | byte] = after
        return after

    def _begins(self, text: bytes, least: int = 0) -> int | None:
        """Return the first of the sorted strings that begins with a text and has some length, or None."""
        place = bisect_left(self._sorted, text)
        while place < len(self._sorted) and self._sorted[place].startswith(text):
            if len(self._sorted[place]) >= least:
                return place
            place += 1
        return None

    def _state(self, string: int, length: int) -> int:
        state = self._states.get((string, length))
        if state is None:
            state = self._states[string, length] = len(self._beginnings)
            self._beginnings.append((string, length))
            text = self._sorted[string][:length]
            ended = [i for i, each in enumerate(self._strings) if text.endswith(each)]
            self._ends.append(max(ended, key=self.lengths.__getitem__, default=-1))
            starts = range(length)
            self._open.append(
                next((length - i for i in starts if self._begins(text[i:], length - i + 1) is not None), 0)
            )
        return state
