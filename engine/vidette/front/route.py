"""`Route`: a request that was sent, and to whom its output goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from vidette.errors import Error, RequestError
from vidette.front.stream import Stream
from vidette_protocol.ids import Vid
from vidette_protocol.messages import BatchTokenizedGenerateReqInput, TokenizedGenerateReqInput
from vidette_protocol.messages.columns import pack_i32

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Token ids of requests that are sent in one message."""


MAX_RESUMES: Final = 3
"""How often a request goes on after the death of a process; then it may be what they die of."""


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

    def give_up(self) -> Error:
        """Return what a caller is told whose request goes on no more."""
        times = MAX_RESUMES + 1
        return RequestError(f"request {self.stream.rid!r} failed: processes died over it {times} times")

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


def batches(
    messages: Sequence[TokenizedGenerateReqInput],
) -> Iterator[BatchTokenizedGenerateReqInput]:
    """Put requests together, but never so many that a frame could be too long."""
    batch: list[TokenizedGenerateReqInput] = []
    nbytes = 0
    for message in messages:
        if batch and nbytes + message.input_ids.nbytes > BATCH_BYTES:
            yield BatchTokenizedGenerateReqInput(reqs=batch)
            batch, nbytes = [], 0
        batch.append(message)
        nbytes += message.input_ids.nbytes
    yield BatchTokenizedGenerateReqInput(reqs=batch)
