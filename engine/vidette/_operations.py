"""`Operations`: what whoever runs an engine does with it, besides having text made."""

from __future__ import annotations

from typing import Literal

from vidette._activity import MOST_LISTED, Activity, activity_of
from vidette._supervisor import Supervisor
from vidette.config import EngineConfig
from vidette.errors import UsageError
from vidette.front.calls import GcReport
from vidette.front.manager import TokenizerManager
from vidette_protocol.messages import (
    ContinueGenerationReqInput,
    ControlOutput,
    FreezeGCReq,
    PauseGenerationReqInput,
)

PauseMode = Literal["abort", "retract", "in_place"]
"""What a pause does with the requests that live."""
PAUSED = "generation is paused"
"""Why requests were ended by a pause."""


class Operations:
    """The part of an engine that is for whoever runs it."""

    _manager: TokenizerManager
    _supervisor: Supervisor

    @property
    def config(self) -> EngineConfig:
        """What the engine was made with."""
        return self._supervisor.config

    def activity(self, most: int = MOST_LISTED) -> Activity:
        """Return what the engine is doing: what lives, its processes, and its statistics.

        It is gathered when it is asked for, and costs nothing else. Prompts and output are not in it; the
        names of requests are, which others may have chosen.

        Args:
            most: how many requests are listed, those that have lived longest.

        Raises:
            UsageError: that is below 0.
        """
        if most < 0:
            raise UsageError(f"most is {most}; it must be 0 or more", param="most")
        return activity_of(self._manager, self._supervisor, most)

    def abort(self, rid: str, why: str | None = None) -> int:
        """End the request of a rid at once, whoever reads it, or all answers of a group that was given it.

        It matches exactly, also what is not sent yet. Whoever reads it gets what has come of it, and then
        RequestAborted; the rid is free at once.

        Args:
            rid: as the request was given it.
            why: a sentence for those who read it.

        Returns:
            How many answers were ended; 0: no such request lives.
        """
        return self._manager.aborts.one(rid, why)

    async def pause_generation(
        self, mode: PauseMode = "abort", *, deadline_s: float | None = None
    ) -> ControlOutput:
        """Have the scheduler take no step until `continue_generation()`; new requests wait.

        Aborts, questions and deadlines go on. A scheduler that is started again is paused as well.

        Args:
            mode: what becomes of the requests that live. "abort": they end, with RequestAborted. "retract":
                they hold no blocks, so that the caches can be emptied, and are computed anew later.
                "in_place": they stay as they are.
            deadline_s: how long to wait for the answer; None: as long as it takes.

        Raises:
            TimeoutError: no answer came within `deadline_s`.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        if mode == "abort":
            # Nothing awaits in between: what comes from now on is sent behind the pause.
            self._manager.aborts.all(PAUSED)
        return await self._manager.calls.control(
            PauseGenerationReqInput(id=0, mode=mode, deadline_s=deadline_s)
        )

    async def continue_generation(
        self, *, empty_cache: bool = True, deadline_s: float | None = None
    ) -> ControlOutput:
        """Have the scheduler go on after a pause; nothing happens if there was none.

        Args:
            empty_cache: give memory that torch keeps back to the device first.
            deadline_s: how long to wait for the answer; None: as long as it takes.

        Raises:
            TimeoutError: no answer came within `deadline_s`.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await self._manager.calls.control(
            ContinueGenerationReqInput(id=0, torch_empty_cache=empty_cache, deadline_s=deadline_s)
        )

    async def freeze_gc(self, duration_s: float | None = None) -> GcReport:
        """Collect garbage once in all processes, and leave what lives then out of collections for a while.

        This process is one of them: with the topology "inline" it is the only one. Freezes nest: it lasts
        as long as the longest that was asked for, until `unfreeze_gc()`, or until the engine is closed. A
        process that is started again is frozen as well. A call that is cancelled may have been carried out
        in part.

        Args:
            duration_s: seconds until each process un-freezes by itself; None: not before it is told to.

        Returns:
            How long the collection took in each process, and how many objects are frozen there.

        Raises:
            UsageError: the time is out of range.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await self._manager.calls.freeze_gc(FreezeGCReq(duration_s=duration_s))

    async def unfreeze_gc(self) -> GcReport:
        """Let all that `freeze_gc()` left out be collected again, in all processes; nothing if nothing is.

        What the program has frozen itself is un-frozen as well: a process has one collector.

        Raises:
            EngineBroken, EngineClosed: the engine serves no more.
        """
        return await self._manager.calls.freeze_gc(FreezeGCReq(unfreeze=True))
