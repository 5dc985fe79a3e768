"""From a batch of sequences to a `StepPlan`: one pass over the rows, no Python per token."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, StepPlan
from vidette.scheduler.sequence import Sequence


class Share(NamedTuple):
    """What a step computes of one sequence.

    Args:
        sequence: whose.
        tokens: how many of its uncomputed tokens, drafts behind them included.
        wanted: after how many of these tokens, the last ones, logits or best tokens are wanted.
        last: whether nothing that is known of it is uncomputed then.
        drafts: the drafts among the tokens.
        best: whether instead of logits it is just their best tokens that are wanted.
    """

    sequence: Sequence
    tokens: int
    wanted: int
    last: bool
    drafts: list[int]
    best: bool = False

    @property
    def chosen(self) -> int:
        """How many tokens are chosen, from the last of the logits."""
        return 1 + len(self.drafts) if self.last and self.sequence.most else 0


def write_plan(batch: Rows[Share]) -> StepPlan:
    """Write the plan of a batch: of its rows, in order, `wanted` logits or best tokens each."""
    rows = len(batch)
    counts = np.array([share.tokens for share in batch], dtype=np.int32)
    wanted = np.array([share.wanted for share in batch], dtype=np.int32)
    best = np.array([share.best for share in batch])
    firsts = np.array([share.sequence.computed for share in batch], dtype=np.int32)
    row_starts = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(counts, out=row_starts[1:])
    context_lens = firsts + counts
    # Columns beyond the tokens computed so far are not read; the table is as wide as the widest context.
    widest = -(-int(context_lens.max()) // BLOCK_SIZE)
    token_ids = np.empty(row_starts[-1], dtype=np.int32)
    block_tables = np.zeros((rows, widest), dtype=np.int32)
    start = 0
    for row, (sequence, count, *_) in enumerate(batch):
        first = sequence.computed
        if count == 1:  # a decode, as most are; a slice costs several times as much
            token_ids[start] = sequence.tokens[first]
        else:
            token_ids[start : start + count] = sequence.tokens[first : first + count]
        start += count
        hold = sequence.hold
        assert hold is not None
        table = hold.table
        if len(table) >= widest:
            block_tables[row] = table[:widest]
        else:
            block_tables[row, : len(table)] = table
    return StepPlan(
        token_ids=token_ids,
        positions=_ranges(firsts, counts),
        row_starts=row_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        logit_tokens=_lasts(row_starts[1:], np.where(best, 0, wanted)),
        best_tokens=_lasts(row_starts[1:], np.where(best, wanted, 0)),
    )


def _lasts(ends: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the last places before each end, `counts` of them."""
    return _ranges(ends - counts, counts) if counts.any() else counts[:0]


def _ranges(firsts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return first, first + 1, ... for each row, `counts` of them, one row behind the other."""
    if counts.max() == counts.min() == 1:  # decodes alone
        return firsts
    ends = np.cumsum(counts, dtype=np.int32)
    places: NDArray[np.int32] = np.arange(ends[-1], dtype=np.int32)
    places += np.repeat(firsts - (ends - counts), counts)
    return places
