"""Logits to tokens: right distributions, and each row for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vidette.models.interface import NOT_FINITE
from vidette.scheduler.sampler import _look_up, sample
from vidette.scheduler.sampling import SamplingRow, Way
from vidette.scheduler.seeded import uniform, uniforms
from vidette_protocol.messages import SamplingParams

INF = math.inf
NAN = math.nan
EOS = 1


def make_row(
    vocab: int, prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any
) -> SamplingRow:
    settled = SamplingParams(**{"sampling_seed": 7, **params})
    return SamplingRow(settled, prompt, eos_ids={EOS}, vocab_size=vocab, output_ids=output)


def draw(logits: Sequence[float], position: int = 0, **params: Any) -> int:
    """Sample one token from one row."""
    (token,) = sample(torch.tensor([logits]), [make_row(len(logits), **params)], [position])
    return token


def draw_many(logits: Sequence[float], count: int, *, by: str = "seed", **params: Any) -> list[int]:
    """Sample a row again and again, under other seeds or at other positions."""
    rows = [make_row(len(logits), **params)] * count
    positions: Sequence[int] = range(count)
    if by == "seed":
        rows = [make_row(len(logits), **{"sampling_seed": seed, **params}) for seed in range(count)]
        positions = [3] * count
    return sample(torch.tensor([logits]).expand(count, -1).contiguous(), rows, positions)


def assert_distributed(tokens: Sequence[int], probabilities: Sequence[float]) -> None:
    """Fail if a chi-square test at about 1e-6 finds that tokens were not drawn with these probabilities."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = np.array(probabilities) / sum(probabilities) * len(tokens)
    assert not counts[expected == 0].any(), "a token was drawn that has no share"
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(expected) == 1:
        return
    counts, expected = _together(counts, expected)
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root of chi-square is almost normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"chi-square is {statistic:.1f}, at most {limit:.1f} is plausible"


def _together(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> Any:
    """Count together what is too rare for a test by itself."""
    rare = expected < 6
    if not rare.any():
        return counts, expected
    return np.array([*counts[~rare], counts[rare].sum()]), np.array([*expected[~rare], expected[rare].sum()])


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    largest = max(logits)
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def shares_of(
    logits: Sequence[float],
    *,
    temperature: float = 1.0,
    top_k: int = -1,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[float]:
    """Return the distribution that is wanted, as the definitions say it, token by token."""
    shares = softmax(logits, temperature)
    ordered = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if top_k > 0:
        ordered = ordered[:top_k]
    total, before, kept = sum(shares[token] for token in ordered), 0.0, set()
    for token in ordered:
        if before >= top_p * total:
            break
        before += shares[token]
        kept.add(token)
    least = min_p * max(shares)
    return [share if token in kept and share >= least else 0.0 for token, share in enumerate(shares)]


SHAPE = [2.0, -1.0, 0.5, 0.5, -INF, 3.0, 0.0, -0.5, 1.0, 1.5]
"""Ten tokens of which one is masked and two are equal."""


# --- greedy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1e-7}, {"top_k": 1}])
def test_greedy_takes_the_most_probable(params: dict[str, Any]) -> None:
    assert set(draw_many(SHAPE, 200, **params)) == {5}


@pytest.mark.parametrize(
    "params", [{"temperature": 2e-6}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_p": 1e-310}]
)
def test_almost_greedy_takes_the_most_probable(params: dict[str, Any]) -> None:
    assert set(draw_many(SHAPE, 200, **params)) == {5}


@pytest.mark.parametrize("vocab", [2, 63, 64, 65, 200, 5000])
def test_greedy_takes_the_first_of_equal_tokens(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(30):
        logits = rng.integers(0, 3, vocab).astype(np.float32)
        (token,) = sample(torch.from_numpy(logits[None]), [make_row(vocab, temperature=0.0)], [0])
        assert token == int(np.argmax(logits))


def test_a_small_temperature_decides_between_logits_that_are_close() -> None:
    tokens = draw_many([1.0, 1.0 + 2e-6], 4000, temperature=1e-6)
    assert_distributed(tokens, softmax([1.0, float(np.float32(1.0 + 2e-6))], 1e-6))


# --- distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["seed", "position"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5, 1e6])
def test_tokens_are_drawn_with_their_probabilities(by: str, temperature: float) -> None:
    tokens = draw_many(SHAPE, 6000, by=by, temperature=temperature)
    assert_distributed(tokens, softmax(SHAPE, temperature))


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 2},
        {"top_k": 4, "temperature": 0.7},
        {"top_k": 9},
        {"top_k": 10},
        {"top_k": 1 << 40},
        {"top_p": 0.4},
        {"top_p": 0.6},
        {"top_p": 0.75},
        {"top_p": 0.89},
        {"top_p": 0.9999},
        {"top_p": 0.6, "temperature": 4.0},
        {"top_p": 0.6, "temperature": 0.5},
        {"min_p": 0.05},
        {"min_p": 0.3, "temperature": 2.0},
        {"top_k": 2, "top_p": 0.8},
        {"top_k": 2, "top_p": 0.7},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "temperature": 1.5},
        {"top_p": 0.95, "min_p": 0.1},
    ],
)
def test_top_k_top_p_and_min_p_leave_what_they_say(params: dict[str, Any]) -> None:
    assert_distributed(draw_many(SHAPE, 6000, **params), shares_of(SHAPE, **params))


def test_of_equal_tokens_top_k_takes_the_first() -> None:
    assert_distributed(draw_many([0.0] * 8, 4000, top_k=3), [1.0] * 3 + [0.0] * 5)


@pytest.mark.parametrize(
    ("count", "top_p", "kept"),
    [(8, 0.3, 3), (8, 0.25, 2), (256, 0.5, 128), (256, 0.501, 129), (256, 5e-324, 1)],
)
def test_of_equal_tokens_top_p_takes_the_first(count: int, top_p: float, kept: int) -> None:
    assert set(draw_many([0.0] * count, 4000, top_p=top_p)) == set(range(kept))


def test_top_p_is_of_what_top_k_kept() -> None:
    # Of the two that top_k keeps, 5 has 0.73: alone it is not 0.8, so both stay. Of all it has 0.50.
    assert set(draw_many(SHAPE, 500, top_k=2, top_p=0.8)) == {0, 5}
    assert set(draw_many(SHAPE, 500, top_k=2, top_p=0.7)) == {5}


def test_min_p_comes_after_top_p() -> None:
    # 0.5, 0.2, 0.1, 0.1, 0.1: 0.8 takes three. Had min_p gone first, 0.8 of what it left would take two.
    logits = [math.log(share) for share in (0.5, 0.2, 0.1, 0.1, 0.1)]
    assert set(draw_many(logits, 500, top_p=0.75, min_p=0.3)) == {0, 1}
    assert set(draw_many(logits, 500, top_p=0.75, min_p=0.15)) == {0, 1, 2}
    assert set(draw_many(logits, 500, top_p=0.71, min_p=0.3)) == {0, 1}
    # With min_p first, 0.5 would be 0.71 of what is left, so 0.7 would take it alone.
    assert set(draw_many(logits, 500, top_p=0.69, min_p=0.3)) == {0, 1}


FLAT = [math.log(2.0 if token % 3 == 0 else 1.0) + (token % 7) * 0.05 for token in range(300)]
"""Tokens of which none stands out, many equal: more than are ranked are wanted."""


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.5},
        {"top_p": 0.9, "temperature": 2.0},
        {"top_p": 0.1},
        {"top_p": 0.004},
        {"min_p": 0.6},
        {"min_p": 0.6, "top_p": 0.4},
        {"top_k": 40},
        {"top_k": 150, "top_p": 0.6},
        {"top_k": 299, "min_p": 0.5},
        {},
    ],
)
def test_flat_distributions_are_drawn_from_as_well(params: dict[str, Any]) -> None:
    tokens = draw_many(FLAT, 4000, **params)
    shares = shares_of([float(np.float32(logit)) for logit in FLAT], **params)
    assert_distributed(tokens, shares)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 20},
        {"top_k": 200, "top_p": 0.97},
        {"top_k": 1500},
        {"top_p": 0.8},
        {"top_p": 0.95},
        {"min_p": 0.02},
        {"min_p": 0.001, "top_p": 0.9},
    ],
)
@pytest.mark.parametrize("vocab", [4170, 4160])
def test_large_vocabularies_are_drawn_from_as_well(params: dict[str, Any], vocab: int) -> None:
    count = 500
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal(vocab) * 2).astype(np.float32)
    logits[rng.integers(vocab, size=12)] += 9
    rows = [make_row(vocab, **params)] * count
    tokens = sample(torch.from_numpy(logits).expand(count, -1).contiguous(), rows, range(count))
    shares = np.array(shares_of(logits.tolist(), **params))
    assert (shares[tokens] > 0).all()
    assert_distributed(tokens, shares.tolist())


@pytest.mark.parametrize("params", [{}, {"top_k": 5}, {"top_k": 50}, {"top_p": 0.999}, {"min_p": 1e-9}])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1e30, 1e39, 1e300])
def test_a_masked_token_is_never_drawn(params: dict[str, Any], temperature: float) -> None:
    logits = [-INF, 1.0, -INF, 1.0, 1.0, -INF]
    assert set(draw_many(logits, 500, temperature=temperature, **params)) <= {1, 3, 4}


@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"top_p": 0.99}, {"min_p": 0.5}])
def test_logits_of_any_size_are_fine(params: dict[str, Any]) -> None:
    largest = float(np.finfo(np.float32).max)
    assert set(draw_many([-largest, largest, 0.0], 200, **params)) == {1}
    assert set(draw_many([-largest, -largest, -INF], 200, **params)) <= {0, 1}


@given(
    logits=st.lists(
        st.one_of(st.integers(-80, 80).map(lambda quarters: quarters / 4), st.just(-INF)),
        min_size=2,
        max_size=300,
    ),
    params=st.fixed_dictionaries(
        {
            "temperature": st.floats(1e-2, 1e3),
            "top_k": st.one_of(st.just(-1), st.integers(2, 320)),
            "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
            "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        }
    ),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=70, deadline=None)
def test_a_token_is_one_of_those_that_were_kept(
    logits: list[float], params: dict[str, Any], seed: int
) -> None:
    """Its share is not 0 in the distribution that the definitions give, or by rounding in one nearby."""
    assume(any(logit > -INF for logit in logits))
    row = make_row(len(logits), sampling_seed=seed, **params)
    tokens = sample(torch.tensor([logits]).expand(16, -1).contiguous(), [row] * 16, range(16))
    near = {
        **params,
        "top_p": min(1.0, params["top_p"] * (1 + 1e-5)),
        "min_p": params["min_p"] * (1 - 1e-5),
    }
    shares = shares_of(logits, **near)
    assert all(shares[token] > 0 for token in tokens)


# --- edits -----------------------------------------------------------------------------------------


PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 0.7},
    {"presence_penalty": -1.5},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "frequency_penalty": 0.2, "presence_penalty": 0.4},
    {"logit_bias": {0: -1.0, 2: 2.5, 7: 100.0}},
    {"logit_bias": {2: 0.5}, "repetition_penalty": 2.0, "frequency_penalty": -2.0},
]
PROMPT = [0, 5, 5, 9]
OUTPUT = [5, 8, 8, 8, 3]


def edited(logits: Sequence[float], params: dict[str, Any]) -> list[float]:
    """Return the logits as the formulas have them, token by token."""
    result = []
    for token, logit in enumerate(logits):
        seen, count = token in PROMPT or token in OUTPUT, OUTPUT.count(token)
        r = params.get("repetition_penalty", 1.0) if seen else 1.0
        result.append(
            (logit / r if logit > 0 else logit * r)
            - count * params.get("frequency_penalty", 0.0)
            - (count > 0) * params.get("presence_penalty", 0.0)
            + params.get("logit_bias", {}).get(token, 0.0)
        )
    return result


@pytest.mark.parametrize("params", PENALTIES)
def test_penalties_and_biases_are_what_the_formulas_say(params: dict[str, Any]) -> None:
    logits = torch.tensor([SHAPE, SHAPE])
    row = make_row(len(SHAPE), PROMPT, OUTPUT, temperature=0.0, **params)
    tokens = sample(logits, [make_row(len(SHAPE), PROMPT, temperature=0.0), row], [5, 5])
    expected = edited(SHAPE, params)
    assert logits[0].tolist() == SHAPE
    np.testing.assert_allclose(logits[1].numpy(), expected, rtol=1e-6)
    assert tokens == [5, int(np.argmax(expected))]


@pytest.mark.parametrize("more", [{}, {"temperature": 1.7}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}])
@pytest.mark.parametrize("params", PENALTIES)
def test_tokens_are_drawn_with_their_penalised_probabilities(
    params: dict[str, Any], more: dict[str, Any]
) -> None:
    rows = [make_row(len(SHAPE), PROMPT, OUTPUT, **params, **more)] * 2000
    logits = torch.tensor([SHAPE]).expand(2000, -1).contiguous()
    shares = shares_of(edited(SHAPE, params), **more)
    assert_distributed(sample(logits, rows, range(2000)), shares)


def test_a_bias_of_100_decides() -> None:
    assert set(draw_many([0.0] * 6, 200, logit_bias={3: 100.0})) == {3}
    assert set(draw_many([0.0] * 6, 200, logit_bias={0: -100.0, 5: -100.0})) == {1, 2, 3, 4}


def test_a_penalty_never_makes_a_finite_logit_infinite() -> None:
    large = 3e38
    row = make_row(3, [0, 1, 2], temperature=0.0, repetition_penalty=1e-320)
    logits = torch.tensor([[large, 1.0, -large]])
    assert sample(logits, [row], [0]) == [0]
    assert torch.isfinite(logits).all()
    row = make_row(2, [0, 1], temperature=0.0, repetition_penalty=2.0)
    assert sample(torch.tensor([[-large, -INF]]), [row], [0]) == [0]


def test_nothing_ends_an_output_before_min_new_tokens() -> None:
    params: dict[str, Any] = {"min_new_tokens": 3, "stop_token_ids": [4, 900], "temperature": 0.0}
    logits = [0.0, 9.0, 1.0, 2.0, 8.0]
    assert [draw(logits, position, **params) for position in range(5)] == [3, 3, 3, 1, 1]
    assert draw(logits, 0, **params, ignore_eos=True) == 1
    assert set(draw_many([0.0] * 5, 300, by="position", min_new_tokens=300, stop_token_ids=[4])) == {0, 2, 3}


def test_a_mask_hides_no_fault() -> None:
    params: dict[str, Any] = {"min_new_tokens": 3, "temperature": 0.0}
    logits = torch.tensor([[0.0, NAN, 1.0], [0.0, INF, 1.0], [0.0, -INF, 1.0], [0.0, 5.0, 1.0]])
    assert sample(logits, [make_row(3, **params)] * 4, [0] * 4) == [NOT_FINITE, NOT_FINITE, 2, 2]


def test_without_any_token_left_there_is_none() -> None:
    params: dict[str, Any] = {"min_new_tokens": 3, "stop_token_ids": [0]}
    assert draw([0.0, 1.0], **params) == NOT_FINITE
    assert draw([0.0, 1.0, -INF], **params) == NOT_FINITE


# --- each row for itself ---------------------------------------------------------------------------


def params_of(draw: Callable[..., Any], vocab: int) -> dict[str, Any]:
    """Draw some parameters."""
    ids = st.integers(0, vocab - 1)
    return {
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.0, 3.0, 50.0])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1])),
        "top_k": draw(st.sampled_from([-1, -1, 1, 2, 20, 70, 500, 1500])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "sampling_seed": draw(st.integers(0, 2**63 - 1)),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.0, 0.5])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, -0.5])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.2])),
        "logit_bias": draw(st.one_of(st.none(), st.dictionaries(ids, st.floats(-5, 5), max_size=4))),
        "min_new_tokens": draw(st.sampled_from([0, 0, 5])),
    }


@st.composite
def batches(draw: Callable[..., Any]) -> tuple[list[torch.Tensor], list[SamplingRow], list[int], list[str]]:
    """Draw logits, rows, positions and faults of one to eight requests."""
    vocab = draw(st.one_of(st.integers(3, 300), st.just(5000)))
    logits, rows, positions, faults = [], [], [], []
    for _ in range(draw(st.integers(1, 8))):
        faults.append(draw(st.sampled_from(["", "", "nan", "inf", "none"])))
        logits.append(make_logits(draw(st.integers(0, 2**32 - 1)), vocab, faults[-1]))
        ids = st.lists(st.integers(0, vocab - 1), max_size=12)
        rows.append(make_row(vocab, draw(ids), draw(ids), **params_of(draw, vocab)))
        positions.append(draw(st.integers(0, 20)))
    return logits, rows, positions, faults


def make_logits(seed: int, vocab: int, fault: str = "") -> torch.Tensor:
    """Return a row of rounded logits, so that many are equal, some of them masked."""
    rng = np.random.default_rng(seed)
    row = np.round(rng.standard_normal(vocab) * 3, 1).astype(np.float32)
    row[rng.random(vocab) < 0.1] = -np.inf
    row[EOS] = -1.0
    row[EOS + 1] = 1.0
    if fault:
        place = slice(None) if fault == "none" else rng.integers(vocab)
        row[place] = {"nan": np.nan, "inf": np.inf, "none": -np.inf}[fault]
    return torch.from_numpy(row)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), data=st.data())
def test_a_row_is_sampled_as_if_it_were_alone(
    batch: tuple[list[torch.Tensor], list[SamplingRow], list[int], list[str]], data: st.DataObject
) -> None:
    """Whatever else is in the batch, in any order, faulty or not: the same token as alone."""
    logits, rows, positions, faults = batch
    alone = [
        sample(one.clone()[None], [row], [position])[0]
        for one, row, position in zip(logits, rows, positions, strict=True)
    ]
    order = data.draw(st.permutations(range(len(rows))))
    together = sample(
        torch.stack([logits[place] for place in order]),
        [rows[place] for place in order],
        [positions[place] for place in order],
    )
    assert [alone[place] for place in order] == together
    assert [token == NOT_FINITE for token in alone] == [fault != "" for fault in faults]
    assert all(token == NOT_FINITE or 0 <= token < len(logits[0]) for token in alone)


@pytest.mark.parametrize("vocab", [49_152, 50_257])
def test_a_row_is_sampled_as_if_it_were_alone_in_large_batches_too(vocab: int) -> None:
    count = 32  # enough for torch to share the work out among threads
    rng = np.random.default_rng(1)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"top_k": 40, "top_p": 0.9},
        {"top_p": 0.95},
        {"top_p": 0.9, "temperature": 5.0},
        {"min_p": 0.05, "temperature": 3.0},
        {"top_k": 300},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"frequency_penalty": 0.5, "top_p": 0.9, "logit_bias": {3: 5.0}},
        {"min_new_tokens": 10, "presence_penalty": 1.0},
        {"top_k": 2000, "top_p": 0.8},
    ]
    rows = [
        make_row(
            vocab, rng.integers(vocab, size=50).tolist(), [1, 2, 3], sampling_seed=i, **kinds[i % len(kinds)]
        )
        for i in range(count)
    ]
    logits = torch.from_numpy(rng.standard_normal((count, vocab)).astype(np.float32) * 2)
    alone = [sample(logits[i : i + 1].clone(), [rows[i]], [i])[0] for i in range(count)]
    order = rng.permutation(count).tolist()
    together = sample(logits[order], [rows[i] for i in order], order)
    assert [alone[i] for i in order] == together


@pytest.mark.parametrize(
    "fault", [[NAN, 0.0, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF], [NAN, NAN, NAN], [INF, -INF, NAN]]
)
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}, {"logit_bias": {0: 1.0}}],
)
def test_a_row_that_is_not_finite_has_no_token(fault: list[float], params: dict[str, Any]) -> None:
    assert draw(fault, **params) == NOT_FINITE
    together = torch.tensor([fault, [0.0, 0.0, 50.0]])
    assert sample(together, [make_row(3, **params)] * 2, [0, 0]) == [NOT_FINITE, 2]


def test_no_rows_are_no_tokens() -> None:
    assert sample(torch.empty(0, 10), [], []) == []


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 9.0, "top_p": 0.9}])
def test_logits_that_nothing_edits_are_left_as_they_are(params: dict[str, Any]) -> None:
    logits = torch.tensor([SHAPE, [NAN, *SHAPE[1:]]])
    before = logits.clone()
    sample(logits, [make_row(10, **params)] * 2, [0, 0])
    assert torch.equal(before.nan_to_num(99.0), logits.nan_to_num(99.0))


def test_logits_from_inference_may_be_edited() -> None:
    with torch.inference_mode():
        logits = torch.zeros(1, 4)
    assert sample(logits, [make_row(4, temperature=0.0, logit_bias={2: 1.0})], [0]) == [2]


def test_a_number_at_the_edge_belongs_to_the_token_behind_it() -> None:
    # No seed is known whose number is just 0 or just an edge, so this looks at the lookup itself.
    cumulative = torch.tensor([[0.0, 0.25, 0.25, 1.0, 1.0]]).double().expand(5, -1).contiguous()
    numbers = torch.tensor([[0.0], [0.2499], [0.25], [1 - 2**-53], [1.0]]).double()
    assert _look_up(cumulative, numbers)[:, 0].tolist() == [1, 1, 3, 3, 3]


def test_tokens_are_plain_integers() -> None:
    assert type(draw(SHAPE)) is int


@pytest.mark.parametrize(
    ("params", "way"),
    [
        ({"temperature": 0.0, "top_p": 0.5}, Way.BEST),
        ({"top_k": 1}, Way.BEST),
        ({}, Way.WHOLE),
        ({"top_k": 5000}, Way.WHOLE),
        ({"top_k": 1023}, Way.RANKED),
        ({"top_k": 1024}, Way.SORTED),
        ({"top_p": 0.99}, Way.NUCLEUS),
        ({"top_k": 5000, "min_p": 0.01}, Way.NUCLEUS),
    ],
)
def test_the_way_is_that_of_the_parameters(params: dict[str, Any], way: Way) -> None:
    assert make_row(5000, **params).way is way


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


def numbers_of(seeds: Sequence[int], positions: Sequence[int], draw: int = 0) -> list[float]:
    numbers: list[float] = uniforms(
        np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64), draw
    ).tolist()
    return numbers


MANY = range(40_000)


@pytest.mark.parametrize(
    "numbers",
    [
        numbers_of(MANY, [0] * len(MANY)),
        numbers_of([12345] * len(MANY), MANY),
        numbers_of([(i << 40) + 1 for i in range(1 << 14)], [5] * (1 << 14)),
        numbers_of(MANY, MANY),
        numbers_of(MANY, [0] * len(MANY), 1),
        numbers_of([3] * len(MANY), MANY, 2),
        [
            number
            for pair in zip(numbers_of(MANY, MANY), numbers_of(MANY, MANY, 1), strict=True)
            for number in pair
        ],
    ],
    ids=["seed", "position", "large seed", "both", "second draw", "third draw", "first and second"],
)
def test_the_numbers_are_even_and_unrelated(numbers: list[float]) -> None:
    assert abs(fmean(numbers) - 0.5) < 5 * math.sqrt(1 / 12 / len(numbers))
    assert_distributed([int(value * 256) for value in numbers], [1.0] * 256)
    neighbours = [int(a * 16) * 16 + int(b * 16) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    assert_distributed(neighbours, [1.0] * 256)
    low_bits = [int(value * 2**53) % 64 for value in numbers]
    assert_distributed(low_bits, [1.0] * 64)
