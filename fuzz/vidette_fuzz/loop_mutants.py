"""Faults of the step loop, of its prefix cache, of its drafts and of its sessions; `mutants` joins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vidette.scheduler import endings
from vidette.scheduler.choosing import Made
from vidette.scheduler.kv_cache import Hold, NextBlock, Tokens
from vidette.scheduler.plan import Share
from vidette.scheduler.radix import Namespace
from vidette.scheduler.sequence import Sequence
from vidette.scheduler.sessions import Sessions
from vidette.scheduler.told import Told
from vidette.scheduler.turns import NO_TOKENS, Turn
from vidette.scheduler.turns import Tokens as Output
from vidette_fuzz.configurations import stepping
from vidette_fuzz.mutant import Mutant
from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_fuzz.stepping.loop import ExploredLoop, LoopParts
from vidette_fuzz.stepping.pool import ExploredCache
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import Row
from vidette_protocol.messages import CloseSessionReqInput, CloseSessionReqOutput, FinishReason
from vidette_protocol.world import Bounds

UNREPORTED: Final = "no public report that we know of"

# --- the prefix cache -------------------------------------------------------------------------------------


class _LocksNothingShared(ExploredCache):
    """Locks what a request found when it began, and not what it has put there since."""

    def share(
        self, hold: Hold, space: Namespace, tokens: Tokens, computed: int, priority: int = 0
    ) -> NextBlock | None:
        before = hold.node
        following = super().share(hold, space, tokens, computed, priority)
        if hold.node is not before:
            self.explored.unlock(hold.node)
            self.explored.lock(before)
        return following


class _KeepsFreedDuplicates(ExploredCache):
    """Frees the blocks that another has cached meanwhile, and goes on with them."""

    def share(
        self, hold: Hold, space: Namespace, tokens: Tokens, computed: int, priority: int = 0
    ) -> NextBlock | None:
        before = hold.blocks.copy()
        following = super().share(hold, space, tokens, computed, priority)
        hold.blocks[:] = before
        return following


class _KeepsTheLockOfTheRetracted(ExploredLoop):
    """Keeps what a request has cached for when it goes on, and has forgotten that by then."""

    def _retract(self, vid: Vid) -> None:
        hold = self._running[vid].hold
        assert hold is not None
        self.blocks.explored.lock(hold.node)
        super()._retract(vid)


class _FreesTheRetractedTwice(ExploredLoop):
    """Lets go of a request that has been retracted, and of what it held before."""

    def _release(self, sequence: Sequence) -> None:
        hold = sequence.hold
        super()._release(sequence)
        if sequence.retractions and hold is not None and hold.shared:
            self.blocks.explored.unlock(hold.node)


class _CachesTheUncomputed(ExploredLoop):
    """Takes all that a request knows for computed when it lets go of it."""

    def _release(self, sequence: Sequence) -> None:
        sequence.computed = sequence.length
        super()._release(sequence)


# --- drafts -----------------------------------------------------------------------------------------------


class _TellsTheRejected(ExploredLoop):
    """Takes every draft for right."""

    def _take(self, sequence: Sequence, share: Share, made: Made, told: Told) -> None:
        super()._take(sequence, share, made._replace(tokens=[*share.drafts, made.tokens[-1]]), told)


class _CountsTheRejected(ExploredLoop):
    """Takes the places of rejected drafts for computed."""

    def _take(self, sequence: Sequence, share: Share, made: Made, told: Told) -> None:
        super()._take(sequence, share, made, told)
        sequence.computed += len(share.drafts) - (len(made.tokens) - 1)


class _TellsWhatFollowsTheStop(ExploredLoop):
    """Cuts the text where it ends, and not the tokens."""

    def _take(self, sequence: Sequence, share: Share, made: Made, told: Told) -> None:
        before = sequence.made
        super()._take(sequence, share, made, told)
        rest = made.tokens[sequence.made - before :]
        if rest and told.rows:
            row = told.rows[-1]
            told.rows[-1] = type(row)(row.vid, row.offset, (*row.token_ids, *rest), row.reason)


class _SaysAgainWhatIsRetracted(ExploredLoop):
    """Takes the last tokens that a request has said for new ones when it is retracted."""

    def _retract(self, vid: Vid) -> None:
        super()._retract(vid)
        sequence = self._waiting[vid]
        sequence.unsaid[:0] = sequence.output[-1:].tolist()


# --- sessions ---------------------------------------------------------------------------------------------


class _CountsTheAbandoned(Sessions):
    """Keeps a turn whose caller left before hearing of its end."""

    def forget(self, vid: Vid) -> None:
        pass


class _KeepsTheAbortedInFlight(Sessions):
    """Ends the turns that were computed, and forgets those that were aborted."""

    def finish(self, vid: Vid, reason: FinishReason, now: float, output: Output = NO_TOKENS) -> None:
        if reason.type != "abort":
            super().finish(vid, reason, now, output)


class _AbortsTheNextTurn(Sessions):
    """Lets an abort that is late end the turn that is in flight by then."""

    def forget(self, vid: Vid) -> None:
        super().forget(vid)
        for session in list(self._sessions.values()):
            for other in list(session.live):
                self.finish(other, endings.ABORTED, 0.0)


class _ClosesUnderATurn(Sessions):
    """Closes a session at once, whatever is in flight."""

    def close(self, question: CloseSessionReqInput) -> CloseSessionReqOutput:
        session = self._sessions.get(question.session_id)
        answer = super().close(question)
        if session is not None and session.live:
            self._remove(session)
        return answer


class _ExpiresUnderATurn(Sessions):
    """Lets the time of a session run while one of its turns runs."""

    def begin(self, turn: Turn) -> list[Vid]:
        ends = super().begin(turn)
        self._rest(turn.session, 0.0)
        return ends


class _AnswersAnAbortNobodySent(ExploredLoop):
    """Ends a turn that was replaced as if its caller had left."""

    def _stop(self, vid: Vid, how: Callable[[Vid], Row | None], reason: FinishReason, told: Told) -> None:
        if reason is endings.REPLACED:
            how, reason = self._machine.abort, endings.ABORTED
        super()._stop(vid, how, reason, told)


PREFIX: Final = LoopBounds(prompt=17, chunk=12, flushes=True)
DRAFTS: Final = LoopBounds(prompt=15, drafts=2)
SESSION: Final = LoopBounds(session=True)
STREAMING: Final = SESSION._replace(streaming=True)
ONE: Final = Bounds(rids=1, uses=1, tokens=2)
AGAIN: Final = ONE._replace(uses=2, tokens=1)
RETRACTED: Final = ONE._replace(retractions=1)
TWO: Final = AGAIN._replace(rids=2)


def loop_mutant(  # noqa: PLR0917  a table, whose columns need no names
    name: str,
    part: type[ExploredLoop | ExploredCache | Sessions],
    report: str,
    story: str,
    configuration: str,
    loop_bounds: LoopBounds,
    bounds: Bounds,
) -> Mutant:
    """Return a mutant of a step loop.

    Args:
        name: as that of the mutant, like all but these.
        part: with the fault.
        report: likewise.
        story: likewise.
        configuration: likewise.
        loop_bounds: of the smallest kind of world that shows it.
        bounds: likewise.
    """
    parts = LoopParts(ExploredLoop)
    if issubclass(part, ExploredLoop):
        parts = parts._replace(loop=part)
    elif issubclass(part, ExploredCache):
        parts = parts._replace(cache=part)
    else:
        parts = parts._replace(sessions=part)
    more = bounds._replace(rids=2, uses=6, tokens=bounds.tokens + 1, retractions=3 * bounds.retractions)
    wider = loop_bounds._replace(blocks=16)
    return Mutant(
        name,
        report,
        story,
        configuration,
        stepping(loop_bounds, bounds, parts),
        stepping(wider, more, parts),
    )


LOOP_MUTANTS: Final = (
    loop_mutant(
        "shared-prefix-not-locked",
        _LocksNothingShared,
        "sgl-project/mini-sglang #52 (the node in use is not locked, only those above it)",
        "what a request has cached is evicted while it goes on with it",
        "prefix",
        PREFIX,
        ONE,
    ),
    loop_mutant(
        "duplicates-freed-in-use",
        _KeepsFreedDuplicates,
        "sgl-project/mini-sglang #142",
        "two compute the same prefix, and one goes on with blocks that were given back",
        "prefix",
        PREFIX,
        TWO._replace(tokens=2),
    ),
    loop_mutant(
        "lock-outlives-retraction",
        _KeepsTheLockOfTheRetracted,
        "sgl-project/sglang #26560 (review: the lock of a retracted request leaks)",
        "a request gives its blocks up, and what it had cached stays locked for ever",
        "prefix",
        PREFIX,
        RETRACTED,
    ),
    loop_mutant(
        "retracted-freed-twice",
        _FreesTheRetractedTwice,
        "sgl-project/sglang #18694, #17797",
        "what a request holds is let go of when it is retracted, and again when it ends",
        "prefix",
        PREFIX,
        RETRACTED,
    ),
    loop_mutant(
        "uncomputed-prefix-cached",
        _CachesTheUncomputed,
        "vllm-project/vllm #43569",
        "a prefill is aborted, and what it has not computed yet is found in the cache by the next one",
        "prefix",
        PREFIX,
        ONE,
    ),
    loop_mutant(
        "rejected-draft-told",
        _TellsTheRejected,
        "openvinotoolkit/openvino.genai #4190 (what a rejected draft led to is what the client gets)",
        "a draft that the model does not say is told",
        "speculation",
        DRAFTS,
        ONE._replace(tokens=4),
    ),
    loop_mutant(
        "rejected-draft-computed",
        _CountsTheRejected,
        "openvinotoolkit/openvino.genai #4190; ml-explore/mlx-lm #1109",
        "the keys and values of a rejected draft are taken for those of the token in its place",
        "speculation",
        DRAFTS,
        ONE._replace(tokens=4),
    ),
    loop_mutant(
        "told-behind-the-stop",
        _TellsWhatFollowsTheStop,
        "vllm-project/vllm #47616; huggingface/transformers #47912; LostRuins/koboldcpp #1276",
        "an end comes inside of what was accepted, and what is behind it is told as well",
        "speculation",
        DRAFTS,
        ONE._replace(tokens=4),
    ),
    loop_mutant(
        "said-again-after-retraction",
        _SaysAgainWhatIsRetracted,
        "vllm-project/vllm-gaudi #541 (tokens are doubled, which shows after a preemption)",
        "a request gives its blocks up, and what was accepted last counts twice",
        "speculation",
        DRAFTS,
        RETRACTED,
    ),
    loop_mutant(
        "abandoned-turn-counts",
        _CountsTheAbandoned,
        "sgl-project/sglang #36475 (what the client never received is part of the session)",
        "a caller leaves before hearing of the end, and the next turn goes on behind what he never heard",
        "streaming sessions",
        STREAMING,
        AGAIN,
    ),
    loop_mutant(
        "aborted-turn-in-flight",
        _KeepsTheAbortedInFlight,
        "sgl-project/sglang #31765",
        "a turn is aborted in the queue, and the session takes no other one for ever",
        "streaming sessions",
        STREAMING,
        AGAIN,
    ),
    loop_mutant(
        "late-abort-ends-the-next-turn",
        _AbortsTheNextTurn,
        "sgl-project/sglang #36475 (the abort comes late, and races with the next turn)",
        "an abort comes when its turn is over, and drops another that is in flight",
        "sessions",
        SESSION,
        TWO,
    ),
    loop_mutant(
        "closed-under-a-turn",
        _ClosesUnderATurn,
        "sgl-project/sglang #22790 (a session is released while a request of it runs)",
        "a session is closed, and what is in flight of it has none",
        "streaming sessions",
        STREAMING._replace(closes=True),
        AGAIN,
    ),
    loop_mutant(
        "expired-under-a-turn",
        _ExpiresUnderATurn,
        UNREPORTED,
        "a turn takes longer than a session is kept, which is gone before it ends",
        "streaming sessions",
        STREAMING._replace(waits=1),
        AGAIN,
    ),
    loop_mutant(
        "replaced-turn-told-of-an-abort",
        _AnswersAnAbortNobodySent,
        "Vidette itself, before this configuration was there",
        "a turn in flight is replaced, and the front is answered an abort that it never sent",
        "sessions",
        SESSION,
        TWO,
    ),
)
"""Every mutant of these."""
