"""Log probabilities over HTTP: SGLang's shape and OpenAI's; a stream says what a whole answer says."""

from __future__ import annotations

from array import array
from base64 import b64decode
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import call
from vidette import TokenLogprob
from vidette.service.meta_info import LogprobsInJSON

GENERATE = "/generate"
CHAT = "/v1/chat/completions"
COLUMNS = {
    "input_token_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
}


def request(**fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": 25, "sampling_seed": 3, "temperature": 1.3, **fields.pop("sampling", {})}
    return {
        "text": "hello",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [65, 66],
        "sampling_params": sampling,
        **fields,
    }


def chat(**fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 25,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 2,
        **fields,
    }


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without its name, and how long it took."""
    meta = answer["meta_info"]
    kept = {name: meta[name] for name in meta if name not in {"id", "e2e_latency", "queue_time"}}
    return {**answer, "meta_info": kept}


# --- /generate -------------------------------------------------------------------------------------


async def test_each_token_has_its_own(app: Starlette, engine: vidette.Engine) -> None:
    done = await call(app, GENERATE, request())
    assert done.status == 200, done.body
    answer = done.json()
    meta = answer["meta_info"]
    assert meta.keys() > COLUMNS
    async with engine.generate(msgspec.convert(request(), vidette.GenerateReqInput)) as stream:
        told = await stream.read()
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [value for value, *_ in meta["output_token_logprobs"]] == [one.logprob for one in told.logprobs]
    assert meta["output_token_logprobs_length"] == len(answer["output_ids"])
    assert [token for _, token, _ in meta["input_token_logprobs"]] == list(b"hello")
    assert told.prompt_logprobs is not None
    for side, expected in (("input", told.prompt_logprobs), ("output", told.logprobs)):
        for place, one in enumerate(expected):
            top, asked = (meta[f"{side}_{name}_logprobs"][place] for name in ("top", "token_ids"))
            if one.logprob is None:
                assert (side, place, top, asked) == ("input", 0, None, None)
                continue
            assert top == [[value, token, None] for token, value in one.top]
            assert asked == [[value, token, None] for token, value in one.asked]
            assert (len(top), [token for _, token, _ in asked]) == (2, [65, 66])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"return_text_in_logprobs": True},
        {"logprob_start_len": -1, "token_ids_logprob": None},
        {"top_logprobs_num": 0, "token_ids_logprob": None},
        {"return_flat_raw_top_logprobs": True},
        {"sampling": {"stop": ["e", "x"]}},
        {"sampling": {"max_new_tokens": 0}},
        {"sampling": {"stream_interval": 4, "ignore_eos": True}},
    ],
)
async def test_a_stream_ends_with_the_whole_answer(app: Starlette, fields: dict[str, Any]) -> None:
    """Each event holds all so far, and goes on behind the one before; the last is the whole answer."""
    whole = (await call(app, GENERATE, request(**fields))).json()
    done = await call(app, GENERATE, {**request(**fields), "stream": True})
    *events, last = done.events
    assert last == "[DONE]"
    assert timeless(events[-1]) == timeless(whole)
    for event, following in pairwise(events):
        for name in event["meta_info"].keys() & COLUMNS:
            before, after = event["meta_info"][name], following["meta_info"][name]
            assert after[: len(before)] == before
            if name.startswith("output"):
                assert len(before) == len(event["output_ids"])
            else:
                assert after == before


async def test_answers_of_a_group_have_what_each_prompt_asked_for(app: Starlette) -> None:
    body = request(
        text=["hello", "hi"],
        return_logprob=[True, False],
        top_logprobs_num=[2, 0],
        token_ids_logprob=[[65], None],
        sampling={"n": 2},
    )
    whole = (await call(app, GENERATE, body)).json()
    assert [bool(answer["meta_info"].keys() & COLUMNS) for answer in whole] == [True, True, False, False]
    ends = {}
    for event in (await call(app, GENERATE, {**body, "stream": True})).events[:-1]:
        ends[event.pop("index")] = event
    assert [timeless(ends[index]) for index in range(4)] == list(map(timeless, whole))


async def test_texts_are_those_of_the_tokens(app: Starlette) -> None:
    body = request(return_text_in_logprobs=True, sampling={"logit_bias": {"200": 100.0, "256": 100.0}})
    meta = (await call(app, GENERATE, body)).json()["meta_info"]
    assert [text for *_, text in meta["input_token_logprobs"]] == list("hello")
    texts = {200: "\N{REPLACEMENT CHARACTER}", 256: "<eos>", 65: "A", 66: "B"}
    for row in (*meta["output_top_logprobs"], *meta["output_token_ids_logprobs"]):
        assert [text for *_, text in row] == [texts[token] for _, token, _ in row]


async def test_those_of_the_prompt_can_be_flat(app: Starlette) -> None:
    flags = {"return_flat_raw_top_logprobs": True}
    nested = (await call(app, GENERATE, request())).json()["meta_info"]
    flat = (await call(app, GENERATE, request(**flags))).json()["meta_info"]
    packed = (await call(app, GENERATE, request(**flags, return_flat_raw_top_logprobs_b64=True))).json()[
        "meta_info"
    ]
    assert "input_top_logprobs" not in flat.keys() | packed.keys()
    assert flat["output_top_logprobs"] == packed["output_top_logprobs"] == nested["output_top_logprobs"]
    for meta in (flat, packed):
        assert (meta["input_top_logprobs_shape"], meta["input_top_logprobs_null_prefix"]) == ([4, 2], 1)
    rows = [one for row in nested["input_top_logprobs"][1:] for one in row]
    assert flat["input_top_logprobs_val_flat"] == [value for value, *_ in rows]
    assert flat["input_top_logprobs_idx_flat"] == [token for _, token, _ in rows]
    for name, typecode in (("val", "f"), ("idx", "i")):
        data = array(typecode, b64decode(packed[f"input_top_logprobs_{name}_flat_b64"]))
        assert data.tolist() == flat[f"input_top_logprobs_{name}_flat"]
    assert packed["input_top_logprobs_val_flat_b64_dtype"] == "float32"
    assert packed["input_top_logprobs_idx_flat_b64_dtype"] == "int32"


def test_a_gap_in_the_midst_of_them_is_not_flat() -> None:
    """The form knows of gaps at the beginning only, so the nested one is given then."""
    ranked = ((65, -1.0),)
    rows = (TokenLogprob(1, -1.0, ranked), TokenLogprob(2, None), TokenLogprob(3, -1.0, ranked))
    stream: Any = type("Read", (), {"logprobs_asked": vidette.LogprobsAsked(1), "prompt_logprobs": rows})
    fields = LogprobsInJSON(flat=True).fields(stream)
    assert msgspec.json.decode(fields["input_top_logprobs"]) == [[[-1.0, 65, None]], None, [[-1.0, 65, None]]]
    assert not any("flat" in name for name in fields)


async def test_what_only_the_scheduler_finds_wrong_has_a_status(app: Starlette) -> None:
    """One that fails before anything has come is an answer of its own; in a group, if all of them do."""
    beyond = request(logprob_start_len=6)
    for body in (beyond, {**beyond, "stream": True}, {**beyond, "text": ["hello", "hi"], "stream": True}):
        done = await call(app, GENERATE, body)
        assert done.status == 400
        assert done.error["type"] == "invalid_request_error"
        assert "logprob_start_len is 6, but the prompt has 5 tokens" in done.error["message"]
    done = await call(app, GENERATE, {**beyond, "text": ["hello", "hello there"], "stream": True})
    assert done.status == 200
    errors = [event for event in done.events if "error" in event]
    assert [event["index"] for event in errors] == [0]
    assert done.events[-1]["meta_info"]["finish_reason"] is not None


# --- chat ------------------------------------------------------------------------------------------


async def test_those_of_a_chat_have_the_shape_of_openai(app: Starlette) -> None:
    answer = (await call(app, CHAT, chat(logit_bias={"200": 100}))).json()
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    assert list(choice["logprobs"]) == ["content", "refusal"]
    assert len(content) == answer["usage"]["completion_tokens"] == 25
    for one in content:
        assert list(one) == ["token", "logprob", "bytes", "top_logprobs"]
        assert (one["token"], one["bytes"]) == ("\N{REPLACEMENT CHARACTER}", [200])
        assert [list(top) for top in one["top_logprobs"]] == [["token", "logprob", "bytes"]] * 2
        first, second = one["top_logprobs"]
        assert first == {name: one[name] for name in ("token", "logprob", "bytes")}
        assert second["logprob"] < first["logprob"] <= 0


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": None}, {"n": 3}, {"stop": ["e", "x"]}])
async def test_the_chunks_of_a_chat_have_those_of_their_own_tokens(
    app: Starlette, fields: dict[str, Any]
) -> None:
    """Put together they are those of the whole answer, choice by choice; so is the usage."""
    whole = (await call(app, CHAT, chat(**fields))).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    done = await call(app, CHAT, chat(**fields, stream=True, stream_options=options))
    *chunks, usage, last = done.events
    assert last == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts: dict[int, str] = {}
    contents: dict[int, list[Any]] = {}
    ends: dict[int, str] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert index not in ends, "a chunk behind the last one"
        assert (choice["delta"].get("role") == "assistant") == (index not in texts)
        texts[index] = texts.get(index, "") + choice["delta"].get("content", "")
        if choice["logprobs"] is not None:
            assert choice["logprobs"]["content"], "a list that is there has something in it"
            contents.setdefault(index, []).extend(choice["logprobs"]["content"])
        if choice["finish_reason"] is not None:
            ends[index] = choice["finish_reason"]
    for choice in whole["choices"]:
        index = choice["index"]
        assert texts[index] == choice["message"]["content"]
        assert contents[index] == choice["logprobs"]["content"]
        assert ends[index] == choice["finish_reason"]
    assert len(whole["choices"]) == len(ends) == fields.get("n", 1)
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["usage"] == whole["usage"]
