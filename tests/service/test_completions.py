"""`POST /v1/completions`: OpenAI's older shape, whole and in pieces, for one prompt and for several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import call
from tests.service.test_chat import BESIDE, SAMPLING
from vidette.service.asked import Asked
from vidette.service.completions import (
    LATER,
    REFUSED,
    CompletionReader,
    CompletionRequest,
    to_complete,
)

PATH = "/v1/completions"


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hello", "max_tokens": 20, "seed": 7, **fields}


async def test_the_answer_has_the_documented_shape(app: Starlette) -> None:
    done = await call(app, PATH, completion(rid="mine", max_tokens=5, ignore_eos=True))
    assert done.status == 200
    answer = done.json()
    assert answer["choices"][0].pop("text")
    assert answer.pop("created") > 0
    assert answer == {
        "id": "mine",
        "object": "text_completion",
        "model": "toy",
        "choices": [{"index": 0, "logprobs": None, "finish_reason": "length", "matched_stop": None}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 5,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_sixteen_tokens_are_made_unless_said_otherwise(app: Starlette) -> None:
    for body in (
        {"prompt": "x", "ignore_eos": True},
        {"prompt": "x", "ignore_eos": True, "max_tokens": None},
    ):
        assert (await call(app, PATH, body)).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "n", "echo"),
    [
        ("Zoë", 1, False),
        ("Zoë", 2, True),
        (["one", "two", "three"], 1, True),
        ([90, 111, 200], 1, True),
        ([[104, 105], [65, 256, 66]], 2, True),
        (["alone"], 1, False),
    ],
)
async def test_the_chunks_put_together_are_the_whole_answer(
    app: Starlette, prompt: Any, n: int, echo: bool
) -> None:
    body = completion(prompt=prompt, n=n, echo=echo, logprobs=2)
    whole = (await call(app, PATH, body)).json()
    nested = isinstance(prompt, list) and not isinstance(prompt[0], int)
    count = (len(prompt) if nested else 1) * n
    assert [choice["index"] for choice in whole["choices"]] == list(range(count))
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, last = (await call(app, PATH, body)).events
    assert last == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    for choice in whole["choices"]:
        pieces = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        assert pieces[-1]["matched_stop"] == choice["matched_stop"]
        assert not any(piece["finish_reason"] or "matched_stop" in piece for piece in pieces[:-1])
        for name, values in choice["logprobs"].items():
            told = [piece["logprobs"][name] for piece in pieces if piece["logprobs"] is not None]
            assert list(chain.from_iterable(told)) == values, name


async def test_prompts_count_once_each(app: Starlette) -> None:
    body = completion(prompt=["first", "a second one"], n=3, max_tokens=4, ignore_eos=True)
    usage = (await call(app, PATH, body)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (17, 24, 41)
    long = "a prompt of several blocks, which are computed just once for all"
    for cached in (0, 48):
        usage = (await call(app, PATH, completion(prompt=long, best_of=1))).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": cached}


async def test_every_chunk_has_the_usage_so_far_if_asked(app: Starlette) -> None:
    body = completion(stream=True, stream_options={"continuous_usage_stats": True}, ignore_eos=True)
    *chunks, last = (await call(app, PATH, body)).events
    assert last == "[DONE]"
    told = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert told == sorted(told)
    assert told[-1] == 20


# --- echo and log probabilities --------------------------------------------------------------------


async def test_the_prompt_is_put_in_front(app: Starlette) -> None:
    plain = (await call(app, PATH, completion(prompt="Zoë <eos>!"))).json()["choices"][0]["text"]
    echoed = (await call(app, PATH, completion(prompt="Zoë <eos>!", echo=True))).json()["choices"][0]["text"]
    assert echoed == "Zoë <eos>!" + plain
    ids = [*"Zoë ".encode(), 256, 33]
    echoed = (await call(app, PATH, completion(prompt=ids, echo=True))).json()["choices"][0]["text"]
    assert echoed == "Zoë <eos>!" + plain


@pytest.mark.parametrize("prompt", ["hello, Zoë", [*b"hello, Zo\xc3\xab"]])
async def test_a_prompt_is_scored(app: Starlette, engine: vidette.Engine, prompt: Any) -> None:
    """As evaluation harnesses do: no text is made, and each token of the prompt is judged."""
    body = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    (choice,) = (await call(app, PATH, body)).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hello, Zoë", "length")
    lists = choice["logprobs"]
    assert lists["tokens"] == [*"hello, Zo", "bytes:\\xc3", "bytes:\\xab"]
    assert lists["text_offset"] == [*range(10), 9]
    assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
    request = vidette.GenerateReqInput(
        text="hello, Zoë",
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
        sampling_params=vidette.SamplingParams(max_new_tokens=0, temperature=0),
    )
    async with engine.generate(request) as stream:
        scored = (await stream.read()).prompt_logprobs
    assert scored is not None
    assert lists["token_logprobs"][1:] == pytest.approx([one.logprob for one in scored[1:]])
    for one, value, top in zip(
        scored[1:], lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True
    ):
        assert value in top.values()
        assert max(top.values()) == pytest.approx(one.top[0][1])


async def test_offsets_are_where_the_tokens_begin_in_the_text(app: Starlette) -> None:
    for echo in (False, True):
        body = completion(logprobs=3, echo=echo, max_tokens=40, ignore_eos=True)
        (choice,) = (await call(app, PATH, body)).json()["choices"]
        lists = choice["logprobs"]
        assert len(lists["tokens"]) == 40 + echo * 5
        places = [*lists["text_offset"], len(choice["text"])]
        for token, (here, there) in zip(lists["tokens"], pairwise(places), strict=True):
            if not token.startswith(("bytes:", "<")):
                assert choice["text"][here:there] == token
        assert all(len(top) in (3, 4) for top in lists["top_logprobs"] if top is not None)


# --- what is refused -------------------------------------------------------------------------------

PARTS: dict[str, tuple[Any, str]] = {
    "best_of": ({"best_of": 2}, "best_of"),
    "best_of beside n": ({"best_of": 3, "n": 2}, "best_of"),
    "suffix": ({"suffix": "end"}, "suffix"),
    "no prompt": ({"prompt": None}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
    "no prompts": ({"prompt": []}, "prompt"),
    "an empty one of several": ({"prompt": ["a", ""]}, "prompt[1]"),
    "texts and ids": ({"prompt": ["a", 1]}, "prompt"),
    "ids and texts": ({"prompt": [1, "a"]}, "prompt"),
    "a list and ids": ({"prompt": [[1], 1]}, "prompt"),
    "no token": ({"prompt": [260]}, "prompt"),
    "no token, to echo": ({"prompt": [260], "echo": True}, "prompt"),
    "too many prompts": ({"prompt": ["a"] * 1025}, "prompt"),
    "too many ids": ({"prompt": [1] * 9000}, "prompt"),
    "too many ids in one list": ({"prompt": [[1], [1] * 8193]}, "prompt"),
    "too long": ({"prompt": "x" * 9000}, "prompt"),
    "a long field": ({"user": "x" * (1 << 20)}, "user"),
    "logprobs": ({"logprobs": 129}, "logprobs"),
    "logprobs as chat has them": ({"logprobs": True}, "logprobs"),
    "max_tokens": ({"max_tokens": 9000}, "max_tokens"),
    "messages": ({"messages": []}, "messages"),
    "options of no stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
}


async def test_texts_to_echo_are_made_once_the_engine_has_taken_them(
    app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    detokenize = vidette.Engine.detokenize

    def counted(self: vidette.Engine, ids: Sequence[int], **options: Any) -> str:
        made.append(len(ids))
        return detokenize(self, ids, **options)

    monkeypatch.setattr(vidette.Engine, "detokenize", counted)
    body = completion(prompt=[[65] * 9, [66]], echo=True, n=2)
    assert (await call(app, PATH, {**body, "max_tokens": 9000})).status == 400
    assert made == []
    choices = (await call(app, PATH, body)).json()["choices"]
    assert [choice["text"][:9].rstrip("A") == "" for choice in choices] == [True, True, False, False]
    assert made == [9, 1]  # once for both answers to it


@pytest.mark.parametrize(("fields", "param"), PARTS.values(), ids=PARTS)
async def test_what_cannot_be_honoured(app: Starlette, fields: dict[str, Any], param: str) -> None:
    done = await call(app, PATH, completion(**fields))
    assert done.status == 400
    assert done.error["param"] == param
    assert not done.error["message"].startswith(("text", "input_ids"))


@pytest.mark.parametrize("field", [*REFUSED, *LATER])
async def test_what_is_not_supported_is_refused(app: Starlette, field: str) -> None:
    done = await call(app, PATH, completion(**{field: {"asks": "for something"}}))
    assert done.status == (501 if field in LATER else 400)
    assert (done.error["param"], done.error["code"]) == (field, "unsupported_field")


async def test_what_asks_for_nothing_is_accepted(app: Starlette) -> None:
    plain = (await call(app, PATH, completion())).json()["choices"]
    nothing = completion(
        model="toy", best_of=1, n=1, suffix=None, logprobs=None, echo=False, stream=False, user="somebody",
        stop=None, logit_bias={}, presence_penalty=0, response_format={"type": "text"}, lora_path=None,
    )  # fmt: skip
    assert (await call(app, PATH, nothing)).json()["choices"] == plain


async def test_another_model_is_not_found(app: Starlette) -> None:
    assert (await call(app, PATH, completion(model="davinci"))).status == 404


def test_each_field_is_asked_of_the_engine() -> None:
    own = {"prompt", "echo", "best_of", "stream_options", "model", "rid"}
    labels = {"user", "safety_identifier", "prompt_cache_key"}
    chats = {"max_completion_tokens", "top_logprobs"}
    assert {*SAMPLING, *BESIDE, *own, *labels} - chats == set(CompletionRequest.__struct_fields__)
    assert set(Asked.__struct_fields__) < set(CompletionRequest.__struct_fields__)
    reader = CompletionReader(100)
    for name, (theirs, value) in {**SAMPLING, **BESIDE}.items():
        if name in chats or name == "logprobs":
            continue
        request, prompts = reader.read(msgspec.json.encode({"prompt": "x", name: value}))
        asked = to_complete(request, prompts, "mine")
        params = asked.sampling_params
        assert isinstance(params, vidette.SamplingParams)
        found = msgspec.structs.asdict(params if name in SAMPLING else asked)
        assert found[theirs] == value, name
