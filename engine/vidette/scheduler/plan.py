"""From a batch of sequences to a `StepPlan`: no Python per token, and little for a row that decodes."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, StepPlan
from vidette.scheduler.kv_cache import Hold, KVCache
from vidette.scheduler.queue import OUTPUT_WEIGHT
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
    drafts: Rows[int]
    best: bool = False

    @classmethod
    def of(cls, sequence: Sequence, count: int, spare: int, cache: KVCache) -> Share:
        """Return a share, and have its sequence hold the blocks that it takes.

        Args:
            sequence: whose; one that decodes may take drafts along.
            count: how many of its uncomputed tokens.
            spare: how many drafts at most.
            cache: where blocks come from.
        """
        hold, end = sequence.hold, sequence.computed + count
        assert hold is not None
        if len(hold.blocks) * BLOCK_SIZE < end:
            cache.grow(hold, end)
        last = end == sequence.length
        wanted = int(last) if sequence.prompt_logprobs is None else sequence.logits_wanted(count)
        best = sequence.takes_best
        if sequence.drafts is None or not sequence.decoding:
            return cls(sequence, count, wanted, last, (), best)
        drafts = sequence.draft(min(spare, sequence.room - 1))
        return cls(sequence, count + len(drafts), wanted + len(drafts), last, drafts, best)

    @property
    def chosen(self) -> int:
        """How many tokens are chosen, from the last of the logits."""
        return 1 + len(self.drafts) if self.last and self.sequence.most else 0


def charges(batch: Rows[Share]) -> dict[str | None, float]:
    """Return what is computed for each tenant, but for what is computed again; from now on it counts."""
    served: dict[str | None, float] = {}
    for share in batch:
        sequence = share.sequence
        tokens = OUTPUT_WEIGHT if sequence.decoding else sequence.charge(share.tokens)
        served[sequence.tenant] = served.get(sequence.tenant, 0.0) + tokens
    return served


class PlanWriter:
    """Writes plans, each over the last one.

    A block table is kept as long as its row has the same blocks, as it has in nearly every step of decodes;
    and so are all arrays of such a step, as long as there are as many rows.
    """

    def __init__(self) -> None:
        self._tables: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._versions: list[int] = []
        """Of the hold whose blocks are in a row; 0: of none."""
        self._filled: list[int] = []
        """How many blocks are in a row."""
        self._decodes: StepPlan | None = None
        self._bests: list[bool] = []
        """Of which rows of it just best tokens are wanted."""

    def write(self, batch: Rows[Share]) -> StepPlan:
        """Write the plan of a batch; of its rows, in order, `wanted` logits or best tokens each.

        It is good until the next one is written.
        """
        rows, decodes = len(batch), True
        firsts: list[int] = []
        lasts: list[int] = []
        ends: list[int] = []
        bests: list[bool] = []
        versions = self._versions
        if rows > len(versions):
            self._widen(rows, 0)
        for row, (sequence, tokens, wanted, last, _, best) in enumerate(batch):
            first, hold = sequence.computed, sequence.hold
            assert hold is not None
            firsts.append(first)
            lasts.append(sequence.last)
            ends.append(first + tokens)
            bests.append(best)
            if not (last and tokens == wanted == 1):
                decodes = False
            if versions[row] != hold.version:
                self._write_table(row, hold)
        width = -(-max(ends) // BLOCK_SIZE)
        if decodes:
            return self._write_decodes(lasts, firsts, bests, width)
        return _write_any(batch, firsts, bests, self._tables[:rows, :width])

    def _write_decodes(
        self, tokens: list[int], positions: list[int], bests: list[bool], width: int
    ) -> StepPlan:
        """Write a plan of rows that have one token each, after which something is wanted."""
        rows, plan = len(tokens), self._decodes
        if plan is None or plan.block_tables.shape != (rows, width) or bests != self._bests:
            best = np.array(bests)
            self._bests = bests
            ordinals = np.arange(rows + 1, dtype=np.int32)
            plan = self._decodes = StepPlan(
                token_ids=np.empty(rows, dtype=np.int32),
                positions=np.empty(rows, dtype=np.int32),
                row_starts=ordinals,
                context_lens=np.empty(rows, dtype=np.int32),
                block_tables=self._tables[:rows, :width],
                logit_tokens=ordinals[:-1][~best],
                best_tokens=ordinals[:-1][best],
            )
        plan.token_ids[:] = tokens
        plan.positions[:] = positions
        np.add(plan.positions, 1, out=plan.context_lens)
        return plan

    def _write_table(self, row: int, hold: Hold) -> None:
        blocks, before = len(hold.blocks), self._filled[row]
        if blocks > self._tables.shape[1]:
            self._widen(0, blocks)
        self._tables[row, :blocks] = hold.table[:blocks]
        self._tables[row, blocks:before] = 0
        self._versions[row], self._filled[row] = hold.version, blocks

    def _widen(self, rows: int, width: int) -> None:
        """Make room for so many rows of so many blocks, and for some more."""
        height, before = self._tables.shape
        shape = max(height, 2 * rows if rows > height else 0), max(before, 2 * width if width > before else 0)
        wider = np.zeros(shape, dtype=np.int32)
        wider[:height, :before] = self._tables
        self._tables = wider
        self._versions += [0] * (shape[0] - height)
        self._filled += [0] * (shape[0] - height)
        self._decodes = None


def _write_any(
    batch: Rows[Share], starts: list[int], bests: list[bool], block_tables: NDArray[np.int32]
) -> StepPlan:
    counts = np.array([share.tokens for share in batch], dtype=np.int32)
    wanted = np.array([share.wanted for share in batch], dtype=np.int32)
    best = np.array(bests)
    firsts = np.array(starts, dtype=np.int32)
    row_starts = np.zeros(len(batch) + 1, dtype=np.int32)
    np.cumsum(counts, out=row_starts[1:])
    token_ids = np.empty(row_starts[-1], dtype=np.int32)
    start = 0
    for (sequence, count, *_), first in zip(batch, starts, strict=True):
        if count == 1:  # a slice costs several times as much
            token_ids[start] = sequence.tokens[first]
        else:
            token_ids[start : start + count] = sequence.tokens[first : first + count]
        start += count
    return StepPlan(
        token_ids=token_ids,
        positions=_ranges(firsts, counts),
        row_starts=row_starts,
        context_lens=firsts + counts,
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
