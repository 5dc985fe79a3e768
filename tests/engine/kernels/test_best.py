"""The best token of a row as the head finds it, against the reference and against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.kernels.native import Native, same_bits

from vidette.kernels.reference import Floats, best_tokens
from vidette.models.best import take_best

INF, NAN = float("inf"), float("nan")


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 64),
    vocab=st.integers(1, 300),
    levels=st.sampled_from([1, 2, 5, 1000]),
    threads=st.integers(1, 3),
)
def test_the_best_token_is_the_first_of_the_largest(
    kernels: Native, data: st.DataObject, seed: int, rows: int, vocab: int, levels: int, threads: int
) -> None:
    """With ties, masks and faults in any place, on any number of threads: as the specification says."""
    rng = np.random.default_rng(seed)
    logits: Floats = (rng.integers(0, levels, (rows, vocab)) - levels / 2).astype(np.float32)
    odd = data.draw(st.sampled_from([(), (-INF,), (-INF, NAN), (INF, -INF), (NAN, INF, -INF, -0.0)]), "odd")
    for value in odd:
        share = data.draw(st.sampled_from([0.01, 0.3, 1.0]), "share")
        logits[rng.random((rows, vocab)) < share / vocab**0.5] = value
    expected = best_tokens(logits)
    assert same_bits(kernels.best(logits, threads=threads), expected)
    assert same_bits(take_best(torch.from_numpy(logits)).numpy(), expected)


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_place_can_be_the_best(kernels: Native, vocab: int, sign: float) -> None:
    """The padding behind the last token never is, though its product, zero, may be larger than all."""
    logits = np.full((vocab, vocab), -3.0, dtype=np.float32)
    np.fill_diagonal(logits, sign * 2)
    assert kernels.best(logits, threads=2).tolist() == list(range(vocab))


def test_of_equal_ones_the_first_is_best_whoever_saw_it(kernels: Native) -> None:
    vocab = 20_000
    first = np.random.default_rng(2).integers(0, vocab, 64)
    logits = (np.arange(vocab) >= first[:, None]).astype(np.float32)
    assert kernels.best(logits, threads=3).tolist() == first.tolist()


@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([-0.0, 0.0], 0),
        ([-INF, -INF], -1),
        ([-INF, -3e38], 1),
        ([1.0, INF], -1),
        ([NAN, 1.0], -1),
        ([1.0, NAN, 2.0], -1),
        ([NAN, INF, NAN], -1),
        ([INF, 1.0, -INF], -1),
    ],
)
def test_what_is_not_finite(kernels: Native, row: list[float], token: int) -> None:
    logits = np.array([row, np.arange(len(row))], dtype=np.float32)
    for found in (kernels.best(logits), best_tokens(logits), take_best(torch.from_numpy(logits)).numpy()):
        assert found.tolist() == [token, len(row) - 1]
