"""What makes a request acceptable: each refusal names the field and shows the value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette.errors import UsageError
from vidette.front.checks import check_ids, check_known, check_request, settle, settle_sampling
from vidette_protocol.limits import Limits
from vidette_protocol.messages import GenerateItem, GenerateReqInput, SamplingParams
from vidette_protocol.messages.sampling import MAX_SEED

MOST = 10
"""Most tokens of prompt and output together."""
LIMITS = Limits(rid_chars=8, text_chars=20, max_new_tokens=200, prompt_tokens=MOST - 1)


def check(request: GenerateReqInput) -> GenerateItem:
    return check_request(request, new_rid=lambda: "new", limits=LIMITS, vocab_size=100)


def sampling(**params: Any) -> dict[str, Any]:
    return {"text": "x", "sampling_params": SamplingParams(**params)}


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x"},
        {"text": "x" * 20},
        {"text": "日本🦊"},
        {"text": "a\x00b"},
        {"input_ids": (1,)},
        {"input_ids": (1,) * 9},
        {"input_ids": (-1,)},  # told once it is compared with the vocabulary
        {"text": "x", "rid": "12345678"},
        {"text": "x", "rid": "ä"},
        {"text": "x", "stream": True},
        sampling(max_new_tokens=0),
        sampling(max_new_tokens=200),
        sampling(max_new_tokens=None),
        sampling(temperature=0.0),
        sampling(temperature=1e300),
        sampling(top_p=1e-9),
        sampling(top_k=1),
        sampling(top_k=1 << 40),
        sampling(sampling_seed=0),
        sampling(sampling_seed=MAX_SEED),
    ],
)
def test_what_can_be_served_is_accepted(fields: dict[str, Any]) -> None:
    assert check(GenerateReqInput(**fields)) == GenerateItem(**{"rid": "new", **fields})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "text", "no prompt is given; give just one of text, input_ids and input_embeds"),
        ({"text": ""}, "text", "text is empty; a prompt has at least one token"),
        ({"text": "ab\ud800c"}, "text", r"text has '\ud800' at 2, half a surrogate pair"),
        ({"text": "x", "rid": "123456789"}, "rid", "rid has 9 characters; it must have 1 to 8"),
        ({"text": b"x"}, "text", "text is of type bytes; it must be a text"),
        ({"input_ids": []}, "input_ids", "input_ids is empty; a prompt has at least one token"),
        (sampling(max_new_tokens=201), "max_new_tokens", "max_new_tokens is 201; it must be from 0 to 200"),
        (sampling(top_p=math.nan), "top_p", "top_p is nan; it must be greater than 0 and at most 1"),
        (
            sampling(stop_token_ids=[100]),
            "stop_token_ids[0]",
            "stop_token_ids[0] is 100; token ids are 0 to 99",
        ),
        (sampling(top_k=1.5), "top_k", "sampling_params.top_k is not valid: expected `int`, got `float`"),
    ],
)
def test_what_cannot_is_refused_by_name_and_value(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(GenerateReqInput(**fields))
    assert message == str(caught.value)
    assert param == caught.value.param
    assert caught.value.code is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "x" * 21}, "text has 21 characters; at most 20 are accepted"),
        ({"input_ids": [1] * 10}, "the prompt is too long: it has 10 tokens; at most 9 fit"),
    ],
)
def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check(GenerateReqInput(**fields))
    assert message == str(caught.value)
    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_that_is_far_too_long_is_not_looked_into() -> None:
    class Ids(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("nobody looks")

    with pytest.raises(UsageError, match=r"^the prompt is too long: it has 1000 tokens; at most 9 fit$"):
        check(GenerateReqInput(input_ids=Ids([1] * 1000)))


def test_what_is_fine_but_not_supported_yet_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        check(GenerateReqInput(text="x", lora_path="adapter"))
    assert caught.value.code == "unsupported_field"


# --- token ids -------------------------------------------------------------------------------------


@given(
    ids=st.lists(st.one_of(st.integers(-2, 12), st.integers(-(2**80), 2**80)), min_size=1, max_size=8),
    vocab_size=st.integers(1, 10),
)
def test_ids_are_accepted_just_when_all_are_in_the_vocabulary(ids: list[int], vocab_size: int) -> None:
    """Ids within range come out packed and equal; else the first that is not is named, with its place."""
    wrong = [(place, value) for place, value in enumerate(ids) if not 0 <= value < vocab_size]
    if not wrong:
        packed = check_ids(tuple(ids), vocab_size)
        assert packed.dtype == np.int32
        assert packed.tolist() == ids
        return
    with pytest.raises(UsageError) as caught:
        check_ids(ids, vocab_size)
    assert caught.value.param == "input_ids"
    place, value = wrong[0]
    expected = f"input_ids[{place}] is {value}; token ids of this model are 0 to {vocab_size - 1}"
    assert expected == str(caught.value)


# --- what is left open -----------------------------------------------------------------------------


@given(
    wanted=st.one_of(st.none(), st.integers(0, 40)),
    prompt=st.integers(1, 40),
    most=st.integers(1, 40),
    seed=st.one_of(st.none(), st.integers(0, MAX_SEED)),
)
def test_what_is_settled_fits_and_leaves_nothing_open(
    wanted: int | None, prompt: int, most: int, seed: int | None
) -> None:
    """Either prompt and output fit together, and all that was open is set, or the request is refused."""
    params = SamplingParams(
        max_new_tokens=wanted,
        sampling_seed=seed,
        temperature=0.3,
        top_k=7,
        stream_interval=3,
        stop=["x"],
        logit_bias={1: 2.0},
    )
    drawn = 4711
    if prompt >= most or (wanted is not None and prompt + wanted > most):
        with pytest.raises(UsageError) as caught:
            settle_sampling(params, prompt, most, draw=lambda _: drawn)
        assert caught.value.code == "context_length_exceeded"
        return
    settled = settle_sampling(params, prompt, most, draw=lambda _: drawn)
    expected = most - prompt if wanted is None else wanted
    assert settled == msgspec.structs.replace(
        params, max_new_tokens=expected, sampling_seed=drawn if seed is None else seed
    )


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    too_long = "the prompt is too long: it has 10 tokens; at most 9 fit"
    with pytest.raises(UsageError, match=f"^{too_long}$") as caught:
        settle_sampling(SamplingParams(max_new_tokens=None), 10, 10)
    assert caught.value.param == "text"


def test_more_output_than_there_is_room_for_is_refused_with_what_would_fit() -> None:
    message = (
        "the prompt has 4 tokens and max_new_tokens is 7, together 11; at most 10 fit: ask for at most 6"
    )
    with pytest.raises(UsageError, match=f"^{message}$") as caught:
        settle_sampling(SamplingParams(max_new_tokens=7), 4, 10)
    assert caught.value.param == "max_new_tokens"


def test_fewest_tokens_that_do_not_fit_are_refused() -> None:
    """Otherwise the scheduler would find them to contradict max_new_tokens, as it is set here."""
    params = SamplingParams(max_new_tokens=None, min_new_tokens=7)
    with pytest.raises(UsageError, match=r"^min_new_tokens is 7, but there is room for 6 behind") as caught:
        settle_sampling(params, 4, 10)
    assert caught.value.param == "min_new_tokens"
    assert settle_sampling(params, 3, 10).max_new_tokens == 7


@pytest.mark.parametrize(
    ("fields", "told", "each"),
    [
        ({}, 0, 8),
        ({"logprob_start_len": 3}, 4, 8),
        ({"logprob_start_len": 9}, 0, 8),
        ({"top_logprobs_num": 5}, 0, 48),
        ({"token_ids_logprob": (1, 2)}, 1, 16),
        ({"logprob_start_len": 0, "top_logprobs_num": 1, "token_ids_logprob": (1,)}, 7, 20),
    ],
)
def test_log_probabilities_have_a_bound(fields: dict[str, Any], told: int, each: int) -> None:
    params = SamplingParams(max_new_tokens=10)
    item = GenerateItem(rid="a", sampling_params=params, return_logprob=True, **fields)
    total = (told + 10) * each
    assert settle(item, 7, 100, total).max_new_tokens == 10
    with pytest.raises(
        UsageError, match=f"about {told} tokens .* {each} bytes each and {total} toget"
    ) as caught:
        settle(item, 7, 100, total - 1)
    assert caught.value.param == "return_logprob"
    assert settle(msgspec.structs.replace(item, return_logprob=False), 7, 100, 0).max_new_tokens == 10


def test_a_seed_is_drawn_from_all_that_there_are() -> None:
    asked = []

    def draw(below: int) -> int:
        asked.append(below)
        return below - 1

    assert settle_sampling(SamplingParams(), 1, 1000, draw).sampling_seed == MAX_SEED
    assert asked == [MAX_SEED + 1]
    seeds = {settle_sampling(SamplingParams(), 1, 1000).sampling_seed for _ in range(50)}
    assert len(seeds) == 50


def test_a_parameter_that_an_older_scheduler_lacks_is_refused_only_if_it_asks_for_something() -> None:
    unknown = frozenset({"top_k", "n"})
    check_known(SamplingParams(temperature=0.5), unknown)
    check_known(SamplingParams(top_k=3), frozenset())
    with pytest.raises(UsageError, match="top_k is not known to the scheduler, which is of an older version"):
        check_known(SamplingParams(top_k=3), unknown)
