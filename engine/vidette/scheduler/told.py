"""`Told`: what a step has to say, as it comes up."""

from __future__ import annotations

from vidette_protocol.ids import Vid
from vidette_protocol.messages import FreezeGCReq, HeartbeatReq, ProfileReq, ShutdownReq, TokenRow


class Told:
    """What a step has to say, as it comes up.

    Attributes:
        now: when the step is taken.
        rows: of requests.
        over: vids that ended.
        questions: what was asked of the loop, to be answered behind the rows.
        thaw: whether the garbage collector is to be un-frozen.
    """

    __slots__ = ("now", "over", "questions", "rows", "thaw")

    def __init__(self, now: float) -> None:
        self.now = now
        self.rows: list[TokenRow] = []
        self.over: list[Vid] = []
        self.questions: list[HeartbeatReq | FreezeGCReq | ProfileReq | ShutdownReq] = []
        self.thaw = False
