"""The steps that `vidette bench model` times: what is computed, as plans, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, Model, StepPlan, StepResult

CONTEXT: Final = 128
"""Tokens of each prompt behind which is decoded."""
CHUNK: Final = 256
"""Most tokens of a prompt that one step computes."""
QUICK_STEPS: Final = 4


class Workload(NamedTuple):
    """Steps that are timed together.

    Args:
        name: of what is found.
        rows: requests that are computed together.
        context: tokens of each that are in the pool before.
        chunk: tokens of each that a step computes.
        steps: how many follow each other.
        repeats: how often it is timed within a run, which keeps the median.
    """

    name: str
    rows: int
    context: int
    chunk: int
    steps: int
    repeats: int = 1

    @property
    def decodes(self) -> bool:
        """Whether each row computes one token a step."""
        return self.chunk == 1

    @property
    def tokens(self) -> int:
        """What all steps compute."""
        return self.rows * self.chunk * self.steps

    @property
    def length(self) -> int:
        """Tokens of each row that are in the pool in the end."""
        return self.context + self.chunk * self.steps

    @property
    def blocks(self) -> int:
        """Blocks that hold one row."""
        return -(-self.length // BLOCK_SIZE)

    def quick(self) -> Self:
        """Return the same with few decodes, for values that nobody quotes."""
        return self._replace(steps=min(self.steps, QUICK_STEPS) if self.decodes else self.steps, repeats=1)


PREFILL: Final = Workload("prefill", 1, 0, CONTEXT, 1, repeats=3)
LONG_PREFILL: Final = Workload("prefill_2048", 1, 0, CHUNK, 2048 // CHUNK)
DECODE_1: Final = Workload("decode_b1", 1, CONTEXT, 1, 64)
DECODE_8: Final = Workload("decode_b8", 8, CONTEXT, 1, 32)
DECODE_32: Final = Workload("decode_b32", 32, CONTEXT, 1, 32)
WORKLOADS: Final = (PREFILL, DECODE_1, DECODE_8, DECODE_32, LONG_PREFILL)


def write_plans(
    workload: Workload, tables: NDArray[np.int32], vocab_size: int, rng: np.random.Generator
) -> Iterator[StepPlan]:
    """Write the plans of a workload, as the scheduler writes them.

    Decodes want the best token of each row, a prefill that of its very last token.

    Args:
        workload: what is computed.
        tables: block numbers, int32 [rows, blocks].
        vocab_size: tokens are drawn below it.
        rng: what they are drawn from.
    """
    rows, chunk = workload.rows, workload.chunk
    nothing = np.empty(0, dtype=np.int32)
    starts = np.arange(rows + 1, dtype=np.int32) * np.int32(chunk)
    for step in range(workload.steps):
        first = workload.context + step * chunk
        length = first + chunk
        last = workload.decodes or step == workload.steps - 1
        yield StepPlan(
            token_ids=rng.integers(0, vocab_size, rows * chunk, dtype=np.int32),
            positions=np.tile(np.arange(first, length, dtype=np.int32), rows),
            row_starts=starts,
            context_lens=np.full(rows, length, dtype=np.int32),
            block_tables=np.ascontiguousarray(tables[:, : -(-length // BLOCK_SIZE)]),
            logit_tokens=nothing,
            best_tokens=starts[1:] - np.int32(1) if last else nothing,
        )


class ForwardSteps:
    """A model that is given plans, with nothing around it.

    Args:
        model: its pool is allocated.
        workloads: what is timed.
        first_block: blocks from here on, `blocks_of(workloads)` of them, are free to use.
        rng: what tokens and the order of blocks are drawn from.
    """

    def __init__(
        self, model: Model, workloads: Sequence[Workload], *, first_block: int, rng: np.random.Generator
    ) -> None:
        self._model = model
        vocab_size = model.info.vocab_size
        decoding, prefilling = _shapes(workloads)
        # In no order: those of requests that have grown together are in none either.
        blocks = rng.permutation(np.arange(blocks_of(workloads), dtype=np.int32)) + np.int32(first_block)
        count = decoding[0] * decoding[1]
        regions = {True: blocks[:count].reshape(decoding), False: blocks[count:].reshape(prefilling)}
        self._plans: dict[str, list[StepPlan]] = {}
        for workload in workloads:
            tables = regions[workload.decodes][: workload.rows, : workload.blocks]
            self._plans[workload.name] = list(write_plans(workload, tables, vocab_size, rng))
        contexts = regions[True][:, : CONTEXT // BLOCK_SIZE]
        if len(contexts):
            prompt = PREFILL._replace(rows=1)
            for plan in write_plans(prompt, contexts[:1], vocab_size, rng):
                model.forward(plan)
            copies = model.export_blocks(contexts[0].tolist())
            for row in contexts[1:]:
                model.import_blocks(row.tolist(), copies)

    def time(self, workload: Workload) -> float:
        """Return the seconds that all steps of a workload take."""
        return median(_time(self._model, self._plans[workload.name]) for _ in range(workload.repeats))


def blocks_of(workloads: Sequence[Workload]) -> int:
    """Return how many blocks `ForwardSteps` uses."""
    return sum(rows * blocks for rows, blocks in _shapes(workloads))


def _shapes(workloads: Sequence[Workload]) -> list[tuple[int, int]]:
    """Return rows and blocks of what decodes and of what prefills; each kind shares its own."""
    kinds = ([w for w in workloads if w.decodes is decodes] for decodes in (True, False))
    return [
        (max((w.rows for w in kind), default=0), max((w.blocks for w in kind), default=0)) for kind in kinds
    ]


def _time(model: Model, plans: Sequence[StepPlan]) -> float:
    result: StepResult | None = None
    started = time.perf_counter()
    for plan in plans:
        result = model.forward(plan)
    if result is not None and result.logits.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
