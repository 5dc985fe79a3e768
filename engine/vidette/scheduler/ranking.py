"""The largest logits of each row, without sorting the vocabulary.

A row is cut into blocks of BLOCK neighbours, and one pass finds the largest of each block: its peak. What is
wanted after that looks at peaks first and then into few blocks. The order is that of the logits, and equal
ones by the lower token id; so it is one order, whatever way leads to it and whatever else is in the batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

BLOCK: Final = 64
"""Tokens of a block."""


class Ranking(NamedTuple):
    """Of n rows the tokens with the largest logits, largest first, equal ones by the lower id.

    Args:
        values: float32 [n, K], their logits.
        ids: int64 [n, K], the tokens.
        sure: bool [n, K], whether this and all before it are in their right places. Beyond, another token
            with the same logit as the last one may belong there.
    """

    values: torch.Tensor
    ids: torch.Tensor
    sure: torch.Tensor


def find_peaks(logits: torch.Tensor) -> torch.Tensor:
    """Return the largest logit of each block; NaN where there is a NaN.

    Args:
        logits: [L, V].

    Returns:
        [L, B], B = ceil(V / BLOCK).
    """
    whole = logits.shape[1] // BLOCK * BLOCK
    parts = []
    if whole:
        parts.append(logits[:, :whole].view(len(logits), -1, BLOCK).amax(dim=2))
    if whole < logits.shape[1]:
        parts.append(logits[:, whole:].amax(dim=1, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def find_best(logits: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit of each row, int64 [L]; any one where there is a NaN."""
    ids = peaks.argmax(dim=1, keepdim=True) * BLOCK + _within(logits)
    # Past the end the last token is seen again, behind itself: that changes nothing.
    ids.clamp_(max=logits.shape[1] - 1)
    place = logits.gather(1, ids).argmax(dim=1, keepdim=True)
    return ids.gather(1, place)[:, 0]


def look_into(logits: torch.Tensor, rows: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return the logits of some blocks of some rows, [n, count * BLOCK]; past the vocabulary is -inf."""
    vocab = logits.shape[1]
    if vocab % BLOCK == 0:
        places = (rows[:, None] * (vocab // BLOCK) + blocks).flatten()
        return logits.view(-1, BLOCK).index_select(0, places).view(len(rows), -1)
    ids = (blocks[:, :, None] * BLOCK + _within(logits)).flatten(1)
    outside = ids >= vocab
    found = logits.view(-1).take(rows[:, None] * vocab + ids.clamp_(max=vocab - 1))
    return found.masked_fill_(outside, -torch.inf)


def rank(logits: torch.Tensor, peaks: torch.Tensor, rows: torch.Tensor, count: int) -> Ranking:
    """Return the `count` largest of some rows, or all V if that is less.

    Args:
        logits: [L, V].
        peaks: those of the logits, [L, B].
        rows: int64 [n], which rows.
        count: how many.
    """
    vocab, blocks = logits.shape[1], peaks.shape[1]
    count = min(count, vocab)
    if blocks <= count:
        values, ids = logits.index_select(0, rows).topk(count, dim=1, sorted=False)
    else:
        # Each of these blocks has a token as large as the least of their peaks, so the largest are in them.
        chosen = peaks.index_select(0, rows).topk(count, dim=1, sorted=False).indices
        found = look_into(logits, rows, chosen)
        values, places = found.topk(count, dim=1, sorted=False)
        ids = chosen.gather(1, places // BLOCK) * BLOCK + places % BLOCK
    ids, order = ids.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    sure = values > values[:, -1:] if count < vocab else torch.ones_like(values, dtype=torch.bool)
    return Ranking(values, ids.gather(1, order), sure)


def rank_exactly(logits: torch.Tensor, peaks: torch.Tensor, rows: torch.Tensor, count: int) -> Ranking:
    """Return the `count` largest of some rows as `rank` does, all of them sure; any if there is a NaN."""
    count = min(count, logits.shape[1])
    # Some more are looked at than asked for: then it is seldom that the last one asked for equals the last.
    values, ids, sure = rank(logits, peaks, rows, max(count + 1, BLOCK))
    values, ids = values[:, :count].contiguous(), ids[:, :count].contiguous()
    for place in (~sure[:, count - 1]).nonzero()[:, 0].tolist():
        row = logits[rows[place]]
        alike = (row >= values[place, -1]).nonzero()[:, 0]
        if len(alike) < count:
            continue  # there is a NaN
        ordered, order = row.take(alike).sort(descending=True, stable=True)
        values[place], ids[place] = ordered[:count], alike.take(order[:count])
    return Ranking(values, ids.clamp_(max=logits.shape[1] - 1), torch.ones_like(ids, dtype=torch.bool))


def _within(logits: torch.Tensor) -> torch.Tensor:
    return torch.arange(BLOCK, device=logits.device)
