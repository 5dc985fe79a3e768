"""Samples of what a step says, and of what routers are told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    AllBlocksCleared,
    BatchEmbeddingOutput,
    BatchStrOutput,
    BatchTokenIDOutput,
    BlockRemoved,
    BlockStored,
    FinishReason,
    KVEventBatch,
    KvMetrics,
    Message,
    SchedulerLedger,
    Served,
    SpeculativeMetrics,
    StrRow,
    TextMode,
    TokenLogprobs,
    TokenRow,
    pack_f32,
    pack_i32,
    pack_i64,
)

_LEDGER = SchedulerLedger(live=3, waiting=1, tombstones=0, blocks_used=17, steps=70_000)

_ABORTED = FinishReason(
    "abort", message="the caller ended the request", status_code=499, err_type="ClientClosedRequest"
)

_FIRST_LOGPROBS = TokenLogprobs(
    output_token_logprobs_val=pack_f32([-0.5, -1.25]),
    output_top_logprobs_val=pack_f32([-0.5, -2.0, -0.25, -1.25]),
    output_top_logprobs_idx=pack_i32([15043, 3186, 9, 3186]),
    output_token_ids_logprobs_val=pack_f32([-3.0, -4.0, -5.0, -6.0]),
    input_token_logprobs_val=pack_f32([float("nan"), -0.75]),
    input_top_logprobs_val=pack_f32([float("nan"), float("nan"), -0.75, -1.5]),
    input_top_logprobs_idx=pack_i32([0, 0, 6, 7]),
    input_token_ids_logprobs_val=pack_f32([float("nan"), float("nan"), -8.0, -9.0]),
    input_token_logprobs_idx=pack_i32([1, 6]),
    token_ids_logprob=pack_i32([2, 3]),
    top_logprobs_num=2,
)
"""Of a row of two tokens behind a prompt of two."""

_LATER_LOGPROBS = TokenLogprobs(output_token_logprobs_val=pack_f32([0.0]))
_SPEC = SpeculativeMetrics(5, 7, (1, 1, 3), 9)

STEP_SAMPLES: Final[Mapping[str, Message]] = MappingProxyType(
    {
        "tokens-one-each": BatchTokenIDOutput.from_rows(
            [TokenRow(5, 0, (15043,)), TokenRow(6, 3, (2,), FinishReason("stop", matched=2))], _LEDGER
        ),
        "tokens-mixed": BatchTokenIDOutput.from_rows(
            [
                TokenRow(make_vid(1, 5), 0, (1, 2, 3)),
                TokenRow(make_vid(1, 6), 0, (), _ABORTED),
                TokenRow(make_vid(1, 7), 2, (-1,), FinishReason("length", length=3)),
            ],
            _LEDGER,
        ),
        "tokens-none": BatchTokenIDOutput.from_rows([], SchedulerLedger()),
        "tokens-with-logprobs": BatchTokenIDOutput.from_rows(
            [
                TokenRow(5, 0, (15043, 3186), None, _FIRST_LOGPROBS, _SPEC),
                TokenRow(6, 9, (4,), decoded_text=" so far"),
                TokenRow(7, 1, (9,), FinishReason("stop", matched="END"), _LATER_LOGPROBS),
            ],
            _LEDGER,
        ),
        "tokens-held-back": BatchTokenIDOutput.from_rows(
            [
                TokenRow(5, 0, (15043, 3186), held=2, mode=TextMode.SPECIAL | TextMode.SPACED),
                TokenRow(6, 9, (4,), served=Served(1000, 16, 2, 0.5)),
                TokenRow(7, 1, (9,), FinishReason("stop", matched="END"), held=300),
            ],
            _LEDGER,
        ),
        "tokens-with-rids": BatchTokenIDOutput(
            packed_vids=pack_i64([5, 6]),
            packed_offsets=pack_i32([0, 0]),
            packed_ids=pack_i32([1, 2]),
            sparse_rids=[(0, "chat-1"), (1, "chat-2")],
        ),
        "text-one-each": BatchStrOutput.from_rows(
            [StrRow(5, 0, (15043,), None, "Hello"), StrRow(6, 1, (29889,), None, " wörld \N{GRINNING FACE}")],
            _LEDGER,
            2,
        ),
        "text-mixed": BatchStrOutput.from_rows(
            [
                StrRow(5, 1, (1, 2), None, "", served=Served(32)),
                StrRow(6, 2, (), FinishReason("error", message="the model's logits are not finite"), "tail"),
            ],
            _LEDGER,
            1,
        ),
        "text-none": BatchStrOutput.from_rows([], SchedulerLedger(), 0),
        "text-with-logprobs": BatchStrOutput.from_rows(
            [
                StrRow(5, 0, (15043, 3186), None, "Hello world", _FIRST_LOGPROBS, _SPEC),
                StrRow(7, 1, (9,), FinishReason("stop", matched=9), "!", _LATER_LOGPROBS),
            ],
            _LEDGER,
            4,
        ),
        "embeddings": BatchEmbeddingOutput(
            packed_vids=pack_i64([1, 2, 3, 4, make_vid(1, 5)]),
            embeddings=[
                np.array([0.25, -1.0], dtype=np.float32),
                np.ones((2, 2), dtype=np.float32),
                {7: 0.5, 30_000: 1.25},
                0.875,
                None,
            ],
            sparse_reasons=[(4, FinishReason("error", message="too long", status_code=400, err_type="x"))],
            packed_prompt_tokens=pack_i32([3, 4, 5, 6, 9000]),
            packed_cached_tokens=pack_i32([0, 4, 0, 0, 0]),
            sparse_hidden_states=[(0, np.zeros((1, 2), dtype=np.float16))],
            sparse_rids=[(2, "sparse")],
            ledger=_LEDGER,
        ),
        "embeddings-not-cached": BatchEmbeddingOutput(
            packed_vids=pack_i64([1]), embeddings=[[0.5, 0.25]], packed_prompt_tokens=pack_i32([3])
        ),
        "embeddings-none": BatchEmbeddingOutput(),
        "kv-metrics": KvMetrics(
            request_active_slots=3,
            request_total_slots=64,
            kv_active_blocks=17,
            kv_total_blocks=512,
            num_requests_waiting=1,
            gpu_cache_usage_perc=0.033203125,
            gpu_prefix_cache_hit_rate=0.5,
            data_parallel_rank=1,
        ),
        "kv-metrics-of-defaults": KvMetrics(),
        "kv-events": KVEventBatch(
            ts=1_700_000_000.25,
            events=[
                BlockStored([11, -12], None, [1, 2, 3, 4], 2),
                BlockStored([13], -12, [5, 6], 2, lora_id=1),
                BlockRemoved([11, 13]),
                AllBlocksCleared(),
            ],
            data_parallel_rank=0,
        ),
        "kv-events-none": KVEventBatch(ts=0.0, events=[]),
    }
)
"""Messages by name."""
