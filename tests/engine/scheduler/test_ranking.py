"""The largest logits of each row, in one order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.scheduler.ranking import BLOCK, find_best, find_peaks, look_into, rank, rank_exactly


def make_logits(seed: int, rows: int, vocab: int, *, levels: int, masked: float = 0.1) -> torch.Tensor:
    """Return logits of few levels, so that many are equal, some of them masked."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-levels, levels, (rows, vocab)).astype(np.float32) / 4
    logits[rng.random((rows, vocab)) < masked] = -np.inf
    return torch.from_numpy(logits)


def order_of(row: torch.Tensor) -> list[int]:
    """Return all tokens, the largest first, equal ones by the lower id."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


CASES = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.one_of(st.integers(1, 300), st.sampled_from([4096, 4160, 5000])),
    st.sampled_from([1, 3, 100, 100_000]),
    st.sampled_from([0.0, 0.1, 0.995, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(case=CASES, count=st.integers(1, 130))
def test_what_is_ranked_is_what_sorting_gives(case: tuple[int, int, int, int, float], count: int) -> None:
    """As far as it says that it is sure, a ranking is the order of the logits; an exact one is all of it."""
    seed, rows, vocab, levels, masked = case
    logits = make_logits(seed, rows, vocab, levels=levels, masked=masked)
    peaks = find_peaks(logits)
    places = torch.arange(rows).flip(0)
    some = rank(logits, peaks, places, count)
    exact = rank_exactly(logits, peaks, places, count)
    assert find_best(logits, peaks).tolist() == [order_of(row)[0] for row in logits]
    for i, place in enumerate(places.tolist()):
        expected = order_of(logits[place])[:count]
        sure = int(some.sure[i].sum())
        assert some.sure[i].tolist() == [True] * sure + [False] * (len(expected) - sure)
        assert some.ids[i, :sure].tolist() == expected[:sure]
        assert some.values[i].tolist() == logits[place, expected].tolist()
        assert exact.ids[i].tolist() == expected
        assert exact.values[i].tolist() == logits[place, expected].tolist()
        assert exact.sure.all()


def test_of_different_logits_all_but_the_last_are_sure() -> None:
    logits = torch.randperm(6000).float()[None]
    assert rank(logits, find_peaks(logits), torch.tensor([0]), 10).sure.tolist() == [[True] * 9 + [False]]
    assert rank(logits, find_peaks(logits), torch.tensor([0]), 6000).sure.all()


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 128, 200])
def test_a_peak_is_the_largest_of_its_block(vocab: int) -> None:
    logits = torch.randn(3, vocab)
    expected = [[float(block.max()) for block in row.split(BLOCK)] for row in logits]
    assert find_peaks(logits).tolist() == expected


@pytest.mark.parametrize("vocab", [128, 130])
def test_a_block_is_looked_into_as_far_as_there_are_tokens(vocab: int) -> None:
    logits = torch.randn(2, vocab)
    blocks = torch.tensor([[1, 0], [-(-vocab // BLOCK) - 1, 1]])
    found = look_into(logits, torch.tensor([1, 0]), blocks)
    padded = torch.cat([logits, torch.full((2, BLOCK), -torch.inf)], dim=1)
    assert torch.equal(found[0], torch.cat([logits[1, 64:128], logits[1, :64]]))
    last = int(blocks[1, 0]) * BLOCK
    assert torch.equal(found[1], torch.cat([padded[0, last : last + BLOCK], logits[0, 64:128]]))


@pytest.mark.parametrize("vocab", [5, 64, 4200])
def test_what_is_not_a_number_disturbs_no_other_row(vocab: int) -> None:
    logits = torch.full((3, vocab), -torch.inf)
    logits[0, 2] = torch.nan
    logits[1, 3] = 1.0
    logits[2, :] = torch.nan
    exact = rank_exactly(logits, find_peaks(logits), torch.arange(3), 3)
    assert exact.ids[1].tolist() == [3, 0, 1]
    assert ((exact.ids >= 0) & (exact.ids < vocab)).all()
    assert torch.isnan(find_peaks(logits).amax(dim=1)).tolist() == [True, False, True]
