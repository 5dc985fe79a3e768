"""Logits to tokens, over all rows at once.

A draw is one uniform number per row, looked up in the row's cumulative distribution. The number is a hash
of the request's seed and the position in its output, so a token depends on its own request alone: the same
seed gives the same text whatever else is in the batch, and a request that is computed again goes on as it
was. Rows that keep the whole vocabulary are looked up in its order; rows with top_k or top_p are sorted
first. Greedy rows take neither path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from vidette_protocol.messages import SamplingParams

NOT_FINITE: Final = -1
"""In place of a token: the logits of this row are not finite."""


class SampleRows(NamedTuple):
    """What is to be sampled: row i of the logits by params[i], as output token positions[i]."""

    params: Sequence[SamplingParams]
    positions: Sequence[int]


def sample(logits: torch.Tensor, rows: SampleRows) -> list[int]:
    """Choose the next token of each row.

    Args:
        logits: float32 [L, V].
        rows: L rows; `sampling_seed` is set in each.

    Returns:
        L token ids; NOT_FINITE where a row's logits are not finite (or all of them are minus infinity).
    """
    best = logits.max(dim=-1)
    tokens = best.indices
    # The maximum is NaN if any is NaN and +inf if any is +inf: one pass tells both. -inf alone is a mask.
    finite = torch.isfinite(best.values)
    for top_k, chosen in _groups(rows).items():
        probabilities = _probabilities(logits, chosen, rows)
        numbers = _uniforms(chosen, rows)
        if top_k is None:
            tokens[chosen] = _look_up(probabilities.double().cumsum(dim=-1), numbers)
        else:
            tokens[chosen] = _draw_sorted(probabilities, numbers, top_k, _top_ps(chosen, rows))
    tokens[~finite] = NOT_FINITE
    return [int(token) for token in tokens.tolist()]


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that belongs to a seed and a position of the output.

    SplitMix64's finaliser over both (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014), upper 53 bits.
    """
    mask = (1 << 64) - 1
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    for _ in range(2):  # twice, so that neighbouring seeds share nothing visible
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def _uniforms(chosen: list[int], rows: SampleRows) -> torch.Tensor:
    values = [uniform(rows.params[i].sampling_seed or 0, rows.positions[i]) for i in chosen]
    return torch.tensor(values, dtype=torch.float64)


def _probabilities(logits: torch.Tensor, chosen: list[int], rows: SampleRows) -> torch.Tensor:
    """Return the distribution after temperature: float32 [len(chosen), V]."""
    temperatures = torch.tensor([rows.params[i].temperature for i in chosen], dtype=torch.float32)
    # Beyond float32 is as good as its largest; by infinity, a masked token's -inf would become NaN.
    temperatures.clamp_(max=torch.finfo(torch.float32).max)
    picked = logits[chosen]
    # A row that is not finite is refused by its caller; zeros keep its arithmetic quiet until then.
    picked = torch.where(torch.isnan(picked) | torch.isposinf(picked), 0.0, picked)
    shifted = picked - picked.amax(dim=-1, keepdim=True)
    return torch.softmax(torch.nan_to_num(shifted / temperatures[:, None], nan=0.0), dim=-1)


def _groups(rows: SampleRows) -> dict[int | None, list[int]]:
    """Sort out the rows that draw: by top_k, or under None those that keep the whole vocabulary.

    A row's arithmetic is that of its group, and its group is its own parameters': nothing of the others
    can reach it, not even through the order of equal probabilities.
    """
    groups: dict[int | None, list[int]] = {}
    for i, params in enumerate(rows.params):
        if not params.greedy:
            whole = params.top_k == -1 and params.top_p >= 1
            groups.setdefault(None if whole else params.top_k, []).append(i)
    return groups


def _top_ps(chosen: list[int], rows: SampleRows) -> torch.Tensor:
    return torch.tensor([rows.params[i].top_p for i in chosen], dtype=torch.float64)


def _draw_sorted(
    probabilities: torch.Tensor, numbers: torch.Tensor, top_k: int, top_ps: torch.Tensor
) -> torch.Tensor:
    """Draw among the top_k most probable tokens, of which top_p of their mass is kept (as vLLM, SGLang)."""
    if 0 < top_k < probabilities.shape[-1]:
        ordered, ids = probabilities.topk(top_k, dim=-1, sorted=True)
    else:
        ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.double()
    mass = ordered.cumsum(dim=-1)
    before = mass - ordered
    kept = before < top_ps[:, None] * mass[:, -1:]
    columns = _look_up(torch.where(kept, ordered, 0.0).cumsum(dim=-1), numbers)
    last = kept.sum(dim=-1) - 1
    return ids.gather(1, torch.minimum(columns, last)[:, None])[:, 0]


def _look_up(cumulative: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return for each row the first index whose cumulative mass exceeds its number's share of the total."""
    targets = numbers * cumulative[:, -1]
    indices = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    return indices.clamp_(max=cumulative.shape[-1] - 1)
