"""`vidette bench scheduler`: what a step costs beside the model: deciding, planning, sampling, telling.

The model computes nothing, so that all of the time is the scheduler's own. Requests decode for ever; those
that wait do so because no more may run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.bench.results import Finding, Results
from vidette.models.interface import ModelInfo, StepPlan, StepResult, TokenTable
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_protocol.messages import SamplingParams, TokenizedGenerateReqInput
from vidette_protocol.messages.columns import pack_i32

VOCAB: Final = 1024
PROMPT: Final = 8
"""Tokens of each prompt; no two begin alike."""
BATCHES: Final = (1, 32, 256)
QUEUES: Final = (10, 10_000)
BATCH_BESIDE_QUEUE: Final = 32


class IdleModel:
    """A model that has its answer ready: always the same token.

    Args:
        rows: most tokens after which something is wanted in one step.
    """

    def __init__(self, rows: int) -> None:
        self.info = ModelInfo("idle", "idle", VOCAB, 1 << 30, frozenset({0}), 0)
        self.overlaps = False
        self._logits = torch.zeros(rows, VOCAB)
        self._logits[:, 7] = 1.0
        self._best = torch.full((rows,), 7)

    def allocate(self, num_blocks: int) -> None:
        """Allocate nothing."""

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Return copies of what there is: nothing."""
        return np.empty((len(blocks), 0), dtype=np.int64)

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put nothing into the pool."""

    def forward(self, plan: StepPlan) -> StepResult:
        """Return what the plan wants."""
        return StepResult(self._logits[: len(plan.logit_tokens)], self._best[: len(plan.best_tokens)])


def bench_scheduler(*, runs: int, steps: int, say: Callable[[str], None]) -> Results:
    """Measure steps of the scheduler against batch size and queue length.

    Args:
        runs: values of each kind.
        steps: of each value, which is their median.
        say: told what is measured next.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed is smaller than handing it out
    try:
        with torch.inference_mode():
            return _bench(runs, steps, say)
    finally:
        torch.set_num_threads(threads)


def _bench(runs: int, steps: int, say: Callable[[str], None]) -> Results:
    say(f"{runs} times {steps} steps with batches of {', '.join(map(str, BATCHES))}")
    loops = {batch: _loop(batch, 0) for batch in BATCHES}
    times: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for _ in range(runs):
        for batch, loop in loops.items():
            times[batch].append(_time_steps(loop, steps))
    findings = [
        Finding(f"step_us_b{batch}", "us", [1e6 * seconds for seconds in times[batch]]) for batch in BATCHES
    ]
    few, many = QUEUES
    say(f"{runs} times {steps} steps with queues of {few} and of {many}")
    short, long = (_loop(BATCH_BESIDE_QUEUE, queue) for queue in QUEUES)
    ratios = []
    for _ in range(runs):
        # In short turns: whatever else the machine does then meets both.
        turns = [(_time_steps(long, 10), _time_steps(short, 10)) for _ in range(max(1, steps // 10))]
        ratios.append(median(a for a, _ in turns) / median(b for _, b in turns))
    findings.append(Finding(f"queue_{many}_vs_{few}", "x", ratios))
    return Results(findings, [f"a model that computes nothing; vocabulary {VOCAB}; one thread; greedy"])


def _loop(running: int, queue: int) -> StepLoop:
    """Return a loop in which so many requests decode and so many wait."""
    options = LoopOptions(
        num_blocks=64 * running + 64, step_tokens=max(256, PROMPT * running), max_running=running
    )
    table = TokenTable([b"x"] * VOCAB, frozenset({0}))
    loop = StepLoop(IdleModel(options.step_tokens), options, table=table)
    params = SamplingParams(temperature=0, max_new_tokens=64 * 16 - PROMPT, sampling_seed=0, ignore_eos=True)
    requests = [
        TokenizedGenerateReqInput(
            vid=vid,
            rid="",
            input_ids=pack_i32([vid % VOCAB, vid // VOCAB] + [1] * (PROMPT - 2)),
            sampling_params=params,
        )
        for vid in range(running + queue)
    ]
    loop.step(requests, 0.0)
    for _ in range(8):
        loop.step((), 0.0)
    return loop


def _time_steps(loop: StepLoop, steps: int) -> float:
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        loop.step((), 0.0)
        times.append(time.perf_counter() - started)
    return median(times)
