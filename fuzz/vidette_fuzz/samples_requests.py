"""Samples of what a front sends about requests, and of the media in them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from vidette_protocol.ext import ModelData, ShmPointer
from vidette_protocol.ids import MAX_VID, make_vid
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedEmbeddingReqInput,
    BatchTokenizedGenerateReqInput,
    Message,
    SamplingParams,
    SessionParams,
    TokenizedEmbeddingReqInput,
    TokenizedGenerateReqInput,
    pack_i32,
)
from vidette_protocol.messages.multimodal import (
    Modality,
    MultimodalDataItem,
    MultimodalInputFormat,
    MultimodalProcessorOutput,
    PositionalEmbeds,
)

_FRONT_1 = make_vid(1, 0)

_MEDIA = MultimodalProcessorOutput(
    mm_items=[
        MultimodalDataItem(
            modality=Modality.IMAGE,
            hash=0xFEEDFACECAFEBEEF,
            pad_value=1_000_007,
            offsets=[(1, 2), (4, 4)],
            feature=np.arange(6, dtype=np.float32).reshape(2, 3),
            model_specific_data=ModelData({"grid": (1, 2), "sizes": [3, None], "__tuple__": b"\0"}),
        ),
        MultimodalDataItem(
            modality=Modality.VIDEO,
            format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING,
            precomputed_embeddings=ShmPointer("vd-1", (4, 2), "bfloat16", 1 << 63),
            keep_device_embedding=True,
        ),
        MultimodalDataItem(
            modality=Modality.AUDIO,
            format=MultimodalInputFormat.PROCESSOR_OUTPUT,
            feature=[np.zeros(0, dtype=np.int16), array("f", [0.5])],
        ),
    ],
    input_ids=pack_i32([7, 32000, 32000, 8]),
    padded_input_ids=pack_i32([7, 1_000_007, 1_000_007, 8]),
    im_token_id=32000,
    im_start_id=32001,
    im_end_id=32002,
    slice_start_id=32003,
    slice_end_id=32004,
    video_token_id=32005,
    audio_token_id=32006,
    audio_start_id=32007,
    audio_end_id=32008,
    mrope_positions=np.zeros((3, 4), dtype=np.int64),
    mrope_position_delta=np.array([-2], dtype=np.int64),
    vision_position_ids=np.arange(4, dtype=np.int32),
    media_nums_per_sample=[1, 2],
    visible_frame_counts=np.array([16], dtype=np.int32),
    token_type_ids=[0, 1, 1, 0],
)

_EMBEDS = PositionalEmbeds(embeds=np.ones((2, 3), dtype=np.float16), positions=[1, 2])

_SHORT = TokenizedGenerateReqInput(
    vid=make_vid(1, 5),
    floor=_FRONT_1,
    rid="chat-1",
    input_ids=pack_i32([1, 15043, 3186]),
    sampling_params=SamplingParams(
        max_new_tokens=16,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        ignore_eos=True,
        sampling_seed=(1 << 63) - 1,
    ),
)

_BY_DEFAULT = TokenizedGenerateReqInput(
    vid=0, rid="", input_ids=pack_i32([0]), sampling_params=SamplingParams(sampling_seed=0)
)

_WHOLE = TokenizedGenerateReqInput(
    vid=make_vid(1, 6),
    floor=make_vid(1, 5),
    rid="whole",
    input_ids=pack_i32([7, 32000, 8]),
    sampling_params=SamplingParams(
        max_new_tokens=64,
        temperature=1.25,
        top_p=0.5,
        top_k=7,
        sampling_seed=3,
        min_new_tokens=2,
        stop=["\n\n", "END"],
        stop_token_ids=[2, 32007],
        stop_regex=["[.!?]$"],
        min_p=0.05,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias={0: -100.0, 50256: 3.5},
        json_schema='{"type": "object"}',
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        no_stop_trim=True,
        custom_params={"strength": 0.5, "only": [1, 2], "by": {"name": None}},
        stream_interval=4,
    ),
    input_text="a \N{CAT FACE} sits",
    image_inputs=_MEDIA,
    token_type_ids=np.array([0, 1, 0], dtype=np.int64),
    return_logprob=True,
    logprob_start_len=1,
    top_logprobs_num=5,
    token_ids_logprob=pack_i32([2, 3]),
    stream=True,
    session_params=SessionParams(id="talk", rid="chat-1", offset=3, replace=True, drop_previous_output=True),
    lora_id="0123456789abcdef0123456789abcdef",
    custom_logit_processor="quiet",
    positional_embed_overrides=_EMBEDS,
    bootstrap_host="prefill-3",
    bootstrap_port=8998,
    bootstrap_room=(1 << 63) - 1,
    routing_key="tenant-1",
    priority=-3,
    extra_key="of tenant 1",
    cache_salt="salt",
)

_EMBEDDING = TokenizedEmbeddingReqInput(vid=8, rid="embed", input_ids=pack_i32([5, 6]))

_PAIR = TokenizedEmbeddingReqInput(
    vid=make_vid(2, 9),
    floor=make_vid(2, 1),
    rid="pair",
    input_ids=pack_i32([5, 6, 102, 7]),
    input_text="which?",
    image_inputs=MultimodalProcessorOutput(mm_items=[]),
    token_type_ids=[0, 0, 0, 1],
    is_cross_encoder_request=True,
    lora_id="0123456789abcdef0123456789abcdef",
    positional_embed_overrides=_EMBEDS,
    priority=2,
    dimensions=256,
)

REQUEST_SAMPLES: Final[Mapping[str, Message]] = MappingProxyType(
    {
        "abort": AbortReq(vid=make_vid(1, 5), floor=_FRONT_1),
        "abort-largest": AbortReq(vid=MAX_VID, floor=MAX_VID),
        "abort-all": AbortReq(vid=make_vid(1, 9), abort_all=True, abort_message="the weights change"),
        "request": _SHORT,
        "request-of-defaults": _BY_DEFAULT,
        "request-whole": _WHOLE,
        "requests": BatchTokenizedGenerateReqInput(reqs=[_SHORT, _BY_DEFAULT, _WHOLE]),
        "requests-one": BatchTokenizedGenerateReqInput(reqs=[_SHORT]),
        "embedding-request": _EMBEDDING,
        "embedding-request-pair": _PAIR,
        "embedding-requests": BatchTokenizedEmbeddingReqInput(reqs=[_EMBEDDING, _PAIR]),
    }
)
"""Messages by name."""
