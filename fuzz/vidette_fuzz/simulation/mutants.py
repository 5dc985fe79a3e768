"""Engines with a known fault each, in code that no machine is: the simulation has to find them all.

Each is a part of the engine with one method changed, as little as possible. Faults of the machines
themselves are in `vidette_fuzz.mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vidette.detokenizer.incremental import IncrementalText
from vidette.errors import Error
from vidette.front.questions import Questions
from vidette.front.route import Route
from vidette.front.stream import Stream
from vidette.scheduler import endings
from vidette.scheduler.choosing import Made
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.plan import Share
from vidette.scheduler.process import Lives
from vidette.scheduler.sequence import Sequence
from vidette.scheduler.told import Told
from vidette.transport.link import Link
from vidette_fuzz.simulation.engine import Build
from vidette_fuzz.simulation.observed import (
    ObservedFront,
    SimulatedDetokenizer,
    SimulatedLoop,
    SimulatedManager,
)
from vidette_fuzz.simulation.refinement import Refinement
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import FrontState, Row
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    FinishReason,
    StrRow,
    TokenRow,
)

UNREPORTED: Final = "no public report that we know of"


class EngineMutant(NamedTuple):
    """A fault that was put in on purpose.

    Args:
        name: for the command line.
        build: the parts, one of them faulty.
        report: the public report of the fault it stands for, if there is one.
        story: in a sentence, what goes wrong.
    """

    name: str
    build: Build
    report: str
    story: str


# --- the front ----------------------------------------------------------------------------------


class _ForgetsToPost(SimulatedManager):
    """Ends a request in its own tables and tells nobody else."""

    def _post_abort(self, vid: Vid, route: Route | None, *, post: bool) -> None:  # noqa: ARG002  the fault
        super()._post_abort(vid, route, post=False)


class _KeepsTheStream(SimulatedManager):
    """Keeps the stream of a caller who left until the end of its request, and routes before it asks."""

    def _leave(self, vid: Vid) -> None:
        route = self._routes.get(vid)
        super()._leave(vid)
        if route is not None and self._machine.state(vid) is FrontState.CLOSING:
            self._routes[vid] = route

    def _route(self, message: BatchStrOutput, told: list[Stream]) -> None:
        for row in message.rows():
            if self._machine.state(Vid(row.vid)) is FrontState.CLOSING and Vid(row.vid) in self._routes:
                self._routes[Vid(row.vid)].stream.deliver(row)
        super()._route(message, told)
        over = [vid for vid in self._routes if self._machine.state(vid) is FrontState.OVER]
        told += [self._routes.pop(vid).stream for vid in over]


class _SeesNoEnd(ObservedFront):
    """Takes a request that is over for a new one, if asked."""

    __slots__ = ()

    def state(self, vid: Vid) -> FrontState:
        state = super().state(vid)
        return FrontState.NEW if state is FrontState.OVER else state


class _SendsTheReplaced(SimulatedManager):
    """Does not look again, after tokenising, whether the request is still wanted."""

    def __init__(
        self, scheduler: Link, detokenizers: Iterable[Link], *, watch: Refinement, **options: Any
    ) -> None:
        super().__init__(scheduler, [*detokenizers], watch=watch, **options)
        self._machine = watch.front = _SeesNoEnd(watch)


class _TellsOnlyTheStreams(SimulatedManager):
    """Tells the streams of a death, and nobody who has asked something else."""

    def end(self, failure: Callable[[], Error]) -> None:
        questions, self._questions = self._questions, Questions(self.pulse)
        super().end(failure)
        self._questions = questions


# --- the scheduler ------------------------------------------------------------------------------


class _SleepsThroughDeadlines(SimulatedLoop):
    """Does not say when it has to be woken."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        return super().step(commands, now, launch=launch)._replace(wake_at=None)


class _KeepsTheBlocksOfTheAborted(SimulatedLoop):
    """Gives blocks back at the end of a request, and not at its abort."""

    _aborting = False

    def _end(self, row: Row | None, reason: FinishReason, told: Told, held: int = 0) -> None:
        self._aborting = reason.type == "abort"
        super()._end(row, reason, told, held)
        self._aborting = False

    def _release(self, sequence: Sequence) -> None:
        if self._aborting:
            self._forget_next(sequence)
            sequence.hold = None
        else:
            super()._release(sequence)


class _AnswersAnAbortNobodySent(SimulatedLoop):
    """Ends a turn that was replaced as if its caller had left."""

    def _stop(self, vid: Vid, how: Callable[[Vid], Row | None], reason: FinishReason, told: Told) -> None:
        if reason is endings.REPLACED:
            how, reason = self._machine.abort, endings.ABORTED
        super()._stop(vid, how, reason, told)


class _CountsTheAbandoned(SimulatedLoop):
    """Keeps a turn of a session whose caller left before hearing of its end."""

    def _abort(self, abort: AbortReq, told: Told) -> None:
        vids = self._machine.vids_up_to(Vid(abort.vid)) if abort.abort_all else [Vid(abort.vid)]
        for vid in vids:
            self._stop(vid, self._machine.abort, endings.ABORTED, told)


class _CountsTheRejected(SimulatedLoop):
    """Takes a draft for right that the model does not say."""

    def _take(self, sequence: Sequence, share: Share, made: Made, told: Told) -> None:
        tokens = [*share.drafts[:1], *made.tokens[1:]] if share.drafts else made.tokens
        super()._take(sequence, share, made._replace(tokens=tokens), told)


class _AppliesBeforeLanding(SimulatedLoop):
    """Applies commands to requests that a batch in flight still computes."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        self._early = Told(now)
        for command in commands:
            self._apply(command, now, self._early)
        return super().step((), now, launch=launch)

    def _effects(self, told: Told) -> Effects:
        told.rows[:0] = self._early.rows
        told.over[:0] = self._early.over
        told.questions[:0] = self._early.questions
        return super()._effects(told)


class _ForgetsTheBatchInFlight(SimulatedLoop):
    """Leaves what is in flight to nobody when it may not launch."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        if not launch:
            self._flight = None
        return super().step(commands, now, launch=launch)


class _SleepsWhileItComputes(SimulatedLoop):
    """Takes a batch that was launched for one that is over."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        effects = super().step(commands, now, launch=launch)
        return effects._replace(busy=effects.busy and not effects.in_flight, in_flight=False)


class _ReadsWhatIsInFlight(SimulatedLoop):
    """Has the tokens chosen as soon as a batch is launched, as if it had been computed."""

    def _launch(self, now: float, told: Told) -> None:
        super()._launch(now, told)
        if self._flight is not None:
            self._flight.land()


class _EndsTheTaskOnly(Lives):
    """Cancels the task of an aborted request, and takes its word for the rest."""

    def abort(self, abort: AbortReq) -> None:
        life = self._lives.get(Vid(abort.vid))
        if life is not None:
            life.left()
            life.scope.cancel("aborted by the front")


# --- the detokenizer ----------------------------------------------------------------------------


class _KeepsTheTextOfTheAborted(SimulatedDetokenizer):
    """Drops the state of a text when its request has finished, and not when it was aborted."""

    def _row(self, row: TokenRow) -> StrRow:
        kept = self._texts.get(Vid(row.vid))
        said = super()._row(row)
        if kept is not None and row.reason is not None and row.reason.type == "abort":
            self._texts[Vid(row.vid)] = kept
        return said


class _DecodesEachPiece(SimulatedDetokenizer):
    """Decodes what a step brings by itself, so that a character between two steps is torn."""

    def _row(self, row: TokenRow) -> StrRow:
        said = super()._row(row)
        return StrRow(
            said.vid,
            said.offset,
            said.token_ids,
            said.reason,
            IncrementalText(self._table).push(row.token_ids, last=True),
        )


ENGINE_MUTANTS: Final[Mapping[str, EngineMutant]] = MappingProxyType(
    {
        mutant.name: mutant
        for mutant in (
            EngineMutant(
                "abort-not-posted",
                Build(manager=_ForgetsToPost),
                "sgl-project/sglang #36333",
                "a caller leaves, and its request is computed to its end for nobody",
            ),
            EngineMutant(
                "stream-outlives-its-block",
                Build(manager=_KeepsTheStream),
                "sgl-project/sglang #36333 (log flood: state was deleted)",
                "a caller who has left hears more",
            ),
            EngineMutant(
                "replaced-sent-anyway",
                Build(manager=_SendsTheReplaced),
                UNREPORTED,
                "a request that was replaced while it was tokenised is sent",
            ),
            EngineMutant(
                "questions-not-told-of-death",
                Build(manager=_TellsOnlyTheStreams),
                "vllm-project/vllm #56416",
                "a process dies, and who has asked something other than text waits for ever",
            ),
            EngineMutant(
                "deadline-slept-through",
                Build(loop=_SleepsThroughDeadlines),
                UNREPORTED,
                "a deadline passes while the reader lags behind, and nobody wakes for it",
            ),
            EngineMutant(
                "blocks-kept-after-abort",
                Build(loop=_KeepsTheBlocksOfTheAborted),
                "sgl-project/sglang #34205, #37824 (what an abort leaves behind is never given back)",
                "each abort takes some memory with it, until nothing can run",
            ),
            EngineMutant(
                "replaced-turn-told-of-an-abort",
                Build(loop=_AnswersAnAbortNobodySent),
                "Vidette itself, before sessions were simulated",
                "a turn in flight is replaced, and the front is answered an abort that it never sent",
            ),
            EngineMutant(
                "abandoned-turn-counts",
                Build(loop=_CountsTheAbandoned),
                "sgl-project/sglang #36475",
                "a caller leaves before hearing of the end, and the next turn goes on behind it",
            ),
            EngineMutant(
                "rejected-draft-told",
                Build(loop=_CountsTheRejected),
                "openvinotoolkit/openvino.genai #4190",
                "a draft that the model does not say is told",
            ),
            EngineMutant(
                "applied-before-landing",
                Build(loop=_AppliesBeforeLanding),
                "sgl-project/mini-sglang #111; vllm-project/vllm-ascend #14055",
                "an abort frees what a batch in flight still computes, and is answered twice or never",
            ),
            EngineMutant(
                "batch-in-flight-forgotten",
                Build(loop=_ForgetsTheBatchInFlight),
                UNREPORTED,
                "a reader lags behind while a batch is in flight, whose requests are held for ever",
            ),
            EngineMutant(
                "asleep-with-a-batch-in-flight",
                Build(loop=_SleepsWhileItComputes),
                UNREPORTED,
                "a batch is computed, and nobody takes its tokens until somebody asks for something else",
            ),
            EngineMutant(
                "read-before-it-is-there",
                Build(loop=_ReadsWhatIsInFlight),
                UNREPORTED,
                "tokens are chosen from logits that a device has not computed yet",
            ),
            EngineMutant(
                "abort-ends-the-task-only",
                Build(lives=_EndsTheTaskOnly),
                "mini-sglang, server/api_server.py:200-204 (the abort is nobody's task)",
                "the task of an aborted request ends, and the step loop never hears of it",
            ),
            EngineMutant(
                "text-kept-after-abort",
                Build(detokenizer=_KeepsTheTextOfTheAborted),
                "mini-sglang, tokenizer/detokenize.py:74 and 109; sgl-project/sglang #12205",
                "the text state of an aborted request is kept for ever",
            ),
            EngineMutant(
                "characters-torn",
                Build(detokenizer=_DecodesEachPiece),
                "ai-dynamo/dynamo #12630 (unknown characters where a chunk ends)",
                "a character whose bytes come in two steps is shown as two unknown ones",
            ),
        )
    }
)
"""Every mutant by name."""
