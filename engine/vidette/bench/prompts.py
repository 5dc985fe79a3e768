"""Prompts that cost nothing to make and are the same for the same seed; pure."""

from __future__ import annotations

from random import Random
from typing import Final

WORDS: Final = (  # noqa: SIM905  a list of them would be as many lines as words
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out "
    "so up said what its about than into them can only other time new some could these two may first then "
    "do any like my now over such our man me even most made after also did many off before must well back "
    "through years where much your way down should because long each just state those people too how "
    "little good world make very year still see own work men day get here old life both between being "
    "under three never know same last another while us might great go come since against right came take "
    "used himself few house use place during high without again home around small however found part "
    "school once every water"
).split()
"""Words so common that most tokenizers have a token for each, with the space before it."""


class Prompts:
    """Prompts of one length, some of it the same in all of them.

    Args:
        seed: of all that is random.
        words: of each prompt, what is shared included.
        shared: how many of them, from the first, all prompts have.
    """

    def __init__(self, seed: int, words: int, shared: int = 0) -> None:
        self._seed = seed
        self._own = max(1, words - shared)
        self._shared = _words(Random(f"{seed}: shared"), shared)

    def text(self, number: int) -> str:
        """Return one of them; negative numbers are as good as others."""
        return " ".join(self._shared + _words(Random(f"{self._seed}: {number}"), self._own))


def _words(rng: Random, count: int) -> list[str]:
    return rng.choices(WORDS, k=count)
