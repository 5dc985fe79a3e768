"""The same steps through the scheduler's own loop: deciding, planning and sampling included."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.bench.steps import CHUNK, Workload
from vidette.models.interface import BLOCK_SIZE, Model, StepPlan, StepResult, TokenTable
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_protocol.messages import AbortReq, SamplingParams, TokenizedGenerateReqInput
from vidette_protocol.messages.columns import pack_i32

SLACK: Final = 32
"""Tokens that a row may make before all rows decode."""
SPARE_BLOCKS: Final = 32
"""For prompts that are timed beside those that decode."""

Phases = Mapping[str, float]
"""Seconds by what they are spent on."""


@runtime_checkable
class Profiled(Protocol):
    """A model that knows where its time goes."""

    def start_profile(self) -> None:
        """Begin to measure where the time of steps goes."""

    def profile(self) -> Phases:
        """Return the seconds of each phase since then, and stop measuring."""
        ...


class TimedModel:
    """A model that notes what its last step was and how long it took; implements `Model`.

    Args:
        model: what computes.
        spare: blocks of its pool that nobody who calls this knows of; they follow the others.
    """

    def __init__(self, model: Model, *, spare: int = 0) -> None:
        self.info = model.info
        self.overlaps = False  # it waits for what it times
        self.rows = self.tokens = 0
        self.seconds = 0.0
        self._model = model
        self._spare = spare

    def allocate(self, num_blocks: int) -> None:
        """Create the pool, the spare blocks included."""
        self._model.allocate(num_blocks + self._spare)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        """Return copies of blocks."""
        return self._model.export_blocks(blocks)

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of blocks back."""
        self._model.import_blocks(blocks, payload)

    def forward(self, plan: StepPlan) -> StepResult:
        """Compute one step, and note how long that takes."""
        started = time.perf_counter()
        result = self._model.forward(plan)
        if result.logits.is_cuda:
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - started
        self.rows, self.tokens = len(plan.context_lens), len(plan.token_ids)
        return result


class LoopTimes(NamedTuple):
    """How long steps took.

    Args:
        steps: how many.
        seconds: all of them.
        forward: of these, in the model.
        phases: of these, in the model, by phase, if it knows.
    """

    steps: int
    seconds: float
    forward: float
    phases: Phases

    @property
    def scheduler_share(self) -> float:
        """What is not the model's, as a share of the whole."""
        return 1 - self.forward / self.seconds

    def per_step(self) -> dict[str, float]:
        """Return the seconds of one step by what they are spent on; they add up to the step."""
        known = sum(self.phases.values())
        rest = {"forward, other" if self.phases else "forward": max(0.0, self.forward - known)}
        parts = {**self.phases, **rest, "scheduler": self.seconds - self.forward}
        return {name: seconds / self.steps for name, seconds in parts.items()}


class LoopSteps:
    """A step loop that is given requests.

    Prompts of decodes are the same in each run, so that but the first finds them in its cache; a request
    that is timed for its prefill has a prompt of its own.

    Args:
        model: its pool is allocated here.
        table: of its tokens.
        workloads: what is timed.
        rng: what tokens are drawn from.

    Attributes:
        num_blocks: of the pool, those that the loop uses; spare ones follow.
    """

    def __init__(
        self,
        model: TimedModel,
        table: TokenTable,
        workloads: Sequence[Workload],
        *,
        rng: np.random.Generator,
    ) -> None:
        self._model = model
        self._rng = rng
        self._vids = count(1)
        rows = max(workload.rows for workload in workloads)
        blocks = max(workload.rows * (workload.blocks + SLACK // BLOCK_SIZE + 1) for workload in workloads)
        self.num_blocks = blocks + SPARE_BLOCKS
        options = LoopOptions(num_blocks=self.num_blocks, step_tokens=CHUNK, max_running=rows)
        self._loop = StepLoop(model, options, table=table)
        contexts = {workload.context for workload in workloads if workload.decodes}
        self._prompts = {context: [self._draw(context) for _ in range(rows)] for context in contexts}

    def time(self, workload: Workload, profiled: Profiled | None = None) -> LoopTimes:
        """Return the time that all steps of a workload take.

        Args:
            workload: one of those that the loop was made for.
            profiled: the model itself, if it is asked where its time goes, which takes some.
        """
        return self._decode(workload, profiled) if workload.decodes else self._prefill(workload, profiled)

    def _prefill(self, workload: Workload, profiled: Profiled | None) -> LoopTimes:
        requests = [self._ask(self._draw(workload.length), 1) for _ in range(workload.rows)]
        return self._steps(requests, workload.steps, profiled)

    def _decode(self, workload: Workload, profiled: Profiled | None) -> LoopTimes:
        prompts = self._prompts[workload.context][: workload.rows]
        requests = [self._ask(prompt, workload.steps + SLACK) for prompt in prompts]
        self._step(requests)
        while not self._model.rows == self._model.tokens == workload.rows:
            self._step(())
        times = self._steps((), workload.steps, profiled)
        self._step([AbortReq(vid=requests[-1].vid, abort_all=True)])
        return times

    def _steps(
        self, requests: Sequence[TokenizedGenerateReqInput], steps: int, profiled: Profiled | None
    ) -> LoopTimes:
        seconds = forward = 0.0
        if profiled is not None:
            profiled.start_profile()
        for _ in range(steps):
            seconds += self._step(requests)
            forward += self._model.seconds
            requests = ()
        phases = {} if profiled is None else profiled.profile()
        return LoopTimes(steps, seconds, forward, phases)

    def _step(self, commands: Sequence[TokenizedGenerateReqInput | AbortReq]) -> float:
        """Take one step; return its seconds."""
        self._model.rows = self._model.tokens = 0
        started = time.perf_counter()
        self._loop.step(commands, 0.0)
        seconds = time.perf_counter() - started
        if not self._model.rows and not isinstance(next(iter(commands), None), AbortReq):
            raise RuntimeError("nothing was computed: the model's logits are not finite")
        return seconds

    def _draw(self, tokens: int) -> NDArray[np.int32]:
        return self._rng.integers(0, self._model.info.vocab_size, tokens, dtype=np.int32)

    def _ask(self, prompt: NDArray[np.int32], new_tokens: int) -> TokenizedGenerateReqInput:
        return TokenizedGenerateReqInput(
            vid=next(self._vids), rid="", input_ids=pack_i32(prompt), sampling_params=_params(new_tokens)
        )


def _params(new_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_new_tokens=new_tokens, sampling_seed=0, ignore_eos=True)
