"""A model that can be foretold, and what hears what a step loop says of its requests."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vidette.models import BLOCK_SIZE, ModelInfo, StepPlan, StepResult, TokenTable
from vidette.models.best import split_logits
from vidette.models.toy import ToyModel
from vidette.models.toy_tokenizer import toy_token_table
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_fuzz.overlapping import Overlapping
from vidette_protocol.messages import (
    BatchTokenIDOutput,
    FinishReason,
    HeartbeatReq,
    SamplingParams,
    SchedulerLedger,
    SchedulerTotals,
    Served,
    TokenizedGenerateReqInput,
)
from vidette_protocol.messages.columns import pack_i32

VOCAB = 50
EOS = 0
DEADLINE = 20.0
"""Seconds after which whatever was to happen is taken not to happen."""
ENDLESS = 10_000
"""More tokens than any test waits for."""
NOT_A_NUMBER = -1
"""In place of a next token: the logits are not finite."""

TABLE = TokenTable([b"<end>", *(b"%c" % (64 + token) for token in range(1, VOCAB))], frozenset({EOS}))
"""Token 1 is "A", and so on."""

NextToken = Callable[[Sequence[int]], int]
"""From all tokens of a context to the next one."""


def mixed(context: Sequence[int]) -> int:
    """Return a token that depends on every token of the context and on its place, and never ends it."""
    return 1 + sum((place + 1) * (token + 3) for place, token in enumerate(context)) % (VOCAB - 1)


class FakeModel:
    """A model whose most probable token is a function of the context as its pool has it.

    Every plan is checked against what `StepPlan` promises, and kept.
    """

    def __init__(self, next_token: NextToken = mixed, *, context_len: int = 1000) -> None:
        self.info = ModelInfo(
            name="fake",
            architecture="fake",
            vocab_size=VOCAB,
            context_len=context_len,
            eos_token_ids=frozenset({EOS}),
            kv_bytes_per_token=4,
        )
        self.overlaps = False
        self.next_token = next_token
        self.plans: list[StepPlan] = []
        self._pool: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def allocate(self, num_blocks: int) -> None:
        assert not len(self._pool), "the pool is created once"
        self._pool = np.full(num_blocks * BLOCK_SIZE, 10**6)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        return self._pool.reshape(-1, BLOCK_SIZE)[list(blocks)]

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        self._pool.reshape(-1, BLOCK_SIZE)[list(blocks)] = payload

    def forward(self, plan: StepPlan) -> StepResult:
        self.plans.append(StepPlan(*(array.copy() for array in plan)))
        check_plan(plan)
        wanted = plan.wanted_tokens
        logits = torch.zeros(len(wanted), VOCAB)
        contexts = []
        for row, (start, end) in enumerate(spans(plan)):
            places = np.arange(plan.context_lens[row])
            slots = plan.block_tables[row][places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
            self._pool[slots[plan.positions[start:end]]] = plan.token_ids[start:end]
            contexts.append(self._pool[slots].tolist())
        rows = np.searchsorted(plan.row_starts, wanted, side="right") - 1
        for logit, (row, place) in enumerate(zip(rows, wanted, strict=True)):
            token = self.next_token(contexts[row][: plan.positions[place] + 1])
            if token == NOT_A_NUMBER:
                logits[logit, 3] = torch.nan
            else:
                logits[logit, token] = 40.0
        return split_logits(logits, plan)


def logits_of(context: list[int]) -> NDArray[np.float32]:
    """Return the logits behind a context: random, but always the same."""
    seed = zlib.crc32(np.array(context, dtype=np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 2


class RandomModel(FakeModel):
    """A model whose logits say more than the next token."""

    def __init__(self) -> None:
        self.wanted: list[NDArray[np.float32]] = []
        super().__init__(self._note)

    def _note(self, context: Any) -> int:
        self.wanted.append(logits_of(list(context)))
        return 0

    def forward(self, plan: StepPlan) -> StepResult:
        self.wanted.clear()
        result = super().forward(plan)
        return split_logits(torch.from_numpy(np.stack(self.wanted)), plan) if self.wanted else result


class GatedModel(FakeModel):
    """A model each of whose steps waits to be let through."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def forward(self, plan: StepPlan) -> StepResult:
        self.begun.release()
        assert self.gate.acquire(timeout=DEADLINE)
        return super().forward(plan)

    def open(self) -> None:
        """Let every step through from now on."""
        self.gate.release(ENDLESS)


def spans(plan: StepPlan) -> list[tuple[int, int]]:
    """Return where each row's tokens start and end."""
    return list(zip(plan.row_starts[:-1].tolist(), plan.row_starts[1:].tolist(), strict=True))


def check_plan(plan: StepPlan) -> None:
    """Fail unless a plan is what `StepPlan` says."""
    assert all(array.dtype == np.int32 for array in plan)
    rows = spans(plan)
    assert plan.row_starts[0] == 0
    assert len(plan.token_ids) == len(plan.positions) == plan.row_starts[-1]
    assert len(plan.context_lens) == len(plan.block_tables) == len(rows) > 0
    taken: list[int] = []
    written: list[int] = []
    for row, (start, end) in enumerate(rows):
        assert start < end
        first = plan.positions[start]
        assert plan.positions[start:end].tolist() == list(range(first, first + end - start))
        assert plan.context_lens[row] == plan.positions[end - 1] + 1
        blocks = plan.block_tables[row][: -(-plan.context_lens[row] // BLOCK_SIZE)].tolist()
        assert len(set(blocks)) == len(blocks), "a block is in two places"
        taken += blocks
        written += blocks[first // BLOCK_SIZE :]
    assert all(taken.count(block) == 1 for block in written), "a block that is written is in two places"
    for each in (plan.logit_tokens.tolist(), plan.best_tokens.tolist()):
        assert each == sorted(each)
    for start, end in rows:  # those of a row are of its last tokens, and of one kind
        both = [[t for t in each if start <= t < end] for each in (plan.logit_tokens, plan.best_tokens)]
        wanted = both[0] or both[1]
        assert wanted == list(range(end - len(wanted), end))
        assert not (both[0] and both[1])


def foretell(
    prompt: Sequence[int], params: SamplingParams, next_token: NextToken = mixed
) -> tuple[list[int], FinishReason]:
    """Return the whole answer of a request by itself, from the model's function alone."""
    context = list(prompt)
    made: list[int] = []
    while len(made) < (params.max_new_tokens or 0):
        token = next_token(context)
        if token == NOT_A_NUMBER:
            return made, FinishReason("error", message="the model's logits are not finite")
        context.append(token)
        made.append(token)
        if token == EOS and not params.ignore_eos and len(made) < (params.max_new_tokens or 0):
            return made, FinishReason("stop", matched=EOS)
    return made, FinishReason("length", length=params.max_new_tokens)


def request(
    vid: int,
    prompt: Iterable[int] = (5, 6, 7),
    *,
    floor: int = 0,
    deadline_s: float | None = None,
    resumed: Sequence[int] | None = None,
    **options: Any,
) -> TokenizedGenerateReqInput:
    """Return a request as the front sends it: greedy and short unless told otherwise.

    Options are fields of the request or of its sampling parameters.
    """
    params = {name: options.pop(name) for name in SamplingParams.__struct_fields__ if name in options}
    settled = {"temperature": 0.0, "max_new_tokens": 4, "sampling_seed": 0, **params}
    return TokenizedGenerateReqInput(
        vid=vid,
        floor=floor,
        rid=f"rid of {vid}",
        input_ids=pack_i32(prompt),
        sampling_params=SamplingParams(**settled),
        deadline_s=deadline_s,
        resumed_output_ids=None if resumed is None else pack_i32(resumed),
        **options,
    )


class Heard:
    """What was said of each vid, put together, and checked as the next role would."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason] = {}
        self.served: dict[int, list[Served]] = {}
        self.ledger = SchedulerLedger()

    def hear(self, message: BatchTokenIDOutput) -> None:
        self.ledger = message.ledger
        assert message.check_columns() is None
        for row in message.rows():
            assert row.vid not in self.ends, f"a row of {row.vid} after its end"
            made = self.tokens.setdefault(row.vid, [])
            assert row.offset == len(made), f"a gap or a repeat in the tokens of {row.vid}"
            assert row.token_ids or row.reason is not None, f"a row of {row.vid} that says nothing"
            made.extend(row.token_ids)
            if row.served is not None:
                self.served.setdefault(row.vid, []).append(row.served)
            if row.reason is not None:
                self.ends[row.vid] = row.reason


class Driver:
    """A step loop and what it has said so far; the thread that drives it is the test.

    Args:
        model: what computes.
        num_blocks: as the other sizes, of `LoopOptions`.
        step_tokens: likewise.
        max_running: likewise.
        overlaps: whether the model computes between the steps; None: as `either_way` says.
        rules: the rest of `LoopOptions`.
    """

    overlapping: ClassVar[bool] = False

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        num_blocks: int = 64,
        step_tokens: int = 256,
        max_running: int = 16,
        overlaps: bool | None = None,
        **rules: Any,
    ) -> None:
        self.model = model if model is not None else FakeModel()
        sizes = LoopOptions(num_blocks=num_blocks, step_tokens=step_tokens, max_running=max_running, **rules)
        overlaps = self.overlapping if overlaps is None else overlaps
        self.device = Overlapping(self.model) if overlaps else None
        self.loop = StepLoop(self.device or self.model, sizes, table=TABLE)
        self.heard = Heard()
        self.now = 0.0
        """The clock, which the tests turn by hand."""

    def step(self, *commands: Command, launch: bool = True) -> Effects:
        """Take one step, once the device is done with the last one."""
        if self.device is not None:
            self.device.finish()
        effects = self.loop.step(commands, self.now, launch=launch)
        for message in effects.messages:
            if isinstance(message, BatchTokenIDOutput):
                self.heard.hear(message)
        return effects

    def run(self, *commands: Command, most: int = 2000) -> None:
        """Take steps until nothing is left to do."""
        effects = self.step(*commands)
        for _ in range(most):
            if not effects.busy:
                return
            effects = self.step()
        pytest.fail(f"still busy after {most} steps: {self.ledger}")

    @property
    def ledger(self) -> SchedulerLedger:
        """What the loop holds now, without what it has done."""
        return msgspec.structs.replace(self.loop.ledger(), totals=SchedulerTotals())

    @property
    def totals(self) -> SchedulerTotals:
        """What the loop has done."""
        return self.loop.ledger().totals

    def assert_blocks_are_conserved(self) -> None:
        """Fail unless every block is free, or cached, or held by one request alone."""
        cache = self.loop._cache
        own = [
            block
            for sequence in self.loop._running.values()
            if sequence.hold is not None
            for block in sequence.hold.blocks[sequence.hold.shared :]
        ]
        assert len(own) == len(set(own))
        assert cache._pool.taken == cache._radix.cached + len(own)
        assert not cache.cached or cache._radix.evictable == cache.cached

    def end(self, vid: int) -> str | None:
        """Return how a vid ended, if it did."""
        reason = self.heard.ends.get(vid)
        return None if reason is None else reason.type

    def assert_nothing_is_held(self, floor: int = 10**6) -> None:
        """Fail unless every ledger is zero once the front's floor has passed."""
        (answer,) = self.step(HeartbeatReq(id=0, floor=floor)).messages
        assert isinstance(answer, HeartbeatReq)
        ledger = answer.scheduler
        assert ledger is not None
        assert (ledger.live, ledger.waiting, ledger.tombstones, ledger.blocks_used) == (0, 0, 0, 0)


@pytest.fixture(params=[False, True], ids=["plain", "overlapping"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every `Driver` of a test drive a model that computes in its steps, and one that does between."""
    monkeypatch.setattr(Driver, "overlapping", request.param)


def toy_loop(**sizes: Any) -> StepLoop:
    """Return a loop around the toy model."""
    return StepLoop(ToyModel(), LoopOptions(**sizes), table=toy_token_table())


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a test froze: it is the one of all tests."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Fail a test that leaves a descriptor open."""
    before = _descriptors()
    yield
    left = {number: what for number, what in _descriptors().items() if before.get(number) != what}
    assert not left, f"descriptors were left open: {left}"


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  names, not paths
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return found
