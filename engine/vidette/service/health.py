"""`GET /health` and what is under it: whether the engine lives, makes progress, and is ready.

Three answers for three uses: one that does not live has to be started anew, one that makes no progress should
be looked at, one that is not ready should not be sent requests for a while. Each that is not so says why, and
how old what is known is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import anyio
from msgspec import Struct

from vidette import Engine, Health
from vidette.errors import EngineBroken, Error
from vidette.service.errors import ErrorDetail, retry_after
from vidette.service.limits import ServiceLimits
from vidette.service.responses import Exchange

RETRY_SECONDS: Final = 1.0
"""After how long another try is sensible, while an engine is not ready."""


class HealthBody(Struct, frozen=True):
    """The answer if all is well.

    Args:
        health: what is known.
        status: a word for programs.
    """

    health: Health
    status: Literal["ok"] = "ok"


class UnhealthyBody(Struct, frozen=True):
    """The answer if it is not: that of any error, and what is known.

    Args:
        error: why.
        health: what is known.
    """

    error: ErrorDetail
    health: Health


class Shared:
    """A question that is asked once when several want to know at once.

    Who comes first asks, and the others wait for what he hears. Should he leave before, one of them asks.

    Args:
        ask: asks, and returns why all is not well, or None.
    """

    def __init__(self, ask: Callable[[], Awaitable[str | None]]) -> None:
        self._ask = ask
        self._asking: _Asking | None = None

    async def ask(self) -> str | None:
        """Return why all is not well, or None."""
        while self._asking is not None:
            asking = self._asking
            await asking.over.wait()
            if asking.answered:
                return asking.answer
        asking = self._asking = _Asking()
        try:
            asking.answer = await self._ask()
            asking.answered = True
        finally:
            self._asking = None
            asking.over.set()
        return asking.answer


class _Asking:
    """A question that is on its way."""

    __slots__ = ("answer", "answered", "over")

    def __init__(self) -> None:
        self.answer: str | None = None
        self.answered = False
        self.over = anyio.Event()


class HealthChecks:
    """The endpoints of one engine.

    Args:
        engine: whose health is asked for.
        limits: bounds of the service.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits) -> None:
        self._engine = engine
        self._seconds = limits.health_seconds
        self._heartbeats = Shared(self._heartbeat)
        self._tokens = Shared(self._token)

    async def answer(self, exchange: Exchange) -> None:
        """Answer `GET /health`: 200 if every part of the engine turns, 503 with the reason if not."""
        reason = await self._within(self._heartbeats, "the engine did not answer a heartbeat")
        if reason is not None:
            raise EngineBroken(reason)
        await exchange.send_json({"status": "ok"})

    async def live(self, exchange: Exchange) -> None:
        """Answer `GET /health/live`, at once: 503 only if the engine serves no more, and never will."""
        health = self._engine.statistics().health
        await self._say(exchange, None if health.live else health.reason)

    async def progress(self, exchange: Exchange) -> None:
        """Answer `GET /health/progress`: 503 if a heartbeat is overdue, or does not come back in time."""
        health = self._engine.statistics().health
        reason = health.reason
        if health.progress:
            reason = await self._within(self._heartbeats, "no heartbeat came back")
        await self._say(exchange, reason)

    async def ready(self, exchange: Exchange) -> None:
        """Answer `GET /health/ready`: 200 if a token could be made; 503 with Retry-After if not."""
        health = self._engine.statistics().health
        reason = health.reason
        if health.progress and not health.paused:
            reason = await self._within(self._tokens, "no token was made")
        await self._say(exchange, reason, *([retry_after(RETRY_SECONDS)] if health.live else []))

    async def _within(self, question: Shared, late: str) -> str | None:
        with anyio.move_on_after(self._seconds):
            return await question.ask()
        return f"{late} within {self._seconds:g} s"

    async def _heartbeat(self) -> str | None:
        try:
            await self._engine.heartbeat()
        except Error as error:
            return str(error)
        return None

    async def _token(self) -> str | None:
        try:
            await self._engine.probe()
        except Error as error:
            return str(error)
        return None

    async def _say(self, exchange: Exchange, reason: str | None, *headers: tuple[bytes, bytes]) -> None:
        health = self._engine.statistics().health
        if reason is None:
            await exchange.send_json(HealthBody(health))
        else:
            body = UnhealthyBody(ErrorDetail(reason, EngineBroken.kind), health)
            await exchange.send_json(body, status=EngineBroken.status, headers=headers)
