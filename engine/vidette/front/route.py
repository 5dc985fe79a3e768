"""`Route`: a request that was sent, and to whom its output goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from vidette.errors import Error, RequestError
from vidette.front.logprobs import LogprobsAsked
from vidette.front.stream import Stream
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    BatchTokenizedGenerateReqInput,
    GenerateItem,
    SamplingParams,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.columns import pack_i32, view_i32

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
        asked = None
        if message.return_logprob:
            ids = () if message.token_ids_logprob is None else tuple(view_i32(message.token_ids_logprob))
            asked = LogprobsAsked(message.top_logprobs_num, ids)
        stream = Stream(message.rid, Vid(message.vid), len(message.input_ids) // 4, asked)
        left = math.inf if message.deadline_s is None else message.deadline_s
        return cls(stream, message, anyio.current_time() + left)

    @property
    def resumes(self) -> bool:
        """Whether it goes on after the death of a process."""
        return self.message.session_params is None and self.stream.resumed < MAX_RESUMES

    @property
    def unheard(self) -> bool:
        """Whether it is of a session, and was not read to its end: then it does not count there."""
        return self.message.session_params is not None and not self.stream.done

    def give_up(self) -> Error:
        """Return what a caller is told whose request goes on no more."""
        if self.message.session_params is not None:
            return RequestError(
                f"request {self.stream.rid!r} failed: the process that held its session has ended, and "
                f"sessions do not go on after that; open another"
            )
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


def to_send(
    item: GenerateItem,
    prompt: memoryview,
    params: SamplingParams,
    *,
    vid: Vid,
    floor: Vid,
    deadline_s: float | None,
    timed: bool = False,
) -> TokenizedGenerateReqInput:
    """Return a request as it goes to the scheduler.

    Args:
        item: as it was asked for.
        prompt: token ids, packed int32.
        params: its sampling parameters, with nothing left open.
        vid: its key.
        floor: the lowest vid that is not over.
        deadline_s: seconds from sending, after which the scheduler ends it; None: never.
        timed: whether its stages are to be told.
    """
    return TokenizedGenerateReqInput(
        vid=vid,
        floor=floor,
        rid=item.rid,
        input_ids=prompt,
        sampling_params=params,
        return_logprob=item.return_logprob,
        logprob_start_len=item.logprob_start_len,
        top_logprobs_num=item.top_logprobs_num,
        token_ids_logprob=pack_i32(item.token_ids_logprob) if item.token_ids_logprob else None,
        stream=item.stream,
        session_params=item.session_params,
        routing_key=item.routing_key,
        priority=item.priority or 0,
        extra_key=item.extra_key,
        cache_salt=item.cache_salt,
        deadline_s=deadline_s,
        timed=timed,
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
