"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`: shapes, events, errors."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import Call, call
from vidette import SamplingParams
from vidette.service import Gate, ServiceLimits, build_app
from vidette.service.anthropic_body import (
    COUNT_REFUSED,
    REFUSED,
    MessagesRequest,
    read_anthropic,
    to_message,
)

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"


def asking(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "toy", "max_tokens": 20, "messages": messages, "temperature": 0, **fields}


def problem(done: Call) -> tuple[int, str, str]:
    """Return status, type and message of an error; checks its shape."""
    body = done.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    return done.status, body["error"]["type"], body["error"]["message"]


async def test_the_answer_has_the_documented_shape(app: Starlette) -> None:
    done = await call(app, PATH, asking(max_tokens=5))
    assert done.status == 200
    answer = done.json()
    assert answer.pop("id").startswith("msg_")
    (block,) = answer.pop("content")
    assert block.pop("text")
    assert block == {"type": "text"}
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("hello\n") + 2,  # the roles are tokens of their own
            "output_tokens": 5,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
    }


async def test_the_events_put_together_are_the_whole_answer(app: Starlette) -> None:
    whole = (await call(app, PATH, asking())).json()
    done = await call(app, PATH, asking(stream=True))
    assert done.status == 200
    start, block, ping, *deltas, stop, delta, end = done.named_events
    assert start["type"] == "message_start"
    message = start["message"]
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    assert block == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert ping == {"type": "ping"}
    assert {(each["type"], each["index"], each["delta"]["type"]) for each in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    text = "".join(each["delta"]["text"] for each in deltas)
    assert [{"type": "text", "text": text}] == whole["content"]
    assert stop == {"type": "content_block_stop", "index": 0}
    assert delta["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert delta["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert end == {"type": "message_stop"}


async def test_an_answer_says_what_ended_it(app: Starlette) -> None:
    full = (await call(app, PATH, asking(max_tokens=400))).json()
    assert (full["stop_reason"], full["stop_sequence"]) == ("end_turn", None)
    text = full["content"][0]["text"]
    stop = next(char for char in text[1:] if char.isascii() and char not in text[:1])
    cut = (await call(app, PATH, asking(max_tokens=400, stop_sequences=["no such thing", stop]))).json()
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert cut["content"][0]["text"] == text.partition(stop)[0]


async def test_an_answer_without_text_has_no_block(app: Starlette) -> None:
    first = (await call(app, PATH, asking(max_tokens=1))).json()["content"][0]["text"]
    body = asking(stop_sequences=[first])
    assert (await call(app, PATH, body)).json()["content"] == []
    kinds = [event["type"] for event in (await call(app, PATH, {**body, "stream": True})).named_events]
    assert kinds == ["message_start", "message_delta", "message_stop"]


async def test_what_is_said_before_is_part_of_the_prompt(app: Starlette) -> None:
    blocks = [
        {"type": "text", "text": "be ", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "brief", "citations": None},
    ]
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "hm", "citations": None}]},
        {"role": "user", "content": [{"type": "text", "text": "more"}]},
    ]
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "more"},
    ]
    theirs = await call(app, "/v1/chat/completions", {"messages": chat, "temperature": 0, "max_tokens": 20})
    for system in ("be brief", blocks):
        answer = (await call(app, PATH, asking(system=system, messages=messages))).json()
        assert answer["content"][0]["text"] == theirs.json()["choices"][0]["message"]["content"]
        usage = answer["usage"]
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert total == theirs.json()["usage"]["prompt_tokens"]
        count = await call(app, COUNT, {"model": "toy", "system": system, "messages": messages})
        assert count.json() == {"input_tokens": total}


async def test_what_was_cached_is_told_apart(app: Starlette) -> None:
    body = asking(
        messages=[{"role": "user", "content": "a prompt of several blocks, of which it is one or two"}]
    )
    for cached in (0, 48):
        usage = (await call(app, PATH, body)).json()["usage"]
        assert usage["cache_read_input_tokens"] == cached
        assert usage["input_tokens"] == len(body["messages"][0]["content"]) + 3 - cached


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": None}, "model is null"),
    "no bound": ({"max_tokens": None}, "max_tokens is null"),
    "no tokens": ({"max_tokens": 0}, "max_tokens is 0"),
    "too many": ({"max_tokens": 9000}, "the prompt has 8 tokens and max_tokens is 9000"),
    "no messages": ({"messages": []}, "messages is empty"),
    "of the system": ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role is 'system'"),
    "to go on with": ({"messages": [{"role": "assistant", "content": "x"}]}, "the last of messages"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0].source is not supported yet",
    ),
    "an empty stop": ({"stop_sequences": [""]}, "stop_sequences[0] has 0 characters"),
    "temperature": ({"temperature": -1}, "temperature is -1"),
    "a long field": ({"stop_sequences": ["x" * (1 << 20)]}, "stop_sequences is 1048580 bytes of JSON"),
    "OpenAI's": ({"n": 1}, "there is no field 'n'"),
    "too long": ({"messages": [{"role": "user", "content": "x" * 9000}]}, "the prompt is too long: it has"),
}


@pytest.mark.parametrize(("fields", "message"), WRONG.values(), ids=WRONG)
async def test_what_cannot_be_honoured(app: Starlette, fields: dict[str, Any], message: str) -> None:
    for stream in (False, True):
        status, kind, told = problem(await call(app, PATH, asking(**fields, stream=stream)))
        assert (status, kind) == (400, "invalid_request_error")
        assert told.startswith(message)


@pytest.mark.parametrize("field", REFUSED)
async def test_what_is_not_supported_is_refused(app: Starlette, field: str) -> None:
    bodies = {PATH: asking(**{field: {"asks": "for something"}})}
    if field in COUNT_REFUSED:
        messages = [{"role": "user", "content": "x"}]
        bodies[COUNT] = {"model": "toy", "messages": messages, field: {"asks": "for something"}}
    for path, body in bodies.items():
        status, kind, told = problem(await call(app, path, body))
        assert (status, kind) == (400, "invalid_request_error")
        assert told.startswith(f"{field} is not supported yet")


async def test_what_asks_for_nothing_is_accepted(app: Starlette) -> None:
    plain = (await call(app, PATH, asking())).json()["content"]
    nothing = asking(
        tools=[], tool_choice={"type": "auto"}, thinking={"type": "disabled"}, metadata={"user_id": "me"},
        stop_sequences=[], service_tier="auto", container=None, cache_control={"type": "ephemeral"},
    )  # fmt: skip
    done = await call(app, PATH, nothing)
    assert done.status == 200, done.body
    assert done.json()["content"] == plain


async def test_statuses_are_anthropics(engine: vidette.Engine) -> None:
    app = build_app(engine)
    for path in (PATH, COUNT):
        body = {name: value for name, value in asking(model="opus").items() if path == PATH or name in (
            "model", "messages")}  # fmt: skip
        assert problem(await call(app, path, body))[:2] == (404, "not_found_error")
    small = build_app(engine, limits=ServiceLimits(body_bytes=10))
    assert problem(await call(small, PATH, asking()))[:2] == (413, "request_too_large")
    gate = Gate()
    gate.close(5)
    done = await call(build_app(engine, gate=gate), PATH, asking())
    assert problem(done)[:2] == (529, "overloaded_error")
    assert done.headers["retry-after"] == "5"


async def test_too_many_requests_are_told_when_to_come_back() -> None:
    async with vidette.open_engine("toy", max_requests=1) as engine:
        app = build_app(engine)
        async with engine.generate("x", sampling_params={"max_new_tokens": 8000, "ignore_eos": True}):
            done = await call(app, PATH, asking(stream=True))
        assert problem(done)[:2] == (429, "rate_limit_error")
        assert done.headers["retry-after"] == "1"


async def test_a_stream_that_fails_says_so_last(app: Starlette, engine: vidette.Engine) -> None:
    # Hot, so that it goes on for long.
    asked = Call(app, PATH, asking(stream=True, max_tokens=8000, temperature=2, top_k=200))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked.run)
        await asked.wait_sent(2)
        engine.abort_all("a test ended them")
    assert (asked.status, asked.complete) == (200, True)
    last = asked.named_events[-1]
    assert last["type"] == "error"
    assert last["error"]["type"] == "overloaded_error"
    assert "a test ended them" in last["error"]["message"]


def test_each_field_is_asked_of_the_engine() -> None:
    asked = asking(
        max_tokens=5, stop_sequences=["x"], temperature=0.5, top_p=0.4, top_k=3, stream=True, system="s"
    )
    request, conversation = read_anthropic(msgspec.json.encode(asked), ServiceLimits())
    assert conversation == [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    engines = to_message(request, "a prompt")
    assert (engines.text, engines.stream) == ("a prompt", True)
    assert engines.sampling_params == SamplingParams(
        max_new_tokens=5, stop=["x"], temperature=0.5, top_p=0.4, top_k=3
    )
    assert {*asked, "metadata"} == set(MessagesRequest.__struct_fields__)
