"""`/v1/responses`: made whole, in events and in the background; kept, gone on behind, cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.service import ServiceLimits, build_app
from vidette.service.response_body import LATER, REFUSED

PATH = "/v1/responses"
LONG = 8000


def asking(**fields: Any) -> dict[str, Any]:
    return {"input": "hello", "max_output_tokens": 20, "seed": 7, **fields}


def in_background(**fields: Any) -> dict[str, Any]:
    return asking(**{"background": True, "ignore_eos": True, "max_output_tokens": LONG, **fields})


async def retrieve(app: Starlette, name: str) -> Call:
    return await call(app, f"{PATH}/{name}", method="GET")


@asynccontextmanager
async def living(app: Starlette) -> AsyncGenerator[None]:
    """Run the lifespan of an app, as its server does."""
    async with app.router.lifespan_context(app):
        yield


async def wait_status(app: Starlette, name: str, *statuses: str) -> Any:
    with anyio.fail_after(SECONDS):
        while (response := (await retrieve(app, name)).json())["status"] not in statuses:  # noqa: ASYNC110
            await anyio.sleep(0.005)  # or the thread that computes waits for us
    return response


async def test_the_answer_has_the_documented_shape(app: Starlette) -> None:
    body = asking(
        max_output_tokens=5, ignore_eos=True, metadata={"a": "b"}, instructions="be brief", user="me"
    )
    done = await call(app, PATH, body)
    assert done.status == 200
    answer = done.json()
    assert answer["id"].startswith("resp_")
    assert (await retrieve(app, answer["id"])).json() == answer
    (item,) = answer["output"]
    assert item.pop("id").startswith("msg_")
    (part,) = item.pop("content")
    assert part.pop("text")
    assert part == {"type": "output_text", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "role": "assistant", "status": "incomplete"}
    assert answer["usage"] == {
        "input_tokens": len("be brief\nhello\n") + 3,  # the roles are tokens of their own
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len("be brief\nhello\n") + 8,
    }
    told = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
            "object": "response", "instructions": "be brief", "max_output_tokens": 5, "metadata": {"a": "b"},
            "user": "me", "model": "toy", "background": False, "store": True, "error": None}  # fmt: skip
    assert {name: answer[name] for name in told} == told


EVENTS = ["response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done", "response.output_item.done"]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
async def test_the_events_put_together_are_the_whole_answer(app: Starlette, seed: int) -> None:
    whole = (await call(app, PATH, asking(seed=seed, temperature=0.7, max_output_tokens=60))).json()
    done = await call(app, PATH, asking(seed=seed, temperature=0.7, max_output_tokens=60, stream=True))
    assert done.status == 200
    assert done.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = done.named_events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [*EVENTS, f"response.{whole['status']}"]
    assert kinds.count("response.output_text.delta") == len(kinds) - 8
    created, last = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert [event["text"] for event in events if event["type"] == "response.output_text.done"] == [text]
    assert events[-2]["item"] == last["output"][0]
    assert {event["item_id"] for event in events if "item_id" in event} == {last["output"][0]["id"]}
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert (await retrieve(app, created["id"])).json() == last


async def test_items_and_parts_mean_what_texts_do(app: Starlette) -> None:
    plain = (await call(app, PATH, asking())).json()["output"][0]["content"]
    parts = [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]
    for given in (
        [{"role": "user", "content": "hello"}],
        [{"type": "message", "role": "user", "content": parts}],
    ):
        assert (await call(app, PATH, asking(input=given))).json()["output"][0]["content"] == plain


async def test_a_conversation_goes_on(app: Starlette) -> None:
    """By the id of what was said, or by all of it: it is the same prompt. Instructions are not handed on."""
    first = (await call(app, PATH, asking(instructions="be brief"))).json()
    behind = (await call(app, PATH, asking(input="more", previous_response_id=first["id"]))).json()
    assert behind["previous_response_id"] == first["id"]
    items = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
    told = (await call(app, PATH, asking(input=items))).json()
    assert told["output"][0]["content"] == behind["output"][0]["content"]
    assert told["usage"]["input_tokens"] == behind["usage"]["input_tokens"]
    third = (await call(app, PATH, asking(input="and?", previous_response_id=behind["id"]))).json()
    assert third["usage"]["input_tokens"] > behind["usage"]["input_tokens"]


async def test_what_is_not_stored_is_not_found(app: Starlette) -> None:
    response = (await call(app, PATH, asking(store=False))).json()
    for done in (
        await retrieve(app, response["id"]),
        await call(app, f"{PATH}/{response['id']}/cancel"),
        await call(app, f"{PATH}/{response['id']}", method="DELETE"),
    ):
        assert (done.status, done.error["param"]) == (404, "id")
    done = await call(app, PATH, asking(previous_response_id=response["id"]))
    assert (done.status, done.error["code"]) == (400, "previous_response_not_found")


async def test_what_was_deleted_is_gone(app: Starlette) -> None:
    name = (await call(app, PATH, asking())).json()["id"]
    done = await call(app, f"{PATH}/{name}", method="DELETE")
    assert done.json() == {"id": name, "object": "response", "deleted": True}
    assert (await retrieve(app, name)).status == 404


@pytest.mark.parametrize(
    "limits", [ServiceLimits(responses=2), ServiceLimits(responses_bytes=4000)], ids=["count", "bytes"]
)
async def test_the_one_nobody_asked_for_is_forgotten(engine: vidette.Engine, limits: ServiceLimits) -> None:
    app = build_app(engine, limits=limits)
    names = []
    for _ in range(3):
        names.append((await call(app, PATH, asking(input="x" * 400))).json()["id"])
        await retrieve(app, names[0])
    assert [(await retrieve(app, name)).status for name in names] == [200, 404, 200]


async def test_what_is_too_long_by_itself_is_not_kept(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(responses_bytes=3000))
    small = (await call(app, PATH, asking())).json()["id"]
    large = (await call(app, PATH, asking(input="x" * 4000))).json()["id"]
    assert [(await retrieve(app, name)).status for name in (small, large)] == [200, 404]


async def test_a_stream_ends_with_its_client_and_is_not_kept(app: Starlette, engine: vidette.Engine) -> None:
    asked = Call(app, PATH, asking(stream=True, ignore_eos=True, max_output_tokens=LONG))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked.run)
        await asked.wait_sent(3)
        asked.leave()
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert (await retrieve(app, asked.named_events[0]["response"]["id"])).status == 404


async def test_a_stream_that_fails_says_so_last(app: Starlette, engine: vidette.Engine) -> None:
    asked = Call(app, PATH, asking(stream=True, ignore_eos=True, max_output_tokens=LONG))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asked.run)
        await asked.wait_sent(3)
        engine.abort_all("a test ended them")
    assert (asked.status, asked.complete) == (200, True)
    *_, before, last = asked.named_events
    assert last["type"] == "response.failed"
    assert last["sequence_number"] == before["sequence_number"] + 1
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "a test ended them" in last["response"]["error"]["message"]


# --- in the background -----------------------------------------------------------------------------


async def test_in_the_background_it_is_answered_at_once_and_made_then(app: Starlette) -> None:
    async with living(app):
        body = in_background(max_output_tokens=30)
        queued = (await call(app, PATH, body)).json()
        assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
        made = await wait_status(app, queued["id"], "incomplete")
        del body["background"]
        plain = (await call(app, PATH, body)).json()
        assert made["output"][0]["content"] == plain["output"][0]["content"]
        behind = await call(app, PATH, asking(previous_response_id=made["id"]))
        assert behind.status == 200
        ended = await call(app, f"{PATH}/{made['id']}/cancel")  # there is nothing left to cancel
        assert (ended.status, ended.json()) == (200, made)


async def test_it_is_cancelled_by_its_id(app: Starlette, engine: vidette.Engine) -> None:
    async with living(app):
        name = (await call(app, PATH, in_background())).json()["id"]
        await wait_status(app, name, "in_progress")
        early = await call(app, PATH, asking(previous_response_id=name))
        assert (early.status, early.error["param"]) == (400, "previous_response_id")
        done = await call(app, f"{PATH}/{name}/cancel")
        assert (done.status, done.json()["status"]) == (200, "cancelled")
        with anyio.fail_after(SECONDS):
            await engine.wait_quiet()
        assert (await retrieve(app, name)).json()["status"] == "cancelled"
        assert engine.statistics().ledgers.total() == 0
        name = (await call(app, PATH, in_background())).json()["id"]
        assert (await call(app, f"{PATH}/{name}", method="DELETE")).status == 200
        with anyio.fail_after(SECONDS):
            await engine.wait_quiet()
        assert (await retrieve(app, name)).status == 404


async def test_what_was_on_its_way_when_it_was_cancelled_changes_nothing(
    app: Starlette, engine: vidette.Engine
) -> None:
    async with living(app):
        names = [(await call(app, PATH, in_background())).json()["id"] for _ in range(24)]
        for name in names:
            await call(app, f"{PATH}/{name}/cancel")
        with anyio.fail_after(SECONDS):
            await engine.wait_quiet()
        assert {(await retrieve(app, name)).json()["status"] for name in names} == {"cancelled"}


async def test_it_outlives_its_client_and_not_the_app(app: Starlette, engine: vidette.Engine) -> None:
    async with living(app):
        name = (await call(app, PATH, in_background())).json()["id"]
        await wait_status(app, name, "in_progress")
        assert engine.statistics().ledgers.front == 1
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0
    done = await call(app, PATH, in_background())
    assert done.status == 501
    assert "lifespan" in done.error["message"]


async def test_one_that_fails_says_why(app: Starlette, engine: vidette.Engine) -> None:
    async with living(app):
        name = (await call(app, PATH, in_background())).json()["id"]
        await wait_status(app, name, "in_progress")
        engine.abort_all("a test ended them")
        failed = await wait_status(app, name, "failed")
        assert "a test ended them" in failed["error"]["message"]


async def test_what_cannot_be_taken_is_refused_at_once(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(responses=1))
    async with living(app):
        refused = await call(app, PATH, in_background(max_output_tokens=9000))
        assert (refused.status, refused.error["param"]) == (400, "max_output_tokens")
        first = (await call(app, PATH, in_background())).json()["id"]
        refused = await call(app, PATH, in_background())
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await retrieve(app, first)).status == 200
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()


async def test_what_is_made_in_the_background_has_room_from_the_start(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(responses_bytes=6000))
    async with living(app):
        refused = await call(app, PATH, in_background(input="x" * 6000, max_output_tokens=9))
        assert (refused.status, refused.error["param"]) == (400, "input")
        ended = (await call(app, PATH, asking(input="x" * 2000))).json()["id"]
        first = (await call(app, PATH, in_background(input="x" * 2500, max_output_tokens=5000))).json()["id"]
        assert (await retrieve(app, ended)).status == 404  # it was forgotten for the other
        refused = await call(app, PATH, in_background(input="x" * 2500, max_output_tokens=5000))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (await call(app, f"{PATH}/{first}/cancel")).status == 200
        second = (await call(app, PATH, in_background(input="x" * 2500, max_output_tokens=5000))).json()["id"]
        assert [(await retrieve(app, name)).status for name in (first, second)] == [404, 200]
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()


async def test_what_has_become_too_long_to_be_kept_says_so(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(responses_bytes=1200))
    async with living(app):
        name = (await call(app, PATH, in_background(max_output_tokens=600))).json()["id"]
        failed = await wait_status(app, name, "failed", "incomplete")
        assert failed["status"] == "failed"
        assert "too long to be kept" in failed["error"]["message"]


# --- what is refused -------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "an empty one": ({"input": []}, "input"),
    "no text": ({"input": 5}, "input"),
    "no role": ({"input": [{"content": "x"}]}, "input[0].role"),
    "no content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "another role": ({"input": [{"role": "pope", "content": "x"}]}, "input[0].role"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].image_url",
    ),
    "a reference": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    "thoughts": ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].summary"),
    "too many messages": ({"input": [{"role": "user", "content": "x"}] * 4097}, "input"),
    "too long": ({"input": "x" * 9000}, "input"),
    "max_output_tokens": ({"max_output_tokens": 9000}, "max_output_tokens"),
    "chat's name for it": ({"max_tokens": 5}, "max_tokens"),
    "metadata": ({"metadata": {"a": "x" * 513}}, "metadata"),
    "more metadata": ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    "user": ({"user": "x" * 513}, "user"),
    "safety_identifier": ({"safety_identifier": "x" * 513}, "safety_identifier"),
    "prompt_cache_key": ({"prompt_cache_key": "x" * 513}, "prompt_cache_key"),
    "a long field": ({"metadata": {"a": "x" * (1 << 20)}}, "metadata"),
    "an empty stop": ({"stop": ["a", ""]}, "stop[1]"),
    "n": ({"n": 2}, "n"),
    "stored nowhere": ({"background": True, "store": False}, "background"),
    "watched in the background": ({"background": True, "stream": True}, "stream"),
}


@pytest.mark.parametrize(("fields", "param"), WRONG.values(), ids=WRONG)
async def test_what_cannot_be_honoured(app: Starlette, fields: dict[str, Any], param: str) -> None:
    done = await call(app, PATH, asking(**fields))
    assert done.status == 400
    assert done.error["param"] == param


@pytest.mark.parametrize("field", [*REFUSED, *LATER])
async def test_what_is_not_supported_is_refused(app: Starlette, field: str) -> None:
    done = await call(app, PATH, asking(**{field: {"asks": "for something"}}))
    assert done.status == (501 if field in LATER else 400)
    assert (done.error["param"], done.error["code"]) == (field, "unsupported_field")


async def test_calls_of_tools_are_for_later(app: Starlette) -> None:
    item = {"type": "function_call_output", "call_id": "a", "output": "x"}
    done = await call(app, PATH, asking(input=[item]))
    assert (done.status, done.error["param"]) == (501, "input[0].call_id")


async def test_a_stream_of_the_past_is_not_supported(app: Starlette) -> None:
    name = (await call(app, PATH, asking())).json()["id"]
    for query, status in ((b"stream=false", 200), (b"stream=true", 400), (b"starting_after=1", 400)):
        asked = Call(app, f"{PATH}/{name}", method="GET")
        asked.scope["query_string"] = query
        assert (await asked.run()).status == status


async def test_only_what_is_made_in_the_background_can_be_cancelled(app: Starlette) -> None:
    name = (await call(app, PATH, asking())).json()["id"]
    done = await call(app, f"{PATH}/{name}/cancel")
    assert (done.status, done.error["param"]) == (400, "id")


async def test_another_model_is_not_found(app: Starlette) -> None:
    assert (await call(app, PATH, asking(model="gpt-5"))).status == 404
