"""From a step's result to what each sequence of the batch says next.

A draft is judged by what would have been chosen without it: each of its places has its own number to draw by
(seed and position), so it is kept as far as it is the very token that is chosen there. The text is the same
with drafts as without, greedy or not.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import torch

from vidette.models.accelerator import upload
from vidette.models.interface import NOT_FINITE, StepResult
from vidette.scheduler.logprobs import Found, Wanted, find_logprobs
from vidette.scheduler.plan import Share
from vidette.scheduler.sampler import sample
from vidette.scheduler.sampling import SamplingRow


class Made(NamedTuple):
    """What a sequence says next.

    Args:
        tokens: one, and as many more as drafts were right; none if the logits are not finite, or if it is
            to say nothing.
        logprobs: of these tokens, if it wants some.
        faulty: whether the logits behind these are not finite.
    """

    tokens: list[int]
    logprobs: Items[Found] = ()
    faulty: bool = False


def choose(batch: Items[Share], result: StepResult) -> list[Made | None]:
    """Choose what each sequence says next; None: its prefill goes on.

    Args:
        batch: as it was launched.
        result: `wanted` of each share, in order, best tokens or logits; these may be changed in place.
    """
    places: list[int] = []
    rows: list[SamplingRow] = []
    positions: list[int] = []
    logits, end = result.logits, 0
    for share in batch:
        if share.best:
            continue
        sequence, start = share.sequence, end
        end += share.wanted
        count = share.chosen
        if sequence.prompt_logprobs is not None:
            needed = sequence.prompt_logprobs.needed(sequence.computed, share.tokens)
            if needed:
                sequence.prompt_logprobs.add(needed.start, logits[start : start + len(needed)])
        if count == 1:  # nearly always
            places.append(end - 1)
            rows.append(sequence.row)
            positions.append(sequence.made)
        else:
            places += range(end - count, end)
            rows += [sequence.row] * count
            positions += range(sequence.made, sequence.made + count)
    picked = logits
    if len(places) != len(logits):
        picked = logits.index_select(0, upload(torch.tensor(places, dtype=torch.int64), logits.device))
    tokens = sample(picked, rows, positions)
    best: list[int] = result.best.tolist()
    made: list[Made | None] = []
    start = best_start = 0
    reported: list[tuple[int, int, Wanted]] = []
    for place, share in enumerate(batch):
        if not share.last:
            made.append(None)
            continue
        count = share.chosen
        if share.best:
            made.append(_accept(best[best_start : best_start + count], share.drafts))
            best_start += count
            continue
        said = _accept(tokens[start : start + count], share.drafts)
        made.append(said)
        wanted = share.sequence.wanted
        if wanted is not None:
            reported += [(place, start + i, wanted) for i in range(len(said.tokens))]
        start += count
    return _with_logprobs(made, reported, picked, tokens, rows) if reported else made


def _accept(tokens: list[int], drafts: Items[int]) -> Made:
    right = 0
    while right < len(drafts) and tokens[right] == drafts[right]:
        right += 1
    kept = tokens[: right + 1]
    if kept and kept[-1] == NOT_FINITE:
        return Made(kept[:-1], faulty=True)
    return Made(kept)


def _with_logprobs(
    made: list[Made | None],
    reported: Items[tuple[int, int, Wanted]],
    logits: torch.Tensor,
    tokens: Items[int],
    rows: Items[SamplingRow],
) -> list[Made | None]:
    lines = [line for _, line, _ in reported]
    found = find_logprobs(
        logits,
        lines,
        [tokens[line] for line in lines],
        [wanted for _, _, wanted in reported],
        [rows[line].logprob_temperature for line in lines],
    )
    by_place: dict[int, list[Found]] = {}
    for (place, _, _), one in zip(reported, found, strict=True):
        by_place.setdefault(place, []).append(one)
    return [
        said if said is None or place not in by_place else said._replace(logprobs=by_place[place])
        for place, said in enumerate(made)
    ]
