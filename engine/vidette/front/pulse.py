"""`Pulse`: whether the ring turns, told by what comes round it.

While requests live, a heartbeat is posted now and then, unless one is on its way already. While none lives
nothing is posted, and nobody wakes. A heartbeat that somebody else asks for is evidence like any other, also
once nobody waits for it any more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from vidette.errors import Error

HEARTBEAT_SECONDS: Final = 0.5
"""How long after one heartbeat, at least, the next is posted while requests live."""
STANDSTILL_SECONDS: Final = 1.0
"""Longest time between two looks at the clock that counts. Beyond it this loop itself stood still, be it
blocked or suspended, and may not have read yet what has come."""


class Pulse:
    """The heartbeats of one front.

    Args:
        ask: sends a heartbeat round the ring, and waits for it; refuses only if the ring is gone.
        living: says how many requests live.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]], living: Callable[[], int]) -> None:
        self._ask = ask
        self._living = living
        self._due: dict[int, float] = {}
        """When each heartbeat was posted that has not come back, the oldest first."""
        self._heard: float | None = None
        self._begun = anyio.Event()
        self._news = anyio.Event()
        self._turned = 0.0
        self._looked = -math.inf

    # --- what is known -----------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """How long the oldest heartbeat has been on its way that has not come back; 0 if none is."""
        return self._look() - next(iter(self._due.values())) if self._due else 0.0

    @property
    def heard_s(self) -> float | None:
        """How long ago tokens or a heartbeat last came round this ring; None if nothing has yet."""
        return None if self._heard is None else anyio.current_time() - self._heard

    async def wait_news(self) -> None:
        """Wait until a heartbeat comes back, or some time has passed in which one has not."""
        await self._news.wait()

    # --- what happens ------------------------------------------------------------------

    def wake(self) -> None:
        """Note that a request lives."""
        self._begun.set()

    def asked(self, call: int) -> None:
        """Note that a heartbeat is being posted."""
        self._due[call] = self._look()
        self._begun.set()

    def answered(self, call: int) -> None:
        """Note that a heartbeat has come back, should it be one."""
        if self._due.pop(call, None) is not None:
            self.heard()
            self._tell()

    def heard(self) -> None:
        """Note that something came round the ring."""
        self._heard = anyio.current_time()

    def lost(self) -> None:
        """Note that the ring is gone, and with it whatever was on its way."""
        self._due.clear()
        self._heard = None
        self._tell()

    async def run(self) -> None:
        """Ask a ring at once, and then while anything lives, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_once)
            while True:
                await self._begun.wait()
                await anyio.sleep(HEARTBEAT_SECONDS)
                self._look()
                self._tell()
                if self._due:
                    continue
                if self._living():
                    tasks.start_soon(self._ask_once)
                else:
                    self._begun = anyio.Event()

    async def _ask_once(self) -> None:
        with suppress(Error):  # the ring is gone, and whoever has to know it does
            await self._ask()

    def _look(self) -> float:
        """Return the time on a clock that stands still while the loop does."""
        now = anyio.current_time()
        self._turned += min(now - self._looked, STANDSTILL_SECONDS)
        self._looked = now
        return self._turned

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()
