"""`Calls`: what callers ask of the ring: heartbeats, collections of garbage, control messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from vidette._collector import Collector
from vidette.errors import UsageError
from vidette.front.questions import Questions
from vidette.front.route import seconds_until
from vidette.transport.link import Link
from vidette_protocol.errors import ProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    ContinueGenerationReqInput,
    ControlOutput,
    ControlReq,
    FreezeGCReq,
    GcState,
    HeartbeatReq,
    PauseGenerationReqInput,
)

LONGEST_FREEZE_SECONDS: Final = 604800.0
"""Longest time for which a freeze may be asked for, a week; without one it lasts until it is ended."""


class GcReport(Struct, frozen=True):
    """The garbage collectors of all processes of an engine, as a call has left them.

    Args:
        front: that of the program.
        scheduler: None: it is in the program's process.
        detokenizers: those of all detokenizers; empty: likewise.
    """

    front: GcState
    scheduler: GcState | None
    detokenizers: tuple[GcState, ...]


class Calls:
    """The calls of one front.

    Args:
        questions: what waits for answers.
        link: returns the link to ask on; raises what keeps it from being answered.
        floor: says which vid is the lowest that is not over.
    """

    def __init__(self, questions: Questions, *, link: Callable[[], Link], floor: Callable[[], Vid]) -> None:
        self.collector = Collector()
        """That of this process."""
        self._questions = questions
        self._link = link
        self._floor = floor
        self._paused = False
        """Whether the scheduler was told to pause, and not to go on."""

    async def heartbeat(self, *, bounded: bool = True) -> HeartbeatReq:
        """Ask round the ring, through the step loop; return what comes back, with what all of it holds.

        Args:
            bounded: as of `Questions.ask`.
        """
        floor, post = self._floor(), self._link().post
        answers = await self._questions.ask(
            lambda call: HeartbeatReq(id=call, floor=floor), HeartbeatReq, post, bounded=bounded
        )
        beats = [beat for beat in answers if isinstance(beat, HeartbeatReq)]  # Questions has seen to it
        held = sum(beat.detokenizer_open or 0 for beat in beats)
        return msgspec.structs.replace(beats[0], detokenizer_open=held)

    async def freeze_gc(self, wanted: FreezeGCReq = FreezeGCReq()) -> GcReport:  # noqa: B008  immutable
        """Freeze or un-freeze the collectors of all processes, this one last.

        Raises:
            UsageError: it is for longer than LONGEST_FREEZE_SECONDS, or less than no time.
        """
        seconds = wanted.duration_s
        if seconds is not None and not 0 <= seconds <= LONGEST_FREEZE_SECONDS:  # NaN neither
            raise UsageError(
                f"duration_s is {seconds}; it must be from 0 to {LONGEST_FREEZE_SECONDS:.0f} s, or None",
                param="duration_s",
            )
        post = self._link().post
        answers = await self._questions.ask(
            lambda call: msgspec.structs.replace(wanted, id=call), FreezeGCReq, post
        )
        done = [answer for answer in answers if isinstance(answer, FreezeGCReq)]  # likewise
        states = tuple(answer.detokenizer for answer in done if answer.detokenizer is not None)
        return GcReport(self.collector.apply(wanted), done[0].scheduler, states)

    async def control(self, request: ControlReq) -> ControlOutput:
        """Send a control message to the scheduler; return its answer. See `vidette.Engine.control`."""
        seconds = request.deadline_s
        if seconds is None:
            seconds = seconds_until(anyio.current_effective_deadline())
        question = msgspec.structs.replace(request, id=0, deadline_s=seconds)
        link = self._link()
        try:
            link.check(question)
            if isinstance(request, PauseGenerationReqInput | ContinueGenerationReqInput):
                self._paused = isinstance(request, PauseGenerationReqInput)  # also if nobody waits so long
            with anyio.fail_after(request.deadline_s):
                (answer,) = await self._questions.ask(
                    lambda call: msgspec.structs.replace(question, id=call), request.output, link.post
                )
        except ProtocolError as error:  # also that it is too long for a frame, which shows when it is posted
            raise UsageError(f"{type(request).__name__} cannot be sent: {error}") from error
        assert isinstance(answer, ControlOutput)  # likewise
        return answer

    def tell(self, request: ControlReq) -> None:
        """Send a control message to whose answer nobody listens."""
        self._questions.tell(
            lambda call: msgspec.structs.replace(request, id=call), request.output, self._link().post
        )

    def repeat(self) -> None:
        """Have a ring that took the place of another paused and frozen as that was; nobody waits for it."""
        if self._paused:
            self.tell(PauseGenerationReqInput(id=0, mode="in_place"))
        wanted = self.collector.again
        if wanted is not None:
            self._questions.tell(
                lambda call: msgspec.structs.replace(wanted, id=call), FreezeGCReq, self._link().post
            )
