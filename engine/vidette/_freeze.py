"""What becomes of a process's garbage collector: until when it is frozen, and how. No event loop in here.

What lives when it is frozen is left out of collections, which then take less time. Freezes nest: it lasts as
long as the longest that was asked for, and un-freezing ends them all.
"""

from __future__ import annotations

import gc
import math
import time

from vidette_protocol.messages import FreezeGCReq, GcState


class Freeze:
    """Until when what lives is left out of collections; it reads no clock and touches no collector.

    Attributes:
        until: on the caller's clock; infinity: until it is ended; None: nothing is frozen.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until: float | None = None

    def note(self, question: FreezeGCReq, now: float) -> None:
        """Note what was asked for."""
        if question.unfreeze:
            self.until = None
            return
        seconds = math.inf if question.duration_s is None else question.duration_s
        self.until = max(now + seconds, now if self.until is None else self.until)

    def pass_time(self, now: float) -> bool:
        """Return whether the freeze ends now by itself."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        return True

    @property
    def ends_at(self) -> float | None:
        """When the freeze ends by itself; None: it does not, or there is none."""
        return None if self.until == math.inf else self.until


def carry_out(question: FreezeGCReq) -> GcState:
    """Collect garbage and freeze what is left, or un-freeze; return how long that took."""
    began = time.perf_counter()
    if question.unfreeze:
        gc.unfreeze()
    else:
        gc.collect()
        gc.freeze()
    return GcState(time.perf_counter() - began, gc.get_freeze_count())
