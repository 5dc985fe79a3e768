"""`POST /generate`, in the shape of SGLang's: an answer, or a list of them where several were asked for.

The fields are those of GenerateReqInput and SamplingParams. What of them is not supported yet, and what
SGLang has besides, is answered with a 400 unless it asks for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from vidette import (
    Delta,
    Engine,
    FinishReason,
    GenerateReqInput,
    OperationName,
    SamplingParams,
    Stream,
    TokenLogprob,
)
from vidette.api import UNSUPPORTED, UNSUPPORTED_SAMPLING
from vidette.errors import UsageError
from vidette.service.fields import FIELD_BYTES, Fields, Neutral, Reader
from vidette.service.generation import answer_generation, answer_group
from vidette.service.meta_info import Listed, LogprobsInJSON, meta_info
from vidette.service.prompts import LIMITS, read_ids_up_to
from vidette.service.responses import Exchange

ONLY_SGLANG: Final = MappingProxyType[str, Neutral](
    {
        "bootstrap_pair_key": (),
        "conversation_id": (),
        "custom_labels": ({},),
        "decode_tp_size": (),
        "disagg_prefill_dp_rank": (),
        "encoder_urls": (),
        "external_trace_header": (),
        "http_worker_ipc": (),
        "image_max_dynamic_patch": (),
        "images_config": (),
        "kv_router_hint": (),
        "lora_id": (),
        "max_dynamic_patch": (),
        "max_thinking_tokens": (),
        "min_dynamic_patch": (),
        "mm_content_hashes": (),
        "multi_item_delimiter_indices": (),
        "need_wait_for_mm_inputs": (False,),
        "no_logs": (False, True),  # prompts are never logged
        "num_items_assigned": (),
        "received_time": (),
        "require_reasoning": (False,),
        "return_bytes": (False,),
        "return_entropy": (False,),
        "return_hidden_states": (False,),
        "return_indexer_topk": (False,),
        "return_prompt_token_ids": (False,),
        "return_routed_experts": (False,),
        "return_sampling_mask": (False,),
        "routed_experts_start_len": (0,),
        "use_audio_in_video": (False,),
        "video_config": (),
        "video_max_dynamic_patch": (),
    }
)
"""Fields of SGLang's GenerateReqInput that ours has not, with the values that ask for nothing."""

SAMPLING_ONLY_SGLANG: Final = MappingProxyType[str, Neutral]({"beam_width": (1,)})
"""Fields of SGLang's SamplingParams that ours has not."""


class NativeRequest(GenerateReqInput, kw_only=True, frozen=True):
    """The body: a GenerateReqInput, and how its answer is written.

    Args:
        return_flat_raw_top_logprobs: write the most probable tokens of the prompt as two flat lists.
        return_flat_raw_top_logprobs_b64: write these as base64 of packed numbers; only with the former.
    """

    return_flat_raw_top_logprobs: bool = False
    return_flat_raw_top_logprobs_b64: bool = False


class Output(Struct, frozen=True):
    """The answer, or what there is of it so far.

    Args:
        text: all of its text so far.
        output_ids: all of its tokens so far.
        meta_info: the rest.
        index: in a stream of several answers: which of them it is.
    """

    text: str
    output_ids: Annotated[Raw, Meta(extra_json_schema={"type": "array", "items": {"type": "integer"}})]
    meta_info: dict[str, Any]
    index: int | UnsetType = UNSET


SAMPLING: Final = Fields(
    SamplingParams,
    {
        **{name: neutral for name, neutral in UNSUPPORTED_SAMPLING.items() if name != "n"},
        **SAMPLING_ONLY_SGLANG,
    },
    field_bytes=FIELD_BYTES,
)


def fields_up_to(most: int) -> Fields[NativeRequest]:
    """Return the fields of the body.

    Args:
        most: token ids of one prompt that could be served.
    """
    return Fields(
        NativeRequest,
        {**UNSUPPORTED, **ONLY_SGLANG},
        readers={"input_ids": read_ids_up_to(most), "sampling_params": _one_or_many(SAMPLING)},
    )


class NativeShape:
    """Answers in SGLang's shape; the events of a stream each hold all of the output so far.

    Args:
        several: whether the answer is a list.
        new_logprobs: makes what writes the log probabilities of one answer.
    """

    operation: ClassVar[OperationName] = "text_completion"

    def __init__(
        self, *, several: bool = False, new_logprobs: Callable[[], LogprobsInJSON] = LogprobsInJSON
    ) -> None:
        self._began = time.monotonic()
        self._several = several
        self._new_logprobs = new_logprobs
        self._said: dict[int, tuple[Listed, LogprobsInJSON]] = {}

    def whole(self, streams: Sequence[Stream]) -> object:
        """Return the answer of requests that were read to their ends."""
        outputs = [
            self._output(stream, stream.token_ids, stream.logprobs, stream.completion().finish_reason, index)
            for index, stream in enumerate(streams)
        ]
        return outputs if self._several else outputs[0]

    def pieces(self, stream: Stream, delta: Delta, index: int) -> Iterator[Output]:
        """Yield what there is of an answer after a delta."""
        output = self._output(stream, delta.token_ids, delta.logprobs, delta.finish_reason, index)
        yield msgspec.structs.replace(output, index=index) if self._several else output

    def ending(self, streams: Sequence[Stream]) -> Iterable[Output]:  # noqa: ARG002  nothing to say of them
        """Return nothing: the last event of each answer says all."""
        return ()

    def _output(
        self,
        stream: Stream,
        token_ids: Iterable[int],
        logprobs: Iterable[TokenLogprob],
        reason: FinishReason | None,
        index: int,
    ) -> Output:
        """Return what there is of an answer once something was added to it."""
        if index not in self._said:
            self._said[index] = Listed(), self._new_logprobs()
        ids, written = self._said[index]
        for token_id in token_ids:
            ids.add(token_id)
        written.add(logprobs)
        meta = meta_info(stream, reason, written, time.monotonic() - self._began)
        return Output(stream.text, ids.raw(), meta)


class Native:
    """The endpoint of one engine.

    Args:
        engine: what answers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fields = fields_up_to(engine.max_total_tokens)

    async def generate(self, exchange: Exchange) -> None:
        """Answer `POST /generate`."""
        body = self._fields.decode(exchange.take_body())
        flat, packed = body.return_flat_raw_top_logprobs, body.return_flat_raw_top_logprobs_b64
        if packed and not flat:
            raise UsageError(
                "return_flat_raw_top_logprobs_b64 is only allowed with return_flat_raw_top_logprobs",
                param="return_flat_raw_top_logprobs_b64",
            )
        text_of = self._text_of if body.return_text_in_logprobs else None
        new_logprobs = partial(LogprobsInJSON, text_of, flat=flat, packed=packed)
        request = _without_style(body)
        several = _is_group(request)
        shape = NativeShape(several=several, new_logprobs=new_logprobs)
        answer = answer_group if several else answer_generation
        await answer(exchange, self._engine, request, shape)

    def _text_of(self, token_id: int) -> str:
        return self._engine.token_bytes(token_id).decode(errors="replace")


def _without_style(body: NativeRequest) -> GenerateReqInput:
    """Return what a body asks of the engine."""
    fields = msgspec.structs.asdict(body)
    return GenerateReqInput(**{name: fields[name] for name in GenerateReqInput.__struct_fields__})


def _is_group(request: GenerateReqInput) -> bool:
    """Return whether the answer is a list."""
    ids, params = request.input_ids, request.sampling_params
    if not isinstance(params, SamplingParams):
        params = params[0] if params else SamplingParams()
    nested = ids is not None and len(ids) > 0 and isinstance(ids[0], list)
    return nested or isinstance(request.text, list) or params.n > 1


def _one_or_many(fields: Fields[SamplingParams]) -> Reader:
    """Return a reader of sampling parameters, for all prompts or a list with some for each."""

    def read(raw: bytes, path: str) -> Any:
        if raw.startswith(b"["):
            return fields.decode_many(raw, path, LIMITS.answers)
        return fields.decode(raw, path)

    return read
