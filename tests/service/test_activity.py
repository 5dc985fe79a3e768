"""`GET /v1/activity`: a stream of what the engine is doing, for whoever may watch it, as long as he does."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

import vidette
from tests.service.driver import SECONDS, SERVERS, Call, call
from vidette import Activity
from vidette.service import FrontDoor, Gate, Keys, Secret, ServiceLimits, build_app
from vidette.service.activity import ActivityFeed
from vidette.service.bodies import BodyReader
from vidette.service.keys import read_keys
from vidette.service.responses import Endpoint
from vidette.service.servers import serving
from vidette.service.shares import Shares
from vidette.service.sockets import bind

PATH = "/v1/activity"
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


def watch(app: Starlette, query: bytes = b"", **options: Any) -> Call:
    call = Call(app, PATH, method="GET", **options)
    call.scope["query_string"] = query
    return call


@asynccontextmanager
async def watching(app: Starlette, query: bytes = b"", **options: Any) -> AsyncGenerator[Call]:
    """Have somebody watch for as long as the block."""
    call = watch(app, query, **options)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run)
            yield call
            call.leave()


async def test_the_first_event_comes_at_once_and_has_all_that_is_promised(
    engine: vidette.Engine, app: Starlette
) -> None:
    async with (
        engine.generate("x", sampling_params=ENDLESS, rid="<b>r</b>") as stream,
        watching(app, b"interval=60") as reader,
    ):
        await anext(stream)
        await reader.wait_sent(2)
        assert (reader.status, reader.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        (event,) = reader.events
    told = msgspec.convert(event, Activity)
    assert [(request.rid, request.vid) for request in told.requests] == [("<b>r</b>", str(stream.vid))]
    assert told.statistics.ledgers.front == 1
    assert told.processes[0].role == "front"
    await engine.wait_quiet()


async def test_events_follow_and_their_counters_rise(engine: vidette.Engine, app: Starlette) -> None:
    async with (
        engine.generate("x", sampling_params=ENDLESS) as stream,
        watching(app, b"interval=0.1&limit=0") as reader,
    ):
        await anext(stream)
        await reader.wait_sent(4)
        events = [msgspec.convert(event, Activity) for event in reader.events]
    assert all((event.requests, event.more) == ((), 1) for event in events)
    times = [event.clock_s for event in events]
    assert all(event.work == msgspec.structs.asdict(event.statistics.scheduler) for event in events)
    made = [event.work["output_tokens"] for event in events]
    assert times == sorted(set(times))
    assert made == sorted(made)
    assert made[0] < made[-1]
    await engine.wait_quiet()


async def test_it_ends_when_the_server_stops_and_does_not_hold_it_up(engine: vidette.Engine) -> None:
    gate = Gate()
    reader = watch(build_app(engine, gate=gate), b"interval=60")
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.run)
            await reader.wait_sent(2)
            await gate.drain(SECONDS)
    assert reader.complete
    assert reader.events[1:] == ["[DONE]"]


async def test_so_many_may_watch_at_once(engine: vidette.Engine) -> None:
    app = build_app(engine, limits=ServiceLimits(activity_readers=1))
    async with watching(app) as first:
        await first.wait_sent(2)
        refused = await watch(app).run()
        assert (refused.status, "retry-after" in refused.headers) == (429, True)
        assert "1 clients read this already; at most 1 may" in refused.error["message"]
    async with watching(app) as second:  # his place was free at once
        await second.wait_sent(2)
        assert second.status == 200


class Gathering:
    """An engine that counts how often it is asked."""

    def __init__(self, engine: vidette.Engine) -> None:
        self.asked: list[int] = []
        self._engine = engine

    def activity(self, limit: int) -> Activity:
        self.asked.append(limit)
        return self._engine.activity(limit)


async def test_however_many_watch_it_is_gathered_once(engine: vidette.Engine) -> None:
    """And for as many requests as one of them wants; each has as many as he wants."""
    gathering: Any = Gathering(engine)
    limits, gate = ServiceLimits(), Gate()
    feed = ActivityFeed(gathering, limits, gate)
    bodies = BodyReader(limits, Shares((), limits, max_requests=1, clock=anyio.current_time))
    endpoint = Endpoint(feed.answer, gate=gate, bodies=bodies, limits=limits)
    app = Starlette(routes=[Route(PATH, endpoint)])
    async with AsyncExitStack() as blocks:
        for _ in range(3):
            await blocks.enter_async_context(engine.generate("x", sampling_params=ENDLESS))
        readers = [
            await blocks.enter_async_context(watching(app, b"interval=60&limit=%d" % limit))
            for limit in (2, 0, 1, 2, 1)
        ]
        for reader in readers:
            await reader.wait_sent(2)
        events = [msgspec.convert(reader.events[0], Activity) for reader in readers]
        listed = [(len(event.requests), event.more) for event in events]
        assert listed == [(2, 1), (0, 3), (1, 2), (2, 1), (1, 2)]
        assert len({event.clock_s for event in events}) == len(gathering.asked)
    assert set(gathering.asked) == {2}
    assert len(gathering.asked) < len(readers)


@pytest.mark.parametrize("background", [True, False])
async def test_it_does_not_tell_what_opens_a_response(
    engine: vidette.Engine, app: Starlette, background: bool
) -> None:
    body = {"input": "a secret", "max_output_tokens": 8000, "ignore_eos": True, "stream": not background}
    async with app.router.lifespan_context(app), watching(app, b"interval=0.1") as reader:
        making = Call(app, "/v1/responses", {**body, "background": background})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(making.run)
            await making.wait_sent(2)
            await reader.wait_sent(len(reader.sent) + 2)
            told = msgspec.convert(reader.events[-1], Activity)
            (name,) = re.findall(r"resp_\w+", making.body.decode())[:1]
            assert len(told.requests) == 1
            assert name not in reader.body.decode()
            # Whoever runs the server still ends it by the id.
            ended = await call(app, "/abort_request", {"rid": name})
            assert ended.json()["aborted"] == 1
    await engine.wait_quiet()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (b"interval=0", "interval"),
        (b"interval=61", "interval"),
        (b"interval=nan", "interval"),
        (b"interval=x", "interval"),
        (b"interval=" + b"9" * 4000, "interval"),
        (b"limit=-1", "limit"),
        (b"limit=1001", "limit"),
        (b"limit=0000000001000", "limit"),
        (b"limit=1.5", "limit"),
        (b"limit=%D9%A1", "limit"),
        (b"colour=red", "colour"),
    ],
)
async def test_it_takes_no_other_query(app: Starlette, query: bytes, param: str) -> None:
    refused = await watch(app, query).run()
    assert (refused.status, refused.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("api", "admin", "given", "status"),
    [
        ("sk-1", None, None, 401),
        ("sk-1", None, "sk-1", 200),
        ("sk-1", "root", "sk-1", 403),
        ("sk-1", "root", "root", 200),
        (None, "root", None, 403),
        (None, "root", "root", 200),
        (None, None, None, 200),
        ("sk-1 sk-2", None, "sk-2", 403),
        ("sk-1 sk-2", "root", "sk-2", 403),
        ("sk-1 sk-2", "root", "root", 200),
    ],
)
async def test_names_of_others_are_for_whoever_runs_the_server(
    engine: vidette.Engine, api: str | None, admin: str | None, given: str | None, status: int
) -> None:
    keys = Keys(read_keys(api.split() if api else ()), None if admin is None else Secret(admin))
    headers = [] if given is None else [(b"authorization", b"Bearer " + given.encode())]
    app = build_app(engine, door=FrontDoor(keys=keys))
    async with watching(app, headers=headers) as reader:
        await reader.wait_sent(2)
        assert reader.status == status


@pytest.mark.parametrize("anyio_backend", SERVERS, indirect=True)
async def test_through_a_server_it_ends_with_its_client(engine: vidette.Engine) -> None:
    gate, sock = Gate(), bind("127.0.0.1", 0)
    host, port = sock.getsockname()
    with anyio.fail_after(SECONDS):
        async with serving(build_app(engine, gate=gate), sock, gate=gate):
            async with await anyio.connect_tcp(host, port) as client:
                await client.send(b"GET /v1/activity?interval=0.1 HTTP/1.1\r\nhost: x\r\n\r\n")
                text = b""
                while text.count(b'data: {"clock_s"') < 3:
                    text += await client.receive()
                assert text.startswith(b"HTTP/1.1 200")
                assert len(gate) == 1
            while len(gate):  # noqa: ASYNC110  there is no event for it
                await anyio.sleep(0.005)
