"""The scheduler's machine: who may compute, and when what it holds may be freed.

States of one vid:

    WAITING   admitted, holds no blocks; new, or retracted with the tokens it has made
    RUNNING   holds blocks, in no batch at this moment
    LAUNCHED  in a batch on the device
    FREEING   aborted or expired while in a batch on the device: freed when the batch lands, its output is
              dropped
    (over)    in no table

A request that another scheduler had begun comes with the tokens it has made: it is said again, as one row at
offset 0, so that a detokenizer which has never heard of it can begin, and goes on behind them.

A vid that is absent is new, over, or was aborted before it came. The last ones that ended are remembered, so
that an abort which crossed the end is silence. An abort of any other absent vid leaves a *tombstone*: with
several senders it may overtake its request. A tombstone dies when the front's floor has passed it, since then
the front holds nothing of that vid and will not send it any more. The scheduler never
compares vids with one another otherwise: they reach it out of order, as tokenising runs off the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple, Self

from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.ids import Vid, front_of
from vidette_protocol.lifecycle.rows import End, Row


class SchedulerState(Enum):
    """Where one vid stands in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    LAUNCHED = "launched"
    FREEING = "freeing"
    OVER = "over"


class SchedulerEvent(Enum):
    """What can happen to one vid in the scheduler."""

    ABORT = "abort"
    EXPIRE = "expire"
    LAUNCH = "launch"
    LAND = "land"
    END = "end"
    REJECT = "reject"
    RETRACT = "retract"


SCHEDULER_TABLE: Final[dict[tuple[SchedulerState, SchedulerEvent], SchedulerState]] = {
    (SchedulerState.WAITING, SchedulerEvent.ABORT): SchedulerState.OVER,
    (SchedulerState.WAITING, SchedulerEvent.EXPIRE): SchedulerState.OVER,
    (SchedulerState.WAITING, SchedulerEvent.LAUNCH): SchedulerState.LAUNCHED,
    (SchedulerState.WAITING, SchedulerEvent.REJECT): SchedulerState.OVER,
    (SchedulerState.RUNNING, SchedulerEvent.ABORT): SchedulerState.OVER,
    (SchedulerState.RUNNING, SchedulerEvent.EXPIRE): SchedulerState.OVER,
    (SchedulerState.RUNNING, SchedulerEvent.RETRACT): SchedulerState.WAITING,
    (SchedulerState.RUNNING, SchedulerEvent.LAUNCH): SchedulerState.LAUNCHED,
    (SchedulerState.LAUNCHED, SchedulerEvent.ABORT): SchedulerState.FREEING,
    (SchedulerState.LAUNCHED, SchedulerEvent.EXPIRE): SchedulerState.FREEING,
    (SchedulerState.LAUNCHED, SchedulerEvent.LAND): SchedulerState.RUNNING,
    (SchedulerState.LAUNCHED, SchedulerEvent.END): SchedulerState.OVER,
    (SchedulerState.FREEING, SchedulerEvent.ABORT): SchedulerState.FREEING,
    (SchedulerState.FREEING, SchedulerEvent.EXPIRE): SchedulerState.FREEING,
    (SchedulerState.FREEING, SchedulerEvent.LAND): SchedulerState.OVER,
}


class Entry(NamedTuple):
    """What the scheduler holds of one vid that is not over."""

    state: SchedulerState
    offset: int
    end: End = End.FINISH
    """How it will end, once it is FREEING."""


class SchedulerKey(NamedTuple):
    """A picture of the scheduler's machine, table by table."""

    live: tuple[tuple[Vid, Entry], ...]
    tombstones: tuple[Vid, ...]
    ended: tuple[Vid, ...]


class SchedulerMachine:
    """The scheduler's table of live requests, its tombstones, and its memory of ended ones.

    Every method that may end a vid returns a `Row`; one whose `end` is set is the vid's last, and the one
    moment at which everything it holds is to be freed.

    Args:
        remembered: how many ended vids to remember.
    """

    __slots__ = ("_ended", "_live", "_remembered", "_tombstones")

    def __init__(self, *, remembered: int = 4096) -> None:
        self._remembered = remembered
        self._live: dict[Vid, Entry] = {}
        self._ended: dict[Vid, None] = {}
        self._tombstones: dict[Vid, None] = {}

    def request(self, vid: Vid, resumed: int = 0) -> Row | None:
        """Admit a request; one that was aborted before it came ends here.

        Args:
            vid: its vid.
            resumed: output tokens that it has made already, elsewhere.

        Returns:
            The ending row of one that was aborted; the tokens of one that is resumed, said again.

        Raises:
            RemoteProtocolError: the vid is live, or was.
        """
        if vid in self._live or vid in self._ended:
            raise RemoteProtocolError(f"vid {vid} was sent twice")
        if vid in self._tombstones:
            del self._tombstones[vid]
            self._remember(vid)
            return Row(vid, 0, 0, End.ABORT)
        self._live[vid] = Entry(SchedulerState.WAITING, resumed)
        return Row(vid, 0, resumed, None) if resumed else None

    def abort(self, vid: Vid) -> Row | None:
        """Apply an abort: no batch that launches later contains the vid.

        Returns:
            The ending row, unless the vid is in a batch on the device (then landing makes it) or absent.
        """
        entry = self._live.get(vid)
        if entry is None:
            if vid not in self._ended:
                self._tombstones[vid] = None
            return None
        return self._move(vid, entry, SchedulerEvent.ABORT, count=0, end=End.ABORT)

    def expire(self, vid: Vid) -> Row | None:
        """Apply a deadline that has passed; as an abort, but the request ends by itself.

        Returns:
            The ending row, unless the vid is in a batch on the device (then landing makes it) or absent.
        """
        entry = self._live.get(vid)
        if entry is None:
            return None
        return self._move(vid, entry, SchedulerEvent.EXPIRE, count=0, end=End.FINISH)

    def retract(self, vid: Vid) -> None:
        """Put a running request back among the waiting ones: its blocks are needed, its tokens are kept.

        Raises:
            LocalProtocolError: it is not running, or in a batch on the device.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is not SchedulerState.RUNNING:
            raise LocalProtocolError(f"vid {vid} cannot be retracted: it is {self.state(vid).value}")
        self._live[vid] = entry._replace(state=SCHEDULER_TABLE[entry.state, SchedulerEvent.RETRACT])

    def reject(self, vid: Vid) -> Row:
        """End a waiting request that cannot be served, with a reason of its own.

        Raises:
            LocalProtocolError: it is not waiting.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is not SchedulerState.WAITING:
            raise LocalProtocolError(f"vid {vid} cannot be rejected: it is {self.state(vid).value}")
        row = self._move(vid, entry, SchedulerEvent.REJECT, count=0, end=End.FINISH)
        assert row is not None
        return row

    def launch(self, vids: Iterable[Vid]) -> None:
        """Note that a batch goes to the device.

        Raises:
            LocalProtocolError: one of them is absent, aborted, named twice, or in a batch already; then none
                is launched.
        """
        vids = list(vids)
        if len(set(vids)) < len(vids):
            raise LocalProtocolError(f"a batch names a vid twice: {vids}")
        live, waiting, running = self._live, SchedulerState.WAITING, SchedulerState.RUNNING
        entries = []
        for vid in vids:
            entry = live.get(vid)
            if entry is None or (entry.state is not running and entry.state is not waiting):
                raise LocalProtocolError(f"vid {vid} cannot be launched: it is {self.state(vid).value}")
            entries.append(Entry(_LAUNCHED, entry.offset, entry.end))
        live.update(zip(vids, entries, strict=True))

    def land(self, vid: Vid, count: int, *, end: bool) -> Row | None:
        """Note what a batch that has come back made for one vid of it.

        Args:
            vid: one of the batch.
            count: new output tokens; 0 for a chunk of a prefill that is not the last.
            end: whether the request comes to its own end here.

        Returns:
            The row to send, None if there is nothing to say. For a vid that was aborted meanwhile it is the
            ending row, with no tokens.

        Raises:
            LocalProtocolError: it is in no batch on the device, or the count is negative.
        """
        if count < 0:
            raise LocalProtocolError(f"vid {vid} cannot land with {count} tokens")
        entry = self._live.get(vid)
        if not end and entry is not None and entry.state is _LAUNCHED:
            # As most are; what follows would come to the same.
            self._live[vid] = Entry(_RUNNING, entry.offset + count, entry.end)
            return Row(vid, entry.offset, count, None) if count else None
        if entry is None or entry.state not in _ON_DEVICE:
            raise LocalProtocolError(f"vid {vid} cannot land: it is {self.state(vid).value}")
        if entry.state is SchedulerState.FREEING:
            return self._move(vid, entry, SchedulerEvent.LAND, count=0, end=entry.end)
        event = SchedulerEvent.END if end else SchedulerEvent.LAND
        return self._move(vid, entry, event, count=count, end=End.FINISH)

    def pass_floor(self, floor: Vid) -> None:
        """Forget the tombstones below a front's floor."""
        if not self._tombstones:  # nearly always
            return
        front = front_of(floor)
        dead = [vid for vid in self._tombstones if vid < floor and front_of(vid) == front]
        for vid in dead:
            del self._tombstones[vid]

    def state(self, vid: Vid) -> SchedulerState:
        """Where a vid stands; OVER if it is absent."""
        entry = self._live.get(vid)
        return SchedulerState.OVER if entry is None else entry.state

    def offset(self, vid: Vid) -> int:
        """How many output tokens a live vid has made.

        Raises:
            LocalProtocolError: it is not live.
        """
        entry = self._live.get(vid)
        if entry is None:
            raise LocalProtocolError(f"vid {vid} has no offset: it is {self.state(vid).value}")
        return entry.offset

    def vids(self) -> list[Vid]:
        """Live vids, in the order of their arrival."""
        return list(self._live)

    def vids_up_to(self, last: Vid) -> list[Vid]:
        """Live vids of one front up to one of its vids: what an abort of all of them is about."""
        return [vid for vid in self._live if vid <= last and front_of(vid) == front_of(last)]

    @property
    def tombstones(self) -> int:
        """How many aborts are remembered for vids that were not there."""
        return len(self._tombstones)

    def __len__(self) -> int:
        """Return how many vids are live."""
        return len(self._live)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self)(remembered=self._remembered)
        twin._live = self._live.copy()
        twin._ended = self._ended.copy()
        twin._tombstones = self._tombstones.copy()
        return twin

    def key(self) -> SchedulerKey:
        """Return a hashable picture: equal for machines that behave alike from here on."""
        return SchedulerKey(tuple(self._live.items()), tuple(sorted(self._tombstones)), tuple(self._ended))

    def _move(self, vid: Vid, entry: Entry, event: SchedulerEvent, *, count: int, end: End) -> Row | None:
        state = SCHEDULER_TABLE[entry.state, event]
        if state is SchedulerState.OVER:
            del self._live[vid]
            self._remember(vid)
            return Row(vid, entry.offset, count, end)
        # An abort is an abort, whether the deadline passed before it or after.
        kept = End.ABORT if End.ABORT in (end, entry.end) and state is SchedulerState.FREEING else End.FINISH
        self._live[vid] = Entry(state, entry.offset + count, kept)
        return Row(vid, entry.offset, count, None) if count else None

    def _remember(self, vid: Vid) -> None:
        if self._remembered:
            if len(self._ended) >= self._remembered:
                del self._ended[next(iter(self._ended))]
            self._ended[vid] = None


# To look a member up takes five times as long.
_LAUNCHED: Final = SchedulerState.LAUNCHED
_RUNNING: Final = SchedulerState.RUNNING
_ON_DEVICE: Final = (SchedulerState.LAUNCHED, SchedulerState.FREEING)
