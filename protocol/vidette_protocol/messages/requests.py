"""Requests as they go to the scheduler: tokenised and checked, one or several, and the end of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from vidette_protocol.messages.base import BaseBatchReq, BaseReq, Seconds
from vidette_protocol.messages.columns import EMPTY, Listed, view_i32
from vidette_protocol.messages.multimodal import MultimodalProcessorOutput, PositionalEmbeds
from vidette_protocol.messages.sampling import SamplingParams, check_sampling
from vidette_protocol.messages.sessions import SessionParams
from vidette_protocol.messages.tags import Tag


class TokenizedGenerateReqInput(BaseReq, tag=Tag.TOKENIZED_GENERATE, kw_only=True, frozen=True):
    """Front to scheduler: one request, tokenised and validated.

    Args:
        rid: for people (logs, traces); nothing is looked up by it, but what a session goes on behind.
        input_ids: packed int32, at least one; of a request that continues a session, what it adds.
        sampling_params: `sampling_seed` is always set, `max_new_tokens` never None, and `n` is 1.
        input_text: the prompt as it was given, for people; usually left out.
        image_inputs: what came of the images, video and audio.
        token_type_ids: a tensor of the prompt's length, for models that have them.
        return_logprob: report log probabilities.
        logprob_start_len: first position of the prompt to report them of; -1: of the output only.
        top_logprobs_num: how many of the most probable tokens to report at each position.
        token_ids_logprob: packed int32, tokens to report at each position; None: none.
        stream: whether the caller reads the answer as it comes.
        session_params: continue a session.
        lora_id: id of a loaded LoRA adapter; None: the base model.
        custom_logit_processor: name of a processor that the engine was opened with.
        positional_embed_overrides: embeddings that replace those of some positions.
        bootstrap_host: host of the prefill server, if prefill and decode are apart.
        bootstrap_port: its port.
        bootstrap_room: number of the transfer.
        routing_key: whose request it is, for fairness between tenants.
        priority: a higher one is served first.
        extra_key: namespace of the prefix cache.
        cache_salt: secret of the prefix cache's namespace.
        deadline_s: seconds from sending until the caller stops waiting; None: it waits as long as it takes.
            The scheduler ends the request a little later, should the front not have done so.
        resumed_output_ids: packed int32, what another scheduler had made of this request when it died; it is
            said again as one row at offset 0, and counts for everything as if it had been made here.
        timed: whether it is to be said when it was begun, and when its first and last tokens were made.
    """

    rid: str
    input_ids: memoryview
    sampling_params: SamplingParams
    input_text: str | None = None
    image_inputs: MultimodalProcessorOutput | None = None
    token_type_ids: object = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: memoryview | None = None
    stream: bool = False
    session_params: SessionParams | None = None
    lora_id: str | None = None
    custom_logit_processor: str | None = None
    positional_embed_overrides: PositionalEmbeds | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    routing_key: str | None = None
    priority: int = 0
    extra_key: str | None = None
    cache_salt: str | None = None
    deadline_s: Seconds | None = None
    resumed_output_ids: memoryview | None = None
    timed: bool = False

    @property
    def token_ids(self) -> memoryview:
        """The prompt as a view of int32."""
        return view_i32(self.input_ids)

    @property
    def resumed_ids(self) -> memoryview:
        """What was made before, as a view of int32."""
        return view_i32(EMPTY if self.resumed_output_ids is None else self.resumed_output_ids)

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        params = self.sampling_params
        if params.max_new_tokens is None or params.sampling_seed is None or params.n != 1:
            return "max_new_tokens or sampling_seed is not set, or n is not 1"
        return (
            _check_ids(self.input_ids)
            or _check_ids(self.token_ids_logprob)
            or _check_ids(self.resumed_output_ids)
            or check_sampling(params)
        )


class TokenizedEmbeddingReqInput(BaseReq, tag=Tag.TOKENIZED_EMBEDDING, kw_only=True, frozen=True):
    """Front to scheduler: one text to embed or pair to score, tokenised and validated.

    Args:
        rid: as in TokenizedGenerateReqInput.
        input_ids: packed int32, at least one; both texts of a pair, one after the other.
        input_text: likewise.
        image_inputs: likewise.
        token_type_ids: a tensor of the prompt's length; says which text of a pair a token is of.
        is_cross_encoder_request: `input_ids` is a pair to be scored.
        lora_id: as in TokenizedGenerateReqInput.
        positional_embed_overrides: likewise.
        priority: likewise.
        dimensions: length to cut the embedding to; None: its whole length.
    """

    rid: str
    input_ids: memoryview
    input_text: str | None = None
    image_inputs: MultimodalProcessorOutput | None = None
    token_type_ids: object = None
    is_cross_encoder_request: bool = False
    lora_id: str | None = None
    positional_embed_overrides: PositionalEmbeds | None = None
    priority: int = 0
    dimensions: int | None = None

    @property
    def token_ids(self) -> memoryview:
        """The text as a view of int32."""
        return view_i32(self.input_ids)

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        if self.dimensions is not None and self.dimensions < 1:
            return f"dimensions is {self.dimensions}"
        return _check_ids(self.input_ids)


Req = TypeVar("Req", TokenizedGenerateReqInput, TokenizedEmbeddingReqInput)


class BatchReqs(BaseBatchReq, Generic[Req], kw_only=True, frozen=True):
    """Base of requests of one kind that were submitted together.

    Args:
        reqs: at least one, no vid twice.
    """

    reqs: Listed[Req]

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.reqs)

    def __iter__(self) -> Iterator[Req]:
        """Iterate over the requests."""
        return iter(self.reqs)

    def __getitem__(self, row: int) -> Req:
        """Return one request."""
        return self.reqs[row]

    @property
    def vids(self) -> list[int]:
        """The vid of each request."""
        return [req.vid for req in self.reqs]

    @property
    def rids(self) -> list[str]:
        """The rid of each request."""
        return [req.rid for req in self.reqs]

    def check_columns(self) -> str | None:
        """Return in a sentence what the front must not have sent, or None."""
        if not self.reqs or len(set(self.vids)) != len(self.reqs):
            return f"{len(self.reqs)} requests, of which none may be missing and no vid come twice"
        return next((fault for req in self.reqs if (fault := req.check_columns()) is not None), None)


class BatchTokenizedGenerateReqInput(
    BatchReqs[TokenizedGenerateReqInput], tag=Tag.BATCH_TOKENIZED_GENERATE, kw_only=True, frozen=True
):
    """Front to scheduler: requests that were submitted together. The front takes their slots all or none.

    Args:
        reqs: at least one, no vid twice.
    """

    reqs: Listed[TokenizedGenerateReqInput]


class BatchTokenizedEmbeddingReqInput(
    BatchReqs[TokenizedEmbeddingReqInput], tag=Tag.BATCH_TOKENIZED_EMBEDDING, kw_only=True, frozen=True
):
    """Front to scheduler: texts to embed that were submitted together.

    Args:
        reqs: at least one, no vid twice.
    """

    reqs: Listed[TokenizedEmbeddingReqInput]


class AbortReq(BaseReq, tag=Tag.ABORT, kw_only=True, frozen=True):
    """Front to scheduler: the caller's scope has ended; free everything of one vid.

    The answer is an in-band finish with reason "abort", unless the request finished by itself before.
    An abort of an unknown vid is normal and has no answer.

    Args:
        vid: the request to end; matched exactly.
        abort_all: end every request of the front that issued `vid`, up to and including it. What is
            submitted later has a higher vid, so it is not touched, however late this comes.
        abort_message: what the finish says, in a sentence; None: that the caller ended it.
    """

    abort_all: bool = False
    abort_message: str | None = None


def _check_ids(column: memoryview | None) -> str | None:
    if column is not None and (column.nbytes == 0 or column.nbytes % 4):
        return f"token ids of {column.nbytes} bytes, not one or more int32"
    return None
