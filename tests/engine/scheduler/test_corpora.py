from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.corpora import MAX_CORPORA, MAX_CORPUS_TOKENS, Corpora, Corpus
from vidette.scheduler.drafts import LENGTHS

TOKENS = st.lists(st.integers(0, 3), max_size=20)


def packed(tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


def naive(chunks: list[list[int]], tail: list[int], most: int) -> list[int]:
    """Look the tail up from the back, chunk by chunk, without an index."""
    for length in LENGTHS:
        part = tail[len(tail) - length :]
        if length > len(tail):
            continue
        # Where it came last decides, even if a chunk ends there.
        for chunk in reversed(chunks):
            for end in range(len(chunk), length - 1, -1):
                if chunk[end - length : end] == part:
                    if chunk[end:]:
                        return chunk[end : end + most]
                    break
            else:
                continue
            break
    return []


@given(st.lists(TOKENS, max_size=4), TOKENS, st.integers(1, 6))
def test_what_follows_is_what_a_search_from_the_back_finds(
    chunks: list[list[int]], tail: list[int], most: int
) -> None:
    """For all chunks: what followed the longest end of the tail where it came last, within its chunk."""
    corpus = Corpus(map(packed, chunks))
    assert corpus.size == sum(map(len, chunks))
    assert corpus.following(tuple(tail[-LENGTHS[0] :]), most) == naive(chunks, tail[-LENGTHS[0] :], most)


def test_corpora_have_names() -> None:
    corpora = Corpora(1 << 17)
    assert corpora.add("a", [packed([1, 2, 3])]) == 3
    assert corpora.add("b", [packed([1, 2, 4]), packed([5])]) == 4
    assert corpora.sizes() == {"a": 3, "b": 4}
    assert corpora.following((1, 2), 4) == [4]
    assert corpora.remove("b")
    assert not corpora.remove("b")
    assert corpora.following((1, 2), 4) == [3]
    corpora.add("a", [packed([1, 2, 7])])
    assert corpora.following((1, 2), 4) == [7]


def test_corpora_have_a_bound() -> None:
    corpora = Corpora(1 << 17)
    corpora.add("a", [packed([1, 2, 3])])
    with pytest.raises(ValueError, match=f"^the corpora would have {MAX_CORPUS_TOKENS + 4} tokens; at most"):
        corpora.add("b", [np.zeros(MAX_CORPUS_TOKENS + 1, dtype=np.int32)])
    assert corpora.sizes() == {"a": 3}
    assert corpora.following((1, 2), 4) == [3]


def test_there_are_only_so_many_and_none_is_empty() -> None:
    corpora = Corpora(1 << 17)
    with pytest.raises(ValueError, match=r"^the corpus is empty"):
        corpora.add("a", [packed([]), packed([])])
    for number in range(MAX_CORPORA):
        corpora.add(str(number), [packed([1, 2, 3])])
    with pytest.raises(ValueError, match=rf"^there are {MAX_CORPORA} corpora"):
        corpora.add("one more", [packed([1, 2, 3])])
    corpora.add("7", [packed([1, 2, 4])])
    assert corpora.following((1, 2), 1) == [4]


@pytest.mark.parametrize("token", [-1, 203, 2**31 - 1])
def test_a_token_that_the_model_does_not_know_is_refused(token: int) -> None:
    corpora = Corpora(203)
    with pytest.raises(ValueError, match=f"token {token} is none of the model's, 0 to 202"):
        corpora.add("far", [np.array([1, token, 2], dtype=np.int32)])
    assert corpora.sizes() == {}
    assert corpora.add("near", [np.array([0, 202], dtype=np.int32), np.empty(0, dtype=np.int32)]) == 2
