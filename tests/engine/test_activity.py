"""What an engine says of what it is doing: every request from its first moment to its last."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable

import anyio
import msgspec
import pytest

from vidette import Activity, Engine, GenerateReqInput, LiveRequest, SamplingParams, UsageError, open_engine
from vidette.testing import wait_quiescent

DEADLINE = 20.0
ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
async def engine(anyio_backend: object) -> AsyncGenerator[Engine]:
    async with open_engine("toy", max_running=2, detokenizers=2) as engine:
        yield engine


async def wait_for(engine: Engine, rid: str, fits: Callable[[LiveRequest], bool]) -> LiveRequest:
    with anyio.fail_after(DEADLINE):
        while True:
            for request in engine.activity().requests:
                if request.rid == rid and fits(request):
                    return request
            await engine.heartbeat()


async def test_of_an_engine_that_does_nothing_there_is_nothing_but_its_process(engine: Engine) -> None:
    await wait_quiescent(engine)
    activity = engine.activity()
    assert (activity.requests, activity.more) == ((), 0)
    (front,) = activity.processes  # the other roles are in this process
    assert (front.role, front.pid, front.incarnation) == ("front", os.getpid(), 0)
    assert front.rss_bytes > 10_000_000
    assert front.cpu_s > 0
    assert activity.block_bytes == 0 or activity.block_bytes % activity.block_tokens == 0
    assert activity.statistics.ledgers.total() == 0


async def test_a_request_is_told_of_from_running_to_closing(engine: Engine) -> None:
    async with engine.generate("hello", sampling_params=ENDLESS, rid="r") as stream:
        await anext(stream)
        taken = stream.completion_tokens
        seen = await wait_for(engine, "r", lambda request: request.output_tokens > taken + 5)
        assert (seen.vid, seen.state, seen.prompt_tokens) == (
            str(stream.vid),
            "running",
            stream.prompt_tokens,
        )
        assert seen.unread_tokens == seen.output_tokens - taken  # this reader is slow
        assert (seen.scheduler, seen.detokenizer) == ("scheduler", f"detokenizer-{stream.vid % 2}")
        assert seen.age_s > 0
        later = await wait_for(engine, "r", lambda request: request.age_s > seen.age_s)
        assert later.output_tokens >= seen.output_tokens
    (closing,) = engine.activity().requests  # its abort is on its way
    assert (closing.rid, closing.state, closing.prompt_tokens) == ("r", "closing", None)
    assert (closing.scheduler, closing.detokenizer) == (seen.scheduler, seen.detokenizer)
    assert closing.age_s >= later.age_s
    await wait_quiescent(engine)
    assert engine.activity().requests == ()


async def test_one_that_waits_is_told_apart_from_those_that_run(engine: Engine) -> None:
    async with (
        engine.generate("a", sampling_params=ENDLESS, rid="a") as first,
        engine.generate("b", sampling_params=ENDLESS, rid="b") as second,
        engine.generate("c", sampling_params=ENDLESS, rid="c"),
    ):
        await anext(first)
        await anext(second)
        activity = engine.activity()
        states = [(request.rid, request.state, request.output_tokens > 0) for request in activity.requests]
        assert states == [("a", "running", True), ("b", "running", True), ("c", "waiting", False)]
        assert activity.requests[2].scheduler == "scheduler"
        assert activity.requests[2].detokenizer is None
        assert activity.statistics.ledgers.front == 3
        few = engine.activity(1)
        assert ([request.rid for request in few.requests], few.more) == (["a"], 2)
        assert (engine.activity(0).requests, engine.activity(0).more) == ((), 3)
    await wait_quiescent(engine)


async def test_what_was_not_sent_yet_is_told_of_as_well(engine: Engine) -> None:
    async def ask() -> None:
        async with engine.generate("word " * 50, sampling_params=ENDLESS, rid="new") as stream:
            await stream.read()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        seen = None
        while seen is None:  # from the first turn of its task on
            await anyio.lowlevel.checkpoint()
            seen = next(iter(engine.activity().requests), None)
        assert (seen.rid, seen.state, seen.prompt_tokens) == ("new", "tokenising", None)
        assert (seen.scheduler, seen.detokenizer) == (None, None)
        tasks.cancel_scope.cancel()
    await wait_quiescent(engine)


async def test_answers_that_were_asked_for_together_say_so(engine: Engine) -> None:
    params = SamplingParams(n=2, max_new_tokens=400, ignore_eos=True)
    async with engine.generate_group(GenerateReqInput(text="x", sampling_params=params)) as group:
        first, second = engine.activity().requests
        assert first.group == second.group == str(group.streams[0].vid)
        assert [first.vid, second.vid] == [str(stream.vid) for stream in group.streams]
    await wait_quiescent(engine)


async def test_neither_prompt_nor_output_is_told(engine: Engine) -> None:
    async with engine.generate("a-secret-prompt", sampling_params=ENDLESS) as stream:
        await anext(stream)
        told = msgspec.json.encode(engine.activity())
    assert b"a-secret-prompt" not in told
    (request,) = msgspec.json.decode(told, type=Activity).requests
    texts = {name for name in LiveRequest.__struct_fields__ if isinstance(getattr(request, name), str)}
    assert texts == {"rid", "vid", "state", "scheduler", "detokenizer"}
    await wait_quiescent(engine)


async def test_fewer_than_none_cannot_be_listed(engine: Engine) -> None:
    with pytest.raises(UsageError, match="most is -1"):
        engine.activity(-1)
