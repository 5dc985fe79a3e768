"""Which fields of a request the engine does not support yet: one table, for the library and for HTTP.

A field is refused unless its value asks for nothing, so that a request which is answered was honoured as a
whole. None always asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from vidette.errors import UsageError, unsupported_field
from vidette_protocol.messages import GenerateItem
from vidette_protocol.normalise import Normalised

Neutral = tuple[object, ...]
"""Values of a refused field that ask for nothing, besides None."""

REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "audio_data": (),
        "background": (False,),
        "bootstrap_host": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
        "custom_logit_processor": (),
        "data_parallel_rank": (),
        "grammar": (),
        "image_data": (),
        "input_embeds": (),
        "json_schema": (),
        "lora_path": (),
        "mm_hashes": (),
        "modalities": (),
        "positional_embed_overrides": (),
        "regex": (),
        "routed_dp_rank": (),
        "session_id": (),
        "video_data": (),
    }
)
"""Fields of GenerateReqInput."""

SAMPLING_REFUSED: Final = MappingProxyType[str, Neutral](
    {
        "custom_params": ({},),
        "ebnf": (),
        "json_schema": (),
        "n": (1,),
        "regex": (),
        "structural_tag": (),
    }
)
"""Fields of SamplingParams."""


def check_supported(request: Normalised[GenerateItem]) -> GenerateItem:
    """Return the item of a request for one answer, that asks for nothing else than is supported.

    Raises:
        UsageError: it asks for more, with the field at fault.
    """
    if request.n > 1:
        raise unsupported_field("n", SAMPLING_REFUSED["n"])
    item = request.items[0]
    if not request.single:
        field = (
            "text" if item.text is not None else "input_ids" if item.input_ids is not None else "input_embeds"
        )
        raise UsageError(
            f"{field} is a list of several: one prompt per request here; `generate_group` takes several",
            param=field,
            code="unsupported_field",
        )
    check_fields(item)
    return item


def check_fields(item: GenerateItem) -> None:
    """Check that an item asks for nothing else than is supported.

    Raises:
        UsageError: it asks for more, with the field at fault.
    """
    _check_fields(item, REFUSED)
    _check_fields(item.sampling_params, SAMPLING_REFUSED)


def _check_fields(struct: Struct, refused: Mapping[str, Neutral]) -> None:
    for field, value in zip(struct.__struct_fields__, msgspec.structs.astuple(struct), strict=True):
        if value is not None and field in refused and value not in refused[field]:
            raise unsupported_field(field, refused[field])
