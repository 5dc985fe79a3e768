from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vidette.scheduler.corpora import Corpora
from vidette.scheduler.drafts import LENGTHS, Drafts, Own


def naive(tokens: list[int], tail: tuple[int, ...], most: int) -> list[int]:
    """Look the tail up from the back, without an index."""
    for length in LENGTHS:
        part = list(tail[len(tail) - length :])
        if len(part) < length:
            continue
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == part:
                return tokens[end : end + most]
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8), st.integers(0, 40))
def test_a_draft_is_what_followed_the_longest_known_end_last(
    tokens: list[int], most: int, split: int
) -> None:
    """For all tokens, however they come: a draft is what a search from the back finds."""
    own = Own(tokens[:split])
    own.extend(tokens[split:])
    assert own.following(own.tail(), most) == naive(tokens, tuple(tokens[-LENGTHS[0] :]), most)


def test_a_repetition_is_drafted() -> None:
    drafts = Drafts([1, 2, 3, 4, 5, 1, 2, 3], most=4)
    assert drafts.propose(2) == [4, 5]
    drafts.extend([4])
    assert drafts.propose(2) == [5, 1]


def test_a_repetition_goes_round() -> None:
    drafts = Drafts([1, 2, 1, 2, 1, 2], most=8)
    assert drafts.propose(4) == [1, 2, 1, 2]


def test_nothing_is_drafted_of_what_never_came() -> None:
    assert Drafts([1, 2, 3, 4], most=4).propose(4) == []
    assert Drafts([], most=4).propose(4) == []


def test_nothing_is_drafted_where_there_is_no_room() -> None:
    assert Drafts([1, 2, 1, 2], most=4).propose(0) == []


def test_the_corpora_are_asked_when_the_request_does_not_know() -> None:
    corpora = Corpora(1 << 17)
    corpora.add("numbers", [np.array([7, 8, 9, 10], dtype=np.int32)])
    assert Drafts([7, 8], most=8, corpora=corpora).propose(8) == [9, 10]
    assert Drafts([7, 8, 1, 7, 8], most=8, corpora=corpora).propose(3) == [1, 7, 8]


def test_drafts_grow_while_they_are_right_and_shrink_while_they_are_wrong() -> None:
    drafts = Drafts([1] * 40, most=8)
    lengths = []
    for right in (4, 8, 8, 0, 0, 0, 0):
        lengths.append(len(drafts.propose(8)))
        drafts.judge(lengths[-1], min(right, lengths[-1]))
    assert lengths == [4, 8, 8, 8, 4, 2, 1]


def test_metrics_count_what_was_right() -> None:
    drafts = Drafts([], most=4)
    for right in (0, 2, 2, 3):
        drafts.judge(3, right)
    metrics = drafts.metrics()
    assert metrics.spec_verify_ct == 4
    assert metrics.spec_num_correct_drafts == 7
    assert metrics.spec_num_drafts == 12
    assert metrics.spec_correct_drafts_histogram == (1, 0, 2, 1)
