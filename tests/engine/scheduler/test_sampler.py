"""Logits to tokens: right distributions, and each row for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vidette.scheduler.sampler import NOT_FINITE, SampleRows, _look_up, sample, uniform
from vidette_protocol.messages import SamplingParams

INF = math.inf
NAN = math.nan


def draw(logits: Sequence[float], position: int = 0, **params: Any) -> int:
    """Sample one token from one row."""
    settled = SamplingParams(**{"sampling_seed": 0, **params})
    (token,) = sample(torch.tensor([logits]), SampleRows([settled], [position]))
    return token


def draw_many(logits: Sequence[float], count: int, *, by: str = "sampling_seed", **params: Any) -> list[int]:
    """Sample a row again and again, under other seeds or at other positions."""
    settled = SamplingParams(**{"sampling_seed": 7, **params})
    rows = SampleRows([settled] * count, range(count))
    if by == "sampling_seed":
        seeded = [msgspec.structs.replace(settled, sampling_seed=seed) for seed in range(count)]
        rows = SampleRows(seeded, [3] * count)
    return sample(torch.tensor([logits]).expand(count, -1).contiguous(), rows)


def assert_distributed(tokens: Sequence[int], probabilities: Sequence[float]) -> None:
    """Fail if a chi-square test at about 1e-6 finds that tokens were not drawn with these probabilities."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = np.array(probabilities) / sum(probabilities) * len(tokens)
    assert not counts[expected == 0].any(), "a token was drawn that has no share"
    counts, expected = counts[expected > 0], expected[expected > 0]
    assert expected.min() > 5, "too few draws for a test"
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root of chi-square is almost normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"chi-square is {statistic:.1f}, at most {limit:.1f} is plausible"


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    largest = max(logits)
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


SHAPE = [2.0, -1.0, 0.5, 0.5, -INF, 3.0, 0.0, -0.5, 1.0, 1.5]
"""Ten tokens of which one is masked and two are equal."""


# --- greedy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1e-7}, {"top_k": 1}])
def test_greedy_takes_the_most_probable(params: dict[str, Any]) -> None:
    assert set(draw_many(SHAPE, 200, **params)) == {5}


@pytest.mark.parametrize("params", [{"temperature": 2e-6}, {"top_p": 1e-9}, {"top_p": 0.3, "top_k": 4}])
def test_almost_greedy_takes_the_most_probable(params: dict[str, Any]) -> None:
    assert set(draw_many(SHAPE, 200, **params)) == {5}


def test_a_small_temperature_decides_between_logits_that_are_close() -> None:
    tokens = draw_many([1.0, 1.0 + 2e-6], 4000, temperature=1e-6)
    assert_distributed(tokens, softmax([1.0, float(np.float32(1.0 + 2e-6))], 1e-6))


# --- distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["sampling_seed", "position"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5, 1e6])
def test_tokens_are_drawn_with_their_probabilities(by: str, temperature: float) -> None:
    tokens = draw_many(SHAPE, 20_000, by=by, temperature=temperature)
    shares = softmax(SHAPE, temperature)
    assert_distributed(tokens, shares)


@pytest.mark.parametrize(
    ("top_k", "kept"), [(2, {5, 0}), (3, {5, 0, 9}), (4, {5, 0, 9, 8}), (9, set(range(10)) - {4})]
)
def test_top_k_keeps_the_most_probable(top_k: int, kept: set[int]) -> None:
    shares = [share if token in kept else 0.0 for token, share in enumerate(softmax(SHAPE))]
    assert_distributed(draw_many(SHAPE, 20_000, top_k=top_k), shares)


@pytest.mark.parametrize("top_k", [10, 11, 1000, 1 << 40])
def test_top_k_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    assert_distributed(draw_many(SHAPE, 20_000, top_k=top_k), softmax(SHAPE))


def test_of_equal_tokens_top_k_takes_just_so_many() -> None:
    tokens = draw_many([0.0] * 8, 4000, top_k=3)
    assert len(set(tokens)) == 3
    assert_distributed([sorted(set(tokens)).index(token) for token in tokens], [1.0] * 3)


# By mass: 5 has 0.50, 0 has 0.18, 9 has 0.11, 8 has 0.07, 2 and 3 have 0.04 each.
@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.4, {5}),
        (0.6, {5, 0}),
        (0.75, {5, 0, 9}),
        (0.85, {5, 0, 9, 8}),
        (0.89, {5, 0, 9, 8, 2}),
        (0.9999, set(range(10)) - {4}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    shares = [share if token in kept else 0.0 for token, share in enumerate(softmax(SHAPE))]
    if len(kept) == 1:
        assert set(draw_many(SHAPE, 500, top_p=top_p)) == kept
    else:
        assert_distributed(draw_many(SHAPE, 20_000, top_p=top_p), shares)


def test_top_p_is_of_what_top_k_kept() -> None:
    # Of the two that top_k keeps, 5 has 0.73: alone it is not 0.8, so both stay. Of all it has 0.50.
    shares = softmax(SHAPE)
    assert_distributed(draw_many(SHAPE, 20_000, top_k=2, top_p=0.8), [shares[0], 0, 0, 0, 0, shares[5]])
    assert set(draw_many(SHAPE, 500, top_k=2, top_p=0.7)) == {5}


def test_top_p_counts_after_temperature() -> None:
    assert set(draw_many(SHAPE, 500, top_p=0.6, temperature=0.5)) == {5}
    # 5, 0, 9 and 8 have 0.57 of it now; of 2 and 3, which are equal, the first is taken.
    assert set(draw_many(SHAPE, 2000, top_p=0.6, temperature=4.0)) == {5, 0, 9, 8, 2}


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_k": 50}, {"top_p": 0.999}])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1e30, 1e39, 1e300])
def test_a_masked_token_is_never_drawn(params: dict[str, Any], temperature: float) -> None:
    logits = [-INF, 1.0, -INF, 1.0, 1.0, -INF]
    assert set(draw_many(logits, 500, temperature=temperature, **params)) <= {1, 3, 4}


@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.99}])
def test_logits_of_any_size_are_fine(params: dict[str, Any]) -> None:
    largest = float(np.finfo(np.float32).max)
    assert set(draw_many([-largest, largest, 0.0], 200, **params)) == {1}
    assert set(draw_many([-largest, -largest, -INF], 200, **params)) <= {0, 1}


@given(
    logits=st.lists(
        st.one_of(st.integers(-80, 80).map(lambda quarters: quarters / 4), st.just(-INF)),
        min_size=1,
        max_size=40,
    ),
    temperature=st.floats(1e-6, 1e3),
    top_k=st.one_of(st.just(-1), st.integers(1, 50)),
    top_p=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 10_000),
)
@settings(max_examples=120, deadline=None)
def test_a_token_is_one_of_those_that_were_kept(
    logits: list[float], temperature: float, top_k: int, top_p: float, seed: int, position: int
) -> None:
    """It is not masked, fewer than top_k are more probable, and these are less than top_p of the top_k."""
    assume(any(logit > -INF for logit in logits))
    token = draw(logits, position, temperature=temperature, top_k=top_k, top_p=top_p, sampling_seed=seed)
    assert logits[token] > -INF
    larger = sum(logit > logits[token] for logit in logits)
    if top_k > 0:
        assert larger < top_k
    if temperature >= 1e-2:
        ordered = sorted(softmax(logits, temperature), reverse=True)
        ordered = ordered[: top_k if top_k > 0 else None]
        assert sum(ordered[:larger]) <= top_p * sum(ordered) + 1e-4


# --- each row for itself ---------------------------------------------------------------------------

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5]),
    top_k=st.sampled_from([-1, -1, 1, 2, 20, 500]),
    sampling_seed=st.integers(0, 2**63 - 1),
)
ROWS = st.lists(
    st.tuples(
        PARAMS, st.integers(0, 500), st.integers(0, 2**32 - 1), st.sampled_from(["", "nan", "inf", "none"])
    ),
    min_size=1,
    max_size=8,
)


def make_logits(seed: int, vocab: int, fault: str) -> torch.Tensor:
    """Return a row of rounded logits, so that many are equal, some of them masked."""
    rng = np.random.default_rng(seed)
    row = np.round(rng.standard_normal(vocab) * 3, 1).astype(np.float32)
    row[rng.random(vocab) < 0.1] = -np.inf
    row[rng.integers(vocab)] = 1.0
    if fault:
        place = slice(None) if fault == "none" else rng.integers(vocab)
        row[place] = {"nan": np.nan, "inf": np.inf, "none": -np.inf}[fault]
    return torch.from_numpy(row)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, vocab=st.one_of(st.integers(1, 80), st.just(3000)), data=st.data())
def test_a_row_is_sampled_as_if_it_were_alone(
    rows: list[tuple[SamplingParams, int, int, str]], vocab: int, data: st.DataObject
) -> None:
    """Whatever else is in the batch, in any order, faulty or not: the same token as alone."""
    logits = [make_logits(seed, vocab, fault) for _, _, seed, fault in rows]
    alone = [
        sample(row[None], SampleRows([params], [position]))[0]
        for row, (params, position, _, _) in zip(logits, rows, strict=True)
    ]
    order = data.draw(st.permutations(range(len(rows))))
    together = sample(
        torch.stack([logits[place] for place in order]),
        SampleRows([rows[place][0] for place in order], [rows[place][1] for place in order]),
    )
    assert [alone[place] for place in order] == together
    assert [token == NOT_FINITE for token in alone] == [fault != "" for *_, fault in rows]
    assert all(token == NOT_FINITE or 0 <= token < vocab for token in alone)


def test_a_row_is_sampled_as_if_it_were_alone_in_large_batches_too() -> None:
    vocab, count = 49_152, 12  # enough for torch to share the work out among threads
    rng = np.random.default_rng(1)
    params = [
        SamplingParams(
            temperature=[0.0, 0.8, 1.0][i % 3],
            top_k=[-1, 40, 7][i % 5 % 3],
            top_p=[1.0, 0.9][i % 2],
            sampling_seed=i,
        )
        for i in range(count)
    ]
    logits = torch.from_numpy(rng.standard_normal((count, vocab)).astype(np.float32))
    together = sample(logits, SampleRows(params, range(count)))
    alone = [sample(logits[i : i + 1], SampleRows([params[i]], [i]))[0] for i in range(count)]
    assert alone == together


@pytest.mark.parametrize(
    "fault", [[NAN, 0.0, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF], [NAN, NAN, NAN], [INF, -INF, NAN]]
)
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_row_that_is_not_finite_has_no_token(fault: list[float], params: dict[str, Any]) -> None:
    assert draw(fault, **params) == NOT_FINITE


def test_no_rows_are_no_tokens() -> None:
    assert sample(torch.empty(0, 10), SampleRows([], [])) == []


def test_logits_are_left_as_they_are() -> None:
    logits = torch.tensor([SHAPE, [NAN, *SHAPE[1:]]])
    before = logits.clone()
    sample(
        logits,
        SampleRows([SamplingParams(sampling_seed=1), SamplingParams(sampling_seed=1, top_k=3)], [0, 0]),
    )
    assert torch.equal(before.nan_to_num(9.0), logits.nan_to_num(9.0))


def test_a_number_at_the_edge_belongs_to_the_token_behind_it() -> None:
    # No seed is known whose number is just 0 or just an edge, so this looks at the lookup itself.
    cumulative = torch.tensor([[0.0, 0.25, 0.25, 1.0]]).double().expand(4, -1).contiguous()
    numbers = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53]).double()
    assert _look_up(cumulative, numbers).tolist() == [1, 1, 3, 3]


def test_tokens_are_plain_integers() -> None:
    assert type(draw(SHAPE)) is int


# --- the numbers -----------------------------------------------------------------------------------


def test_the_number_of_a_seed_and_a_position_is_for_ever() -> None:
    assert uniform(0, 0) == 0.28176129772258496
    assert uniform(0, 1) == 0.80255116473696
    assert uniform(1, 0) == 0.8628561488610587
    assert uniform(2**63 - 1, 1 << 20) == 0.06257383885287349


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 1 << 20))
def test_the_number_is_at_least_0_and_below_1(seed: int, position: int) -> None:
    """Any seed and position have a number in [0, 1), and it is always the same."""
    number = uniform(seed, position)
    assert 0 <= number < 1
    assert number == uniform(seed, position)


def by_seed(i: int) -> float:
    return uniform(i, 0)


def by_position(i: int) -> float:
    return uniform(12345, i)


def by_large_seed(i: int) -> float:
    return uniform((i << 40) + 1, 5)


def by_both(i: int) -> float:
    return uniform(i, i)


@pytest.mark.parametrize("number", [by_seed, by_position, by_large_seed, by_both])
def test_the_numbers_are_even_and_unrelated(number: Callable[[int], float]) -> None:
    numbers = [number(i) for i in range(40_000)]
    assert abs(fmean(numbers) - 0.5) < 5 * math.sqrt(1 / 12 / len(numbers))
    assert_distributed([int(value * 256) for value in numbers], [1.0] * 256)
    neighbours = [int(a * 16) * 16 + int(b * 16) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    assert_distributed(neighbours, [1.0] * 256)
    low_bits = [int(value * 2**53) % 64 for value in numbers]
    assert_distributed(low_bits, [1.0] * 64)
