"""Machines with a known fault each, taken from reports about engines that are in use.

Whatever checks the protocol has to catch all of them, else it checks less than it seems to. Each mutant is a
real machine with one method changed, as little as possible; its `report` says where the fault was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import (
    DetokenizerMachine,
    End,
    FrontMachine,
    FrontState,
    How,
    Row,
    SchedulerMachine,
    SchedulerState,
)
from vidette_protocol.world import Bounds, Parts


class Mutant(NamedTuple):
    """A fault that was put in on purpose.

    Args:
        name: for the command line.
        parts: the machines, one of them faulty.
        report: the public report of the fault it stands for.
        story: in a sentence, what goes wrong.
        bounds: the smallest kind of world that shows it.
    """

    name: str
    parts: Parts
    report: str
    story: str
    bounds: Bounds = Bounds(rids=1, uses=2, tokens=2)


# --- front ------------------------------------------------------------------------------------------------


class _DeliversByRid(FrontMachine):
    """Looks up who holds the rid now, instead of the vid the row belongs to."""

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> Vid | None:
        entry = self._live.get(vid)
        to = super().receive(vid, offset, count, end)
        holder = None if entry is None else self.holder(entry.rid)
        return to if holder is None else holder


class _DeliversAfterLeaving(FrontMachine):
    """Goes on delivering until the end has come, whether or not the caller is there."""

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> Vid | None:
        super().receive(vid, offset, count, end)
        return vid


class _ForgetsBeforeAborting(FrontMachine):
    """Drops the state first; the abort that is due is then one of an unknown request, and is not sent."""

    def abort(self, vid: Vid) -> bool:
        if super().abort(vid):
            entry = self._live.pop(vid)
            assert entry.state is FrontState.CLOSING
            self._remember(vid, How.UNSENT)
        return False


class _AbortsTheUnsent(FrontMachine):
    """Does not know whether a request was sent: sends an abort anyway and waits for its answer."""

    def abort(self, vid: Vid) -> bool:
        if self.state(vid) is FrontState.NEW:
            self.send(vid)
        return super().abort(vid)


class _LetsTheFloorRunAhead(FrontMachine):
    """Takes the next vid for the floor, also while older ones are still closing."""

    @property
    def floor(self) -> Vid:
        return Vid(self._issued)


class _TellsOnlyTheStreaming(FrontMachine):
    """After a process has died, tells those that had heard something; the others wait on."""

    def lost(self, replica: int | None = None) -> list[Vid]:
        streaming = [vid for vid in self._live if self.state(vid) is FrontState.LIVE]
        return [vid for vid in super().lost(replica) if vid in streaming]


# --- scheduler --------------------------------------------------------------------------------------------


class _FreesOnTheDevice(SchedulerMachine):
    """Frees an aborted request while it is in a batch on the device, and again when that lands."""

    def abort(self, vid: Vid) -> Row | None:
        row = super().abort(vid)
        if self.state(vid) is SchedulerState.FREEING:
            return Row(vid, self.offset(vid), 0, End.ABORT)
        return row


class _ForgetsAbortsInTransition(SchedulerMachine):
    """Looks for the request among the waiting and the running; one in a batch on the device is in neither."""

    def abort(self, vid: Vid) -> Row | None:
        if self.state(vid) is SchedulerState.LAUNCHED:
            return None
        return super().abort(vid)


class _ForgetsAbortsInPrefill(SchedulerMachine):
    """Leaves a request alone that is between two chunks of its prefill."""

    def abort(self, vid: Vid) -> Row | None:
        if self.state(vid) is SchedulerState.RUNNING and not self.offset(vid):
            return None
        return super().abort(vid)


class _DropsTheQueuedSilently(SchedulerMachine):
    """Takes an aborted request out of the queue and tells nobody."""

    def abort(self, vid: Vid) -> Row | None:
        queued = self.state(vid) is SchedulerState.WAITING
        row = super().abort(vid)
        return None if queued else row


class _AnswersTwice(SchedulerMachine):
    """Answers an abort of a request that is over, which has had its end."""

    def abort(self, vid: Vid) -> Row | None:
        if self.state(vid) is SchedulerState.OVER:
            return Row(vid, 0, 0, End.ABORT)
        return super().abort(vid)


class _AbortsAnother(SchedulerMachine):
    """Takes an abort of a request in the queue for one of the request that runs."""

    def abort(self, vid: Vid) -> Row | None:
        running = [other for other in self.vids() if self.state(other) is SchedulerState.RUNNING]
        if running and self.state(vid) is SchedulerState.WAITING:
            return super().abort(running[0])
        return super().abort(vid)


class _ForgetsEarlyAborts(SchedulerMachine):
    """Ignores an abort of a request that has not come yet."""

    def abort(self, vid: Vid) -> Row | None:
        if self.state(vid) is SchedulerState.OVER:
            return None
        return super().abort(vid)


class _KeepsTombstones(SchedulerMachine):
    """Remembers early aborts for ever."""

    def pass_floor(self, floor: Vid) -> None:
        pass


# --- detokenizer ------------------------------------------------------------------------------------------


class _KeepsTheAborted(DetokenizerMachine):
    """Drops its state when a request has finished, but not when it was aborted."""

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> bool:
        new = super().receive(vid, offset, count, end)
        if end is End.ABORT:
            self._open[vid] = offset + count
        return new


class _EvictsTheLive(DetokenizerMachine):
    """Has room for one request, and drops the oldest when another comes."""

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> bool:
        new = super().receive(vid, offset, count, end)
        if len(self) > 1:
            del self._open[next(iter(self._open))]
        return new


_SPLIT = Bounds(rids=1, uses=2, tokens=2, split_senders=True)
_TWO = Bounds(rids=2, uses=2, tokens=2)

_ALL = (
    Mutant(
        "missing-vid-check",
        Parts(front=_DeliversByRid),
        "smg-project/smg #2426",
        "what is left of an old request is delivered to the new one that uses its rid",
    ),
    Mutant(
        "delivered-after-leaving",
        Parts(front=_DeliversAfterLeaving),
        "sgl-project/sglang #36333 (log flood: state was deleted)",
        "a caller whose scope has ended hears more",
    ),
    Mutant(
        "state-dropped-before-abort",
        Parts(front=_ForgetsBeforeAborting),
        "sgl-project/sglang #36333",
        "the abort is never sent, so the request is computed to its end for nobody",
    ),
    Mutant(
        "abort-of-the-unsent",
        Parts(front=_AbortsTheUnsent),
        "sgl-project/sglang #28380, #28694",
        "a request that was never sent waits for ever for the answer to its abort",
    ),
    Mutant(
        "floor-runs-ahead",
        Parts(front=_LetsTheFloorRunAhead),
        "sgl-project/sglang-omni #611 (bounded memory of early aborts)",
        "an early abort is forgotten before its request comes, which then runs for nobody",
        _SPLIT,
    ),
    Mutant(
        "waiters-not-told-of-death",
        Parts(front=_TellsOnlyTheStreaming),
        "vllm-project/vllm #56416",
        "a process dies, and a caller that had heard nothing yet waits for ever",
        Bounds(rids=1, uses=2, tokens=2, losses=1),
    ),
    Mutant(
        "double-free-at-landing",
        Parts(scheduler=_FreesOnTheDevice),
        "mini-sglang, scheduler.py:156-159 and 190-195 (may make the request freed twice)",
        "an abort frees blocks that a batch on the device still writes to, and landing frees them again",
    ),
    Mutant(
        "abort-forgotten-in-transition",
        Parts(scheduler=_ForgetsAbortsInTransition),
        "sgl-project/sglang #36876",
        "an abort that comes while the request is on the device is lost, and it runs on",
    ),
    Mutant(
        "abort-forgotten-in-prefill",
        Parts(scheduler=_ForgetsAbortsInPrefill),
        "sgl-project/sglang #6931, #11139",
        "an abort that comes between two chunks of a prefill is lost, and it runs on",
        Bounds(rids=1, uses=2, tokens=2, chunks=1),
    ),
    Mutant(
        "queued-abort-not-answered",
        Parts(scheduler=_DropsTheQueuedSilently),
        "sgl-project/sglang #24070",
        "an aborted request leaves the queue without an end, and the front keeps it for ever",
    ),
    Mutant(
        "second-answer-to-an-abort",
        Parts(scheduler=_AnswersTwice),
        "sgl-project/sglang #21173, #28341",
        "a finish and the answer to an abort cross, and the request ends twice",
    ),
    Mutant(
        "abort-hits-another",
        Parts(scheduler=_AbortsAnother),
        "ikawrakow/ik_llama.cpp #1929, sgl-project/sglang #32237",
        "cancelling a request in the queue ends the one that runs",
        _TWO,
    ),
    Mutant(
        "early-abort-forgotten",
        Parts(scheduler=_ForgetsEarlyAborts),
        "mini-sglang, tokenizer/server.py with two tokenizers; sgl-project/sglang-omni #611",
        "an abort overtakes its request, which then runs for nobody",
        _SPLIT,
    ),
    Mutant(
        "tombstones-never-die",
        Parts(scheduler=_KeepsTombstones),
        "sgl-project/sglang-omni #611",
        "each abort that crosses its finish, once that is forgotten, leaves a little memory behind",
        Bounds(rids=1, uses=2, tokens=2, remembered=0),
    ),
    Mutant(
        "detokenizer-state-kept-after-abort",
        Parts(detokenizer=_KeepsTheAborted),
        "mini-sglang, tokenizer/detokenize.py:74 and 109; sgl-project/sglang #12205",
        "the text state of an aborted request is kept for ever",
    ),
    Mutant(
        "live-state-evicted",
        Parts(detokenizer=_EvictsTheLive),
        "sgl-project/sglang #2812, #41236",
        "a request loses its text state to another while it lives",
        _TWO,
    ),
)

MUTANTS: Final[Mapping[str, Mutant]] = MappingProxyType({mutant.name: mutant for mutant in _ALL})
"""Every mutant by name."""
