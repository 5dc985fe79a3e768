"""What fails while a request is answered: the engine, the server's own code, the server's stop."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any, NoReturn

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.service import Gate, ServiceLimits, build_app

CHAT = "/v1/chat/completions"
STREAM = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 8000,
    "ignore_eos": True,
}


async def test_a_killed_scheduler_ends_streams_with_an_error_and_the_rest_with_503() -> None:
    async with vidette.open_engine("toy", topology="processes") as engine:
        app = build_app(engine)
        stream, whole = Call(app, CHAT, STREAM), Call(app, CHAT, {**STREAM, "stream": False})
        (scheduler,) = [process for process in engine.statistics().processes if process.role == "scheduler"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            tasks.start_soon(whole.run)
            await stream.wait_sent(3)
            os.kill(scheduler.pid, signal.SIGKILL)
            with anyio.fail_after(SECONDS):
                await engine.wait_broken()
        assert stream.status == 200
        assert stream.complete
        *chunks, last = stream.events
        assert all("error" not in chunk for chunk in chunks)
        assert last["error"]["type"] == "service_unavailable"
        assert "the scheduler was killed by SIGKILL" in last["error"]["message"]
        assert whole.status == 503
        assert whole.error == last["error"]
        for path, method in ((CHAT, "POST"), ("/health", "GET")):
            done = await call(app, path, STREAM, method=method)
            assert done.status == 503
            assert done.error == last["error"]
        assert engine.statistics().ledgers.total() == 0


async def test_a_closed_engine_is_unavailable() -> None:
    async with vidette.open_engine("toy") as engine:
        app = build_app(engine)
    done = await call(app, CHAT, STREAM)
    assert done.status == 503
    assert done.error["message"] == "the engine was closed; open another one"


class Faulty:
    """An engine with a bug, in whatever it is asked for."""

    def __init__(self, engine: vidette.Engine) -> None:
        self.info = engine.info
        self.config = engine.config
        self.max_total_tokens = engine.max_total_tokens

    def generate(self, _request: object, **_options: object) -> NoReturn:
        raise ExceptionGroup("secret", [ZeroDivisionError("secret")])

    async def heartbeat(self) -> None:
        await anyio.sleep_forever()


async def test_a_bug_is_a_500_that_tells_the_log_alone(
    engine: vidette.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    faulty: Any = Faulty(engine)
    with caplog.at_level(logging.ERROR):
        done = await call(build_app(faulty), "/generate", {"text": "x"})
    assert done.status == 500
    assert done.error["type"] == "internal_error"
    assert "secret" not in done.error["message"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "ZeroDivisionError" in caplog.text


async def test_health_is_a_heartbeat(engine: vidette.Engine, app: Starlette) -> None:
    done = await call(app, "/health", method="GET")
    assert (done.status, done.json()) == (200, {"status": "ok"})


async def test_health_does_not_wait_for_ever(engine: vidette.Engine) -> None:
    faulty: Any = Faulty(engine)
    app = build_app(faulty, limits=ServiceLimits(health_seconds=0.05))
    done = await call(app, "/health", method="GET")
    assert done.status == 503
    assert done.error["message"] == "the engine did not answer a heartbeat within 0.05 s"


# --- the stop of a server -------------------------------------------------------------


async def test_behind_a_closed_gate_requests_go_on_and_new_ones_are_refused(engine: vidette.Engine) -> None:
    gate = Gate()
    app = build_app(engine, gate=gate)
    request = Call(app, CHAT, {**STREAM, "max_tokens": 300})
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            await request.wait_sent(3)
            assert len(gate) == 1
            gate.close()
            refused = await call(app, CHAT, STREAM)
            assert (refused.status, refused.error["type"]) == (503, "service_unavailable")
            assert refused.error["message"] == "the server is stopping and takes no more requests"
            await gate.wait_empty()
    assert request.events[-1] == "[DONE]"
    assert len(gate) == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_who_is_cancelled_by_the_stop_is_told(engine: vidette.Engine, stream: bool) -> None:
    gate = Gate()
    request = Call(build_app(engine, gate=gate), CHAT, {**STREAM, "stream": stream})
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            if stream:
                await request.wait_sent(3)
            while not engine.statistics().ledgers.front:
                await anyio.lowlevel.checkpoint()
            gate.close()
            gate.cancel()
            await gate.wait_empty()
        await engine.wait_quiet()
    assert request.complete
    error = request.events[-1]["error"] if stream else request.error
    assert error["message"] == "the server is stopping and cannot wait for this request"
    assert request.status == (200 if stream else 503)
    assert engine.statistics().ledgers.total() == 0


async def test_nothing_is_said_within_an_answer_that_is_no_stream(engine: vidette.Engine) -> None:
    gate = Gate()
    request = Call(build_app(engine, gate=gate), "/generate", {"text": "x"})
    request.reads = 1
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            await request.wait_sent(1)
            await engine.wait_quiet()
            await anyio.wait_all_tasks_blocked()
            gate.cancel()
            await gate.wait_empty()
            request.read_on()
    assert [message["type"] for message in request.sent] == ["http.response.start"]


async def test_who_does_not_listen_is_not_waited_for(engine: vidette.Engine) -> None:
    gate = Gate()
    app = build_app(engine, gate=gate, limits=ServiceLimits(parting_seconds=0.05))
    request = Call(app, CHAT, STREAM)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            await request.wait_sent(3)
            request.stop_reading()
            gate.cancel()
    assert not request.complete


# --- what the scheduler ends ----------------------------------------------------------


async def test_one_that_waits_too_long_is_told_so_with_a_status() -> None:
    async with vidette.open_engine("toy", max_running=1, queue_timeout=0.02) as engine:
        app = build_app(engine)
        params = {"max_new_tokens": 8000, "ignore_eos": True}
        async with engine.generate("x", sampling_params=params) as other:
            await anext(other)
            for stream in (False, True):
                done = await call(app, CHAT, {**STREAM, "stream": stream})
                assert done.status == 503
                assert (done.error["type"], done.error["code"]) == ("service_unavailable", "waiting_timeout")


async def test_one_that_runs_too_long_ends_with_what_was_made_and_an_error() -> None:
    async with vidette.open_engine("toy", running_timeout=0.05) as engine:
        app = build_app(engine)
        done = await call(app, CHAT, STREAM)
        assert (done.status, done.complete) == (200, True)
        *chunks, last = done.events
        assert chunks
        assert all("error" not in chunk for chunk in chunks)
        assert (last["error"]["type"], last["error"]["code"]) == ("service_unavailable", "running_timeout")
        done = await call(app, CHAT, {**STREAM, "stream": False})
        assert (done.status, done.error) == (503, {**last["error"], "message": done.error["message"]})
