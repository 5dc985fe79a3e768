"""`GET /v1/activity`: what the engine is doing, for whoever watches it, as a stream of events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from vidette import Activity, Engine
from vidette.errors import Overloaded, UsageError
from vidette.service.errors import shown
from vidette.service.gate import Gate
from vidette.service.info import query_of
from vidette.service.limits import ServiceLimits
from vidette.service.responses import Exchange

QUERY: Final = frozenset({"interval", "limit"})
"""What the query may have."""
SHORTEST_INTERVAL: Final = 0.1
LONGEST_INTERVAL: Final = 60.0
"""Seconds from one event to the next that can be asked for."""
MOST_LISTED: Final = 1000
"""Requests that can be asked to be listed in an event."""


class ActivityFeed:
    """The endpoint of one engine. While nobody reads, nothing is gathered; all who do are told the same.

    Args:
        engine: what is watched.
        limits: bounds of the service.
        gate: when it closes, streams end.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, gate: Gate) -> None:
        self._engine = engine
        self._most = limits.activity_readers
        self._gate = gate
        self._limits: list[int] = []
        """How many requests each reader wants to be listed."""
        self._seen: Activity | None = None
        self._seen_at = 0.0
        self._frames: dict[int, msgspec.Raw] = {}
        """That as JSON, with as many requests."""

    async def answer(self, exchange: Exchange) -> None:
        """Answer `GET /v1/activity`: one event at once, then one every `interval` seconds."""
        asked = query_of(exchange, QUERY)
        interval, limit = _interval(asked.get("interval", "1")), _limit(asked.get("limit", "100"))
        with self._reading(limit):
            await exchange.start_events()
            open_still = True
            while open_still:
                await exchange.send_events([self._event(limit)])
                with anyio.move_on_after(interval) as waiting:
                    await self._gate.wait_closed()
                open_still = waiting.cancelled_caught
            await exchange.end_events()

    def _event(self, limit: int) -> msgspec.Raw:
        """Return what the engine is doing, no older than the shortest interval."""
        now = anyio.current_time()
        seen = self._seen
        old = now - self._seen_at >= SHORTEST_INTERVAL
        if seen is None or old or (seen.more and len(seen.requests) < limit):
            seen = self._seen = self._engine.activity(max(self._limits))
            self._seen_at = now
            self._frames.clear()
        if limit not in self._frames:
            listed = seen.requests[:limit]
            told = replace(seen, requests=listed, more=seen.more + len(seen.requests) - len(listed))
            self._frames[limit] = msgspec.Raw(msgspec.json.encode(told))
        return self._frames[limit]

    @contextmanager
    def _reading(self, limit: int) -> Iterator[None]:
        if len(self._limits) >= self._most:
            raise Overloaded(
                f"{len(self._limits)} clients read this already; at most {self._most} may at once"
            )
        self._limits.append(limit)
        try:
            yield
        finally:
            self._limits.remove(limit)
            if not self._limits:
                self._seen = None
                self._frames.clear()


def _interval(text: str) -> float:
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not SHORTEST_INTERVAL <= value <= LONGEST_INTERVAL:
        raise UsageError(
            f"interval is {shown(text)}; it must be from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:g} s",
            param="interval",
        )
    return value


def _limit(text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_LISTED))
    if not digits or int(text) > MOST_LISTED:
        raise UsageError(f"limit is {shown(text)}; it must be from 0 to {MOST_LISTED}", param="limit")
    return int(text)
