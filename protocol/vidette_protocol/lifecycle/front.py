"""The front's machine: who may hear what.

States of one vid:

    NEW      submitted, nothing sent yet (it is being tokenised): an abort sends nothing
    SENT     the scheduler was asked
    LIVE     text has come; the next token offset is known
    CLOSING  the caller is gone and an abort was sent; ends on the first ending row, whatever its reason
    (over)   in no table; how it ended is remembered for a while, outside the invariants

The rid's slot is free again from the moment of the abort: the next use of it is another vid, so nothing
still in flight can be mistaken for it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Self

from vidette_protocol.errors import DuplicateRid, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid, count_of, front_of, make_vid
from vidette_protocol.lifecycle.rows import End


class FrontState(Enum):
    """Where one vid stands in the front."""

    NEW = "new"
    SENT = "sent"
    LIVE = "live"
    CLOSING = "closing"
    OVER = "over"


class FrontEvent(Enum):
    """What can happen to one vid in the front."""

    SEND = "send"
    ABORT = "abort"
    TEXT = "text"
    END = "end"
    LOST = "lost"


class How(Enum):
    """How a vid ended, as long as it is remembered."""

    UNSENT = "unsent"
    """Aborted before anything was sent."""
    ENDED = "ended"
    """By an ending row: nothing of it can follow."""
    LOST = "lost"
    """A process died: what still comes is late, not wrong."""


FRONT_TABLE: Final[dict[tuple[FrontState, FrontEvent], FrontState]] = {
    (FrontState.NEW, FrontEvent.SEND): FrontState.SENT,
    (FrontState.NEW, FrontEvent.ABORT): FrontState.OVER,
    (FrontState.NEW, FrontEvent.LOST): FrontState.OVER,
    (FrontState.SENT, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.SENT, FrontEvent.TEXT): FrontState.LIVE,
    (FrontState.SENT, FrontEvent.END): FrontState.OVER,
    (FrontState.SENT, FrontEvent.LOST): FrontState.OVER,
    (FrontState.LIVE, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.LIVE, FrontEvent.TEXT): FrontState.LIVE,
    (FrontState.LIVE, FrontEvent.END): FrontState.OVER,
    (FrontState.LIVE, FrontEvent.LOST): FrontState.OVER,
    (FrontState.CLOSING, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.CLOSING, FrontEvent.TEXT): FrontState.CLOSING,
    (FrontState.CLOSING, FrontEvent.END): FrontState.OVER,
    (FrontState.CLOSING, FrontEvent.LOST): FrontState.OVER,
}


class _Entry(NamedTuple):
    state: FrontState
    rid: Rid
    offset: int


class FrontMachine:
    """The front's table of live requests, its rid slots, and its memory of ended ones.

    Args:
        front_id: high bits of every vid issued here.
        remembered: how many ended vids to remember the end of.
    """

    __slots__ = ("_ended", "_front_id", "_issued", "_live", "_remembered", "_slots", "dropped")

    def __init__(self, *, front_id: int = 0, remembered: int = 4096) -> None:
        self._front_id = front_id
        self._remembered = remembered
        self._issued = 0
        self._live: dict[Vid, _Entry] = {}
        self._slots: dict[Rid, Vid] = {}
        self._ended: dict[Vid, How] = {}
        self.dropped = 0
        """Rows that came for callers who were gone."""

    def submit(self, rid: Rid) -> Vid:
        """Take a rid's slot and issue the vid of this use of it; nothing is sent yet.

        Raises:
            DuplicateRid: the slot is taken by a request that lives.
        """
        if rid in self._slots:
            raise DuplicateRid(rid)
        vid = make_vid(self._front_id, self._issued)
        self._issued += 1
        self._live[vid] = _Entry(FrontState.NEW, rid, 0)
        self._slots[rid] = vid
        return vid

    def send(self, vid: Vid) -> None:
        """Note that the request goes to the scheduler now.

        Raises:
            LocalProtocolError: it was sent before, or is over.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is not FrontState.NEW:
            raise LocalProtocolError(f"vid {vid} cannot be sent: it is {self.state(vid).value}")
        self._move(vid, entry, FrontEvent.SEND)

    def abort(self, vid: Vid) -> bool:
        """Note that the caller's scope has ended; idempotent, and silent when the request is over.

        Returns:
            Whether an AbortReq has to be posted.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is FrontState.CLOSING:
            return False
        return self._move(vid, entry, FrontEvent.ABORT) is FrontState.CLOSING

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> Vid | None:
        """Judge a row that came from the detokenizer.

        Returns:
            The vid whose caller is to hear it, or None if nobody is (it is stale, and counted).

        Raises:
            RemoteProtocolError: a vid that was never issued, never sent, or has cleanly ended; a gap or a
                repeat in the tokens of a live one; the answer to an abort that was not sent.
        """
        entry = self._live.get(vid)
        if entry is None:
            self._receive_absent(vid)
            return None
        if entry.state is FrontState.NEW:
            raise RemoteProtocolError(f"vid {vid} was not sent yet, nothing of it can come")
        if offset != entry.offset:
            raise RemoteProtocolError(f"vid {vid}: tokens from {offset} on, but {entry.offset} is next")
        if end is End.ABORT and entry.state is not FrontState.CLOSING:
            raise RemoteProtocolError(
                f"vid {vid} is {entry.state.value}: its end answers an abort that was not sent"
            )
        event = FrontEvent.TEXT if end is None else FrontEvent.END
        self._move(vid, entry._replace(offset=offset + count), event)
        if entry.state is FrontState.CLOSING:
            self.dropped += 1
            return None
        return vid

    def lost(self) -> list[Vid]:
        """Note that a process of the ring has died.

        Returns:
            The vids whose callers are still there and have to be told.
        """
        told = [vid for vid, entry in self._live.items() if entry.state is not FrontState.CLOSING]
        for vid, entry in list(self._live.items()):
            self._move(vid, entry, FrontEvent.LOST)
        return told

    @property
    def floor(self) -> Vid:
        """The lowest vid that is not over; the next one to be issued if all are."""
        return next(iter(self._live), make_vid(self._front_id, self._issued))

    def state(self, vid: Vid) -> FrontState:
        """Where a vid stands."""
        entry = self._live.get(vid)
        return FrontState.OVER if entry is None else entry.state

    def how(self, vid: Vid) -> How | None:
        """How a vid ended; None if it has not, or if that is forgotten."""
        return self._ended.get(vid)

    def holder(self, rid: Rid) -> Vid | None:
        """The vid that holds a rid's slot."""
        return self._slots.get(rid)

    def __len__(self) -> int:
        """Return how many vids are not over."""
        return len(self._live)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self)(front_id=self._front_id, remembered=self._remembered)
        twin._issued = self._issued
        twin._live = self._live.copy()
        twin._slots = self._slots.copy()
        twin._ended = self._ended.copy()
        twin.dropped = self.dropped
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for machines that behave alike from here on."""
        slots = frozenset(self._slots.items())
        return (self._issued, slots, *self._live.items(), *self._ended.items())

    def _receive_absent(self, vid: Vid) -> None:
        if front_of(vid) != self._front_id or count_of(vid) >= self._issued:
            raise RemoteProtocolError(f"vid {vid} was never issued by front {self._front_id}")
        how = self._ended.get(vid)
        if how is How.ENDED or how is How.UNSENT:
            raise RemoteProtocolError(f"vid {vid} is over ({how.value}), nothing of it can follow")
        self.dropped += 1

    def _move(self, vid: Vid, entry: _Entry, event: FrontEvent) -> FrontState:
        state = FRONT_TABLE[entry.state, event]
        gone = state is FrontState.CLOSING or state is FrontState.OVER
        if gone and self._slots.get(entry.rid) == vid:
            del self._slots[entry.rid]
        if state is FrontState.OVER:
            del self._live[vid]
            self._remember(vid, _HOW[event])
        else:
            self._live[vid] = entry._replace(state=state)
        return state

    def _remember(self, vid: Vid, how: How) -> None:
        self._ended[vid] = how
        if len(self._ended) > self._remembered:
            del self._ended[next(iter(self._ended))]


_HOW: Final = {FrontEvent.ABORT: How.UNSENT, FrontEvent.END: How.ENDED, FrontEvent.LOST: How.LOST}
