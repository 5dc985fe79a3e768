"""`/health` and what is under it: three answers, each with its reason; asked by many, made once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import SECONDS, Call, call
from vidette.errors import EngineBroken, Overloaded
from vidette.service import Gate, ServiceLimits, build_app

PATHS = ("/health/live", "/health/progress", "/health/ready", "/health_generate")
GOOD = vidette.Health(live=True, progress=True, ready=True, heard_s=0.5, queue_age_s=0.25, step_s=0.125)


class Fake:
    """An engine that is as the test says."""

    def __init__(self, engine: vidette.Engine) -> None:
        self.info = engine.info
        self.config = engine.config
        self.max_total_tokens = engine.max_total_tokens
        self.health = GOOD
        self.probes = self.heartbeats = 0
        """How many are on their way."""
        self.begun = 0
        """How many there were."""
        self.gate = anyio.Event()
        """Set when answers come."""
        self.failure: Callable[[], Exception] | None = None

    def statistics(self) -> Any:
        return type("Statistics", (), {"health": self.health})

    async def heartbeat(self) -> None:
        self.heartbeats += 1
        try:
            await self._wait()
        finally:
            self.heartbeats -= 1

    async def probe(self) -> None:
        self.probes += 1
        try:
            await self._wait()
        finally:
            self.probes -= 1

    async def _wait(self) -> None:
        self.begun += 1
        await self.gate.wait()
        await anyio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure()


@pytest.fixture
def fake(engine: vidette.Engine) -> Any:
    return Fake(engine)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.lowlevel.checkpoint()


# --- the real engine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_all_is_well(engine: vidette.Engine, app: Starlette, path: str) -> None:
    await engine.heartbeat()
    done = await call(app, path, method="GET")
    assert done.status == 200
    answer = done.json()
    assert answer["status"] == "ok"
    health = msgspec.convert(answer["health"], vidette.Health)
    assert (health.live, health.progress, health.reason) == (True, True, None)


@pytest.mark.parametrize("path", ["/health/ready", "/health_generate"])
async def test_ready_is_a_real_token(engine: vidette.Engine, app: Starlette, path: str) -> None:
    before = engine.statistics()
    assert (await call(app, path, method="GET")).json()["health"]["ready"] is True
    await engine.wait_quiet()
    after = engine.statistics()
    assert after.totals.finished == before.totals.finished + 1
    assert after.steps > before.steps
    assert after.ledgers.total() == 0


async def test_a_probe_whose_client_goes_leaves_nothing(app: Starlette) -> None:
    async with vidette.open_engine("toy", max_running=1) as engine:
        app = build_app(engine)
        async with engine.generate("x", sampling_params={"max_new_tokens": 4000, "ignore_eos": True}):
            probe = Call(app, "/health/ready", method="GET")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(probe.run)
                await until(lambda: engine.statistics().ledgers.front == 2)
                probe.leave()
            assert probe.sent == []
        await engine.wait_quiet()
        assert engine.statistics().totals.aborted == 2
        assert (await call(app, "/health/ready", method="GET")).status == 200


async def test_a_probe_goes_ahead_of_what_waits() -> None:
    params = {"max_new_tokens": 4000, "ignore_eos": True}
    async with vidette.open_engine("toy", max_running=1) as engine, AsyncExitStack() as first:
        probe = Call(build_app(engine), "/health/ready", method="GET")
        await anext(await first.enter_async_context(engine.generate("runs", sampling_params=params)))
        async with engine.generate("waits", sampling_params=params), anyio.create_task_group() as tasks:
            tasks.start_soon(probe.run)
            await until(lambda: engine.statistics().totals.submitted == 3)
            await first.aclose()
            await until(lambda: probe.complete)
            assert probe.status == 200
            assert engine.statistics().totals.finished == 1


async def test_a_full_engine_is_not_ready_and_yet_makes_progress() -> None:
    async with vidette.open_engine("toy", max_requests=1) as engine:
        app = build_app(engine)
        async with engine.generate("x", sampling_params={"max_new_tokens": 4000, "ignore_eos": True}):
            done = await call(app, "/health/ready", method="GET")
            assert (done.status, done.headers["retry-after"]) == (503, "1")
            assert "requests live" in done.json()["error"]["message"]
            for path in ("/health/progress", "/health/live", "/health"):
                assert (await call(app, path, method="GET")).status == 200


async def test_a_closed_engine_does_not_live() -> None:
    async with vidette.open_engine("toy") as engine:
        app = build_app(engine)
    for path in PATHS:
        done = await call(app, path, method="GET")
        assert done.status == 503
        assert done.json()["error"]["message"] == "the engine was closed"
        assert "retry-after" not in done.headers  # it will not come back


# --- what is said of what ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "statuses"),
    [
        (
            vidette.Health(live=True, progress=False, ready=False, reason="it is slow", silence_s=7.5),
            {"/health/live": 200, "/health/progress": 503, "/health/ready": 503},
        ),
        (
            vidette.Health(live=False, progress=False, ready=False, reason="it broke"),
            {"/health/live": 503, "/health/progress": 503, "/health/ready": 503},
        ),
    ],
    ids=["no progress", "broken"],
)
async def test_what_is_known_to_be_wrong_is_said_at_once(
    fake: Any, health: vidette.Health, statuses: dict[str, int]
) -> None:
    fake.health = health
    app = build_app(fake)
    for path, status in statuses.items():
        done = await call(app, path, method="GET")
        assert done.status == status
        answer = done.json()
        assert msgspec.convert(answer["health"], vidette.Health) == health
        if status == 503:
            assert answer["error"] == {
                "message": health.reason,
                "type": "service_unavailable",
                "param": None,
                "code": None,
            }
    assert fake.begun == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/health/progress", "no heartbeat came back within 0.05 s"),
        ("/health/ready", "no token was made within 0.05 s"),
    ],
)
async def test_nobody_waits_for_ever(fake: Any, path: str, reason: str) -> None:
    app = build_app(fake, limits=ServiceLimits(health_seconds=0.05))
    done = await call(app, path, method="GET")
    assert (done.status, done.json()["error"]["message"]) == (503, reason)
    assert (fake.begun, fake.probes, fake.heartbeats) == (1, 0, 0)


@pytest.mark.parametrize(
    "failure",
    [lambda: EngineBroken("a process ended"), lambda: Overloaded("too many requests live")],
    ids=["broken", "overloaded"],
)
async def test_what_goes_wrong_is_the_reason(fake: Any, failure: Callable[[], Exception]) -> None:
    fake.failure = failure
    fake.gate.set()
    app = build_app(fake)
    for path in ("/health/progress", "/health/ready"):
        done = await call(app, path, method="GET")
        assert (done.status, done.json()["error"]["message"]) == (503, str(failure()))


# --- many who ask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/health/progress", "/health/ready"])
async def test_all_who_ask_at_once_share_one_answer(fake: Any, path: str) -> None:
    app = build_app(fake)
    calls = [Call(app, path, method="GET") for _ in range(50)]
    async with anyio.create_task_group() as tasks:
        for each in calls:
            tasks.start_soon(each.run)
        await until(lambda: all(each.asked for each in calls) and fake.begun == 1)
        fake.gate.set()
    assert fake.begun == 1
    assert [each.status for each in calls] == [200] * 50
    assert (await call(app, path, method="GET")).status == 200
    assert fake.begun == 2  # an answer is not kept


async def test_if_the_one_leaves_who_asked_another_asks(fake: Any) -> None:
    app = build_app(fake)
    first, second, third = calls = [Call(app, "/health/ready", method="GET") for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        await until(lambda: fake.probes == 1)
        tasks.start_soon(second.run)
        tasks.start_soon(third.run)
        await until(lambda: all(each.asked for each in calls))
        first.leave()
        await until(lambda: fake.begun == 2)
        assert fake.probes == 1
        fake.gate.set()
    assert first.sent == []
    assert (second.status, third.status, fake.begun) == (200, 200, 2)


async def test_a_bug_is_one_for_each_who_asks(fake: Any, caplog: pytest.LogCaptureFixture) -> None:
    fake.failure = ZeroDivisionError
    fake.gate.set()
    done = await call(build_app(fake), "/health/ready", method="GET")
    assert (done.status, done.error["type"]) == (500, "internal_error")


# --- a server that stops -------------------------------------------------------------------------------


async def test_while_a_server_stops_it_lives_makes_progress_and_is_not_ready(fake: Any) -> None:
    gate = Gate()
    app = build_app(fake, gate=gate)
    fake.gate.set()
    gate.close()
    statuses = {path: (await call(app, path, method="GET")).status for path in PATHS}
    assert statuses == {
        "/health/live": 200,
        "/health/progress": 200,
        "/health/ready": 503,
        "/health_generate": 503,
    }
