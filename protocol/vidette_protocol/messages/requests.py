"""Requests: what a caller asks for, and what of it goes to the scheduler."""

from __future__ import annotations

from msgspec import Struct

from vidette_protocol.messages.base import Message, Tag, WireVid
from vidette_protocol.messages.columns import view_i32
from vidette_protocol.messages.sampling import SamplingParams, check_sampling


class GenerateReqInput(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Caller to front: generate text. The JSON body of `POST /generate`, and what `Engine.generate` builds.

    Just one of `text` and `input_ids` is given. It never travels between processes.

    Args:
        rid: the caller's name for the request; None: one is made. Reusable as soon as the request is over.
        text: the prompt, at least one token long.
        input_ids: the prompt as token ids, each within the vocabulary.
        sampling_params: see SamplingParams.
        stream: answer in pieces as they come (HTTP only; the library always streams).
    """

    rid: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False


class TokenizedGenerateReqInput(Message, tag=Tag.TOKENIZED_GENERATE, kw_only=True, frozen=True):
    """Front to scheduler: one request, tokenised and validated.

    Args:
        vid: the only key of the request from here on.
        floor: lowest vid of this front that is not over; tombstones below it can be forgotten.
        rid: for people (logs, traces); nothing is looked up by it.
        input_ids: packed int32, at least one.
        sampling_params: `sampling_seed` is always set, `max_new_tokens` never None.
    """

    vid: WireVid
    floor: WireVid
    rid: str
    input_ids: memoryview
    sampling_params: SamplingParams

    @property
    def token_ids(self) -> memoryview:
        """The prompt as a view of int32."""
        return view_i32(self.input_ids)

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        nbytes = self.input_ids.nbytes
        if nbytes == 0 or nbytes % 4:
            return f"input_ids has {nbytes} bytes, not one or more int32"
        if self.sampling_params.max_new_tokens is None or self.sampling_params.sampling_seed is None:
            return "max_new_tokens or sampling_seed is not set"
        return check_sampling(self.sampling_params)


class AbortReq(Message, tag=Tag.ABORT, kw_only=True, frozen=True):
    """Front to scheduler: the caller's scope has ended; free everything of one vid.

    The answer is an in-band finish with reason "abort", unless the request finished by itself before.
    An abort of an unknown vid is normal and has no answer.

    Args:
        vid: the request to end; matched exactly.
        floor: as in TokenizedGenerateReqInput.
    """

    vid: WireVid
    floor: WireVid = 0
