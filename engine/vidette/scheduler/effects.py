"""What a step takes, and what it wants done."""

from __future__ import annotations

from typing import NamedTuple

from vidette.scheduler.controls import Control
from vidette.scheduler.radix import KVEvent
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    ControlOutput,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    ProfileReq,
    ShutdownReq,
    TokenizedGenerateReqInput,
)

Command = (
    TokenizedGenerateReqInput | AbortReq | HeartbeatReq | FreezeGCReq | ShutdownReq | ProfileReq | Control
)
"""What a step takes: the front's messages, as they came."""


class Effects(NamedTuple):
    """What one step wants done, in this order.

    Args:
        messages: to the detokenizers.
        over: vids that ended.
        busy: whether the next step has something to compute; if not, wait for a command.
        wake_at: when the next step is due even if nothing is computed and no command comes; None: never.
        freeze_gc: what was asked of this process's garbage collector; each goes to the detokenizer with what
            came of it.
        stop: whether this was the last step.
        answers: to the front itself, in any order with the rest.
        unfreeze_gc: whether the collector is to be un-frozen because its time has come.
        events: what has changed in the prefix cache, in order, if that is told; before the answers.
        profile: what was asked of the profiler, each to be answered to the front itself.
        in_flight: whether a batch is computed meanwhile, so that the next step is due as soon as all this is
            done, whatever else holds it up.
    """

    messages: list[Message]
    over: list[Vid]
    busy: bool
    wake_at: float | None = None
    freeze_gc: tuple[FreezeGCReq, ...] = ()
    stop: bool = False
    answers: tuple[ControlOutput, ...] = ()
    unfreeze_gc: bool = False
    events: tuple[KVEvent, ...] = ()
    profile: tuple[ProfileReq, ...] = ()
    in_flight: bool = False
