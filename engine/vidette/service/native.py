"""`POST /generate`, in the shape of SGLang's: one prompt a request, no lists of prompts yet.

The fields are those of GenerateReqInput and SamplingParams. What of them is not supported yet, and what
SGLang has besides, is answered with a 400 unless it asks for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from vidette import Delta, Engine, FinishReason, GenerateReqInput, SamplingParams, Stream
from vidette.api import UNSUPPORTED, UNSUPPORTED_SAMPLING
from vidette.errors import UsageError
from vidette.service.fields import Fields, Neutral, Reader, reader_of
from vidette.service.generation import answer_generation
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
    """The answer, or what there is of it so far."""

    text: str
    output_ids: tuple[int, ...]
    meta_info: MetaInfo


class NativeShape:
    """One request's answer in SGLang's shape; the events of a stream each hold all of the output so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def whole(self, stream: Stream) -> Output:
        """Return the answer of a request that was read to its end."""
        return self._output(stream, stream.completion().finish_reason)

    def pieces(self, stream: Stream, delta: Delta) -> Iterator[Output]:
        """Yield what there is after a delta."""
        yield self._output(stream, delta.finish_reason)

    def _output(self, stream: Stream, reason: FinishReason | None) -> Output:
        ids = stream.token_ids
        meta = MetaInfo(
            id=stream.rid,
            finish_reason=None if reason is None else _as_dict(reason),
            prompt_tokens=stream.prompt_tokens,
            completion_tokens=len(ids),
            resumed=stream.resumed,
            e2e_latency=UNSET if reason is None else time.monotonic() - self._began,
        )
        return Output(stream.text, ids, meta)


class Native:
    """The endpoint of one engine.

    Args:
        engine: what answers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        sampling = Fields(SamplingParams, {**UNSUPPORTED_SAMPLING, **SAMPLING_ONLY_SGLANG})
        self._fields = Fields(
            GenerateReqInput,
            {**UNSUPPORTED, **ONLY_SGLANG},
            readers={
                "rid": _one(reader_of(str | None)),
                "text": _one(reader_of(str | None)),
                "input_ids": _read_ids_up_to(engine.max_total_tokens),
                "sampling_params": _one(sampling.decode),
            },
        )

    async def generate(self, exchange: Exchange) -> None:
        """Answer `POST /generate`."""
        request = self._fields.decode(exchange.take_body())
        await answer_generation(exchange, self._engine, request, NativeShape())


def _one(read: Reader) -> Reader:
    """Return a reader that says that lists, one item for each prompt, are not supported yet."""

    def read_one(raw: bytes, path: str) -> Any:
        if raw.startswith(b"["):
            raise _not_one(path)
        return read(raw, path)

    return read_one


def _read_ids_up_to(most: int) -> Reader:
    """Return a reader of token ids that decodes no more of them than could be served."""
    read = reader_of(list[int] | None)

    def read_ids(raw: bytes, path: str) -> Any:
        if raw.startswith(b"[") and raw[1:].lstrip().startswith(b"["):
            raise _not_one(path)
        if (count := raw.count(b",") + 1) > most:
            raise UsageError(
                f"{path} has {count} token ids; at most {most} of prompt and output together fit",
                param=path,
                code="context_length_exceeded",
            )
        return read(raw, path)

    return read_ids


def _not_one(path: str) -> UsageError:
    return UsageError(
        f"{path} is a list of several: one prompt per request for now", param=path, code="unsupported_field"
    )


def _as_dict(reason: FinishReason) -> dict[str, Any]:
    match reason.type:
        case "stop":
            return {"type": "stop", "matched": reason.matched}
        case "length":
            return {"type": "length", "length": reason.length}
        case _:
            return {"type": reason.type, "message": reason.message}
