"""A request ends with its client, wherever it is: queued, in its prefill, streaming, behind a slow reader."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.service import build_app

CHAT = "/v1/chat/completions"
Client = Callable[..., Call]
LONG = 8000
"""Most tokens of output that fit; the toy takes a second or more for them."""


def long_request(path: str, *, stream: bool, text: str = "x") -> dict[str, Any]:
    if path == CHAT:
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, "stream": stream, "max_tokens": LONG, "ignore_eos": True}
    params = {"max_new_tokens": LONG, "ignore_eos": True}
    return {"text": text, "stream": stream, "sampling_params": params}


@asynccontextmanager
async def running(request: Call) -> AsyncGenerator[None]:
    """Run a call beside the block, which makes it end."""
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            yield


async def wait_running(engine: vidette.Engine, *, running: int = 1, waiting: int = 0) -> None:
    """Wait until the scheduler itself says that it computes so many requests and has so many in its queue."""
    with anyio.fail_after(SECONDS):
        while True:
            now = await engine.heartbeat()
            if (now.ledgers.scheduler - now.waiting, now.waiting) == (
                running,
                waiting,
            ) and now.ledgers.blocks:
                return


async def check_all_free(engine: vidette.Engine, app: Starlette) -> None:
    """Check that nothing is held anywhere, and that the next request is served."""
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0, engine.statistics()
    body = {"text": "next", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    done = await call(app, "/generate", body)
    assert done.status == 200
    assert done.json()["meta_info"]["completion_tokens"] == 3


@pytest.fixture(params=["is asked", "says so"])
def client(request: pytest.FixtureRequest) -> Client:
    """Requests of a server that says whether the client is gone when it is asked, or by itself."""
    return partial(Call, tells=request.param == "says so")


@pytest.mark.parametrize("path", [CHAT, "/generate"])
async def test_while_it_streams(engine: vidette.Engine, app: Starlette, path: str, client: Client) -> None:
    aborted = engine.statistics().totals.aborted
    request = client(app, path, long_request(path, stream=True))
    async with running(request):
        await request.wait_sent(4)
        assert request.status == 200
        request.leave()
    assert not request.complete
    assert engine.statistics().totals.aborted == aborted + 1
    await check_all_free(engine, app)


@pytest.mark.parametrize("path", [CHAT, "/generate"])
async def test_while_nothing_is_sent_yet(
    engine: vidette.Engine, app: Starlette, path: str, client: Client
) -> None:
    aborted = engine.statistics().totals.aborted
    request = client(app, path, long_request(path, stream=False))
    async with running(request):
        await wait_running(engine)
        request.leave()
    assert request.sent == []
    assert engine.statistics().totals.aborted == aborted + 1
    await check_all_free(engine, app)


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_waits_in_the_queue(stream: bool, client: Client) -> None:
    async with vidette.open_engine("toy", max_running=1) as engine:
        app = build_app(engine)
        first = client(app, CHAT, long_request(CHAT, stream=True))
        second = client(app, CHAT, long_request(CHAT, stream=stream))
        async with running(first):
            await first.wait_sent(2)
            async with running(second):
                await wait_running(engine, waiting=1)
                second.leave()
            await wait_running(engine, waiting=0)
            sent = len(first.sent)
            await first.wait_sent(sent + 3)  # the first one goes on
            first.leave()
        assert second.sent == []
        await check_all_free(engine, app)


@pytest.mark.parametrize("stream", [False, True])
async def test_during_a_long_prefill(stream: bool, client: Client) -> None:
    async with vidette.open_engine("toy", max_running=1, step_tokens=1) as engine:
        app = build_app(engine)
        prompt = "x" * 4096  # as many steps
        request = client(app, "/generate", {"text": prompt, "stream": stream})
        async with running(request):
            await wait_running(engine)
            request.leave()
        assert request.sent == []
        with anyio.fail_after(SECONDS):
            await engine.wait_quiet()
        assert 0 < engine.statistics().steps < len(prompt)
        await check_all_free(engine, app)


async def test_before_it_is_sent_to_the_scheduler(
    engine: vidette.Engine, app: Starlette, client: Client
) -> None:
    request = client(app, "/generate", {"text": "x" * 8000})
    request.leave()
    await request.run()
    assert request.sent == []
    await check_all_free(engine, app)


async def test_a_send_that_fails_means_the_same(
    engine: vidette.Engine, app: Starlette, client: Client
) -> None:
    request = client(app, CHAT, long_request(CHAT, stream=True))
    async with running(request):
        await request.wait_sent(3)
        request.raises = ConnectionResetError("the client is gone")
    assert not request.complete
    await check_all_free(engine, app)


async def test_what_comes_for_a_slow_reader_is_merged(
    engine: vidette.Engine, app: Starlette, client: Client
) -> None:
    request = client(app, CHAT, {**long_request(CHAT, stream=True), "max_tokens": 500})
    async with running(request):
        await request.wait_sent(3)
        request.stop_reading()
        with anyio.fail_after(SECONDS):
            await engine.wait_quiet()  # the request itself is over
        sent = len(request.sent)
        request.read_on()
    # One message that was blocked, one with all that came meanwhile, and the end.
    assert len(request.sent) <= sent + 3
    *chunks, end, last = request.events
    assert (end["choices"][0]["finish_reason"], last) == ("length", "[DONE]")
    assert max(len(chunk["choices"][0]["delta"]["content"]) for chunk in chunks) > 100


async def test_a_slow_reader_that_leaves(engine: vidette.Engine, app: Starlette, client: Client) -> None:
    request = client(app, CHAT, long_request(CHAT, stream=True))
    async with running(request):
        await request.wait_sent(3)
        request.stop_reading()
        await wait_running(engine)
        request.leave()
    await check_all_free(engine, app)


async def test_many_at_once(engine: vidette.Engine, app: Starlette, client: Client) -> None:
    requests = [client(app, CHAT, long_request(CHAT, stream=bool(i % 2))) for i in range(40)]
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for place, request in enumerate(requests):
                tasks.start_soon(request.run)
                if place % 3:
                    await anyio.lowlevel.checkpoint()
            # Some of them run, and some wait for room.
            while not ((now := await engine.heartbeat()).ledgers.blocks and now.waiting):
                pass
            for request in requests:
                request.leave()
    await check_all_free(engine, app)


async def test_one_that_leaves_behind_its_answer_ends_nothing(app: Starlette, client: Client) -> None:
    body = {"text": "next", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    request = client(app, "/generate", body)
    await request.run()
    request.leave()
    assert (request.status, request.complete) == (200, True)


async def test_a_server_that_says_so_is_not_asked_behind_the_body(app: Starlette) -> None:
    request = Call(
        app, "/generate", pieces=[b'{"text": ', b'"x", "sampling_params": {"max_new_tokens": 3}}'], tells=True
    )
    await request.run()
    assert (request.status, request.asked) == (200, 2)


async def test_a_server_that_says_so_says_it_also_while_it_is_asked_for_the_body(
    engine: vidette.Engine, app: Starlette
) -> None:
    request = Call(app, "/generate", pieces=[b'{"text": ', None], tells=True)
    await request.run()
    assert request.sent == []
    await check_all_free(engine, app)
