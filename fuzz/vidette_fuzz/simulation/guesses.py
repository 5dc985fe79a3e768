"""`Guesses`: drafts of an adversary, which knows what is right and says as much of it as it pleases."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from vidette.scheduler.drafts import Drafts

WRONG: Final = 7
"""Guessed where the guess is to be wrong; a token that hardly ever comes."""


class Guesses(Drafts):
    """The drafts of one request.

    Args:
        answer: all that it will say.
        made: how much of it was said already.
        random: says how much is right.
    """

    __slots__ = ("_answer", "_made", "_random")

    def __init__(self, answer: tuple[int, ...], made: int, random: Random) -> None:
        super().__init__((), most=1)
        self._answer = answer
        self._made = made
        self._random = random

    def extend(self, tokens: Iterable[int]) -> None:
        """Take output tokens."""
        self._made += len(list(tokens))

    def propose(self, most: int) -> list[int]:
        """Return what may come next, at most so many tokens: some right ones, and then wrong ones or none."""
        if most <= 0:
            return []
        right = self._answer[self._made : self._made + self._random.randrange(most + 1)]
        wrong = self._random.randrange(most + 1 - len(right))
        return [*right, *[WRONG] * wrong]
