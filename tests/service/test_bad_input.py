"""What cannot be served is refused with a sentence that names the fault, and the engine goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import call
from vidette.service import ServiceLimits, build_app

CHAT = "/v1/chat/completions"
GENERATE = "/generate"
FINE = {CHAT: '"messages": [{"role": "user", "content": "x"}]', GENERATE: '"text": "x"'}
DEEP = b"[" * 100_000


def raw(path: str, fields: str) -> bytes:
    """Return a body that is fine but for some fields, which are JSON or nearly so."""
    return f"{{{FINE[path]}, {fields}}}".encode()


NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "text": b"hello",
    "torn": b'{"rid": "x',
    "trailing": b'{"rid": "x"} {}',
    "not UTF-8": b'{"rid": "\xff"}',
    "byte order mark": b'\xef\xbb\xbf{"text": "x"}',
    "NaN": b'{"rid": NaN}',
    "Infinity": b'{"rid": Infinity}',
    "half a surrogate pair": b'{"rid": "\\ud800"}',
    "half a surrogate pair, in UTF-8": b'{"rid": "\xed\xa0\x80"}',
    "deep": b'{"rid": ' + DEEP + b"]" * len(DEEP) + b"}",
    "deep and torn": b'{"rid": ' + DEEP,
}


@pytest.mark.parametrize("path", [CHAT, GENERATE])
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_what_is_not_json(app: Starlette, path: str, body: bytes) -> None:
    done = await call(app, path, body.replace(b'"rid"', FINE[path].encode() + b', "rid"'))
    assert done.status == 400
    assert done.error["type"] == "invalid_request_error"
    assert done.error["code"] == "invalid_json"


WRONG: list[tuple[str, bytes, str | None]] = [
    (CHAT, b"[]", None),
    (CHAT, b"{}", "messages"),
    (CHAT, b'{"messages": null}', "messages"),
    (CHAT, b'{"messages": []}', "messages"),
    (CHAT, b'{"messages": "x"}', "messages"),
    (CHAT, b'{"messages": [1]}', "messages[0]"),
    (CHAT, b'{"messages": [{}]}', "messages[0].role"),
    (CHAT, b'{"messages": [{"role": "user"}]}', "messages[0].content"),
    (CHAT, b'{"messages": [{"role": "user", "content": null}]}', "messages[0].content"),
    (CHAT, b'{"messages": [{"role": "user", "content": 1}]}', "messages[0].content"),
    (CHAT, b'{"messages": [{"role": 1, "content": "x"}]}', "messages[0].role"),
    (CHAT, b'{"messages": [{"role": "pope", "content": "x"}]}', "messages[0].role"),
    (CHAT, b'{"messages": [{"role": "user", "content": "x", "name": "me"}]}', "messages[0].name"),
    (CHAT, b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "messages[0].content[0].text"),
    (CHAT, b'{"messages": [{"role": "user", "content": ["x"]}]}', "messages[0].content[0]"),
    (
        CHAT,
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
        "messages[0].content[0].image_url",
    ),
    (CHAT, raw(CHAT, '"temprature": 1'), "temprature"),
    (CHAT, raw(CHAT, '"n": 0'), "n"),
    (CHAT, raw(CHAT, '"n": 129'), "n"),
    (CHAT, raw(CHAT, '"n": true'), "n"),
    (CHAT, raw(CHAT, '"n": 1e999'), "n"),
    (CHAT, raw(CHAT, '"stop": ["a", ""]'), "stop[1]"),
    (CHAT, raw(CHAT, '"stop": 5'), "stop"),
    (CHAT, raw(CHAT, '"stop_regex": "("'), "stop_regex"),
    (CHAT, raw(CHAT, '"stop_token_ids": [260]'), "stop_token_ids[0]"),
    (CHAT, raw(CHAT, '"logit_bias": {"a": 1}'), "logit_bias"),
    (CHAT, raw(CHAT, '"logit_bias": {"65": 101}'), "logit_bias"),
    (CHAT, raw(CHAT, '"frequency_penalty": 2.1'), "frequency_penalty"),
    (CHAT, raw(CHAT, '"presence_penalty": -2.1'), "presence_penalty"),
    (CHAT, raw(CHAT, '"repetition_penalty": 0'), "repetition_penalty"),
    (CHAT, raw(CHAT, '"min_p": 2'), "min_p"),
    (CHAT, raw(CHAT, '"max_tokens": 3, "min_tokens": 4'), "min_tokens"),
    (CHAT, raw(CHAT, '"priority": "high"'), "priority"),
    (CHAT, raw(CHAT, '"logprobs": 1'), "logprobs"),
    (CHAT, raw(CHAT, '"top_logprobs": 1'), "top_logprobs"),
    (CHAT, raw(CHAT, '"logprobs": true, "top_logprobs": 129'), "top_logprobs"),
    (CHAT, raw(CHAT, '"logprobs": true, "top_logprobs": -1'), "top_logprobs"),
    (CHAT, raw(CHAT, '"max_tokens": true'), "max_tokens"),
    (CHAT, raw(CHAT, '"max_tokens": "5"'), "max_tokens"),
    (CHAT, raw(CHAT, '"max_tokens": 1.5'), "max_tokens"),
    (CHAT, raw(CHAT, '"max_tokens": ' + "9" * 30), "max_tokens"),
    (CHAT, raw(CHAT, '"max_tokens": ' + "9" * 6000), "max_tokens"),
    (CHAT, raw(CHAT, '"max_tokens": 5, "max_completion_tokens": 6'), "max_tokens"),
    (CHAT, raw(CHAT, '"temperature": -0.1'), "temperature"),
    (CHAT, raw(CHAT, '"temperature": 1e999'), "temperature"),
    (CHAT, raw(CHAT, '"temperature": "warm"'), "temperature"),
    (CHAT, raw(CHAT, '"top_p": 0'), "top_p"),
    (CHAT, raw(CHAT, '"top_p": 1.1'), "top_p"),
    (CHAT, raw(CHAT, '"top_k": 0'), "top_k"),
    (CHAT, raw(CHAT, '"seed": -1'), "seed"),
    (CHAT, raw(CHAT, '"stream": 1'), "stream"),
    (CHAT, raw(CHAT, '"stream_options": {"include_usage": true}'), "stream_options"),
    (CHAT, raw(CHAT, '"stream": true, "stream_options": {"include_us": true}'), "stream_options.include_us"),
    (CHAT, raw(CHAT, '"user": 5'), "user"),
    (CHAT, raw(CHAT, '"rid": ""'), "rid"),
    (CHAT, raw(CHAT, f'"rid": "{"x" * 257}"'), "rid"),
    (GENERATE, b'"x"', None),
    (GENERATE, b"{}", "text"),
    (GENERATE, b'{"text": null}', "text"),
    (GENERATE, b'{"text": ""}', "text"),
    (GENERATE, b'{"text": 5}', "text"),
    (GENERATE, b'{"text": ["a", 5]}', "text"),
    (GENERATE, b'{"text": []}', "text"),
    (GENERATE, b'{"text": ["a", ""]}', "text[1]"),
    (GENERATE, msgspec.json.encode({"text": ["a"] * 1025}), "text"),
    (GENERATE, b'{"text": ["a", "b"], "rid": ["c"]}', "rid"),
    (GENERATE, b'{"text": ["a", "b"], "rid": ["c", "c"]}', "rid"),
    (GENERATE, b'{"text": ["a", "b"], "sampling_params": [{}]}', "sampling_params"),
    (GENERATE, b'{"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}', "sampling_params[1].n"),
    (GENERATE, b'{"text": ["a", "b"], "sampling_params": [{}, {"regex": "x"}]}', "sampling_params[1].regex"),
    (GENERATE, b'{"text": "x", "input_ids": [1]}', "text"),
    (GENERATE, msgspec.json.encode({"text": "x" * 8192}), "text"),
    (GENERATE, b'{"input_ids": []}', "input_ids"),
    (GENERATE, b'{"input_ids": [[1], []]}', "input_ids[1]"),
    (GENERATE, b'{"input_ids": [[1], 2]}', "input_ids"),
    (GENERATE, b'{"input_ids": [[[1]]]}', "input_ids"),
    (GENERATE, b'{"input_ids": [[1], [260]]}', "input_ids"),
    (GENERATE, b'{"input_ids": [[1], [' + b"1," * 20_000 + b"1]]}", "input_ids"),
    (GENERATE, b'{"input_ids": [' + b"[1]," * 1024 + b"[1]]}", "input_ids"),
    (GENERATE, b'{"input_ids": [-1]}', "input_ids"),
    (GENERATE, b'{"input_ids": [260]}', "input_ids"),
    (GENERATE, b'{"input_ids": [99999999999999999999999]}', "input_ids"),
    (GENERATE, b'{"input_ids": [1.5]}', "input_ids"),
    (GENERATE, b'{"input_ids": [true]}', "input_ids"),
    (GENERATE, b'{"input_ids": ["1"]}', "input_ids"),
    (GENERATE, b'{"input_ids": [' + b"1," * 100_000 + b"1]}", "input_ids"),
    (GENERATE, raw(GENERATE, '"rid": ["a", "b"]'), "rid"),
    (GENERATE, raw(GENERATE, '"rid": [1]'), "rid"),
    (GENERATE, raw(GENERATE, '"sampling_params": [{}, {}]'), "sampling_params"),
    (GENERATE, raw(GENERATE, '"sampling_params": [1]'), "sampling_params[0]"),
    (GENERATE, raw(GENERATE, '"sampling_params": 1'), "sampling_params"),
    (GENERATE, raw(GENERATE, '"sampling_params": {"temprature": 1}'), "sampling_params.temprature"),
    (GENERATE, raw(GENERATE, '"sampling_params": {"stop": [1]}'), "sampling_params.stop"),
    (GENERATE, raw(GENERATE, '"sampling_params": {"n": 0}'), "n"),
    (GENERATE, raw(GENERATE, '"sampling_params": {"n": 129}'), "n"),
    (GENERATE, raw(GENERATE, '"sampling_params": {"n": true}'), "sampling_params.n"),
    (
        GENERATE,
        raw(GENERATE, '"sampling_params": {"max_new_tokens": true}'),
        "sampling_params.max_new_tokens",
    ),
    (GENERATE, raw(GENERATE, '"sampling_params": {"max_new_tokens": -1}'), "max_new_tokens"),
    (GENERATE, raw(GENERATE, '"return_logprob": "yes"'), "return_logprob"),
    (GENERATE, raw(GENERATE, '"return_logprob": true, "top_logprobs_num": 129'), "top_logprobs_num"),
    (GENERATE, raw(GENERATE, '"return_logprob": true, "token_ids_logprob": [260]'), "token_ids_logprob[0]"),
    (
        GENERATE,
        raw(GENERATE, '"return_flat_raw_top_logprobs_b64": true'),
        "return_flat_raw_top_logprobs_b64",
    ),
    (GENERATE, raw(GENERATE, '"image_data": "x"'), "image_data"),
    (GENERATE, raw(GENERATE, '"sampling_parms": {}'), "sampling_parms"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=[body[:70].decode() for _, body, _ in WRONG])
async def test_what_cannot_be_honoured(app: Starlette, path: str, body: bytes, param: str | None) -> None:
    done = await call(app, path, body)
    assert done.status == 400
    assert done.error["type"] == "invalid_request_error"
    assert done.error["param"] == param
    assert len(done.error["message"]) < 500


async def test_the_engine_goes_on_after_all_of_them(app: Starlette, engine: vidette.Engine) -> None:
    for path, body, _ in WRONG:
        assert (await call(app, path, body)).status == 400
    assert (
        await call(app, GENERATE, raw(GENERATE, '"sampling_params": {"max_new_tokens": 3}'))
    ).status == 200
    assert engine.statistics().ledgers.total() == 0


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_values_that_are_long_are_not_echoed(app: Starlette, path: str) -> None:
    for fields in (f'"{"x" * 100_000}": 1', f'"rid": "{"y" * 100_000}"', f'"stream": "{"z" * 100_000}"'):
        done = await call(app, path, raw(path, fields))
        assert done.status == 400
        assert len(done.body) < 1000


async def test_unsupported_is_said_to_be_so_and_unknown_as_well(app: Starlette) -> None:
    later = (await call(app, GENERATE, raw(GENERATE, '"background": true'))).error
    assert later["message"] == "background is not supported yet; only false is accepted"
    assert later["code"] == "unsupported_field"
    unknown = (await call(app, GENERATE, raw(GENERATE, '"logprob": true'))).error
    assert unknown["message"].startswith("there is no field 'logprob'; the fields are rid, text, input_ids")
    assert unknown["code"] == "unknown_field"


async def test_a_conversation_has_a_bound(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(messages=3))
    messages = [{"role": "user", "content": "x"}] * 4
    assert (await call(app, CHAT, {"messages": messages[:3], "max_tokens": 1})).status == 200
    done = await call(app, CHAT, {"messages": messages})
    assert done.status == 400
    assert done.error["message"] == "messages has 4 items; at most 3 are accepted"


async def test_parts_have_a_bound_over_all_messages(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(parts=3))
    part = {"type": "text", "text": "x"}
    messages = [{"role": "user", "content": [part]}, {"role": "user", "content": [part, part]}]
    assert (await call(app, CHAT, {"messages": messages, "max_tokens": 1})).status == 200
    done = await call(app, CHAT, {"messages": [*messages, *messages]})
    assert done.status == 400
    assert done.error["message"] == "messages[2].content has 1 items; at most 0 are accepted"


@pytest.mark.parametrize(
    ("path", "method", "status", "code"),
    [
        ("/nothing", "GET", 404, "not_found"),
        ("/v1/models/", "GET", 404, "model_not_found"),
        ("/v1/chat/completions/", "POST", 404, "not_found"),
        ("/" + "x" * 1000, "GET", 404, "not_found"),
        ("/v1/chat/completions", "GET", 405, "method_not_allowed"),
        ("/generate", "DELETE", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there(app: Starlette, path: str, method: str, status: int, code: str) -> None:
    done = await call(app, path, method=method)
    assert done.status == status
    assert done.error["code"] == code
    assert len(done.error["message"]) < 200
    if status == 405:
        assert done.headers["allow"] == "POST"


async def test_all_methods_of_a_path_are_named(app: Starlette) -> None:
    done = await call(app, "/v1/responses/resp_1", method="PUT")
    assert (done.status, done.headers["allow"]) == (405, "DELETE, GET, HEAD")
    assert done.error["message"].endswith("it takes DELETE, GET, HEAD")


async def test_another_model_is_not_found(app: Starlette) -> None:
    done = await call(app, CHAT, raw(CHAT, '"model": "gpt-5"'))
    assert done.status == 404
    assert done.error == {
        "message": "there is no model 'gpt-5' here; this server serves 'toy'",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_a_rid_in_use_is_a_conflict(app: Starlette, engine: vidette.Engine) -> None:
    async with engine.generate("x", rid="a", sampling_params={"max_new_tokens": 8000, "ignore_eos": True}):
        done = await call(app, GENERATE, raw(GENERATE, '"rid": "a"'))
        assert done.status == 409
        assert (done.error["param"], done.error["code"]) == ("rid", "duplicate_request")


async def test_too_many_requests_are_told_when_to_come_back() -> None:
    async with vidette.open_engine("toy", max_requests=1) as engine:
        app: Any = build_app(engine)
        async with engine.generate("x", sampling_params={"max_new_tokens": 8000, "ignore_eos": True}):
            done = await call(app, GENERATE, raw(GENERATE, '"stream": true'))
        assert done.status == 429
        assert done.headers["retry-after"] == "1"
        assert done.error["type"] == "rate_limit_error"
