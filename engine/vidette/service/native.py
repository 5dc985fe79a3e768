"""`POST /generate`, in the shape of SGLang's: an answer, or a list of them where several were asked for.

The fields are those of GenerateReqInput and SamplingParams. What of them is not supported yet, and what
SGLang has besides, is answered with a 400 unless it asks for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from vidette import Delta, Engine, FinishReason, GenerateReqInput, SamplingParams, Stream
from vidette.api import UNSUPPORTED, UNSUPPORTED_SAMPLING
from vidette.errors import UsageError
from vidette.service.fields import Fields, Neutral, Reader, reader_of
from vidette.service.generation import answer_generation, answer_group
from vidette.service.responses import Exchange
from vidette_protocol.limits import Limits

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
        "return_flat_raw_top_logprobs": (False,),
        "return_flat_raw_top_logprobs_b64": (False,),
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

LIMITS: Final = Limits()
"""What the front bounds as well; here before anything is decoded."""
SAMPLING_ONLY_SGLANG: Final = MappingProxyType[str, Neutral]({"beam_width": (1,)})
"""Fields of SGLang's SamplingParams that ours has not."""


class MetaInfo(Struct, frozen=True):
    """What is known of a request besides its text.

    Args:
        id: its rid.
        finish_reason: how it ended; null while it has not.
        prompt_tokens: length of the prompt.
        completion_tokens: length of the output so far.
        cached_tokens: tokens of the prompt that were not computed again (there is no prefix cache yet).
        resumed: how often it went on after the death of a process.
        e2e_latency: seconds from its arrival to its end; with the end only.
    """

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    resumed: int = 0
    e2e_latency: float | UnsetType = UNSET


class Output(Struct, frozen=True):
    """The answer, or what there is of it so far.

    Args:
        text: all of its text so far.
        output_ids: all of its tokens so far.
        meta_info: the rest.
        index: in a stream of several answers: which of them it is.
    """

    text: str
    output_ids: tuple[int, ...] | Raw
    meta_info: MetaInfo
    index: int | UnsetType = UNSET


class NativeShape:
    """One request's answer in SGLang's shape; the events of a stream each hold all of the output so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said: dict[int | UnsetType, bytearray] = {}

    def whole(self, stream: Stream) -> Output:
        """Return the answer of a request that was read to its end."""
        return self._output(stream, stream.completion().finish_reason, stream.token_ids)

    def pieces(self, stream: Stream, delta: Delta) -> Iterator[Output]:
        """Yield what there is after a delta."""
        yield self._output(stream, delta.finish_reason, self._ids_so_far(delta))

    def piece(self, stream: Stream, delta: Delta, index: int) -> Output:
        """Return what there is of one of several answers after a delta."""
        return self._output(stream, delta.finish_reason, self._ids_so_far(delta, index), index)

    def _ids_so_far(self, delta: Delta, index: int | UnsetType = UNSET) -> Raw:
        """Return all token ids so far as JSON, of which only those of the delta are written anew."""
        said = self._said.setdefault(index, bytearray())
        for token_id in delta.token_ids:
            said += b",%d" % token_id
        return Raw(b"[%b]" % bytes(said[1:]))

    def _output(
        self,
        stream: Stream,
        reason: FinishReason | None,
        ids: tuple[int, ...] | Raw,
        index: int | UnsetType = UNSET,
    ) -> Output:
        meta = MetaInfo(
            id=stream.rid,
            finish_reason=None if reason is None else _as_dict(reason),
            prompt_tokens=stream.prompt_tokens,
            completion_tokens=stream.completion_tokens,
            resumed=stream.resumed,
            e2e_latency=UNSET if reason is None else time.monotonic() - self._began,
        )
        return Output(stream.text, ids, meta, index)


class Native:
    """The endpoint of one engine.

    Args:
        engine: what answers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        refused = {name: neutral for name, neutral in UNSUPPORTED_SAMPLING.items() if name != "n"}
        sampling = Fields(SamplingParams, {**refused, **SAMPLING_ONLY_SGLANG})
        self._fields = Fields(
            GenerateReqInput,
            {**UNSUPPORTED, **ONLY_SGLANG},
            readers={
                "input_ids": _read_ids_up_to(engine.max_total_tokens),
                "sampling_params": _one_or_many(sampling),
            },
        )

    async def generate(self, exchange: Exchange) -> None:
        """Answer `POST /generate`."""
        request = self._fields.decode(exchange.take_body())
        if _is_group(request):
            await answer_group(exchange, self._engine, request, NativeShape())
        else:
            await answer_generation(exchange, self._engine, request, NativeShape())


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


def _read_ids_up_to(most: int) -> Reader:
    """Return a reader of token ids, or lists of them, that decodes no more than could be served."""
    read_flat, read_nested = reader_of(list[int] | None), reader_of(list[list[int]])

    def read_ids(raw: bytes, path: str) -> Any:
        nested = raw.startswith(b"[") and raw[1:].lstrip().startswith(b"[")
        prompts = raw.count(b"[") - 1 if nested else 1
        if prompts > LIMITS.answers:
            raise UsageError(
                f"{path} has {prompts} prompts; at most {LIMITS.answers} are accepted", param=path
            )
        if (count := raw.count(b",") + 1) > most * prompts:
            room = f"{most} of prompt and output together fit" + (", for each prompt" if nested else "")
            raise UsageError(
                f"{path} has {count} token ids; at most {room}", param=path, code="context_length_exceeded"
            )
        return (read_nested if nested else read_flat)(raw, path)

    return read_ids


def _as_dict(reason: FinishReason) -> dict[str, Any]:
    match reason.type:
        case "stop":
            return {"type": "stop", "matched": reason.matched}
        case "length":
            return {"type": "length", "length": reason.length}
        case _:
            return {"type": reason.type, "message": reason.message}
