"""`StepLoop`: the scheduler as one synchronous object.

`step(commands, now) -> effects` is all there is: it owns the machine, the blocks and the batch, and the
compute thread, a simulation and the tests drive it alike. It reads no clock and does no I/O; what has to be
sent or told is in the effects.

What happens goes round and round: commands are applied; what to compute is decided, which retracts and begins
requests; a batch is launched; it lands, and what was made is told. If commands ended something, or ask
something, the answer goes out at once and nothing is launched; so the acknowledgement of an abort never waits
for a batch.

A step is once round. It begins with the commands and ends with the landing, unless the model `overlaps`: then
it ends with the launch, and the next one begins with the landing. So what a step made is sent, and commands
come, while the next batch is computed. Either way there is never more than one batch in flight, and nothing
is done to requests meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from vidette._freeze import Freeze
from vidette.models.interface import BLOCK_SIZE, Model, TokenTable
from vidette.scheduler import endings
from vidette.scheduler.choosing import FailedFlight, Flight, Made
from vidette.scheduler.controls import Controls
from vidette.scheduler.corpora import Corpora
from vidette.scheduler.counts import Counts
from vidette.scheduler.deadlines import Deadlines
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.host_cache import make_cache
from vidette.scheduler.kv_cache import KVCache, NextBlock
from vidette.scheduler.options import LoopOptions, check_options
from vidette.scheduler.plan import PlanWriter, Share, charges
from vidette.scheduler.policy import Budget, Cost, decide
from vidette.scheduler.queue import WaitingQueue
from vidette.scheduler.sequence import Sequence
from vidette.scheduler.sessions import Sessions
from vidette.scheduler.shares import pack_rows
from vidette.scheduler.support import check_ids, check_request, explain
from vidette.scheduler.told import Told
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import Row, SchedulerMachine
from vidette_protocol.messages import (
    AbortReq,
    ContinueGenerationReqInput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    PauseGenerationReqInput,
    ProfileReq,
    SchedulerLedger,
    ShutdownReq,
    TokenizedGenerateReqInput,
    TokenRow,
)


class StepLoop:
    """Machine, blocks and batch of one scheduler.

    Args:
        model: what computes; its pool is allocated here.
        options: sizes and rules.
        table: the bytes of each token, for requests that stop at texts.
        corpora: where drafts are looked up besides.
    """

    def __init__(
        self, model: Model, options: LoopOptions, *, table: TokenTable, corpora: Corpora | None = None
    ) -> None:
        check_options(options)
        self._model = model
        self._options = options
        self._table = table
        self._corpora = Corpora(model.info.vocab_size) if corpora is None else corpora
        self._machine = SchedulerMachine()
        self._cache = KVCache(
            options.num_blocks, make_cache(model, options.host_blocks, record_events=options.kv_events)
        )
        self._queue = WaitingQueue(options.policy, ageing_s=options.ageing_s, cached=self._cached)
        self._waiting: dict[Vid, Sequence] = {}
        self._running: dict[Vid, Sequence] = {}
        self._prefilling: dict[NextBlock, Vid] = {}
        self._coming: set[NextBlock] = set()  # what those that are begun in this step will compute
        self._deadlines: Deadlines[Vid] = Deadlines()
        self._patience: Deadlines[Vid] = Deadlines()
        """Until when requests may wait, and once begun, run."""
        self._freeze = Freeze()
        self._counts = Counts()
        self._now = 0.0
        self._flight: Flight | None = None
        self._plans = PlanWriter()
        self._launched = False
        self._step_s = 0.0
        self.max_total_tokens = min(model.info.context_len, options.num_blocks * BLOCK_SIZE)
        """Most tokens of prompt and output together that one request may have."""
        self._sessions = Sessions(bos=model.info.bos_token_id, max_total_tokens=self.max_total_tokens)
        self._controls = Controls(self._sessions, self._cache, self._corpora)
        self._told_state = (0, False)
        model.allocate(options.num_blocks)

    def wait(self) -> None:
        """Wait until what is in flight has been computed, so that commands can be taken; nothing changes.

        Raises:
            Exception: the last launch failed.
        """
        if self._flight is not None:
            self._flight.wait()

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        """Go once round: apply commands, then compute one batch unless they called for an answer.

        Args:
            commands: what came since the last step, in order.
            now: seconds on the caller's clock.
            launch: whether a batch may be launched; False while the reader of the output lags behind.
        """
        told, landing = Told(self._now), self._flight  # a batch lands as of its launch
        if landing is not None:
            self._land(landing, told)
            self._settle(told)
        told.now = now
        if not self._busy:
            self._step_s = 0.0
        elif self._launched:
            self._step_s = now - self._now
        self._now, self._launched = now, False
        said = len(told.rows)
        for command in commands:
            self._apply(command, now, told)
        for vid in self._deadlines.passed(now):
            self._stop(vid, self._machine.expire, endings.EXPIRED, told)
        for vid in self._patience.passed(now):
            waited = vid in self._waiting and not self._waiting[vid].begun
            self._stop(vid, self._machine.expire, endings.WAITED if waited else endings.RAN, told)
        told.thaw = self._freeze.pass_time(now)
        answers = len(told.rows) > said or told.questions or self._controls.due
        if launch and self._busy and not answers:
            self._counts.steps += 1
            self._launched = True
            try:
                self._launch(now, told)
            except Exception as error:
                if landing is None:
                    raise
                self._flight = FailedFlight(error)  # first is told what has landed
            if self._flight is not None and not self._model.overlaps:
                self._land(self._flight, told)
        return self._effects(told)

    def ledger(self) -> SchedulerLedger:
        """Return what is held now, and what was done so far."""
        counts, oldest = self._counts, self._queue.oldest_arrival()
        return SchedulerLedger(
            live=len(self._machine),
            waiting=len(self._waiting),
            tombstones=self._machine.tombstones,
            blocks_used=self._cache.held,
            steps=counts.steps,
            queue_age_s=0.0 if oldest is None else self._now - oldest,
            step_s=self._step_s if self._busy else 0.0,
            blocks_cached=self._cache.cached,
            totals=counts.totals,
            sessions=len(self._sessions),
            running=len(self._running),
            blocks_host=self._cache.host_cached,
            paused=self._controls.paused,
        )

    def clear_cache(self) -> int:
        """Empty the prefix cache, but for what running requests use; return how many blocks became free."""
        return self._cache.clear()

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._running) and not self._controls.paused

    # --- commands --------------------------------------------------------------

    def _apply(self, command: Command, now: float, told: Told) -> None:
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
                    self._stop(vid, self._machine.abort, endings.ABORTED, told)
                told.questions.append(command)
            case ProfileReq():
                told.questions.append(command)
            case _:
                if isinstance(command, PauseGenerationReqInput):
                    self._pause(command, told)
                elif isinstance(command, ContinueGenerationReqInput) and command.torch_empty_cache:
                    torch.cuda.empty_cache()  # nothing, where CUDA was not begun with
                self._controls.ask(command, now)

    def _pause(self, question: PauseGenerationReqInput, told: Told) -> None:
        """Do with the requests that live what a pause says."""
        if question.mode == "abort":
            for vid in self._machine.vids():
                self._stop(vid, self._machine.expire, endings.PAUSED, told)
        elif question.mode == "retract":
            for vid in list(self._running):
                self._retract(vid)

    def _abort(self, abort: AbortReq, told: Told) -> None:
        message = abort.abort_message
        reason = endings.ABORTED if message is None else FinishReason("abort", message=message)
        last = Vid(abort.vid)
        for vid in self._machine.vids_up_to(last) if abort.abort_all else (last,):
            self._stop(vid, self._machine.abort, reason, told)
        if not abort.abort_all:
            self._sessions.forget(last)

    def _admit(self, request: TokenizedGenerateReqInput, now: float, told: Told) -> None:
        vid = Vid(request.vid)
        check_ids(request, self._model.info.vocab_size)
        resumed = tuple(request.resumed_ids)
        said = self._machine.request(vid, len(resumed))
        if said is not None and said.end is not None:
            self._end(said, endings.ABORTED, told)
            return
        if request.deadline_s is not None:
            self._deadlines.set(vid, now + request.deadline_s + endings.DEADLINE_GRACE)
        try:
            turn = self._sessions.look(request)
            if turn is not None:
                request = turn.fill(request)
            wanted = check_request(request, len(resumed), self._model.info.vocab_size, self.max_total_tokens)
        except ValueError as error:
            if said is not None:
                told.rows.append(TokenRow(vid, 0, resumed))
            self._end(self._machine.reject(vid), explain(error), told)
            return
        if turn is not None:
            for replaced in self._sessions.begin(turn):
                self._stop(replaced, self._machine.expire, endings.REPLACED, told)
        sequence = Sequence(request, now, wanted)
        if resumed and self._restore(sequence, resumed, told):
            return
        if sequence.made >= sequence.most and sequence.prompt_logprobs is None:
            self._end(self._machine.reject(vid), FinishReason("length", length=sequence.most), told)
            return
        self._waiting[vid] = sequence
        self._queue.push(sequence.ticket)
        if self._options.queue_timeout is not None:
            self._patience.set(vid, now + self._options.queue_timeout)

    def _restore(self, sequence: Sequence, resumed: tuple[int, ...], told: Told) -> bool:
        """Say again what another scheduler had made; return whether that was all."""
        if not self._prepare(sequence, told, resumed):
            return True
        result = sequence.stops.push(resumed)
        held = 0 if result is None else result.held
        told.rows.append(TokenRow(sequence.vid, 0, resumed, held=held, mode=sequence.stops.mode))
        sequence.said = True
        if result is None or result.reason is None:
            return False
        self._end(self._machine.reject(sequence.vid), result.reason, told, held)
        return True

    def _prepare(self, sequence: Sequence, told: Told, resumed: tuple[int, ...] = ()) -> bool:
        """Make a request ready to run; if that fails it ends, and no other does."""
        try:
            sequence.prepare(self._model.info, self._table)
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, it is wrong with it alone
            if resumed:
                told.rows.append(TokenRow(sequence.vid, 0, resumed))
            self._end(self._machine.reject(sequence.vid), endings.failed(error), told)
            return False
        return True

    def _stop(self, vid: Vid, how: Callable[[Vid], Row | None], reason: FinishReason, told: Told) -> None:
        """End a request from outside, behind all that it has made."""
        sequence = self._running.get(vid) or self._waiting.get(vid)
        if sequence is not None and sequence.unsaid:
            told.rows.append(sequence.say_rest(self._machine))
        self._end(how(vid), reason, told)

    def _end(self, row: Row | None, reason: FinishReason, told: Told, held: int = 0) -> None:
        """Let go of everything a vid holds, if this is its ending row, and tell of it."""
        if row is None:
            return
        assert row.end is not None
        self._let_go(row.vid)
        self._sessions.finish(row.vid, reason, told.now)
        told.rows.append(TokenRow(row.vid, row.offset, (), reason, held=held))
        told.over.append(row.vid)

    def _let_go(self, vid: Vid) -> None:
        if self._waiting.pop(vid, None) is not None:
            self._queue.remove(vid)
        sequence = self._running.pop(vid, None)
        if sequence is not None:
            self._release(sequence)
        self._deadlines.drop(vid)
        self._patience.drop(vid)

    # --- blocks ----------------------------------------------------------------

    def _cost(self, vid: Vid) -> Cost | None:
        """Return what it takes to begin a request; None while another computes just what it begins with."""
        sequence = self._waiting[vid]
        found = self._cache.find(sequence.space, sequence.known, sequence.findable)
        if found.next in self._prefilling or found.next in self._coming:
            return None
        if found.next is not None:
            self._coming.add(found.next)
        blocks = -(-sequence.length // BLOCK_SIZE) - found.tokens // BLOCK_SIZE
        return Cost(sequence.length - found.tokens, blocks + found.pinned)

    def _cached(self, vid: Vid) -> int:
        sequence = self._waiting[vid]
        return self._cache.peek(sequence.space, sequence.known, sequence.findable)

    def _begin(self, vid: Vid, now: float) -> None:
        self._queue.remove(vid)
        sequence = self._running[vid] = self._waiting.pop(vid)
        sequence.hold = self._cache.begin(sequence.space, sequence.known, sequence.findable)
        sequence.computed = sequence.hold.shared * BLOCK_SIZE
        if not sequence.begun:
            sequence.begin(now)
            if self._options.draft_tokens:
                sequence.speculate(self._options.draft_tokens, self._corpora)
            sequence.found = min(sequence.computed, sequence.prompt_tokens)
            sequence.found_in_host = min(sequence.hold.loaded * BLOCK_SIZE, sequence.found)
            self._counts.begin(sequence.prompt_tokens, sequence.found)
            self._patience.drop(vid)
            if self._options.running_timeout is not None:
                self._patience.set(vid, now + self._options.running_timeout)
        self._share(sequence)

    def _share(self, sequence: Sequence) -> None:
        """Put into the cache what a prefill has computed, and note what it computes next."""
        assert sequence.hold is not None
        self._forget_next(sequence)
        following = self._cache.share(sequence.hold, sequence.space, sequence.known, sequence.computed)
        if following is not None and sequence.uncomputed > 1:
            self._prefilling.setdefault(following, sequence.vid)
            sequence.next_block = following

    def _forget_next(self, sequence: Sequence) -> None:
        following, sequence.next_block = sequence.next_block, None
        if following is not None and self._prefilling.get(following) == sequence.vid:
            del self._prefilling[following]

    def _release(self, sequence: Sequence) -> None:
        assert sequence.hold is not None
        self._forget_next(sequence)
        if sequence.spoiled:
            self._cache.discard(sequence.hold)
        else:
            self._cache.release(sequence.hold, sequence.space, sequence.known, sequence.computed)
        sequence.hold = None
        sequence.computed = 0

    def _retract(self, vid: Vid) -> None:
        """Take a running request's blocks, which others need more; it goes on later behind its own tokens."""
        self._machine.retract(vid)
        sequence = self._waiting[vid] = self._running.pop(vid)
        sequence.retractions += 1
        if sequence.made:  # what it has made was charged as it was made
            sequence.charged = sequence.length
        self._release(sequence)
        self._queue.push_back(sequence.ticket)
        self._counts.retracted += 1

    # --- one batch ---------------------------------------------------------------

    def _launch(self, now: float, told: Told) -> None:
        """Decide what to compute, and send it on its way."""
        options = self._options
        self._coming.clear()
        decision = decide(
            list(self._running.values()),
            self._queue.candidates(),
            self._cost,
            Budget(options.step_tokens, options.max_running, self._cache.available),
            ageing_s=options.ageing_s,
            preempt_gap=options.preempt_gap,
        )
        for vid in decision.retracted:
            self._retract(vid)
        for vid in decision.admitted:
            if self._prepare(self._waiting[vid], told):
                self._begin(vid, now)
        spare = options.step_tokens - sum(tokens for _, tokens in decision.chunks)
        batch: list[Share] = []
        for vid, count in decision.chunks:
            if vid not in self._running:
                continue
            share = Share.of(self._running[vid], count, spare, self._cache)
            spare -= len(share.drafts)
            batch.append(share)
        if batch:
            self._charge(batch)
            self._machine.launch(share.sequence.vid for share in batch)
            self._flight = Flight(batch, self._model.forward(self._plans.write(batch)))

    def _charge(self, batch: list[Share]) -> None:
        for tenant, tokens in charges(batch).items():
            self._queue.charge(tenant, tokens)

    def _land(self, flight: Flight, told: Told) -> None:
        """Take what a batch has made."""
        self._flight = None
        for share, made in zip(flight.batch, flight.land(), strict=True):
            sequence = share.sequence
            if not sequence.decoding:
                sequence.computed += share.tokens
                self._counts.prompt_tokens += share.tokens
                if made is None or not made.faulty:
                    self._share(sequence)
            if made is None:
                self._machine.land(sequence.vid, 0, end=False)
            else:
                self._take(sequence, share, made, told)

    def _take(self, sequence: Sequence, share: Share, made: Made, told: Told) -> None:
        """Take what a sequence says next; tell of it if that is due."""
        before = sequence.made
        sequence.spoiled = made.faulty
        try:
            result = sequence.take(made.tokens)
        except Exception as error:  # noqa: BLE001  as in _prepare
            sequence.spoiled = True  # how much of it is right nobody knows
            self._end(self._machine.land(sequence.vid, 0, end=True), endings.failed(error), told)
            return
        taken = sequence.made - before
        self._counts.output_tokens += taken
        if made.logprobs:
            sequence.unsaid_logprobs += made.logprobs[:taken]
        if sequence.drafts is not None and share.drafts:
            # With a fault every token that was kept was a right draft; of those behind an end none counts.
            sequence.drafts.judge(len(share.drafts), min(taken, len(made.tokens) - (not made.faulty)))
        reason, held = (None, 0) if result is None else (result.reason, result.held)
        if reason is None and made.faulty:
            reason = endings.NOT_FINITE_LOGITS
        if not sequence.most:  # only its prompt's log probabilities were wanted
            reason = FinishReason("length", length=0)
        if reason is None and not sequence.due:
            self._machine.land(sequence.vid, 0, end=False)
            return
        row = self._machine.land(sequence.vid, len(sequence.unsaid), end=reason is not None)
        # The row is always there: it carries a token or is the last one. Nothing was aborted meanwhile,
        # since commands are applied between batches.
        assert row is not None
        told.rows.append(sequence.say(row.offset, reason, held))
        if reason is not None:
            self._let_go(row.vid)
            self._sessions.finish(row.vid, reason, told.now, sequence.output)
            told.over.append(row.vid)

    def _settle(self, told: Told) -> None:
        """Do what is due besides requests."""
        # What was retracted holds nothing of the cache while nothing is computed.
        live = self._running if self._controls.paused else self._machine
        self._controls.settle(told.now, len(live))
        told.answers += self._controls.take_answers()

    def _effects(self, told: Told) -> Effects:
        if not told.stop and self._flight is None:
            self._settle(told)
        messages = []
        state = len(self._sessions), self._controls.paused
        if told.rows or state != self._told_state:
            messages = pack_rows(told.rows, self.ledger(), self._options.detokenizers)
            self._told_state = state
        return Effects(
            messages + told.answer(self.ledger),
            told.over,
            self._busy,
            self._wake_at,
            told.freezes,
            told.stop,
            (*told.answers, *self._controls.take_answers()),
            told.thaw,
            tuple(self._cache.take_events()),
            told.profiles,
            self._flight is not None,
        )

    @property
    def _wake_at(self) -> float | None:
        times = (self._deadlines.next, self._patience.next, self._controls.next, self._freeze.ends_at)
        return min((when for when in times if when is not None), default=None)
