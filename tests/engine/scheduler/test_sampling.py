"""What a request's tokens do to its logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.scheduler.sampling import SamplingRow
from vidette_protocol.messages import SamplingParams

VOCAB = 40
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=60)
PARAMS = st.fixed_dictionaries(
    {
        "frequency_penalty": st.sampled_from([0.0, 0.5, -2.0]),
        "presence_penalty": st.sampled_from([0.0, 0.25]),
        "repetition_penalty": st.sampled_from([1.0, 1.5, 0.5]),
        "logit_bias": st.one_of(
            st.none(), st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([1.0, -100.0]), max_size=5)
        ),
    }
)


def make(params: dict[str, Any], prompt: list[int], output: list[int] | None = None) -> SamplingRow:
    return SamplingRow(
        SamplingParams(**params), prompt, eos_ids={2}, vocab_size=VOCAB, output_ids=output or ()
    )


def expected_edits(
    params: dict[str, Any], prompt: list[int], output: list[int]
) -> dict[int, tuple[float, float]]:
    """Return factor and sum of each token that has any."""
    bias = params["logit_bias"] or {}
    edits = {}
    for token in range(VOCAB):
        factor = params["repetition_penalty"] if token in prompt or token in output else 1.0
        count = output.count(token)
        penalty = count * params["frequency_penalty"] + (count > 0) * params["presence_penalty"]
        edits[token] = (factor, bias.get(token, 0.0) - penalty)
    return {token: edit for token, edit in edits.items() if edit != (1.0, 0.0)}


def edits_of(row: SamplingRow) -> dict[int, tuple[float, float]]:
    ids, factors, adds = row.edits
    assert len(set(ids.tolist())) == len(ids) == len(factors) == len(adds), "a token is there twice"
    assert [ids.dtype, factors.dtype, adds.dtype] == [np.dtype(np.int64), *[np.dtype(np.float32)] * 2]
    found = zip(ids.tolist(), factors.tolist(), adds.tolist(), strict=True)
    return {token: (factor, add) for token, factor, add in found if (factor, add) != (1.0, 0.0)}


@settings(max_examples=100, deadline=None)
@given(params=PARAMS, prompt=TOKENS, output=TOKENS)
def test_edits_are_kept_up_token_by_token(
    params: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    """After any tokens the edits are those of all tokens so far; a resumed request has the same."""
    row = make(params, prompt)
    if row.edited:
        assert edits_of(row) == expected_edits(params, prompt, [])
    for token in output:
        row.push(token)
    expected = expected_edits(params, prompt, output)
    if row.edited:
        assert edits_of(row) == expected
        assert edits_of(make(params, prompt, output)) == expected
    else:
        assert expected == {}


def test_a_request_that_edits_nothing_keeps_nothing() -> None:
    row = make({}, list(range(VOCAB)))
    row.push(3)
    assert not row.edited
    assert not len(row.ends)


def test_only_repetition_looks_at_the_prompt() -> None:
    assert len(make({"frequency_penalty": 1.0}, [1, 2, 3]).edits[0]) == 0
    assert make({"repetition_penalty": 1.1}, [3, 1, 3]).edits[0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("params", "ends"),
    [
        ({"min_new_tokens": 2}, [2]),
        ({"min_new_tokens": 2, "stop_token_ids": [7, 2, 5, VOCAB]}, [2, 5, 7]),
        ({"min_new_tokens": 2, "ignore_eos": True, "stop_token_ids": [7]}, []),
        ({"stop_token_ids": [7]}, []),
    ],
)
def test_ends_are_what_min_new_tokens_holds_back(params: dict[str, Any], ends: list[int]) -> None:
    assert make(params, []).ends.tolist() == ends


@pytest.mark.parametrize(
    ("params", "temperature"),
    [({"temperature": 0.0}, 1.0), ({"temperature": 0.5, "top_k": 1}, 0.5), ({"temperature": 2.0}, 2.0)],
)
def test_log_probabilities_have_the_temperature_of_the_draw(
    params: dict[str, Any], temperature: float
) -> None:
    assert make(params, []).logprob_temperature == temperature
