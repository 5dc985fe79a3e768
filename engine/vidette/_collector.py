"""`Collector`: the garbage collector of a process with an event loop, frozen for a while on request."""

from __future__ import annotations

import gc
import math

import anyio

from vidette._freeze import Freeze, carry_out
from vidette_protocol.messages import FreezeGCReq, GcState


class Collector:
    """The collector of this process, with a task that un-freezes it when the time has come."""

    def __init__(self) -> None:
        self._freeze = Freeze()
        self._changed = anyio.Event()
        self._closed = False

    def apply(self, question: FreezeGCReq) -> GcState:
        """Do what was asked for, now; nothing once it is closed, when nobody would un-freeze any more."""
        if self._closed:
            return GcState(0.0, gc.get_freeze_count())
        self._freeze.note(question, anyio.current_time())
        self._changed.set()
        return carry_out(question)

    @property
    def again(self) -> FreezeGCReq | None:
        """What has to be asked of another process for it to be frozen as long as this one; None: nothing."""
        until = self._freeze.until
        if until is None:
            return None
        left = None if until == math.inf else max(0.0, until - anyio.current_time())
        return FreezeGCReq(duration_s=left)

    async def run(self) -> None:
        """Un-freeze in time, until cancelled."""
        while True:
            self._changed = anyio.Event()
            until = self._freeze.ends_at
            with anyio.CancelScope(deadline=math.inf if until is None else until):
                await self._changed.wait()
            if self._freeze.pass_time(anyio.current_time()):
                gc.unfreeze()

    def close(self) -> None:
        """Un-freeze if it is frozen, for good."""
        self._closed = True
        if self._freeze.until is not None:
            self._freeze.until = None
            gc.unfreeze()
