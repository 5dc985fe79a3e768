"""`Corpora`: texts that all requests draft from, by name; pure.

A corpus does not grow, so its index is three sorted columns, one for each length that is looked up: of every
few tokens a hash, and where they came last. That is some forty bytes for each token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette.scheduler.drafts import LENGTHS

MAX_CORPUS_TOKENS: Final = 1024 * 1024
"""Tokens of all corpora together. To index as many takes most of a second, in which no step is taken."""
MAX_CORPORA: Final = 64
"""Corpora, each of which is asked for each draft."""
_END: Final = -1
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


class Corpus:
    """One text, in chunks.

    Args:
        chunks: int32 each; no draft goes over the end of one.
    """

    __slots__ = ("_index", "_tokens", "size")

    def __init__(self, chunks: Iterable[NDArray[np.int32]]) -> None:
        parts = [np.append(chunk, np.int32(_END)) for chunk in chunks]
        self._tokens: NDArray[np.int32] = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        self.size = len(self._tokens) - len(parts)
        """How many tokens it has."""
        self._index = [(length, *_index(self._tokens, length)) for length in LENGTHS]

    def following(self, tail: tuple[int, ...], most: int) -> list[int]:
        """Return what followed the last tokens of `tail` where they came last, at most so many tokens."""
        for length, hashes, ends in self._index:
            if length <= len(tail):
                wanted = np.array(tail[len(tail) - length :], dtype=np.int32)
                place = int(np.searchsorted(hashes, _hash(wanted, length)[0]))
                end = int(ends[place]) if place < len(ends) else 0
                # The hashes of others may be the same.
                if end and (self._tokens[end - length : end] == wanted).all():
                    found: list[int] = self._tokens[end : end + most].tolist()
                    found = found[: found.index(_END)] if _END in found else found
                    if found:
                        return found
        return []


class Corpora:
    """Corpora by name.

    Args:
        vocab_size: of the model: tokenizers may know tokens that it does not.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._corpora: dict[str, Corpus] = {}

    def add(self, name: str, chunks: Iterable[NDArray[np.int32]]) -> int:
        """Add a corpus, in the place of an older one of that name; return how many tokens it has.

        Raises:
            ValueError: it is empty, has tokens that the model does not know, or there would be too many, or
                of too many tokens; the sentence says it.
        """
        chunks = list(chunks)
        for chunk in chunks:
            for extreme in (chunk.min(initial=0), chunk.max(initial=0)):
                if not 0 <= extreme < self._vocab_size:
                    raise ValueError(f"token {extreme} is none of the model's, 0 to {self._vocab_size - 1}")
        others = sum(corpus.size for other, corpus in self._corpora.items() if other != name)
        total = others + sum(map(len, chunks))
        if total > MAX_CORPUS_TOKENS:
            raise ValueError(f"the corpora would have {total} tokens; at most {MAX_CORPUS_TOKENS} are kept")
        if name not in self._corpora and len(self._corpora) >= MAX_CORPORA:
            raise ValueError(f"there are {MAX_CORPORA} corpora; no more are kept")
        if not sum(map(len, chunks)):
            raise ValueError("the corpus is empty; it has to have tokens")
        self._corpora.pop(name, None)
        corpus = self._corpora[name] = Corpus(chunks)
        return corpus.size

    def remove(self, name: str) -> bool:
        """Forget a corpus; return whether there was one of that name."""
        return self._corpora.pop(name, None) is not None

    def sizes(self) -> dict[str, int]:
        """Return how many tokens each has, by name."""
        return {name: corpus.size for name, corpus in self._corpora.items()}

    def following(self, tail: tuple[int, ...], most: int) -> list[int]:
        """Return what one of them has behind the last tokens of `tail`, the one that was added last first."""
        for corpus in reversed(self._corpora.values()):
            found = corpus.following(tail, most)
            if found:
                return found
        return []


def _index(tokens: NDArray[np.int32], length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of every so many tokens, sorted, each once; and where each came last."""
    hashes = _hash(tokens, length)[:-1]  # what ends with the text is followed by nothing
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    last = np.append(ordered[1:] != ordered[:-1], np.True_)[: len(ordered)]
    return ordered[last], order[last].astype(np.int64) + length


def _hash(tokens: NDArray[np.int32], length: int) -> NDArray[np.uint64]:
    """Return a hash of every so many tokens that follow each other."""
    count = max(0, len(tokens) - length + 1)
    hashes: NDArray[np.uint64] = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        hashes = (hashes ^ tokens[place : place + count].astype(np.uint64)) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes
