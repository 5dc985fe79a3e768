"""`POST /v1/chat/completions`: OpenAI's shape, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import call

PATH = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "seed": 7, **fields}


async def test_the_answer_has_the_documented_shape(app: Starlette) -> None:
    done = await call(app, PATH, chat(rid="mine", max_tokens=5, ignore_eos=True))
    assert done.status == 200
    assert done.headers["content-type"] == "application/json"
    answer = done.json()
    text = answer["choices"][0]["message"].pop("content")
    assert text
    assert answer.pop("created") > 0
    assert answer == {
        "id": "mine",
        "object": "chat.completion",
        "model": "toy",
        "choices": [
            {"index": 0, "message": {"role": "assistant"}, "logprobs": None, "finish_reason": "length"}
        ],
        "usage": {
            "prompt_tokens": len("hello\n") + 2,  # the roles are tokens of their own
            "completion_tokens": 5,
            "total_tokens": len("hello\n") + 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("seed", range(4))
async def test_the_chunks_put_together_are_the_whole_answer(app: Starlette, seed: int) -> None:
    whole = (await call(app, PATH, chat(seed=seed))).json()
    done = await call(app, PATH, chat(seed=seed, stream=True, stream_options={"include_usage": True}))
    assert done.status == 200
    assert done.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, end, usage, last = done.events
    assert last == "[DONE]"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in (*chunks, end, usage))
    assert len({chunk["id"] for chunk in (*chunks, end, usage)}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert all(delta["content"] for delta in deltas)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * len(chunks)
    assert end["choices"][0]["delta"] == {}
    assert end["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in (*chunks, end))


async def test_chunks_have_no_usage_unless_it_is_asked_for(app: Starlette) -> None:
    *chunks, last = (await call(app, PATH, chat(stream=True))).events
    assert last == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


async def test_a_stream_without_text_still_has_a_role_and_an_end(app: Starlette) -> None:
    first, end, last = (await call(app, PATH, chat(stream=True, max_tokens=0))).events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert end["choices"][0]["finish_reason"] == "length"
    assert last == "[DONE]"


async def test_without_a_bound_the_model_ends_the_answer(app: Starlette) -> None:
    body = chat(temperature=0)
    del body["max_tokens"]
    answer = (await call(app, PATH, body)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_without_a_bound_and_an_end_the_context_is_filled(
    app: Starlette, engine: vidette.Engine
) -> None:
    body = chat(ignore_eos=True, messages=[{"role": "user", "content": "x" * (engine.max_total_tokens - 20)}])
    del body["max_tokens"]
    answer = (await call(app, PATH, body)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == engine.max_total_tokens


async def test_what_asks_for_nothing_is_accepted(app: Starlette) -> None:
    plain = (await call(app, PATH, chat())).json()
    nothing = chat(
        model="toy", n=1, stop=None, presence_penalty=0, frequency_penalty=0.0, logprobs=False, tools=[],
        tool_choice="auto", logit_bias={}, response_format={"type": "text"}, user="somebody", top_p=None,
        temperature=None, stream=None, stream_options=None, store=False, metadata={}, top_logprobs=None,
    )  # fmt: skip
    done = await call(app, PATH, nothing)
    assert done.status == 200, done.body
    assert done.json()["choices"] == plain["choices"]


async def test_parts_and_the_newer_names_mean_the_same(app: Starlette) -> None:
    plain = (await call(app, PATH, chat(messages=[{"role": "system", "content": "be brief"}]))).json()
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    body = chat(messages=[{"role": "developer", "content": parts}], max_completion_tokens=40)
    del body["max_tokens"]
    assert (await call(app, PATH, body)).json()["choices"] == plain["choices"]


async def test_an_answer_can_be_sent_back(app: Starlette) -> None:
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "hm",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
    }
    messages = [{"role": "user", "content": "hi"}, echoed, {"role": "user", "content": "go on"}]
    assert (await call(app, PATH, chat(messages=messages))).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": -1}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 1 << 30}, "max_completion_tokens"),
        ({"max_tokens": 9000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages"),
    ],
)
async def test_what_the_engine_refuses_has_the_names_of_the_caller(
    app: Starlette, fields: dict[str, Any], param: str
) -> None:
    done = await call(app, PATH, chat(**fields))
    assert done.status == 400
    assert done.error["param"] == param
    assert "max_new_tokens" not in done.error["message"]
    assert "sampling_seed" not in done.error["message"]


async def test_the_models_are_listed(app: Starlette) -> None:
    (card,) = (await call(app, "/v1/models", method="GET")).json()["data"]
    assert (card["id"], card["root"], card["object"]) == ("toy", "toy", "model")
    assert (await call(app, "/v1/models/toy", method="GET")).json() == card
    missing = await call(app, "/v1/models/a/b", method="GET")
    assert missing.status == 404
    assert (missing.error["code"], missing.error["param"]) == ("model_not_found", "model")
