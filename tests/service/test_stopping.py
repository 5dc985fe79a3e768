"""A server that stops: what is new is refused with a time to try again, what lives may end, or is ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.errors import EngineDraining
from vidette.service import Gate, ServiceLimits, build_app

CHAT = "/v1/chat/completions"
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}
LONG = {"text": "x", "sampling_params": ENDLESS}
SHORT = {"text": "x", "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}}


@contextmanager
def closed(seconds: float) -> Iterator[Gate]:
    gate = Gate()
    gate.close(seconds)
    yield gate


async def test_each_503_of_a_server_that_stops_says_when_to_try_again(engine: vidette.Engine) -> None:
    with closed(7.5) as gate:
        app = build_app(engine, gate=gate)
        for path, method in (
            ("/generate", "POST"),
            (CHAT, "POST"),
            ("/v1/models", "GET"),
            ("/health", "GET"),
        ):
            refused = await call(app, path, LONG, method=method)
            assert (refused.status, refused.headers["retry-after"]) == (503, "8")
            assert refused.error["type"] == "service_unavailable"
        ready = await call(app, "/health/ready", method="GET")
        assert (ready.status, "retry-after" in ready.headers) == (503, True)
        # Whether it lives can be asked all the same.
        assert (await call(app, "/health/live", method="GET")).status == 200


async def test_the_time_is_never_less_than_a_second_and_counts_from_the_first_word(
    engine: vidette.Engine,
) -> None:
    with closed(0.0) as gate:
        gate.close(60.0)
        refused = await call(build_app(engine, gate=gate), "/generate", LONG)
        assert refused.headers["retry-after"] == "1"
    assert Gate().retry_after is None


async def test_what_fails_of_itself_says_nothing_of_another_try(engine: vidette.Engine) -> None:
    with closed(5.0) as gate:
        app = build_app(engine, gate=gate)
        assert "retry-after" not in (await call(app, "/nowhere", method="GET")).headers
    answer = await call(build_app(engine), "/generate", {"text": ""})
    assert (answer.status, "retry-after" in answer.headers) == (400, False)


async def test_an_engine_that_drains_is_told_by_the_app_over_it() -> None:
    """An app on another server, whose gate nobody closes."""
    async with vidette.open_engine("toy") as engine:
        app = build_app(engine)
        await engine.drain(0.0)
        for body, path in ((SHORT, "/generate"), ({"messages": [{"role": "user", "content": "x"}]}, CHAT)):
            refused = await call(app, path, body)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "takes no more requests" in refused.error["message"]


async def test_who_ends_in_time_is_waited_for_and_nobody_is_ended() -> None:
    async with vidette.open_engine("toy") as engine:
        gate = Gate()
        request = Call(build_app(engine, gate=gate), "/generate", SHORT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            while not len(gate):
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(SECONDS):
                while not engine.statistics().totals.submitted:
                    await anyio.lowlevel.checkpoint()
                await gate.drain(SECONDS, engine.drain)
            assert len(gate) == 0
        assert request.status == 200
        assert engine.statistics().totals.aborted == 0
        with pytest.raises(EngineDraining), gate.enter():
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_is_told_that_it_cannot_wait(stream: bool) -> None:
    async with vidette.open_engine("toy") as engine:
        gate = Gate()
        app = build_app(engine, gate=gate, limits=ServiceLimits(parting_seconds=0.01))
        request = Call(app, "/generate", {**LONG, "stream": stream})
        slow = Call(app, "/generate", {**LONG, "stream": True})
        slow.stop_reading()  # it is not waited for
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request.run)
            tasks.start_soon(slow.run)
            while engine.statistics().totals.submitted < 2:
                await anyio.lowlevel.checkpoint()
            if stream:
                await request.wait_sent(2)
            with anyio.fail_after(SECONDS):
                await gate.drain(0.0, engine.drain)
            assert len(gate) == 1
            gate.cancel()
        if stream:
            assert "cannot wait for it" in request.events[-1]["error"]["message"]
        else:
            assert (request.status, request.headers["retry-after"]) == (503, "1")
            assert "cannot wait for it" in request.error["message"]
        await engine.wait_quiet()
        assert (await engine.heartbeat()).ledgers.total() == 0
        assert engine.statistics().totals.aborted == 2
