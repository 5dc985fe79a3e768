"""Why a scheduler ends requests, besides what they do themselves."""

from __future__ import annotations

from typing import Final

from vidette_protocol.messages import FinishReason

ABORTED: Final = FinishReason("abort", message="the caller ended the request")
EXPIRED: Final = FinishReason(
    "error", message="its deadline passed", status_code=504, err_type="deadline_exceeded"
)
WAITED: Final = FinishReason(
    "error", message="it waited too long to be begun", status_code=503, err_type="waiting_timeout"
)
RAN: Final = FinishReason("error", message="it ran too long", status_code=503, err_type="running_timeout")
REPLACED: Final = FinishReason(
    "error", message="another request of its session took its place", status_code=409, err_type="replaced"
)
"""An error and no abort: the front has not aborted it, and would take the answer to an abort for a fault."""
PAUSED: Final = FinishReason("error", message="generation was paused", status_code=503, err_type="paused")
"""Likewise."""
NOT_FINITE_LOGITS: Final = FinishReason("error", message="the model's logits are not finite")
DEADLINE_GRACE: Final = 0.1
"""Seconds that a deadline is passed before a request is ended here. The front has it end by itself, which it
knows better; this is for a front that is stuck."""


def failed(error: Exception) -> FinishReason:
    """Return how a request ends that is to blame for an exception in the step loop."""
    message = f"it failed in the step loop: {type(error).__name__}: {error}"
    return FinishReason("error", message=message, status_code=500, err_type="internal_error")
