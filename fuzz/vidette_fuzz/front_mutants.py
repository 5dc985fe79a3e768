"""Faults of the front and of the callers behind it; `mutants` joins them with the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vidette_fuzz.configurations import requests
from vidette_fuzz.mutant import Mutant
from vidette_protocol.errors import DuplicateRid
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import AbortedAll, End, FrontMachine, FrontState, How, Move, Replaced
from vidette_protocol.world import Bounds, Parts


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


# --- several requests at once -------------------------------------------------------------------------------


class _AbortsTheFirstOfAGroup(FrontMachine):
    """Knows the first request of a group; the others are of no concern to whoever leaves."""

    def abort_group(self, group: Vid) -> list[Vid]:
        return [vid for vid in self._groups.get(group, ())[:1] if self.abort(vid)]


class _TakesHalfAGroup(FrontMachine):
    """Takes the slots of a group one by one, and stops at the first that is taken."""

    def submit_group(self, rids: Sequence[Rid]) -> tuple[Vid, ...]:
        if any(self.holder(rid) is not None for rid in rids):
            for rid in rids:
                self.submit(rid)
        return super().submit_group(rids)


class _MatchesByPrefix(FrontMachine):
    """Aborts every request whose rid begins with that of the one that is meant."""

    def abort(self, vid: Vid) -> bool:
        entry = self._live.get(vid)
        if entry is not None:
            for other, its in list(self._live.items()):
                if its.rid.startswith(entry.rid) and other != vid:
                    super().abort(other)
        return super().abort(vid)


class _TellsNotTheReplaced(FrontMachine):
    """Gives the rid to the next one, and says to nobody that there was another."""

    def replace(self, rid: Rid) -> tuple[Vid, Replaced | None]:
        vid, _ = super().replace(rid)
        return vid, None


class _AbortsByRid(FrontMachine):
    """Takes the abort of a request for one of whoever holds its rid now."""

    def abort(self, vid: Vid) -> bool:
        entry = self._live.get(vid)
        holder = None if entry is None else self.holder(entry.rid)
        return super().abort(vid if holder is None else holder)


class _RefusesToReplace(FrontMachine):
    """Checks that the slot is free before it frees it."""

    def replace(self, rid: Rid) -> tuple[Vid, Replaced | None]:
        if self.holder(rid) is not None:
            raise DuplicateRid(rid)
        return super().replace(rid)


class _AbortsAllThatWereSent(FrontMachine):
    """Aborts what the scheduler knows of; what is being tokenised is sent a little later."""

    def abort_all(self) -> AbortedAll:
        unsent = {vid: entry for vid, entry in self._live.items() if entry.state is FrontState.NEW}
        for vid in unsent:
            del self._live[vid]
        aborted = super().abort_all()
        self._live.update(unsent)
        return aborted


# --- death ----------------------------------------------------------------------------------------------


class _EndsAllForOneDeath(FrontMachine):
    """Takes the death of one replica for the end of all."""

    def lost(self, replica: int | None = None) -> list[Vid]:
        del replica
        return super().lost(None)


class _MovesThoseWhoLeft(FrontMachine):
    """Lets all that a dead replica had go on elsewhere, whoever still waits for it."""

    def moved(self, replica: int) -> list[Move]:
        for vid, entry in self._live.items():
            if entry.state is FrontState.CLOSING:
                self._live[vid] = entry._replace(state=FrontState.LIVE)
        return super().moved(replica)


class _MovesOnlyTheStreaming(FrontMachine):
    """Lets those go on elsewhere that had heard something; the others wait on."""

    def moved(self, replica: int) -> list[Move]:
        silent = {vid: entry for vid, entry in self._live.items() if entry.state is FrontState.SENT}
        for vid in silent:
            del self._live[vid]
        moves = super().moved(replica)
        self._live.update(silent)
        return moves


class _DeliversWhatWasMoved(FrontMachine):
    """Delivers what a dead replica had said before, though the request has begun anew elsewhere."""

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> Vid | None:
        to = super().receive(vid, offset, count, end)
        return vid if self.how(vid) is How.MOVED else to


def _hears_all(heard: int, offset: int, tokens: int) -> int:
    """Take every token for a new one, those included that are said again."""
    del heard, offset
    return tokens


SMALL: Final = Bounds(rids=1, uses=2, tokens=2)
SPLIT: Final = SMALL._replace(split_senders=True)
TWO: Final = SMALL._replace(rids=2)
GROUP: Final = TWO._replace(group=2)
REPLACE: Final = SMALL._replace(replace=True)
ALL: Final = SMALL._replace(abort_all=True)
LOSS: Final = SMALL._replace(losses=1)
RESUME: Final = LOSS._replace(resume=True)
FRONTS: Final = SMALL._replace(fronts=2)
REPLICAS: Final = TWO._replace(replicas=2, losses=1)


def mutant(  # noqa: PLR0917  a table, whose columns need no names
    name: str,
    parts: Parts,
    report: str,
    story: str,
    configuration: str = "reuse before acknowledgement",
    bounds: Bounds = SMALL,
) -> Mutant:
    """Return a mutant of a world of requests; see `Mutant`."""
    large = bounds._replace(rids=2, uses=12, tokens=min(4, 2 * bounds.tokens), losses=8 * bounds.losses)
    return Mutant(name, report, story, configuration, requests(bounds, parts), requests(large, parts))


FRONT_MUTANTS: Final = (
    mutant(
        "missing-vid-check",
        Parts(front=_DeliversByRid),
        "smg-project/smg #2426",
        "what is left of an old request is delivered to the new one that uses its rid",
    ),
    mutant(
        "delivered-after-leaving",
        Parts(front=_DeliversAfterLeaving),
        "sgl-project/sglang #36333 (log flood: state was deleted)",
        "a caller whose scope has ended hears more",
        "core",
    ),
    mutant(
        "state-dropped-before-abort",
        Parts(front=_ForgetsBeforeAborting),
        "sgl-project/sglang #36333",
        "the abort is never sent, so the request is computed to its end for nobody",
        "core",
    ),
    mutant(
        "abort-of-the-unsent",
        Parts(front=_AbortsTheUnsent),
        "sgl-project/sglang #28380, #28694",
        "a request that was never sent waits for ever for the answer to its abort",
        "core",
    ),
    mutant(
        "floor-runs-ahead",
        Parts(front=_LetsTheFloorRunAhead),
        "sgl-project/sglang-omni #611 (bounded memory of early aborts)",
        "an early abort is forgotten before its request comes, which then runs for nobody",
        "core",
        SPLIT,
    ),
    mutant(
        "waiters-not-told-of-death",
        Parts(front=_TellsOnlyTheStreaming),
        "vllm-project/vllm #56416",
        "a process dies, and a caller that had heard nothing yet waits for ever",
        "two schedulers and two fronts",
        LOSS,
    ),
    mutant(
        "children-orphaned",
        Parts(front=_AbortsTheFirstOfAGroup),
        "vllm-project/vllm #53936, #51629, #14326 (n > 1)",
        "the caller of several requests leaves, and all but the first run on for nobody",
        "replace and groups",
        GROUP,
    ),
    mutant(
        "group-half-taken",
        Parts(front=_TakesHalfAGroup),
        "sgl-project/sglang #19035 (the check is to be atomic for the whole batch)",
        "a group is refused for one of its rids, and keeps the slots of the others",
        "replace and groups",
        GROUP,
    ),
    mutant(
        "abort-matches-by-prefix",
        Parts(front=_MatchesByPrefix),
        "sgl-project/sglang #32237, #30912 (req_1 hits req_10)",
        "an abort ends another request whose rid begins alike, and its caller waits for ever",
        "replace and groups",
        TWO,
    ),
    mutant(
        "replaced-not-told",
        Parts(front=_TellsNotTheReplaced),
        "sgl-project/sglang #8089, #19035",
        "a request takes the rid of another, whose caller waits for ever",
        "replace and groups",
        REPLACE,
    ),
    mutant(
        "successor-aborted",
        Parts(front=_AbortsByRid),
        "smg-project/smg #2426 (a delayed abort of an old request)",
        "the caller of a replaced request leaves, and that aborts the one that took its place",
        "replace and groups",
        REPLACE,
    ),
    mutant(
        "replacing-refused",
        Parts(front=_RefusesToReplace),
        "sgl-project/sglang #24070 (duplicate rid on resubmission)",
        "a request cannot take the rid of one that nobody waits for any more",
        "replace and groups",
        REPLACE,
    ),
    mutant(
        "abort-all-misses-the-unsent",
        Parts(front=_AbortsAllThatWereSent),
        "sgl-project/sglang #35255 (an abort while the request is tokenised is lost)",
        "all requests are aborted, and one that is being tokenised is sent and runs",
        "abort all",
        ALL,
    ),
    mutant(
        "one-death-ends-all",
        Parts(front=_EndsAllForOneDeath),
        "sgl-project/sglang #39216, #39217",
        "a replica dies, and the callers of another one are told",
        "two schedulers and two fronts",
        REPLICAS,
    ),
    mutant(
        "resumed-for-nobody",
        Parts(front=_MovesThoseWhoLeft),
        "sgl-project/sglang #36333, vllm-project/vllm #57061",
        "a request whose caller has left goes on elsewhere when its replica dies",
        "process death and resume",
        RESUME,
    ),
    mutant(
        "silent-not-resumed",
        Parts(front=_MovesOnlyTheStreaming),
        "sgl-project/sglang #22779, #4191 (nothing is served after a worker was killed)",
        "a replica dies, and a request that had said nothing yet goes on nowhere",
        "process death and resume",
        RESUME,
    ),
    mutant(
        "moved-delivered-late",
        Parts(front=_DeliversWhatWasMoved),
        "smg-project/smg #2426 (no reuse until old messages drain)",
        "what a dead replica had said before comes late, and is delivered between what is said anew",
        "process death and resume",
        RESUME,
    ),
    mutant(
        "resume-repeats-tokens",
        Parts(unheard=_hears_all),
        "ai-dynamo/dynamo #475 (a retry sends the same tokens again)",
        "a request goes on elsewhere, and its caller hears its beginning twice",
        "process death and resume",
        RESUME,
    ),
)
