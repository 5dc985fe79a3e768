"""`POST /generate`: the shape of SGLang's, whole and in pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from starlette.applications import Starlette

from tests.service.driver import call

PATH = "/generate"


def request(**sampling: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 30, "sampling_seed": 3, **sampling}
    return {"text": "hello", "rid": "mine", "sampling_params": params}


async def test_the_answer_has_the_documented_shape(app: Starlette) -> None:
    done = await call(app, PATH, request(max_new_tokens=4, ignore_eos=True))
    assert done.status == 200
    answer = done.json()
    assert list(answer) == ["text", "output_ids", "meta_info"]
    assert isinstance(answer["text"], str)
    assert len(answer["output_ids"]) == 4
    assert 0 < answer["meta_info"].pop("e2e_latency") < 20
    assert 0 <= answer["meta_info"].pop("queue_time") < 20
    assert answer["meta_info"] == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "num_retractions": 0,
        "resumed": 0,
    }


@pytest.mark.parametrize("seed", range(4))
async def test_each_event_holds_all_of_the_output_so_far(app: Starlette, seed: int) -> None:
    whole = (await call(app, PATH, request(sampling_seed=seed))).json()
    done = await call(app, PATH, {**request(sampling_seed=seed), "stream": True})
    assert done.headers["content-type"].startswith("text/event-stream")
    *events, last = done.events
    assert last == "[DONE]"
    for event, following in pairwise(events):
        assert following["text"].startswith(event["text"])
        assert following["output_ids"][: len(event["output_ids"])] == event["output_ids"]
        assert event["meta_info"]["finish_reason"] is None
        assert not {"e2e_latency", "queue_time"} & event["meta_info"].keys()
        assert event["meta_info"]["completion_tokens"] == len(event["output_ids"])
    for answer in (whole, events[-1]):
        del answer["meta_info"]["e2e_latency"], answer["meta_info"]["queue_time"]
    assert events[-1] == whole


async def test_the_end_of_sequence_token_is_told(app: Starlette) -> None:
    answer = (await call(app, PATH, request(temperature=0, max_new_tokens=None))).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": answer["output_ids"][-1]}


async def test_token_ids_are_a_prompt_as_well(app: Starlette) -> None:
    by_text = (await call(app, PATH, request())).json()
    body = {"input_ids": list(b"hello"), "sampling_params": request()["sampling_params"], "text": None}
    by_ids = (await call(app, PATH, body)).json()
    assert by_ids["output_ids"] == by_text["output_ids"]


async def test_defaults_are_those_of_the_library(app: Starlette) -> None:
    answer = (await call(app, PATH, {"text": "x", "sampling_params": {"ignore_eos": True}})).json()
    assert answer["meta_info"]["completion_tokens"] == 128
    assert len(answer["meta_info"]["id"]) == 32


async def test_what_asks_for_nothing_is_accepted(app: Starlette) -> None:
    plain = (await call(app, PATH, request())).json()
    sampling = {
        "n": 1,
        "stop": None,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "temperature": None,
        "top_k": -1,
    }
    body = {**request(**sampling), "return_logprob": False, "image_data": None, "log_metrics": False}
    done = await call(app, PATH, body)
    assert done.status == 200, done.body
    assert done.json()["output_ids"] == plain["output_ids"]


async def test_what_was_cached_is_told(app: Starlette) -> None:
    body = {**request(), "text": "a prompt of several blocks, which are computed once"}
    first, second = [(await call(app, PATH, body)).json()["meta_info"] for _ in range(2)]
    assert first["cached_tokens"] == 0
    assert "cached_tokens_details" not in first
    assert second["cached_tokens"] == 48
    assert second["cached_tokens_details"] == {"device": 48, "host": 0}


async def test_a_rid_can_be_used_again_at_once(app: Starlette) -> None:
    for _ in range(3):
        assert (await call(app, PATH, request())).json()["meta_info"]["id"] == "mine"
