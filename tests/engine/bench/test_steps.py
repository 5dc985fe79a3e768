"""That the plans which are timed are what the scheduler would write, each in blocks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vidette.bench.steps import (
    CONTEXT,
    DECODE_1,
    DECODE_8,
    DECODE_32,
    LONG_PREFILL,
    PREFILL,
    WORKLOADS,
    ForwardSteps,
    Workload,
    blocks_of,
    write_plans,
)
from vidette.models import BLOCK_SIZE, StepPlan, StepResult
from vidette.models.toy import ToyModel


def plans_of(workload: Workload) -> list[StepPlan]:
    tables = np.arange(workload.rows * workload.blocks, dtype=np.int32).reshape(workload.rows, -1)
    return list(write_plans(workload, tables, 260, np.random.default_rng(0)))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_rows_grow_from_their_context_to_their_length(workload: Workload) -> None:
    plans = plans_of(workload)
    assert len(plans) == workload.steps
    assert sum(len(plan.token_ids) for plan in plans) == workload.tokens
    expected = workload.context
    for plan in plans:
        for row in range(workload.rows):
            own = slice(plan.row_starts[row], plan.row_starts[row + 1])
            assert plan.positions[own].tolist() == list(range(expected, expected + workload.chunk))
        expected += workload.chunk
        assert (plan.context_lens == expected).all()
        assert plan.block_tables.shape == (workload.rows, -(-expected // BLOCK_SIZE))
        for array in plan:
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
    assert expected == workload.length


def test_what_is_wanted_is_what_the_scheduler_wants() -> None:
    assert [len(plan.best_tokens) for plan in plans_of(DECODE_8)] == [8] * DECODE_8.steps
    assert [len(plan.best_tokens) for plan in plans_of(LONG_PREFILL)] == [0] * 7 + [1]
    assert plans_of(PREFILL)[0].best_tokens.tolist() == [CONTEXT - 1]
    assert not any(len(plan.logit_tokens) for plan in plans_of(DECODE_8))


def test_the_sizes_are_those_that_are_documented() -> None:
    ranges = {w.name: (w.rows, w.context, w.length) for w in WORKLOADS}
    assert ranges == {
        "prefill": (1, 0, 128),
        "decode_b1": (1, 128, 192),
        "decode_b8": (8, 128, 160),
        "decode_b32": (32, 128, 160),
        "prefill_2048": (1, 0, 2048),
    }


class Recorder(ToyModel):
    """A toy model that keeps its plans."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[StepPlan] = []
        self.copied: list[int] = []

    def forward(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return super().forward(plan)

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        self.copied += blocks
        super().import_blocks(blocks, payload)


def test_no_block_is_two_rows_and_none_is_outside() -> None:
    model, first = Recorder(), 5
    workloads = (PREFILL, DECODE_1, DECODE_32)
    model.allocate(first + blocks_of(workloads))
    steps = ForwardSteps(model, workloads, first_block=first, rng=np.random.default_rng(0))
    # The prompt of the first row is computed, and that of the others is a copy.
    prompt = model.plans[0].block_tables[0].tolist()
    assert len(model.copied) == 31 * len(prompt)
    for workload in workloads:
        assert steps.time(workload) > 0
    used = model.plans[-1].block_tables
    assert len(np.unique(used)) == used.size
    assert used[0, : len(prompt)].tolist() == prompt
    assert not set(model.plans[1].block_tables.flat) & {*used.flat, *model.copied}, "a prefill has its own"
    everything = {block for plan in model.plans for block in plan.block_tables.flat}
    assert everything <= set(range(first, first + blocks_of(workloads)))
    repeats = [plan for plan in model.plans if len(plan.token_ids) == PREFILL.chunk]
    assert len(repeats) == 1 + PREFILL.repeats
