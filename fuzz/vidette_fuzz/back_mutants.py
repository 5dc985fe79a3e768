"""Faults of the scheduler and of the detokenizer; `mutants` joins them with the others."""

from __future__ import annotations

from typing import Final

from vidette_fuzz.front_mutants import FRONTS, RESUME, SMALL, SPLIT, TWO, mutant
from vidette_protocol.ids import Vid, count_of
from vidette_protocol.lifecycle import DetokenizerMachine, End, Row, SchedulerMachine, SchedulerState
from vidette_protocol.world import Parts


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


class _AbortsAllOfEverybody(SchedulerMachine):
    """Takes an abort of all requests for one of all that there are."""

    def vids_up_to(self, last: Vid) -> list[Vid]:
        del last
        return self.vids()


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


class _ForgetsAbortsInRetraction(SchedulerMachine):
    """Leaves a request alone that has given its blocks up and waits to go on."""

    def abort(self, vid: Vid) -> Row | None:
        if self.state(vid) is SchedulerState.WAITING and self.offset(vid):
            return None
        return super().abort(vid)


class _BeginsAnewAfterRetraction(SchedulerMachine):
    """Forgets what a request has said when it gives its blocks up, and lets it begin anew."""

    def retract(self, vid: Vid) -> None:
        super().retract(vid)
        self._live[vid] = self._live[vid]._replace(offset=0)


class _FreesTheExpiredOnTheDevice(SchedulerMachine):
    """Frees a request whose deadline passes while it is in a batch on the device, and again at landing."""

    def expire(self, vid: Vid) -> Row | None:
        row = super().expire(vid)
        if self.state(vid) is SchedulerState.FREEING:
            return Row(vid, self.offset(vid), 0, End.FINISH)
        return row


class _TakesDeadlinesForAborts(SchedulerMachine):
    """Ends a request whose deadline passes as one whose caller has left."""

    def expire(self, vid: Vid) -> Row | None:
        return self.abort(vid) if self.state(vid) is not SchedulerState.OVER else None


class _SaysNothingAgain(SchedulerMachine):
    """Goes on behind what was said elsewhere, of which its own detokenizer knows nothing."""

    def request(self, vid: Vid, resumed: int = 0) -> Row | None:
        row = super().request(vid, resumed)
        return None if resumed and row is not None and row.end is None else row


class _PassesEveryFloor(SchedulerMachine):
    """Takes the floor of one front for that of all."""

    def pass_floor(self, floor: Vid) -> None:
        for vid in list(self._tombstones):
            if count_of(vid) < count_of(floor):
                del self._tombstones[vid]


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


BACK_MUTANTS: Final = (
    mutant(
        "double-free-at-landing",
        Parts(scheduler=_FreesOnTheDevice),
        "mini-sglang, scheduler.py:156-159 and 190-195 (may make the request freed twice)",
        "an abort frees blocks that a batch on the device still writes to, and landing frees them again",
        "core",
    ),
    mutant(
        "abort-forgotten-in-transition",
        Parts(scheduler=_ForgetsAbortsInTransition),
        "sgl-project/sglang #36876",
        "an abort that comes while the request is on the device is lost, and it runs on",
        "core",
    ),
    mutant(
        "abort-forgotten-in-prefill",
        Parts(scheduler=_ForgetsAbortsInPrefill),
        "sgl-project/sglang #6931, #11139",
        "an abort that comes between two chunks of a prefill is lost, and it runs on",
        "core",
        SMALL._replace(chunks=1),
    ),
    mutant(
        "abort-forgotten-in-retraction",
        Parts(scheduler=_ForgetsAbortsInRetraction),
        "sgl-project/sglang #36876 (whenever a request is queued again)",
        "an abort that comes while the request waits for other blocks is lost, and it runs on",
        "retraction",
        SMALL._replace(retractions=1),
    ),
    mutant(
        "queued-abort-not-answered",
        Parts(scheduler=_DropsTheQueuedSilently),
        "sgl-project/sglang #24070",
        "an aborted request leaves the queue without an end, and the front keeps it for ever",
        "core",
    ),
    mutant(
        "second-answer-to-an-abort",
        Parts(scheduler=_AnswersTwice),
        "sgl-project/sglang #21173, #28341",
        "a finish and the answer to an abort cross, and the request ends twice",
        "core",
    ),
    mutant(
        "abort-hits-another",
        Parts(scheduler=_AbortsAnother),
        "ikawrakow/ik_llama.cpp #1929",
        "cancelling a request in the queue ends the one that runs",
        "core",
        TWO,
    ),
    mutant(
        "abort-all-hits-other-fronts",
        Parts(scheduler=_AbortsAllOfEverybody),
        "sgl-project/sglang #21235, #21237 (several front ends, and what one of them asks for)",
        "one front aborts all its requests, and those of another front end with them",
        "abort all",
        FRONTS._replace(abort_all=True),
    ),
    mutant(
        "early-abort-forgotten",
        Parts(scheduler=_ForgetsEarlyAborts),
        "mini-sglang, tokenizer/server.py with two tokenizers; sgl-project/sglang-omni #611",
        "an abort overtakes its request, which then runs for nobody",
        "core",
        SPLIT,
    ),
    mutant(
        "tombstones-never-die",
        Parts(scheduler=_KeepsTombstones),
        "sgl-project/sglang-omni #611",
        "each abort that crosses its finish, once that is forgotten, leaves a little memory behind",
        "core",
        SMALL._replace(remembered=0),
    ),
    mutant(
        "floor-of-another-front",
        Parts(scheduler=_PassesEveryFloor),
        "sgl-project/sglang-omni #611 (early aborts, with several senders)",
        "what one front says of its own requests makes an early abort of another front forgotten",
        "two schedulers and two fronts",
        FRONTS._replace(split_senders=True, uses=3, tokens=1),
    ),
    mutant(
        "deadline-frees-on-the-device",
        Parts(scheduler=_FreesTheExpiredOnTheDevice),
        "openvinotoolkit/model_server #4428",
        "a deadline frees blocks that a batch on the device still writes to",
        "deadlines",
        SMALL._replace(deadlines=True),
    ),
    mutant(
        "deadline-taken-for-abort",
        Parts(scheduler=_TakesDeadlinesForAborts),
        "sgl-project/sglang #39216 (a timeout of one client kills the process)",
        "a caller who is still there is told that he has left",
        "deadlines",
        SMALL._replace(deadlines=True),
    ),
    mutant(
        "retraction-begins-anew",
        Parts(scheduler=_BeginsAnewAfterRetraction),
        "sgl-project/sglang #39645, vllm-project/vllm #16832",
        "a request that had to give its blocks up begins anew, and two answers are spliced",
        "retraction",
        SMALL._replace(retractions=1),
    ),
    mutant(
        "resumed-without-its-beginning",
        Parts(scheduler=_SaysNothingAgain),
        "sgl-project/sglang #41236 (a delta for a state that was rebuilt)",
        "a request goes on elsewhere, where the detokenizer has never heard of it",
        "process death and resume",
        RESUME,
    ),
    mutant(
        "detokenizer-state-kept-after-abort",
        Parts(detokenizer=_KeepsTheAborted),
        "mini-sglang, tokenizer/detokenize.py:74 and 109; sgl-project/sglang #12205",
        "the text state of an aborted request is kept for ever",
        "core",
    ),
    mutant(
        "live-state-evicted",
        Parts(detokenizer=_EvictsTheLive),
        "sgl-project/sglang #2812, #41236",
        "a request loses its text state to another while it lives",
        "core",
        TWO,
    ),
)
