"""`Totals`: what has become of requests, counted."""

from __future__ import annotations

from msgspec import Struct

from vidette_protocol.messages import FinishReason


class Totals(Struct):
    """What has become of requests since the start.

    Args:
        submitted: sent to the scheduler; what the front refuses is in none of these.
        finished: came to their own end.
        aborted: left by their callers before.
        failed: ended with an error, of their own or of the engine.
        dropped: rows that came for callers who were gone.
        resumed: how often one went on after the death of a process; each time counts.
    """

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    dropped: int = 0
    resumed: int = 0

    def end(self, reason: FinishReason) -> None:
        """Count a request that came to its end."""
        if reason.type == "error":
            self.failed += 1
        else:
            self.finished += 1
