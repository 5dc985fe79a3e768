"""Which fields of a request the scheduler honours; what it does not is refused, never ignored.

Fronts refuse the same before they send it (`vidette.front.support`), in better words. This is for a front of
another version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from vidette_protocol.messages import SamplingParams, TokenizedGenerateReqInput

HONOURED: Final = frozenset(
    {"vid", "floor", "rid", "input_ids", "input_text", "sampling_params", "stream", "logprob_start_len"}
    | {"deadline_s", "resumed_output_ids"}
    # There is no prefix cache yet, so every namespace of it is kept apart, and no tenant competes.
    | {"extra_key", "cache_salt", "routing_key"}
)
"""Fields of TokenizedGenerateReqInput."""

SAMPLING_HONOURED: Final = frozenset(
    {"max_new_tokens", "temperature", "top_p", "top_k", "ignore_eos", "sampling_seed"}
)
"""Fields of SamplingParams."""


def find_unsupported(request: TokenizedGenerateReqInput) -> str | None:
    """Return in a sentence what a request asks for that is not supported, or None."""
    names = [
        *_asked(request, TokenizedGenerateReqInput, HONOURED),
        *_asked(request.sampling_params, SamplingParams, SAMPLING_HONOURED),
    ]
    return f"this scheduler does not support {', '.join(names)}" if names else None


def _asked(struct: Struct, cls: type[Struct], honoured: frozenset[str]) -> Iterator[str]:
    """Yield the fields that are not honoured and have another value than their default."""
    defaults = dict(zip(reversed(cls.__struct_fields__), reversed(cls.__struct_defaults__), strict=False))
    for name, value in msgspec.structs.asdict(struct).items():
        # By identity first: against a default of None any value asks for something, and arrays have no
        # plain equality.
        usual = defaults.get(name)
        if name not in honoured and value is not usual and (usual is None or value != usual):
            yield name
