"""`Row`: what one step says of one request, as far as the machines care (no text, no token ids)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from vidette_protocol.ids import Vid
from vidette_protocol.messages import FinishReason


class End(Enum):
    """Why a row is the last of its vid."""

    FINISH = "finish"
    """The request came to its own end: stop, length, or an error of its own."""
    ABORT = "abort"
    """Its caller aborted it; this is the acknowledgement."""


class Row(NamedTuple):
    """One request's share of a step: so many `tokens` from `offset` on, the last ones if `end` is set."""

    vid: Vid
    offset: int
    tokens: int
    end: End | None


def end_of(reason: FinishReason | None) -> End | None:
    """Return what a finish reason on the wire is to the machines."""
    if reason is None:
        return None
    return End.ABORT if reason.type == "abort" else End.FINISH


def unheard(heard: int, offset: int, tokens: int) -> int:
    """Return how many of a row's tokens, its last ones, are new to a caller.

    A request that goes on elsewhere says again what it has said before; its caller hears each token once.

    Args:
        heard: tokens that the caller has heard.
        offset: of the row's first token.
        tokens: of the row.
    """
    return max(0, min(tokens, offset + tokens - heard))
