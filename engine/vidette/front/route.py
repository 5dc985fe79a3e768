"""`Route`: a request that was sent, and to whom its output goes."""

from __future__ import annotations

import math
from typing import NamedTuple

import anyio
import msgspec

from vidette.front.stream import Stream
from vidette_protocol.ids import Vid
from vidette_protocol.messages import TokenizedGenerateReqInput
from vidette_protocol.messages.columns import pack_i32


class Route(NamedTuple):
    """A request that was sent.

    Args:
        stream: of its caller.
        message: as it was sent first.
        until: its deadline on the loop's clock; infinity: none.
    """

    stream: Stream
    message: TokenizedGenerateReqInput
    until: float

    @classmethod
    def of(cls, message: TokenizedGenerateReqInput) -> Route:
        """Return that of a request which is sent now for the first time."""
        stream = Stream(message.rid, Vid(message.vid), len(message.input_ids) // 4)
        left = math.inf if message.deadline_s is None else message.deadline_s
        return cls(stream, message, anyio.current_time() + left)

    def again(self, floor: Vid) -> TokenizedGenerateReqInput:
        """Return what is sent now, under the stream's vid, for the request to go on behind its output."""
        heard = self.stream.heard_ids
        return msgspec.structs.replace(
            self.message,
            vid=self.stream.vid,
            floor=floor,
            deadline_s=seconds_until(self.until),
            resumed_output_ids=pack_i32(heard) if heard else None,
        )


def seconds_until(deadline: float) -> float | None:
    """Return how long it is until a time on the loop's clock, at least 0; None if that never comes."""
    return None if deadline == math.inf else max(0.0, deadline - anyio.current_time())
