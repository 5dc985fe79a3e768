"""From a step plan to tensor indices: everything about a step that is the same for all layers.

Rows are sorted into a few groups, each computed as one padded batch: rows with one new token (decodes) and
rows with several (chunks of a prefill), either kind apart by the length of its context, so that one long
row does not pad all the others to its length.

A padded position never reads memory of another row: it repeats a token, or a slot, of its own row, and the
mask takes it out. So whatever a recycled block holds, even values that are not finite, it cannot leak.
A layer with a window reads no position that none of the row's new tokens sees.
"""

# ruff: noqa: N803, N806, N815  array names end in their shape: R rows, T tokens, Q queries, C context
# positions, B blocks, N queries times the heads that share a key-value head

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, StepPlan

# Contexts up to this length share a group; beyond it, each doubling has its own.
_SHORT_CONTEXT: Final = 512


class RowGroup(NamedTuple):
    """Rows that are computed as one padded batch."""

    rows: NDArray[np.int64]
    """[R] which rows of the plan."""
    queries_RQ: NDArray[np.int64]
    """Index of each new token among the step's tokens; padding repeats the row's first."""


class AttentionGroup(NamedTuple):
    """Rows whose attention is computed as one padded batch."""

    queries_RQ: torch.Tensor
    """int64: index of each query among the step's tokens; padding repeats the row's first."""
    slots_RC: torch.Tensor
    """int64: slot in the pool of each position the row sees; padding repeats one of the row's."""
    visible_R1NC: torch.Tensor
    """bool: whether a query sees a position."""


class AttentionLayout(NamedTuple):
    """What all layers with the same window share."""

    groups: list[AttentionGroup]
    order_T: torch.Tensor | None
    """int64: place of each token in the concatenated outputs of the groups; None if that is its own place."""


class StepLayout(NamedTuple):
    """What all layers of one step share."""

    slots_T: torch.Tensor
    """int64: where each token's key and value go."""
    attention: dict[int, AttentionLayout]
    """By window; windows that reach over every context share one."""


def lay_out(plan: StepPlan, heads_per_kv_head: int, windows: Collection[int] = (0,)) -> StepLayout:
    """Compute the indices and masks of a step.

    Args:
        plan: the step.
        heads_per_kv_head: heads that share a key-value head; each counts as a query of its own, next to the
            others of its token.
        windows: how many positions a token sees, its own included, for each window that a layer has; 0: all.
    """
    rows_T = np.repeat(np.arange(len(plan.context_lens)), np.diff(plan.row_starts))
    slots_T = find_slots(plan.block_tables[rows_T], plan.positions[:, None])[:, 0]
    longest = int(plan.context_lens.max(initial=0))
    different: dict[int, AttentionLayout] = {}
    attention: dict[int, AttentionLayout] = {}
    for window in {*windows}:
        effective = window if 0 < window < longest else 0
        if effective not in different:
            different[effective] = _lay_out_attention(plan, heads_per_kv_head, effective)
        attention[window] = different[effective]
    return StepLayout(torch.from_numpy(slots_T), attention)


def _lay_out_attention(plan: StepPlan, heads_per_kv_head: int, window: int) -> AttentionLayout:
    """Lay out each group; context positions count from the first that the row's first token sees."""
    num_new_R = np.diff(plan.row_starts)
    unseen_R = np.zeros(len(num_new_R), dtype=np.int64)
    if window:
        unseen_R = np.maximum(plan.context_lens - num_new_R - window + 1, 0).astype(np.int64)
    seen_R = plan.context_lens - unseen_R

    grouped, order_T = group_rows(plan, seen_R)
    groups: list[AttentionGroup] = []
    for rows, queries_RQ in grouped:
        places_C = np.arange(seen_R[rows].max())
        own_RC = unseen_R[rows, None] + np.where(places_C < seen_R[rows, None], places_C, 0)
        last_RQ = plan.positions[queries_RQ] - unseen_R[rows, None]
        last_RN1 = last_RQ.repeat(heads_per_kv_head, axis=1)[:, :, None]
        visible_RNC = places_C <= last_RN1
        if window:
            visible_RNC &= places_C > last_RN1 - window
        groups.append(
            AttentionGroup(
                torch.from_numpy(queries_RQ),
                torch.from_numpy(find_slots(plan.block_tables[rows], own_RC)),
                torch.from_numpy(visible_RNC[:, None]),
            )
        )
    return AttentionLayout(groups, None if order_T is None else torch.from_numpy(order_T))


def group_rows(
    plan: StepPlan, seen_R: NDArray[np.integer]
) -> tuple[list[RowGroup], NDArray[np.int64] | None]:
    """Sort the rows by whether they have several new tokens, and by the doublings of what they see.

    Args:
        plan: the step.
        seen_R: how many positions each row sees.

    Returns:
        The groups, and the place of each token among all their queries, paddings counted; None if that is its
        own place.
    """
    starts_R, num_new_R = plan.row_starts[:-1].astype(np.int64), np.diff(plan.row_starts)
    doublings_R = np.ceil(np.log2(np.maximum(seen_R, _SHORT_CONTEXT))).astype(np.int64)
    kinds_R = 2 * doublings_R + (num_new_R > 1)
    groups: list[RowGroup] = []
    order_T = np.empty(len(plan.positions), dtype=np.int64)
    done = 0
    for kind in np.unique(kinds_R):
        rows = np.flatnonzero(kinds_R == kind)
        steps_Q = np.arange(num_new_R[rows].max())
        real_RQ = steps_Q < num_new_R[rows, None]
        queries_RQ = starts_R[rows, None] + np.where(real_RQ, steps_Q, 0)
        groups.append(RowGroup(rows, queries_RQ))
        order_T[queries_RQ[real_RQ]] = done + np.flatnonzero(real_RQ)
        done += real_RQ.size
    in_place = done == len(order_T) and bool((order_T == np.arange(done)).all())
    return groups, None if in_place else order_T


def find_slots(
    block_tables_RB: NDArray[np.int32], positions_RC: NDArray[np.int64 | np.int32]
) -> NDArray[np.int64]:
    """Return the slot of each position, int64 [R, C]."""
    blocks_RC = np.take_along_axis(block_tables_RB, positions_RC // BLOCK_SIZE, axis=1).astype(np.int64)
    return blocks_RC * BLOCK_SIZE + positions_RC % BLOCK_SIZE
