"""`GET /v1/activity`: what the engine is doing, for whoever watches it, as a stream of events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from vidette import Engine
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
    """The endpoint of one engine. While nobody reads, nothing is gathered.

    Args:
        engine: what is watched.
        limits: bounds of the service.
        gate: when it closes, streams end.
    """

    def __init__(self, engine: Engine, limits: ServiceLimits, gate: Gate) -> None:
        self._engine = engine
        self._most = limits.activity_readers
        self._gate = gate
        self._readers = 0

    async def answer(self, exchange: Exchange) -> None:
        """Answer `GET /v1/activity`: one event at once, then one every `interval` seconds."""
        asked = query_of(exchange, QUERY)
        interval, limit = _interval(asked.get("interval", "1")), _limit(asked.get("limit", "100"))
        with self._reading():
            await exchange.start_events()
            open_still = True
            while open_still:
                await exchange.send_events([self._engine.activity(limit)])
                with anyio.move_on_after(interval) as waiting:
                    await self._gate.wait_closed()
                open_still = waiting.cancelled_caught
            await exchange.end_events()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._readers >= self._most:
            raise Overloaded(f"{self._readers} clients read this already; at most {self._most} may at once")
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1


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
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= MOST_LISTED):
        raise UsageError(f"limit is {shown(text)}; it must be from 0 to {MOST_LISTED}", param="limit")
    return int(text[:9])
