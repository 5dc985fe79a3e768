"""The control endpoints: each does what it says, says whether it did, and takes nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.service import FrontDoor, LogSettings, ServiceLimits, build_app
from vidette.service.later import LATER
from vidette_protocol.messages import ProfileReq, ProfileReqOutput

ENDLESS = {"text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}
SHORT = {"text": "hello", "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}}


async def post(app: Starlette, path: str, body: object = b"", **options: Any) -> Call:
    return await call(app, path, body, **options)


async def done(app: Starlette, path: str, body: object = b"") -> Any:
    """Call what is to succeed; return its answer."""
    answer = await call(app, path, body)
    assert answer.status == 200, answer.body
    assert answer.json()["success"] is True
    return answer.json()


# --- aborts ------------------------------------------------------------------------------------------


async def test_an_abort_says_whether_it_matched(engine: vidette.Engine, app: Starlette) -> None:
    request = Call(app, "/generate", {**ENDLESS, "rid": "mine"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        await request.wait_sent(2)
        other = await done(app, "/abort_request", {"rid": "min"})
        assert (other["matched"], other["aborted"]) == (False, 0)
        ended = await done(app, "/abort_request", {"rid": "mine", "abort_message": "it took too long"})
        assert (ended["matched"], ended["aborted"]) == (True, 1)
    assert request.complete
    last = request.events[-1]["error"]
    assert (last["code"], last["message"].endswith("it took too long")) == ("aborted", True)
    again = await done(app, "/abort_request", {"rid": "mine"})
    assert again["matched"] is False
    await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


async def test_one_that_is_not_streamed_has_a_status_that_is_not_tried_again(app: Starlette) -> None:
    request = Call(app, "/generate", {**ENDLESS, "rid": "mine", "stream": False})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        with anyio.fail_after(SECONDS):
            while not (await done(app, "/abort_request", {"rid": "mine"}))["matched"]:
                await anyio.lowlevel.checkpoint()
    assert (request.status, request.error["code"]) == (499, "aborted")


async def test_all_are_aborted_at_once(app: Starlette) -> None:
    requests = [Call(app, "/generate", ENDLESS) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for request in requests:
            tasks.start_soon(request.run)
            await request.wait_sent(2)
        assert (await done(app, "/abort_request", {"abort_all": True}))["aborted"] == 3
    assert all("error" in request.events[-1] for request in requests)


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": None}, {"abort_all": False}, b""])
async def test_an_abort_of_nothing_in_particular_is_refused(app: Starlette, body: object) -> None:
    answer = await post(app, "/abort_request", body)
    assert (answer.status, answer.error["param"]) == (400, "rid")


# --- caches and garbage ------------------------------------------------------------------------------


async def test_the_cache_is_emptied_if_nothing_lives(engine: vidette.Engine, app: Starlette) -> None:
    await call(app, "/generate", {**SHORT, "text": "x" * 100})
    await engine.heartbeat()
    assert engine.statistics().blocks_cached > 0
    await done(app, "/flush_cache")
    await engine.heartbeat()
    assert engine.statistics().blocks_cached == 0


async def test_a_flush_waits_as_long_as_it_is_told(engine: vidette.Engine, app: Starlette) -> None:
    request = Call(app, "/generate", {**ENDLESS, "rid": "lives"})
    flush = Call(app, "/flush_cache")
    flush.scope["query_string"] = b"timeout=20"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        await request.wait_sent(2)
        refused = await post(app, "/flush_cache")
        assert (refused.status, refused.error["code"]) == (409, "not_done")
        tasks.start_soon(flush.run)
        await anyio.lowlevel.checkpoint()
        request.leave()
    assert flush.status == 200


@pytest.mark.parametrize(
    "query",
    [b"timeout=x", b"timeout=-1", b"timeout=nan", b"timeout=601", b"t=1", b"timeout=1&timeout=2", b"\xff"],
)
async def test_a_flush_takes_no_other_query(app: Starlette, query: bytes) -> None:
    flush = Call(app, "/flush_cache")
    flush.scope["query_string"] = query
    assert (await flush.run()).status == 400
    assert flush.error


async def test_a_second_tier_that_is_not_there_is_not_cleared(app: Starlette) -> None:
    answer = await post(app, "/hicache/storage-backend/clear")
    assert answer.status == 409
    assert "host_kv_tokens" in answer.error["message"]


async def test_garbage_collectors_are_frozen_and_let_go(app: Starlette) -> None:
    try:
        frozen = await done(app, "/freeze_gc", {"duration_s": 60})
        assert frozen["processes"]["front"]["frozen"] > 0
    finally:
        thawed = await done(app, "/freeze_gc", {"unfreeze": True})
    assert thawed["processes"]["front"]["frozen"] == 0
    assert (await post(app, "/freeze_gc", {"duration_s": -1})).error["param"] == "duration_s"


# --- sessions ----------------------------------------------------------------------------------------


async def test_a_session_is_opened_gone_on_with_and_closed(engine: vidette.Engine, app: Starlette) -> None:
    opened = await post(app, "/open_session", {"capacity_of_str_len": 1000})
    assert opened.status == 200
    name = opened.json()
    assert isinstance(name, str)
    turn = {**SHORT, "session_params": {"id": name}}
    assert (await call(app, "/generate", turn)).status == 200
    taken = await post(app, "/open_session", {"session_id": name})
    assert (taken.status, taken.error["param"]) == (400, "session_id")
    await done(app, "/close_session", {"session_id": name})
    assert (await post(app, "/close_session", {"session_id": name})).status == 400
    await engine.heartbeat()
    assert engine.statistics().ledgers.sessions == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [({}, "session_id"), ({"session_id": "x" * 257}, "session_id"), ({"session_id": 3}, "session_id")],
)
async def test_a_session_has_a_name_of_its_kind(app: Starlette, body: object, param: str) -> None:
    answer = await post(app, "/close_session", body)
    assert (answer.status, answer.error["param"]) == (400, param)


# --- a pause -----------------------------------------------------------------------------------------


async def test_a_pause_holds_a_stream_and_health_says_so(app: Starlette) -> None:
    request = Call(
        app, "/generate", {**ENDLESS, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        await request.wait_sent(2)
        await done(app, "/pause_generation", {"mode": "in_place"})
        ready = await call(app, "/health/ready", method="GET")
        assert (ready.status, ready.json()["error"]["message"]) == (503, "generation is paused")
        assert "retry-after" in ready.headers
        assert ready.json()["health"]["paused"] is True
        for path in ("/health", "/health/live", "/health/progress"):
            assert (await call(app, path, method="GET")).status == 200
        assert not request.complete
        await done(app, "/continue_generation")
    assert request.events[-1] == "[DONE]"
    assert (await call(app, "/health/ready", method="GET")).status == 200


async def test_a_pause_is_not_of_any_kind(app: Starlette) -> None:
    answer = await post(app, "/pause_generation", {"mode": "for_ever"})
    assert (answer.status, answer.error["param"]) == (400, "mode")
    assert (await call(app, "/generate", SHORT)).status == 200


# --- profiles and logs -------------------------------------------------------------------------------


class Profiled:
    """An engine whose scheduler records what it is told to."""

    def __init__(self, engine: vidette.Engine) -> None:
        self.info = engine.info
        self.config = engine.config
        self.max_total_tokens = engine.max_total_tokens
        self.token_bytes = engine.token_bytes
        self.asked: list[ProfileReq] = []

    async def control(self, question: ProfileReq) -> ProfileReqOutput:
        await anyio.lowlevel.checkpoint()
        self.asked.append(question)
        path = "/traces/of/the/operator/slow-3.trace.json" if question.req_type == "stop" else None
        return ProfileReqOutput(id=1, path=path)


async def test_a_trace_is_named_and_not_where_it_is(engine: vidette.Engine) -> None:
    profiled: Any = Profiled(engine)
    app = build_app(profiled)
    await done(app, "/start_profile", {"profile_id": "slow", "num_steps": 3, "activities": ["CPU"]})
    (question,) = profiled.asked
    assert (question.profile_id, question.num_steps, question.output_dir) == ("slow", 3, None)
    assert (await done(app, "/stop_profile"))["trace"] == "slow-3.trace.json"


@pytest.mark.parametrize("path", ["/etc", "traces", ""])
async def test_a_path_from_the_wire_is_refused(engine: vidette.Engine, path: str) -> None:
    profiled: Any = Profiled(engine)
    answer = await post(build_app(profiled), "/start_profile", {"output_dir": path})
    assert (answer.status, answer.error["param"]) == (400, "output_dir")
    assert profiled.asked == []


async def test_without_a_folder_there_are_no_traces(app: Starlette) -> None:
    answer = await post(app, "/start_profile")
    assert answer.status == 409
    assert "profile_dir" in answer.error["message"]


@pytest.fixture
def level_kept() -> Iterator[None]:
    before = logging.getLogger("vidette").level
    yield
    logging.getLogger("vidette").setLevel(before)


async def test_what_is_logged_changes_while_it_runs(engine: vidette.Engine, level_kept: None) -> None:
    logs = LogSettings()
    app = build_app(engine, door=FrontDoor(logs=logs))
    now = await done(app, "/configure_logging", {"log_requests": True, "log_requests_level": 2})
    assert (now["log_requests"], now["log_requests_level"], now["log_requests_format"]) == (True, 2, "text")
    assert (logs.requests, logs.level) == (True, 2)
    now = await done(app, "/configure_logging", {"log_level": "error", "log_requests_format": "json"})
    assert (now["log_requests"], now["log_level"]) == (True, "error")
    assert logging.getLogger("vidette").level == logging.ERROR
    for wrong in ({"log_requests_level": 4}, {"log_level": "loud"}, {"dump_requests_folder": "/tmp"}):
        assert (await post(app, "/configure_logging", wrong)).status == 400


# --- all of them -------------------------------------------------------------------------------------

ADMIN = [
    "/abort_request",
    "/flush_cache",
    "/hicache/storage-backend/clear",
    "/freeze_gc",
    "/pause_generation",
    "/continue_generation",
    "/start_profile",
    "/stop_profile",
    "/configure_logging",
]


@pytest.mark.parametrize("path", [*ADMIN, "/open_session", "/close_session"])
async def test_what_is_unknown_or_broken_is_refused(app: Starlette, path: str) -> None:
    unknown = await post(app, path, {"colour": "red"})
    assert (unknown.status, unknown.error["code"]) == (400, "unknown_field")
    for body in (b"{", b"[]", b"3", b"\xff", b"[" * 100_000):
        assert (await post(app, path, body)).status == 400
    assert (await call(app, path, method="GET")).status == 405
    assert (await post(app, path, b"{}", headers=[(b"origin", b"http://evil.example")])).status == 415


class Stuck(Profiled):
    """An engine that answers nothing."""

    def __init__(self, engine: vidette.Engine) -> None:
        super().__init__(engine)
        self.waiting = 0

    async def wait(self, *_: Any, **__: Any) -> Any:
        self.waiting += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.waiting -= 1

    control = freeze_gc = open_session = close_session = pause_generation = continue_generation = wait


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *[(path, {}) for path in ADMIN if path not in ("/abort_request", "/configure_logging")],
        ("/open_session", {}),
        ("/close_session", {"session_id": "x"}),
    ],
)
async def test_each_has_a_deadline_and_leaves_nothing(
    engine: vidette.Engine, path: str, body: object
) -> None:
    stuck: Any = Stuck(engine)
    answer = await post(build_app(stuck, limits=ServiceLimits(control_seconds=0.01)), path, body)
    assert (answer.status, answer.error["type"]) == (504, "timeout_error")
    assert stuck.waiting == 0


async def test_a_client_that_leaves_takes_its_question_along(engine: vidette.Engine) -> None:
    stuck: Any = Stuck(engine)
    request = Call(build_app(stuck), "/pause_generation")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(request.run)
        with anyio.fail_after(SECONDS):
            while not stuck.waiting:
                await anyio.lowlevel.checkpoint()
        request.leave()
    assert (stuck.waiting, request.sent) == (0, [])


@pytest.mark.parametrize("path", [path for paths in LATER.values() for path in paths])
async def test_what_is_not_served_yet_says_so(app: Starlette, path: str) -> None:
    answer = await post(app, path, {"whatever": ["it", "is"]})
    assert (answer.status, answer.error["code"]) == (501, "not_implemented")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_closed_engine_says_so() -> None:
    async with vidette.open_engine("toy") as engine:
        app = build_app(engine)
    for path in ("/flush_cache", "/pause_generation", "/freeze_gc", "/open_session"):
        assert (await post(app, path)).status == 503
