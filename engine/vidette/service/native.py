"""`POST /generate`, in the shape of SGLang's: one prompt a request, no lists of prompts yet.

The fields are those of GenerateReqInput and SamplingParams. What SGLang has besides is in `REFUSED` and
`SAMPLING_REFUSED`, and answered with a 400 unless it asks for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from vidette import Delta, Engine, FinishReason, GenerateReqInput, SamplingParams, Stream
from vidette.errors import UsageError
from vidette.service.fields import Fields, Neutral, Reader, reader_of
from vidette.service.generation import answer_generation
from vidette.service.responses import Exchange

REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "background": (False,),
        "bootstrap_host": (),
        "bootstrap_pair_key": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
        "audio_data": (),
        "cache_salt": (),
        "conversation_id": (),
        "custom_labels": ({},),
        "custom_logit_processor": (),
        "data_parallel_rank": (),
        "decode_tp_size": (),
        "disagg_prefill_dp_rank": (),
        "encoder_urls": (),
        "external_trace_header": (),
        "extra_key": (),
        "grammar": (),
        "http_worker_ipc": (),
        "image_data": (),
        "image_max_dynamic_patch": (),
        "images_config": (),
        "input_embeds": (),
        "json_schema": (),
        "kv_router_hint": (),
        "log_metrics": (True, False),  # there are none
        "logprob_start_len": (-1,),
        "lora_id": (),
        "lora_path": (),
        "max_dynamic_patch": (),
        "max_thinking_tokens": (),
        "min_dynamic_patch": (),
        "mm_content_hashes": (),
        "mm_hashes": (),
        "modalities": (),
        "multi_item_delimiter_indices": (),
        "need_wait_for_mm_inputs": (False,),
        "no_logs": (False, True),  # prompts are never logged
        "no_stop_trim": (False,),
        "num_items_assigned": (),
        "positional_embed_overrides": (),
        "priority": (),
        "received_time": (),
        "regex": (),
        "require_reasoning": (False,),
        "return_bytes": (False,),
        "return_entropy": (False,),
        "return_flat_raw_top_logprobs": (False,),
        "return_flat_raw_top_logprobs_b64": (False,),
        "return_hidden_states": (False,),
        "return_indexer_topk": (False,),
        "return_logprob": (False,),
        "return_prompt_token_ids": (False,),
        "return_routed_experts": (False,),
        "return_sampling_mask": (False,),
        "return_text_in_logprobs": (False,),
        "routed_dp_rank": (),
        "routed_experts_start_len": (0,),
        "routing_key": (),
        "session_id": (),
        "session_params": ({},),
        "token_ids_logprob": ([],),
        "top_logprobs_num": (0,),
        "use_audio_in_video": (False,),
        "video_config": (),
        "video_data": (),
        "video_max_dynamic_patch": (),
    }
)
"""Fields of SGLang's GenerateReqInput that are not supported yet, with the values that ask for nothing."""

SAMPLING_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "beam_width": (1,),
        "custom_params": ({},),
        "ebnf": (),
        "frequency_penalty": (0,),
        "json_schema": (),
        "logit_bias": ({},),
        "min_new_tokens": (0,),
        "min_p": (0,),
        "n": (1,),
        "no_stop_trim": (False,),
        "presence_penalty": (0,),
        "regex": (),
        "repetition_penalty": (1,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "stop": ([],),
        "stop_regex": ([],),
        "stop_token_ids": ([],),
        "stream_interval": (1,),
        "structural_tag": (),
    }
)
"""Fields of SGLang's SamplingParams that are not supported yet, with the values that ask for nothing."""


class MetaInfo(Struct, frozen=True):
    """What is known of a request besides its text.

    Args:
        id: its rid.
        finish_reason: how it ended; null while it has not.
        prompt_tokens: length of the prompt.
        completion_tokens: length of the output so far.
        cached_tokens: tokens of the prompt that were not computed again (there is no prefix cache yet).
        e2e_latency: seconds from its arrival to its end; with the end only.
    """

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
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
        sampling = Fields(SamplingParams, SAMPLING_REFUSED)
        self._fields = Fields(
            GenerateReqInput,
            REFUSED,
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
