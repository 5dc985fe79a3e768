"""What a caller asks for: the bodies of the HTTP service and the arguments of the library.

They never travel between processes. `vidette_protocol.normalise` turns each into items, one for each answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from vidette_protocol.messages.multimodal import PositionalEmbeds
from vidette_protocol.messages.sampling import SamplingParams
from vidette_protocol.messages.sessions import SessionParams


class GenerateReqInput(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Caller to front: generate text, for one prompt or for several. The JSON body of `POST /generate`.

    Just one of `text`, `input_ids` and `input_embeds` is given: a prompt, or a list of B prompts. Of every
    other field that takes a list, the list has B values, one for each prompt; a single value holds for all.

    Args:
        rid: the caller's name for the request; None: one is made. Reusable as soon as the request is over. A
            single rid of several prompts or answers is a prefix: the answers are `rid_0`, `rid_1`, ...
        text: the prompt, at least one token long.
        input_ids: the prompt as token ids, each within the vocabulary.
        sampling_params: see SamplingParams; `n` is the same for all prompts.
        stream: answer in pieces as they come (HTTP only; the library always streams).
        input_embeds: the prompt as embeddings, one row a token.
        image_data: images of the prompt: an address, base64 text, bytes or a dict; or a list of these.
        video_data: videos, likewise.
        audio_data: audio, likewise.
        mm_hashes: hexadecimal hash of each image, made by the caller, in place of ours.
        modalities: what `image_data` of each prompt is: "image", "multi-images" or "video".
        regex: as in SamplingParams, where it may be given as well, but not both.
        json_schema: likewise.
        grammar: likewise; `ebnf` there.
        no_stop_trim: likewise.
        return_logprob: report log probabilities.
        logprob_start_len: first position of the prompt to report them of; -1: of the output only.
        top_logprobs_num: how many of the most probable tokens to report at each position.
        token_ids_logprob: tokens to report at each position: an id, a list for all prompts, or one for each;
            none twice.
        return_text_in_logprobs: report the text of each token as well.
        log_metrics: count the request in metrics.
        session_params: continue a session.
        session_id: name of a conversation, for routing; does not change the prompt. Not with
            `session_params`.
        lora_path: name of a LoRA adapter; None: the base model.
        custom_logit_processor: name of a processor that the engine was opened with.
        positional_embed_overrides: embeddings that replace those of some positions (library only).
        bootstrap_host: host of the prefill server, if prefill and decode are apart.
        bootstrap_port: its port.
        bootstrap_room: number of the transfer; a single one of several answers counts up.
        routed_dp_rank: which scheduler is to serve it; None: whichever suits.
        data_parallel_rank: former name of `routed_dp_rank`.
        routing_key: whose request it is, for fairness between tenants.
        priority: a higher one is served first, from -16 to 16; what is beyond counts as that. None: 0.
        extra_key: namespace of the prefix cache; "" is none.
        cache_salt: secret of the prefix cache's namespace; "" is none.
        background: go on when the client disconnects.
    """

    rid: str | Sequence[str] | None = None
    text: str | Sequence[str] | None = None
    input_ids: Sequence[int | Sequence[int]] | None = None
    sampling_params: SamplingParams | Sequence[SamplingParams] = SamplingParams()
    stream: bool = False
    input_embeds: Sequence[Sequence[float | Sequence[float]]] | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    mm_hashes: Sequence[str | Sequence[str] | None] | None = None
    modalities: Sequence[str | None] | None = None
    regex: str | Sequence[str | None] | None = None
    json_schema: str | Sequence[str | None] | None = None
    grammar: str | Sequence[str | None] | None = None
    no_stop_trim: bool | Sequence[bool] = False
    return_logprob: bool | Sequence[bool] = False
    logprob_start_len: int | Sequence[int] = -1
    top_logprobs_num: int | Sequence[int] = 0
    token_ids_logprob: int | Sequence[int | Sequence[int] | None] | None = None
    return_text_in_logprobs: bool = False
    log_metrics: bool = True
    session_params: SessionParams | None = None
    session_id: str | None = None
    lora_path: str | Sequence[str | None] | None = None
    custom_logit_processor: str | Sequence[str | None] | None = None
    positional_embed_overrides: Any = None
    bootstrap_host: str | Sequence[str | None] | None = None
    bootstrap_port: int | Sequence[int | None] | None = None
    bootstrap_room: int | Sequence[int] | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    routing_key: str | None = None
    priority: int | Sequence[int | None] | None = None
    extra_key: str | Sequence[str] | None = None
    cache_salt: str | Sequence[str] | None = None
    background: bool = False


class GenerateItem(Struct, kw_only=True, frozen=True):
    """One answer to be made: what normalisation makes of a GenerateReqInput. Fields as there, but single.

    Args:
        rid: always set.
        sampling_params: checked, its own; `n` is 1, and constraints are in it.
        token_ids_logprob: a list, or None.
        image_data: a list, one for each image, or None; the other media likewise.
    """

    rid: str
    text: str | None = None
    input_ids: Sequence[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    input_embeds: Sequence[Sequence[float]] | None = None
    image_data: Sequence[Any] | None = None
    video_data: Sequence[Any] | None = None
    audio_data: Sequence[Any] | None = None
    mm_hashes: Sequence[str] | None = None
    modalities: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: Sequence[int] | None = None
    return_text_in_logprobs: bool = False
    log_metrics: bool = True
    session_params: SessionParams | None = None
    session_id: str | None = None
    lora_path: str | None = None
    custom_logit_processor: str | None = None
    positional_embed_overrides: PositionalEmbeds | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    routed_dp_rank: int | None = None
    routing_key: str | None = None
    priority: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    background: bool = False


class EmbeddingReqInput(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Caller to front: embed or score text, one or several. Lists are as in GenerateReqInput.

    Args:
        rid: as in GenerateReqInput.
        text: one text, several, or, for a cross-encoder, pairs.
        input_ids: the same as token ids; not with `text`.
        image_data: images to embed, alone or with the text.
        video_data: videos, likewise.
        audio_data: audio, likewise.
        sampling_params: accepted and not used: nothing is generated.
        is_cross_encoder_request: `text` is a pair, or a list of pairs, to be scored.
        modalities: as in GenerateReqInput.
        log_metrics: likewise.
        lora_path: likewise.
        positional_embed_overrides: likewise.
        routing_key: likewise.
        priority: likewise.
        dimensions: length to cut embeddings to, for models trained for that; >= 1.
        background: as in GenerateReqInput.
    """

    rid: str | Sequence[str] | None = None
    text: str | Sequence[str | Sequence[str]] | None = None
    input_ids: Sequence[int | Sequence[int]] | None = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    sampling_params: Mapping[str, Any] | None = None
    is_cross_encoder_request: bool = False
    modalities: Sequence[str | None] | None = None
    log_metrics: bool = True
    lora_path: str | Sequence[str | None] | None = None
    positional_embed_overrides: Any = None
    routing_key: str | None = None
    priority: int | Sequence[int | None] | None = None
    dimensions: int | None = None
    background: bool = False


class EmbeddingItem(Struct, kw_only=True, frozen=True):
    """One embedding to be made: what normalisation makes of an EmbeddingReqInput. Fields are single.

    Args:
        rid: always set.
        text: a text, or a pair for a cross-encoder.
    """

    rid: str
    text: str | tuple[str, str] | None = None
    input_ids: Sequence[int] | None = None
    image_data: Sequence[Any] | None = None
    video_data: Sequence[Any] | None = None
    audio_data: Sequence[Any] | None = None
    is_cross_encoder_request: bool = False
    modalities: str | None = None
    log_metrics: bool = True
    lora_path: str | None = None
    positional_embed_overrides: PositionalEmbeds | None = None
    routing_key: str | None = None
    priority: int | None = None
    dimensions: int | None = None
    background: bool = False
