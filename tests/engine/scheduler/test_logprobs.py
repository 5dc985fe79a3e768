"""Log probabilities: the right ones, in the right places, however they were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vidette.models.interface import NOT_FINITE
from vidette.scheduler import sampler
from vidette.scheduler.logprobs import (
    LOWEST,
    Found,
    PromptLogprobs,
    Wanted,
    find_logprobs,
    write_columns,
)
from vidette.scheduler.sampler import sample
from vidette.scheduler.sampling import SamplingRow
from vidette_protocol.messages import SamplingParams, TokenizedGenerateReqInput
from vidette_protocol.messages.columns import pack_i32, view_f32, view_i32


def make_logits(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """Return logits of which many are equal and some masked."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((rows, vocab)) * 4, 1).astype(np.float32)
    logits[rng.random((rows, vocab)) < 0.1] = -np.inf
    logits[:, rng.integers(vocab)] = 2.0
    return torch.from_numpy(logits)


def expected_of(row: torch.Tensor, temperature: float = 1.0) -> NDArray[np.float64]:
    """Return the log probabilities of a row, by the definition."""
    scaled: NDArray[np.float64] = row.double().numpy()
    if not np.isfinite(scaled.max()):
        return np.full(len(scaled), np.nan)
    scaled = (scaled - scaled.max()) / temperature
    logprobs: NDArray[np.float64] = np.maximum(scaled - np.log(np.exp(scaled).sum()), LOWEST)
    return logprobs


def check(found: Found, place: int, row: torch.Tensor, token: int, wanted: Wanted, **more: float) -> None:
    """Fail unless one position is as the definition has it."""
    expected = expected_of(row, **more)
    values = row.tolist()
    ordered = sorted(range(len(values)), key=lambda one: (-values[one], one))[: wanted.top]
    np.testing.assert_allclose(found.chosen[place], expected[token], rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(found.top_values[place], expected[ordered], rtol=1e-5, atol=2e-5)
    if np.isfinite(expected).all():
        assert found.top_ids[place].tolist() == ordered
    asked = np.empty(0, dtype=np.int64) if wanted.ids is None else wanted.ids
    np.testing.assert_allclose(found.asked[place], expected[asked], rtol=1e-5, atol=2e-5)


def wanteds(vocab: int) -> st.SearchStrategy[Wanted]:
    ids = st.lists(st.integers(0, vocab - 1), min_size=1, max_size=5).map(np.array)
    return st.builds(Wanted, st.just(0), st.integers(0, min(vocab, 130)), st.one_of(st.none(), ids))


# --- output ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.one_of(st.integers(2, 300), st.just(4200)),
    faults=st.lists(st.sampled_from(["", "", "nan", "inf", "none"]), min_size=1, max_size=6),
    data=st.data(),
)
def test_each_row_has_its_own(seed: int, vocab: int, faults: list[str], data: st.DataObject) -> None:
    """Whatever else is asked in the batch, a position says what the definition says, and as it does alone."""
    logits = make_logits(seed, len(faults), vocab)
    for row, fault in zip(logits, faults, strict=True):
        row[0] = {"nan": torch.nan, "inf": torch.inf}.get(fault, row[0])
        if fault == "none":
            row[:] = -torch.inf
    count = len(faults)
    places = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    tokens = [data.draw(st.integers(0, vocab - 1)) for _ in places]
    wanted = [data.draw(wanteds(vocab)) for _ in places]
    temperatures = [data.draw(st.sampled_from([1.0, 0.5, 3.0])) for _ in places]
    found = find_logprobs(logits, places, tokens, wanted, temperatures)
    assert len(found) == len(places)
    for one, place, token, want, temperature in zip(found, places, tokens, wanted, temperatures, strict=True):
        assert one.chosen.shape == (1,)
        check(one, 0, logits[place], token, want, temperature=temperature)
        (alone,) = find_logprobs(logits[place : place + 1], [0], [token], [want], [temperature])
        for together, single in zip(one, alone, strict=True):
            np.testing.assert_array_equal(together, single)


@pytest.mark.parametrize("vocab", [300, 50_257])
def test_a_position_is_the_same_in_a_large_batch(vocab: int) -> None:
    logits = torch.randn(32, vocab) * 3
    wanted = [Wanted(0, i % 3 * 20, np.arange(i % 4) if i % 4 else None) for i in range(32)]
    found = find_logprobs(logits, range(32), range(32), wanted, [1.0] * 32)
    for i in (0, 1, 5, 17, 31):
        (alone,) = find_logprobs(logits[i : i + 1], [0], [i], [wanted[i]], [1.0])
        for together, single in zip(found[i], alone, strict=True):
            np.testing.assert_array_equal(together, single)


def test_they_are_those_of_the_edited_logits_that_the_token_was_drawn_from() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=2, sampling_seed=1, min_new_tokens=1, logit_bias={3: 2.0}, presence_penalty=1.0
    )
    row = SamplingRow(params, [], eos_ids={0}, vocab_size=5, output_ids=[4])
    logits = torch.tensor([[9.0, 1.0, 0.5, 0.0, 2.0]])
    (token,) = sample(logits, [row], [0])
    (found,) = find_logprobs(logits, [0], [token], [Wanted(0, 5)], [row.logprob_temperature])
    check(found, 0, torch.tensor([-np.inf, 1.0, 0.5, 2.0, 1.0]), token, Wanted(0, 5), temperature=0.5)
    assert found.top_ids[0].tolist() == [3, 1, 4, 2, 0]
    assert found.top_values[0, -1] == np.float32(LOWEST)
    assert np.isfinite(found.top_values).all()


def test_the_first_is_the_one_that_greedy_takes() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    row = SamplingRow(SamplingParams(temperature=0.0), [], eos_ids=(), vocab_size=4)
    (token,) = sample(logits, [row], [0])
    (found,) = find_logprobs(logits, [0], [token], [Wanted(0, 2)], [row.logprob_temperature])
    assert token == found.top_ids[0, 0] == 1
    assert found.chosen[0] == found.top_values[0, 0]


def test_without_a_token_there_is_none() -> None:
    logits = torch.tensor([[0.0, torch.nan, 1.0]])
    (found,) = find_logprobs(logits, [0], [NOT_FINITE], [Wanted(0, 2, np.array([1]))], [1.0])
    assert np.isnan(found.chosen).all()
    assert np.isnan(found.top_values).all()
    assert np.isnan(found.asked).all()


# --- prompt ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 12),
    vocab=st.integers(2, 80),
    chunks=st.lists(st.integers(1, 5), max_size=12),
    data=st.data(),
)
def test_a_prompt_in_chunks_is_as_in_one(
    seed: int, length: int, vocab: int, chunks: list[int], data: st.DataObject
) -> None:
    """However a prompt is cut, each token from the start on has its own; only the very first has none."""
    logits = make_logits(seed, length, vocab)
    prompt = np.random.default_rng(seed).integers(vocab, size=length).astype(np.int32)
    start = data.draw(st.integers(0, length))
    wanted = data.draw(wanteds(vocab))._replace(start=start)
    made = PromptLogprobs(prompt, wanted)
    at = data.draw(st.integers(0, min(made.first, length - 1)))  # what came before was cached
    for count in [*chunks, length]:
        here = min(count, length - at)
        needed = made.needed(at, here)
        assert made.complete == (made.first >= length - 1)
        if needed:
            made.add(needed.start, logits[needed.start : needed.stop])
        at += here
        if data.draw(st.booleans()):
            at = 0  # it is computed again: nothing is found twice
    while not made.complete:
        needed = made.needed(0, length)
        made.add(needed.start, logits[needed.start : needed.stop])
    assert not made.needed(0, length)
    found = made.found
    assert made.tokens.tolist() == prompt[start:].tolist()
    assert len(found.chosen) == len(found.top_ids) == len(found.asked) == length - start
    for place, position in enumerate(range(start, length)):
        if position == 0:
            assert np.isnan(found.chosen[0])
            assert np.isnan(found.top_values[0]).all()
            assert np.isnan(found.asked[0]).all()
        else:
            check(found, place, logits[position - 1], int(prompt[position]), wanted)


def test_logits_out_of_order_are_refused() -> None:
    made = PromptLogprobs(np.arange(5, dtype=np.int32), Wanted(2))
    assert made.first == 1
    assert made.needed(0, 3) == range(1, 3)
    with pytest.raises(ValueError, match="from position 2 on, not from 1"):
        made.add(2, torch.zeros(1, 9))


def test_a_long_prompt_is_found_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, prompt = make_logits(3, 40, 50), np.arange(40, dtype=np.int32)
    whole, cut = PromptLogprobs(prompt, Wanted(0, 3)), PromptLogprobs(prompt, Wanted(0, 3))
    whole.add(0, logits)
    monkeypatch.setattr(sampler, "PIECE", 100)
    cut.add(0, logits)
    for one, other in zip(whole.found, cut.found, strict=True):
        np.testing.assert_array_equal(one, other)


# --- what is asked, what is said ----------------------------------------------------------------------


def ask(prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> Wanted | None:
    ids = fields.pop("token_ids_logprob", None)
    request = TokenizedGenerateReqInput(
        vid=1,
        floor=0,
        rid="a",
        input_ids=pack_i32(prompt),
        sampling_params=SamplingParams(),
        token_ids_logprob=None if ids is None else pack_i32(ids),
        **fields,
    )
    return Wanted.of(request, 10)


def test_what_a_request_wants() -> None:
    assert ask(top_logprobs_num=5) is None
    assert ask(return_logprob=True) == Wanted(3, 0, None)
    assert ask(return_logprob=True, logprob_start_len=1, top_logprobs_num=50) == Wanted(1, 10, None)
    wanted = ask(return_logprob=True, token_ids_logprob=[4, 9])
    assert wanted is not None
    assert wanted.start == 2, "with token ids, the last token of the prompt is reported"
    assert wanted.ids is not None
    assert wanted.ids.tolist() == [4, 9]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"logprob_start_len": 4}, "logprob_start_len is 4, but the prompt has 3 tokens"),
        ({"token_ids_logprob": [3, 10]}, "token_ids_logprob has 10; token ids are 0 to 9"),
        ({"token_ids_logprob": [-1, 3]}, "token_ids_logprob has -1; token ids are 0 to 9"),
        (
            {"prompt": [1] * 100_000, "logprob_start_len": 0, "top_logprobs_num": 10},
            "return_logprob is about 8811264 bytes; at most 8388608 are reported",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ask(return_logprob=True, **fields)


def test_output_is_said_before_it_takes_much() -> None:
    few = ask(return_logprob=True)
    many = ask(return_logprob=True, top_logprobs_num=10, token_ids_logprob=[1] * 1000)
    assert few is not None
    assert many is not None
    assert (few.interval, few.nbytes) == (131072, 8)
    assert (many.interval, many.nbytes) == (256, 4088)


def test_columns_say_what_was_asked_and_no_more() -> None:
    logits, prompt = torch.randn(3, 10), np.array([1, 2, 3], dtype=np.int32)
    bare = Wanted(3)
    (found,) = find_logprobs(logits, [2], [4], [bare], [1.0])
    told = write_columns(bare, [found])
    assert told.check(1) is None
    assert told.output_token_logprobs_val is not None
    assert list(view_f32(told.output_token_logprobs_val)) == found.chosen.tolist()
    assert told.output_top_logprobs_val is told.input_token_logprobs_val is told.token_ids_logprob is None

    wanted = Wanted(1, 2, np.array([5, 6, 7]))
    made = PromptLogprobs(prompt, wanted)
    made.add(0, logits[:2])
    founds = find_logprobs(logits, [2, 2], [4, 8], [wanted] * 2, [1.0] * 2)
    told = write_columns(wanted, founds, made)
    assert told.check(2) is None
    assert told.input_token_logprobs_idx is not None
    assert view_i32(told.input_token_logprobs_idx).tolist() == [2, 3]
    assert told.input_top_logprobs_idx is not None
    assert view_i32(told.input_top_logprobs_idx).tolist() == made.found.top_ids.flatten().tolist()
    assert told.input_token_ids_logprobs_val is not None
    assert list(view_f32(told.input_token_ids_logprobs_val)) == made.found.asked.flatten().tolist()
    assert told.output_token_ids_logprobs_val is not None
    assert told.output_token_ids_logprobs_val.nbytes == 4 * 2 * 3
    assert told.top_logprobs_num == 2
    assert write_columns(wanted, [], made).check(0) is None
    assert write_columns(bare, []).check(0) is None
