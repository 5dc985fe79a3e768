"""`StepLoop`: the scheduler as one synchronous object.

`step(commands, now) -> effects` is all there is: it owns the machine, the blocks and the batch, and the
compute thread, a simulation and the tests drive it alike. It reads no clock and does no I/O; what has to be
sent or told is in the effects.

A step applies its commands first. If they ended something, or ask something, the answer goes out at once and
the model runs with the next step; so the acknowledgement of an abort never waits for a batch. Otherwise the
step plans, launches, lands, and tells what was made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette._freeze import Freeze
from vidette.models.interface import BLOCK_SIZE, Model, StepPlan
from vidette.scheduler.blocks import BlockPool
from vidette.scheduler.deadlines import Deadlines
from vidette.scheduler.policy import Budget, decide
from vidette.scheduler.sampler import NOT_FINITE, SampleRows, sample
from vidette.scheduler.support import find_unsupported
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import Row, SchedulerMachine
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    TokenizedGenerateReqInput,
    TokenRow,
)

Command = TokenizedGenerateReqInput | AbortReq | HeartbeatReq | FreezeGCReq | ShutdownReq
"""What a step takes: the front's messages, as they came."""

ABORTED: Final = FinishReason("abort", message="the caller ended the request")
EXPIRED: Final = FinishReason(
    "error", message="its deadline passed", status_code=504, err_type="deadline_exceeded"
)
DEADLINE_GRACE: Final = 0.1
"""Seconds that a deadline is passed before a request is ended here. The front has it end by itself, which it
knows better; this is for a front that is stuck."""


class Effects(NamedTuple):
    """What one step wants done, in this order.

    Args:
        messages: to the detokenizer.
        over: vids that ended.
        busy: whether the next step has something to compute; if not, wait for a command.
        wake_at: when the next step is due even if nothing is computed and no command comes; None: never.
        freeze_gc: what was asked of this process's garbage collector; each goes to the detokenizer with what
            came of it.
        stop: whether this was the last step.
        unfreeze_gc: whether the collector is to be un-frozen because its time has come.
    """

    messages: list[Message]
    over: list[Vid]
    busy: bool
    wake_at: float | None = None
    freeze_gc: tuple[FreezeGCReq, ...] = ()
    stop: bool = False
    unfreeze_gc: bool = False


class StepLoop:
    """Machine, blocks and batch of one scheduler.

    Args:
        model: what computes; its pool is allocated here.
        num_blocks: size of the KV pool.
        step_tokens: most tokens computed in one step.
        max_running: most requests that run at once; at most step_tokens, so that each decodes in every step.
    """

    def __init__(self, model: Model, *, num_blocks: int, step_tokens: int, max_running: int) -> None:
        if not 1 <= max_running <= step_tokens:
            raise ValueError(
                f"max_running is {max_running}; it must be from 1 to step_tokens ({step_tokens})"
            )
        self._model = model
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._machine = SchedulerMachine()
        self._blocks: BlockPool[Vid] = BlockPool(num_blocks)
        self._waiting: OrderedDict[Vid, _Sequence] = OrderedDict()
        self._running: dict[Vid, _Sequence] = {}
        self._deadlines = Deadlines()
        self._freeze = Freeze()
        self._steps = 0
        self._now = 0.0
        self._launched = False
        self._step_s = 0.0
        self.max_total_tokens = min(model.info.context_len, num_blocks * BLOCK_SIZE)
        """Most tokens of prompt and output together that one request may have."""
        model.allocate(num_blocks)

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        """Apply commands, then compute one batch unless they called for an answer.

        Args:
            commands: what came since the last step, in order.
            now: seconds on the caller's clock.
            launch: whether a batch may be launched; False while the reader of the output lags behind.
        """
        if not self._busy:
            self._step_s = 0.0
        elif self._launched:
            self._step_s = now - self._now
        self._now, self._launched = now, False
        told = _Told()
        for command in commands:
            self._apply(command, now, told)
        for vid in self._deadlines.passed(now):
            self._end(self._machine.expire(vid), EXPIRED, told)
        told.thaw = self._freeze.pass_time(now)
        if told.rows or told.questions:
            return self._effects(told)
        if launch and (self._waiting or self._running):
            self._steps += 1
            self._launched = True
            self._compute(told)
        return self._effects(told)

    def ledger(self) -> SchedulerLedger:
        """Return what is held now."""
        oldest = next(iter(self._waiting.values()), None)
        return SchedulerLedger(
            live=len(self._machine),
            waiting=len(self._waiting),
            tombstones=self._machine.tombstones,
            blocks_used=self._blocks.used,
            steps=self._steps,
            queue_age_s=self._now - oldest.since if oldest is not None else 0.0,
            step_s=self._step_s if self._busy else 0.0,
        )

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._running)

    # --- commands --------------------------------------------------------------

    def _apply(self, command: Command, now: float, told: _Told) -> None:
        match command:
            case TokenizedGenerateReqInput():
                self._machine.pass_floor(Vid(command.floor))
                self._admit(command, now, told)
            case AbortReq():
                self._machine.pass_floor(Vid(command.floor))
                self._abort(command, told)
            case HeartbeatReq():
                self._machine.pass_floor(Vid(command.floor))
                told.questions.append(command)
            case FreezeGCReq():
                self._freeze.note(command, now)
                told.questions.append(command)
            case ShutdownReq():
                for vid in self._machine.vids():
                    self._end(self._machine.abort(vid), ABORTED, told)
                told.questions.append(command)

    def _abort(self, abort: AbortReq, told: _Told) -> None:
        message = abort.abort_message
        reason = ABORTED if message is None else FinishReason("abort", message=message)
        last = Vid(abort.vid)
        for vid in self._machine.vids_up_to(last) if abort.abort_all else (last,):
            self._end(self._machine.abort(vid), reason, told)

    def _admit(self, request: TokenizedGenerateReqInput, now: float, told: _Told) -> None:
        vid = Vid(request.vid)
        for name, ids in (("token ids", request.token_ids), ("output ids", request.resumed_ids)):
            _check_ids(vid, name, ids, self._model.info.vocab_size)
        resumed = tuple(request.resumed_ids)
        said = self._machine.request(vid, len(resumed))
        if said is not None and said.end is not None:
            self._end(said, ABORTED, told)
            return
        if said is not None:
            told.rows.append(TokenRow(vid, 0, resumed))
        if request.deadline_s is not None:
            self._deadlines.set(vid, now + request.deadline_s + DEADLINE_GRACE)
        new_tokens = request.sampling_params.max_new_tokens
        assert new_tokens is not None, "decoding has checked that the front set it"
        total = len(request.token_ids) + new_tokens
        unsupported = find_unsupported(request)
        if unsupported is not None:
            self._end(self._machine.reject(vid), FinishReason("error", message=unsupported), told)
        elif new_tokens <= len(resumed):
            self._end(self._machine.reject(vid), FinishReason("length", length=new_tokens), told)
        elif total > self.max_total_tokens:
            message = f"prompt and max_new_tokens are {total} tokens; at most {self.max_total_tokens} fit"
            self._end(self._machine.reject(vid), FinishReason("error", message=message), told)
        else:
            self._waiting[vid] = _Sequence(request, now)

    def _end(self, row: Row | None, reason: FinishReason, told: _Told) -> None:
        """Let go of everything a vid holds, if this is its ending row, and tell of it."""
        if row is None:
            return
        assert row.end is not None
        self._blocks.release(row.vid)
        self._waiting.pop(row.vid, None)
        self._running.pop(row.vid, None)
        self._deadlines.drop(row.vid)
        told.rows.append(TokenRow(row.vid, row.offset, (), reason))
        told.over.append(row.vid)

    # --- one batch ---------------------------------------------------------------

    def _compute(self, told: _Told) -> None:
        batch = self._schedule()
        if not batch:
            return
        self._machine.launch(sequence.vid for sequence, _ in batch)
        plan, sampled = _plan(batch)
        logits = self._model.forward(plan)
        tokens = iter(
            sample(logits, SampleRows([s.params for s in sampled], [s.made for s in sampled]))
            if sampled
            else ()
        )
        for sequence, count in batch:
            sequence.computed += count
            if sequence.uncomputed:
                self._machine.land(sequence.vid, 0, end=False)
            else:
                self._land(sequence, next(tokens), told)

    def _schedule(self) -> list[tuple[_Sequence, int]]:
        budget = Budget(self._step_tokens, self._max_running, self._blocks.free)
        running = list(self._running.values())
        decision = decide(running, self._waiting.values(), budget)
        for _ in range(decision.admitted):
            vid, sequence = self._waiting.popitem(last=False)
            sequence.block_table[:] = self._blocks.allocate(vid, sequence.blocks_needed)
            self._running[vid] = sequence
            running.append(sequence)
        return [(running[chunk.place], chunk.tokens) for chunk in decision.chunks]

    def _land(self, sequence: _Sequence, token: int, told: _Told) -> None:
        reason = sequence.accept(token, self._model.info.eos_token_ids)
        count = 0 if token == NOT_FINITE else 1
        row = self._machine.land(sequence.vid, count, end=reason is not None)
        # The row is always there: it carries a token or is the last one. Nothing was aborted meanwhile,
        # since commands are applied between batches.
        assert row is not None
        told.rows.append(TokenRow(row.vid, row.offset, (token,) if count else (), reason))
        if row.end is not None:
            self._blocks.release(row.vid)
            self._deadlines.drop(row.vid)
            del self._running[row.vid]
            told.over.append(row.vid)

    def _effects(self, told: _Told) -> Effects:
        messages: list[Message] = []
        if told.rows:
            messages.append(BatchTokenIDOutput.from_rows(told.rows, self.ledger()))
        freeze: list[FreezeGCReq] = []
        stop = False
        for question in told.questions:
            match question:
                case HeartbeatReq():
                    messages.append(
                        HeartbeatReq(id=question.id, floor=question.floor, scheduler=self.ledger())
                    )
                case FreezeGCReq():
                    freeze.append(question)
                case ShutdownReq():
                    stop = True
                    messages.append(question)
        if stop:  # nobody waits for them any more, and nothing may follow the last message
            freeze.clear()
        times = [time for time in (self._deadlines.next, self._freeze.ends_at) if time is not None]
        wake_at = min(times, default=None)
        return Effects(messages, told.over, self._busy, wake_at, tuple(freeze), stop, told.thaw)


class _Told:
    """What a step has to say, as it comes up."""

    __slots__ = ("over", "questions", "rows", "thaw")

    def __init__(self) -> None:
        self.rows: list[TokenRow] = []
        self.over: list[Vid] = []
        self.questions: list[HeartbeatReq | FreezeGCReq | ShutdownReq] = []
        self.thaw = False


class _Sequence:
    """One request as it is computed: its tokens, and how many of them are in the pool.

    Args:
        request: as it came.
        now: when that was.
    """

    __slots__ = (
        "block_table",
        "computed",
        "length",
        "made",
        "max_new_tokens",
        "params",
        "since",
        "tokens",
        "vid",
    )

    def __init__(self, request: TokenizedGenerateReqInput, now: float) -> None:
        prompt: NDArray[np.int32] = np.frombuffer(request.input_ids, dtype=np.int32)
        params: SamplingParams = request.sampling_params
        assert params.max_new_tokens is not None, "the front sets max_new_tokens"
        self.vid = Vid(request.vid)
        self.since = now
        self.params = params
        self.max_new_tokens = params.max_new_tokens
        self.tokens: NDArray[np.int32] = np.empty(len(prompt) + self.max_new_tokens, dtype=np.int32)
        resumed: NDArray[np.int32] = np.frombuffer(request.resumed_ids, dtype=np.int32)
        self.tokens[: len(prompt)] = prompt
        self.tokens[len(prompt) : len(prompt) + len(resumed)] = resumed
        self.length = len(prompt) + len(resumed)
        """Tokens known: the prompt and what was made."""
        self.computed = 0
        """Tokens whose keys and values are in the pool."""
        self.made = len(resumed)
        """Output tokens."""
        self.block_table: NDArray[np.int32] = np.zeros(self.blocks_needed, dtype=np.int32)

    @property
    def total(self) -> int:
        """Tokens of prompt and output together, at most."""
        return len(self.tokens)

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are not in the pool yet."""
        return self.length - self.computed

    @property
    def blocks_needed(self) -> int:
        """Blocks that the whole request takes."""
        return -(-self.total // BLOCK_SIZE)

    def accept(self, token: int, eos: frozenset[int]) -> FinishReason | None:
        """Take the next output token; return how the request ends, if it does."""
        if token == NOT_FINITE:
            return FinishReason("error", message="the model's logits are not finite")
        self.tokens[self.length] = token
        self.length += 1
        self.made += 1
        # Length before stop, as the field does (an end-of-sequence token made last is reported as length).
        if self.made >= self.max_new_tokens:
            return FinishReason("length", length=self.max_new_tokens)
        if token in eos and not self.params.ignore_eos:
            return FinishReason("stop", matched=token)
        return None


def _check_ids(vid: Vid, name: str, column: memoryview, vocab_size: int) -> None:
    ids = np.frombuffer(column, dtype=np.int32)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise RemoteProtocolError(
            f"vid {vid} has {name} from {ids.min()} to {ids.max()}; "
            f"those of the vocabulary are 0 to {vocab_size - 1}"
        )


def _plan(batch: Sequence[tuple[_Sequence, int]]) -> tuple[StepPlan, list[_Sequence]]:
    """Write the plan of a batch; also return the sequences whose next token is sampled, in plan order."""
    counts = np.array([count for _, count in batch], dtype=np.int32)
    row_starts = np.zeros(len(batch) + 1, dtype=np.int32)
    np.cumsum(counts, out=row_starts[1:])
    token_ids = np.empty(row_starts[-1], dtype=np.int32)
    positions = np.empty(row_starts[-1], dtype=np.int32)
    context_lens = np.empty(len(batch), dtype=np.int32)
    # Columns beyond the tokens computed so far are not read; the table is as wide as the widest context.
    widest = max(-(-(sequence.computed + count) // BLOCK_SIZE) for sequence, count in batch)
    block_tables = np.zeros((len(batch), widest), dtype=np.int32)
    logit_tokens: list[int] = []
    sampled: list[_Sequence] = []
    for row, (sequence, count) in enumerate(batch):
        start, first, last = row_starts[row], sequence.computed, sequence.computed + count
        token_ids[start : start + count] = sequence.tokens[first:last]
        positions[start : start + count] = np.arange(first, last)
        context_lens[row] = last
        blocks = sequence.block_table[:widest]
        block_tables[row, : len(blocks)] = blocks
        if last == sequence.length:
            logit_tokens.append(int(start) + count - 1)
            sampled.append(sequence)
    plan = StepPlan(
        token_ids=token_ids,
        positions=positions,
        row_starts=row_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        logit_tokens=np.array(logit_tokens, dtype=np.int32),
    )
    return plan, sampled
