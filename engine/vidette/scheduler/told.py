"""`Told`: what a step has to say, as it comes up."""

from __future__ import annotations

from collections.abc import Callable

from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    ControlOutput,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    ProfileReq,
    SchedulerLedger,
    ShutdownReq,
    TokenRow,
)


class Told:
    """What a step has to say, as it comes up.

    Attributes:
        now: when the step is taken.
        rows: of requests.
        over: vids that ended.
        questions: what was asked of the loop, to be answered behind the rows.
        answers: to the front itself.
        thaw: whether the garbage collector is to be un-frozen.
    """

    __slots__ = ("answers", "now", "over", "questions", "rows", "thaw")

    def __init__(self, now: float) -> None:
        self.now = now
        self.rows: list[TokenRow] = []
        self.over: list[Vid] = []
        self.questions: list[HeartbeatReq | FreezeGCReq | ProfileReq | ShutdownReq] = []
        self.answers: list[ControlOutput] = []
        self.thaw = False

    @property
    def stop(self) -> bool:
        """Whether this is the last step."""
        return any(isinstance(question, ShutdownReq) for question in self.questions)

    def answer(self, ledger: Callable[[], SchedulerLedger]) -> list[Message]:
        """Return the answers that go the way of the rows, behind them."""
        answers: list[Message] = []
        for question in self.questions:
            match question:
                case HeartbeatReq(id=call, floor=floor):
                    answers.append(HeartbeatReq(id=call, floor=floor, scheduler=ledger()))
                case ShutdownReq():
                    answers.append(question)
        return answers

    @property
    def freezes(self) -> tuple[FreezeGCReq, ...]:
        """What was asked of the collector; nothing may follow the last message, and nobody waits for it."""
        return () if self.stop else tuple(each for each in self.questions if isinstance(each, FreezeGCReq))

    @property
    def profiles(self) -> tuple[ProfileReq, ...]:
        """What was asked of the profiler."""
        return tuple(each for each in self.questions if isinstance(each, ProfileReq))
