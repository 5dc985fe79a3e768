"""`POST /v1/chat/completions`: OpenAI's shape, whole and in pieces."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import Call, call
from vidette.service.chat import LATER, ChatRequest, read_chat, to_generate
from vidette.service.limits import ServiceLimits

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
            {
                "index": 0,
                "message": {"role": "assistant"},
                "logprobs": None,
                "finish_reason": "length",
                "matched_stop": None,
            }
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
    assert end["choices"][0]["matched_stop"] == whole["choices"][0]["matched_stop"]
    assert not any("matched_stop" in chunk["choices"][0] for chunk in chunks)
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


async def test_what_ended_an_answer_is_told(app: Starlette) -> None:
    async def ended(**fields: Any) -> Any:
        (choice,) = (await call(app, PATH, chat(temperature=0, max_tokens=400, **fields))).json()["choices"]
        return choice["finish_reason"], choice["matched_stop"], choice["message"]["content"]

    reason, matched, text = await ended()
    assert (reason, matched) == ("stop", 256)  # the end of a sequence
    stop = next(char for char in text if char.isascii())
    assert await ended(stop=["no such thing", stop]) == ("stop", stop, text.partition(stop)[0])
    assert await ended(ignore_eos=True) == ("length", None, (await ended(ignore_eos=True))[2])


@pytest.mark.parametrize("field", LATER)
async def test_what_is_for_later_is_not_implemented(app: Starlette, field: str) -> None:
    done = await call(app, PATH, chat(**{field: {"asks": "for something"}}))
    assert done.status == 501
    assert done.headers["x-should-retry"] == "false"
    assert done.error["type"] == "not_implemented_error"
    assert (done.error["param"], done.error["code"]) == (field, "unsupported_field")


async def test_messages_of_tools_are_for_later(app: Starlette) -> None:
    call_of_one = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for message, param in (
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "tool", "tool_call_id": "a", "content": "x"}, "tool_call_id"),
        ({"role": "assistant", "content": "", "tool_calls": [call_of_one]}, "tool_calls"),
    ):
        done = await call(app, PATH, chat(messages=[message]))
        assert (done.status, done.error["param"]) == (501, f"messages[0].{param}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": -1}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 1 << 30}, "max_completion_tokens"),
        ({"max_tokens": 9000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        (
            {
                "messages": [{"role": "user", "content": "x" * 100}],
                "max_tokens": None,
                "min_tokens": 8100,
            },
            "min_tokens",
        ),
        ({"logprobs": True, "top_logprobs": 129}, "top_logprobs"),
    ],
)
async def test_what_the_engine_refuses_has_the_names_of_the_caller(
    app: Starlette, fields: dict[str, Any], param: str
) -> None:
    done = await call(app, PATH, chat(**fields))
    assert done.status == 400
    assert done.error["param"] == param
    for name in ("max_new_tokens", "min_new_tokens", "sampling_seed", "top_logprobs_num"):
        assert name not in done.error["message"]


async def test_the_models_are_listed(app: Starlette) -> None:
    (card,) = (await call(app, "/v1/models", method="GET")).json()["data"]
    assert (card["id"], card["root"], card["object"]) == ("toy", "toy", "model")
    assert (await call(app, "/v1/models/toy", method="GET")).json() == card
    missing = await call(app, "/v1/models/a/b", method="GET")
    assert missing.status == 404
    assert (missing.error["code"], missing.error["param"]) == ("model_not_found", "model")


# --- what is asked of the engine -------------------------------------------------------------------

SAMPLING: dict[str, tuple[str, Any]] = {
    "temperature": ("temperature", 0.5),
    "top_p": ("top_p", 0.5),
    "top_k": ("top_k", 5),
    "min_p": ("min_p", 0.5),
    "frequency_penalty": ("frequency_penalty", 0.5),
    "presence_penalty": ("presence_penalty", 0.5),
    "repetition_penalty": ("repetition_penalty", 1.5),
    "logit_bias": ("logit_bias", {65: 1.5}),
    "seed": ("sampling_seed", 5),
    "n": ("n", 2),
    "stop": ("stop", ["x"]),
    "stop_regex": ("stop_regex", "x+"),
    "stop_token_ids": ("stop_token_ids", [5]),
    "ignore_eos": ("ignore_eos", True),
    "max_tokens": ("max_new_tokens", 5),
    "max_completion_tokens": ("max_new_tokens", 6),
    "min_tokens": ("min_new_tokens", 5),
    "no_stop_trim": ("no_stop_trim", True),
    "skip_special_tokens": ("skip_special_tokens", False),
}
"""Fields of SamplingParams by what chat calls them, with a value each."""
BESIDE: dict[str, tuple[str, Any]] = {
    "stream": ("stream", True),
    "logprobs": ("return_logprob", True),
    "top_logprobs": ("top_logprobs_num", 3),
    "priority": ("priority", -2),
    "extra_key": ("extra_key", "k"),
    "cache_salt": ("cache_salt", "s"),
}
"""Fields of GenerateReqInput, likewise."""
ELSEWHERE = {"messages", "model", "stream_options", "rid", "user", "safety_identifier", "prompt_cache_key"}


def test_each_field_is_asked_of_the_engine() -> None:
    assert {*SAMPLING, *BESIDE, *ELSEWHERE} == set(ChatRequest.__struct_fields__)
    for name, (theirs, value) in {**SAMPLING, **BESIDE}.items():
        fields = {name: value, **({"logprobs": True} if name == "top_logprobs" else {})}
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], **fields}
        request, _ = read_chat(msgspec.json.encode(body), ServiceLimits())
        asked = to_generate(request, "a prompt", "mine")
        assert (asked.text, asked.rid) == ("a prompt", "mine")
        params = asked.sampling_params
        assert isinstance(params, vidette.SamplingParams)
        found = msgspec.structs.asdict(params if name in SAMPLING else asked)
        assert found[theirs] == value, name


# --- several answers -------------------------------------------------------------------------------


async def test_several_answers_are_choices_of_one(app: Starlette) -> None:
    body = chat(n=3, rid="mine", temperature=1.5)
    answer = (await call(app, PATH, body)).json()
    assert answer["id"] == "mine"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    alone = [
        (await call(app, PATH, chat(temperature=1.5, seed=seed))).json()["choices"][0] for seed in (7, 8, 9)
    ]
    assert [choice["message"] for choice in answer["choices"]] == [choice["message"] for choice in alone]
    assert len({choice["message"]["content"] for choice in alone}) == 3


async def test_a_name_of_several_that_is_in_use_is_refused(app: Starlette, engine: vidette.Engine) -> None:
    async with engine.generate("x", rid="mine_1", sampling_params={"max_new_tokens": 8000}):
        for stream in (False, True):
            done = await call(app, PATH, chat(n=2, rid="mine", stream=stream))
            assert (done.status, done.error["param"]) == (409, "rid")


async def test_one_that_fails_is_an_event_and_the_others_go_on(
    app: Starlette, engine: vidette.Engine
) -> None:
    """It fails by being replaced, which is what one can do to it from here."""
    body = chat(
        n=2,
        rid="mine",
        max_tokens=500,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    asked = Call(app, PATH, body)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked.run)
        await asked.wait_sent(2)
        params = {"max_new_tokens": 1}
        async with engine.generate("x", rid="mine_1", sampling_params=params, on_duplicate="replace"):
            pass
    assert (asked.status, asked.complete) == (200, True)
    (error,) = [event for event in asked.events if "error" in event]
    assert error["index"] == 1
    # The other came to its end; but as not all of it came, nothing says so, and nothing is counted.
    (choice,) = asked.events[-1]["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")


async def test_the_prompt_of_several_counts_once(app: Starlette) -> None:
    messages = [{"role": "user", "content": "another prompt of several blocks, of which it is one"}]
    for cached in (0, 48):  # what no answer had to compute
        answer = (await call(app, PATH, chat(messages=messages, n=3, max_tokens=4, ignore_eos=True))).json()
        usage = answer["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": cached}
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(messages[0]["content"]) + 3, 12)


async def test_what_was_cached_is_told(app: Starlette) -> None:
    """A prompt that was computed before is not computed again, unless it is of another namespace."""
    messages = [{"role": "user", "content": "a prompt of several blocks, which are computed once"}]
    cached, prompt_tokens = [], 0
    for salt in (None, None, "mine", "mine", "yours"):
        answer = (await call(app, PATH, chat(messages=messages, cache_salt=salt))).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        prompt_tokens = answer["usage"]["prompt_tokens"]
    whole_blocks = (prompt_tokens - 1) // 16 * 16
    assert cached == [0, whole_blocks, 0, whole_blocks, 0]
    assert whole_blocks == 48
