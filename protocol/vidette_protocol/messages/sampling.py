"""`SamplingParams`: how the next token is chosen, and when to stop."""

from __future__ import annotations

import math

from msgspec import Struct

from vidette_protocol.limits import Limits

GREEDY_BELOW = 1e-6
"""A temperature below this means greedy (as in SGLang)."""
MAX_SEED = (1 << 63) - 1


class SamplingParams(Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the next token is chosen, and when to stop.

    On the wire it is a map of the fields that differ from their defaults, so that a field this side does
    not know is refused instead of silently not honoured.

    Args:
        max_new_tokens: most output tokens; 0 to Limits.max_new_tokens. None: as many as the context has room
            for.
        temperature: >= 0 and finite; below 1e-6 the most probable token is taken (greedy).
        top_p: in (0, 1]; sample from the smallest set of tokens whose probabilities sum to at least this.
        top_k: -1 (all) or >= 1; sample from the k most probable tokens.
        ignore_eos: go on after an end-of-sequence token, until `max_new_tokens`.
        sampling_seed: 0 to 2**63 - 1. A draw depends on the seed and the position in the output alone, so the
            same seed gives the same text whatever else is in the batch. None: the front draws a seed.
    """

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    ignore_eos: bool = False
    sampling_seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def check_sampling(params: SamplingParams, limits: Limits = Limits()) -> str | None:  # noqa: B008  immutable
    """Return what is wrong with sampling parameters in a sentence, or None if they can be honoured.

    The struct itself does not check on construction, so that a decoded one costs nothing twice.
    """
    n = params.max_new_tokens
    if n is not None and not 0 <= n <= limits.max_new_tokens:
        return f"max_new_tokens is {n}; it must be from 0 to {limits.max_new_tokens}"
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        return f"temperature is {params.temperature}; it must be a finite number, 0 (greedy) or more"
    if not 0 < params.top_p <= 1:
        return f"top_p is {params.top_p}; it must be greater than 0 and at most 1"
    if params.top_k != -1 and params.top_k < 1:
        return f"top_k is {params.top_k}; it must be -1 (all tokens) or at least 1"
    seed = params.sampling_seed
    if seed is not None and not 0 <= seed <= MAX_SEED:
        return f"sampling_seed is {seed}; it must be from 0 to {MAX_SEED}"
    return None
