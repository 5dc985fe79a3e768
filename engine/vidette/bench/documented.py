"""Request and step in the documented form: the classes of our source documents and of SGLang.

They carry what our messages do, in lists, and what else SGLang's scheduler says of each row at each step.
Nothing here encodes: `baselines` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgspec

from vidette_protocol.messages import FinishReason, TokenizedGenerateReqInput, TokenRow

Reason = dict[str, str | int | None]
"""How a request ended."""


@dataclass
class SamplingParams:
    """Sampling parameters."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    custom_params: dict[str, object] | None = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None


@dataclass
class TokenizedRequest:
    """TokenizedGenerateReqInput: every documented field, most of them at their defaults."""

    rid: str
    vid: int
    input_text: str | None
    input_ids: list[int]
    image_inputs: dict[str, object] | None
    sampling_params: SamplingParams
    http_worker_ipc: str | None = None
    input_embeds: list[list[float]] | None = None
    token_type_ids: list[int] | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    stream: bool = False
    return_hidden_states: bool = False
    return_routed_experts: bool = False
    session_params: dict[str, object] | None = None
    lora_id: str | None = None
    custom_logit_processor: str | None = None
    positional_embed_overrides: dict[str, object] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    bootstrap_pair_key: str | None = None
    decode_tp_size: int | None = None
    routed_dp_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None
    routing_key: str | None = None
    require_reasoning: bool = False
    priority: int | None = None
    extra_key: str | None = None
    no_logs: bool = False
    return_bytes: bool = False
    return_entropy: bool = False
    need_wait_for_mm_inputs: bool | None = None
    num_items_assigned: dict[str, list[int]] | None = None
    multi_item_delimiter_indices: list[int] | None = None


@dataclass
class TokenStep:
    """BatchTokenIDOutput: the lists that are filled at every step, and those that few requests ask for."""

    rids: list[str]
    vids: list[int]
    finished_reasons: list[Reason | None]
    decoded_texts: list[str]
    decode_ids: list[list[int]]
    read_offsets: list[int]
    output_ids: list[list[int]]
    skip_special_tokens: list[bool]
    spaces_between_special_tokens: list[bool]
    no_stop_trim: list[bool]
    prompt_tokens: list[int]
    reasoning_tokens: list[int]
    completion_tokens: list[int]
    cached_tokens: list[int]
    http_worker_ipcs: list[str | None] | None = None
    input_token_logprobs_val: list[list[float]] | None = None
    input_token_logprobs_idx: list[list[int]] | None = None
    output_token_logprobs_val: list[list[float]] | None = None
    output_token_logprobs_idx: list[list[int]] | None = None
    input_top_logprobs_val: list[list[float]] | None = None
    input_top_logprobs_idx: list[list[int]] | None = None
    output_top_logprobs_val: list[list[float]] | None = None
    output_top_logprobs_idx: list[list[int]] | None = None
    input_token_ids_logprobs_val: list[list[float]] | None = None
    input_token_ids_logprobs_idx: list[list[int]] | None = None
    output_token_ids_logprobs_val: list[list[float]] | None = None
    output_token_ids_logprobs_idx: list[list[int]] | None = None
    output_token_entropy_val: list[float] | None = None
    output_hidden_states: list[list[float]] | None = None
    placeholder_tokens_idx: list[int] | None = None
    placeholder_tokens_val: list[int] | None = None
    retraction_counts: list[int] | None = None
    cached_tokens_details: list[dict[str, int]] | None = None
    dp_ranks: list[int] | None = None
    spec_verify_ct: list[int] | None = None
    spec_num_correct_drafts: list[int] | None = None
    spec_correct_drafts_histogram: list[list[int]] | None = None


@dataclass
class SlimStep:
    """Nothing but what our own step message says, in lists: what a frugal user of pickle would send."""

    vids: list[int]
    offsets: list[int]
    output_ids: list[list[int]]
    finished_reasons: list[Reason | None]


def document_request(request: TokenizedGenerateReqInput) -> TokenizedRequest:
    """Return a request in the documented form."""
    known = {field.name for field in fields(SamplingParams)}
    given = msgspec.structs.asdict(request.sampling_params)
    return TokenizedRequest(
        rid=request.rid,
        vid=request.vid,
        input_text=request.input_text,
        input_ids=request.token_ids.tolist(),
        image_inputs=None,
        sampling_params=SamplingParams(**{name: given[name] for name in given.keys() & known}),
        stream=request.stream,
    )


def document_step(rows: Sequence[TokenRow]) -> TokenStep:
    """Return a step in the documented form; its requests are named as SGLang names them."""
    output_ids = [list(row.token_ids) for row in rows]
    return TokenStep(
        rids=[_rid_of(row.vid) for row in rows],
        vids=[row.vid for row in rows],
        finished_reasons=[_document_reason(row.reason) for row in rows],
        decoded_texts=[""] * len(rows),
        decode_ids=[list(ids) for ids in output_ids],
        read_offsets=[0] * len(rows),
        output_ids=output_ids,
        skip_special_tokens=[True] * len(rows),
        spaces_between_special_tokens=[True] * len(rows),
        no_stop_trim=[False] * len(rows),
        prompt_tokens=[512 + row.offset % 512 for row in rows],
        reasoning_tokens=[0] * len(rows),
        completion_tokens=[row.offset + len(row.token_ids) for row in rows],
        cached_tokens=[row.offset % 512 for row in rows],
    )


def slim_step(rows: Sequence[TokenRow]) -> SlimStep:
    """Return a step in lists, without what ours does not say either."""
    return SlimStep(
        vids=[row.vid for row in rows],
        offsets=[row.offset for row in rows],
        output_ids=[list(row.token_ids) for row in rows],
        finished_reasons=[_document_reason(row.reason) for row in rows],
    )


def _document_reason(reason: FinishReason | None) -> Reason | None:
    if reason is None:
        return None
    given = {"matched": reason.matched, "length": reason.length, "message": reason.message}
    return {"type": reason.type} | {name: value for name, value in given.items() if value is not None}


def _rid_of(vid: int) -> str:
    """Return 32 hexadecimal digits, as SGLang makes them."""
    return f"{vid * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
