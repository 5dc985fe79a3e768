"""Drafts of what a request will say next, without a model: what followed the same few tokens before. Pure.

Text repeats itself, most of all where an answer quotes its prompt. So the last tokens are looked up in what
the request has already (*prompt lookup*), and then in the `corpora` if there are any; what followed them is
computed along with the next token, and kept as far as the model would have said the same. A wrong draft costs
its share of one step and nothing else.

How much is drafted follows how well it went: all of a draft right doubles the next one, none of it right
halves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from vidette_protocol.messages import SpeculativeMetrics

LENGTHS: Final = (4, 3, 2)
"""How many tokens are looked up, the longest first: the more that agree, the likelier that the next do."""


class Texts(Protocol):
    """Where to look besides."""

    def following(self, tail: tuple[int, ...], most: int) -> list[int]:
        """Return what followed the last tokens of `tail`, at most so many tokens; none if that never came."""
        ...


class Own:
    """The tokens of one request, in which the last few are looked up.

    Args:
        tokens: to begin with.
    """

    __slots__ = ("_ends", "_tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        # For each length: behind which place those tokens came last, the very end left out.
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        known, ends = self._tokens, self._ends
        for token in tokens:
            # What ends here is noted only now, when something follows it: it must not find itself.
            end = len(known)
            for length in LENGTHS:
                if length <= end:
                    ends[tuple(known[end - length :])] = end
            known.append(token)

    def tail(self) -> tuple[int, ...]:
        """Return the last tokens, as many as are looked up at most."""
        return tuple(self._tokens[-LENGTHS[0] :])

    def following(self, tail: tuple[int, ...], most: int) -> list[int]:
        """Return what followed the last tokens of `tail` where they came last, at most so many tokens."""
        for length in LENGTHS:
            if length <= len(tail):
                end = self._ends.get(tail[len(tail) - length :])
                if end is not None:
                    return self._tokens[end : end + most]
        return []

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._tokens)


class Drafts:
    """The drafts of one request, and how they went.

    Args:
        tokens: of its prompt, and what it has made.
        most: longest draft.
        corpora: where to look if the request itself does not know; None: nowhere.
    """

    __slots__ = ("_corpora", "_drafted", "_histogram", "_length", "_most", "_own")

    def __init__(self, tokens: Iterable[int], *, most: int, corpora: Texts | None = None) -> None:
        self._own = Own(tokens)
        self._corpora = corpora
        self._most = most
        self._length = max(1, most // 2)
        self._histogram: list[int] = []
        self._drafted = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Take output tokens."""
        self._own.extend(tokens)

    def propose(self, most: int) -> list[int]:
        """Return what may come next, at most so many tokens; nothing if nothing is known."""
        count = min(most, self._length)
        if count <= 0:
            return []
        tail = self._own.tail()
        found = self._own.following(tail, count)
        if found:
            # What came last may reach up to here: then it goes round, as a repetition does.
            return [found[place % len(found)] for place in range(count)]
        return [] if self._corpora is None else self._corpora.following(tail, count)

    def judge(self, drafted: int, right: int) -> None:
        """Note how a draft of so many tokens went: how many of them, from the first, were right."""
        if right == drafted:
            self._length = min(self._most, 2 * self._length)
        elif right == 0:
            self._length = max(1, self._length // 2)
        self._drafted += drafted
        self._histogram += [0] * (right + 1 - len(self._histogram))
        self._histogram[right] += 1

    def metrics(self) -> SpeculativeMetrics:
        """Return how it went so far."""
        counts = self._histogram
        right = sum(number * count for number, count in enumerate(counts))
        return SpeculativeMetrics(sum(counts), right, tuple(counts), self._drafted)
