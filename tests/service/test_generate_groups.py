"""`POST /generate` with several prompts, or several answers to each: lists, and events with an index."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.testing import wait_quiescent

PATH = "/generate"
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


def request(text: Any = ("one", "two"), **sampling: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 20, "sampling_seed": 3, "ignore_eos": True, **sampling}
    return {"text": text, "rid": "mine", "sampling_params": params}


def without_latency(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for answer in answers:
        assert answer["meta_info"].pop("e2e_latency") > 0
        assert answer["meta_info"].pop("queue_time") >= 0
    return answers


async def ids_alone(app: Starlette, text: str, seed: int) -> list[int]:
    ids: list[int] = (await call(app, PATH, request(text, sampling_seed=seed))).json()["output_ids"]
    return ids


async def test_the_answer_is_a_list_prompt_after_prompt(app: Starlette) -> None:
    done = await call(app, PATH, request(n=2))
    assert done.status == 200, done.body
    answers = done.json()
    assert [list(answer) for answer in answers] == [["text", "output_ids", "meta_info"]] * 4
    assert [answer["meta_info"]["id"] for answer in answers] == ["mine_0", "mine_1", "mine_2", "mine_3"]
    assert [answer["output_ids"] for answer in answers] == [
        await ids_alone(app, text, seed) for text in ("one", "two") for seed in (3, 4)
    ]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"text": ["one"]}, 1),
        ({"input_ids": [[1, 2], [3]]}, 2),
        ({"input_ids": [[1, 2]], "rid": ["a"]}, 1),
        ({"text": "one", "sampling_params": {"n": 3, "max_new_tokens": 4}}, 3),
        ({"text": "one", "sampling_params": [{"n": 3, "max_new_tokens": 4}]}, 3),
        ({"text": ["one", "two"], "sampling_params": [{"max_new_tokens": 4}, {"max_new_tokens": 5}]}, 2),
        ({"text": "one", "rid": ["a"], "sampling_params": [{"max_new_tokens": 4}]}, None),
        ({"text": "one", "sampling_params": {"n": 1, "max_new_tokens": 4}}, None),
    ],
)
async def test_it_is_a_list_if_several_were_asked_for(
    app: Starlette, fields: dict[str, Any], count: int | None
) -> None:
    done = await call(app, PATH, {"sampling_params": {"max_new_tokens": 4}, **fields})
    assert done.status == 200, done.body
    answers = done.json()
    assert (len(answers) if isinstance(answers, list) else None) == count


async def test_the_events_of_each_are_its_answer(app: Starlette) -> None:
    whole = without_latency((await call(app, PATH, request(n=2))).json())
    done = await call(app, PATH, {**request(n=2), "stream": True})
    *events, last = done.events
    assert last == "[DONE]"
    assert {event["index"] for event in events} == {0, 1, 2, 3}
    ends = {}
    for event in events:
        index = event.pop("index")
        assert index not in ends, "an event behind the last one"
        assert whole[index]["text"].startswith(event["text"])
        if event["meta_info"]["finish_reason"] is not None:
            ends[index] = event
    assert without_latency([ends[index] for index in range(4)]) == whole


async def test_one_that_fails_is_an_event_and_the_others_go_on(
    app: Starlette, engine: vidette.Engine
) -> None:
    """It fails by being replaced, which is what one can do to it from here."""
    long = {**ENDLESS, "max_new_tokens": 800}
    asked = Call(app, PATH, {**request(**long), "stream": True})
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.run)
            await asked.wait_sent(2)
            params = {"max_new_tokens": 1}
            async with engine.generate(
                "x", rid="mine_1", sampling_params=params, on_duplicate="replace"
            ) as taker:
                await taker.read()
    assert (asked.status, asked.complete) == (200, True)
    *events, last = asked.events
    (error,) = [event for event in events if "error" in event]
    assert list(error) == ["error", "index"]
    assert error["index"] == 1
    assert "'mine_1' was replaced" in error["error"]["message"]
    # The other came to its end; but as not all of it came, nothing says so.
    assert last["index"] == 0
    assert last["meta_info"]["finish_reason"]["type"] == "length"
    await wait_quiescent(engine)


@pytest.mark.parametrize("stream", [False, True])
async def test_all_end_with_their_client(app: Starlette, engine: vidette.Engine, stream: bool) -> None:
    aborted = engine.statistics().totals.aborted
    asked = Call(app, PATH, {**request(**ENDLESS, n=3), "stream": stream})
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asked.run)
            while (await engine.heartbeat()).ledgers.scheduler < 6:
                pass
            asked.leave()
    assert engine.statistics().totals.aborted == aborted + 6
    await wait_quiescent(engine)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_refused_has_a_status(app: Starlette, engine: vidette.Engine, stream: bool) -> None:
    async with engine.generate("x", rid="mine_1", sampling_params=ENDLESS):
        done = await call(app, PATH, {**request(), "stream": stream})
    assert (done.status, done.error["code"]) == (409, "duplicate_request")
    await wait_quiescent(engine)
