"""The front's machine: who may hear what.

States of one vid:

    NEW      submitted, nothing sent yet (it is being tokenised): an abort sends nothing
    SENT     the scheduler was asked
    LIVE     text has come; the next token offset is known
    CLOSING  the caller is gone and an abort was sent; ends on the first ending row, whatever its reason
    (over)   in no table; how it ended is remembered for a while, outside the invariants

The rid's slot is free again from the moment of the abort: the next use of it is another vid, so nothing
still in flight can be mistaken for it.

A *group* is several vids that were submitted together, all or none, and are aborted together. It has an id of
its own; a vid of it ends by itself as any other does.

A request is sent to one *replica*. When that dies, what its callers wait for can be *moved*: the old vid is
over, and the next one takes its place, rid slot and group included, to be sent to another replica. It is a
new life, from offset 0; that its caller has heard the beginning before is for the caller's side to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    MOVE = "move"


class How(Enum):
    """How a vid ended, as long as it is remembered."""

    UNSENT = "unsent"
    """Aborted before anything was sent."""
    ENDED = "ended"
    """By an ending row: nothing of it can follow."""
    LOST = "lost"
    """A process died: what still comes is late, not wrong."""
    MOVED = "moved"
    """A process died, and another vid goes on in its place."""


FRONT_TABLE: Final[dict[tuple[FrontState, FrontEvent], FrontState]] = {
    (FrontState.NEW, FrontEvent.SEND): FrontState.SENT,
    (FrontState.NEW, FrontEvent.ABORT): FrontState.OVER,
    (FrontState.NEW, FrontEvent.LOST): FrontState.OVER,
    (FrontState.SENT, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.SENT, FrontEvent.TEXT): FrontState.LIVE,
    (FrontState.SENT, FrontEvent.END): FrontState.OVER,
    (FrontState.SENT, FrontEvent.LOST): FrontState.OVER,
    (FrontState.SENT, FrontEvent.MOVE): FrontState.OVER,
    (FrontState.LIVE, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.LIVE, FrontEvent.TEXT): FrontState.LIVE,
    (FrontState.LIVE, FrontEvent.END): FrontState.OVER,
    (FrontState.LIVE, FrontEvent.LOST): FrontState.OVER,
    (FrontState.LIVE, FrontEvent.MOVE): FrontState.OVER,
    (FrontState.CLOSING, FrontEvent.ABORT): FrontState.CLOSING,
    (FrontState.CLOSING, FrontEvent.TEXT): FrontState.CLOSING,
    (FrontState.CLOSING, FrontEvent.END): FrontState.OVER,
    (FrontState.CLOSING, FrontEvent.LOST): FrontState.OVER,
}


class Replaced(NamedTuple):
    """What became of the holder of a rid that another request took over.

    Args:
        vid: the former holder; its caller has to be told.
        post: whether an AbortReq has to be posted.
    """

    vid: Vid
    post: bool


class AbortedAll(NamedTuple):
    """What became of all requests of a front that were aborted at once.

    Args:
        told: whose callers have to be told.
        up_to: by replica, the last vid that it was sent: one AbortReq, for all up to that one, has to be
            posted there.
    """

    told: tuple[Vid, ...]
    up_to: dict[int, Vid]


class Move(NamedTuple):
    """A request that goes on under another vid."""

    old: Vid
    new: Vid


class Entry(NamedTuple):
    """What the front holds of one vid that is not over."""

    state: FrontState
    rid: Rid
    offset: int = 0
    replica: int = 0
    group: Vid | None = None


class FrontKey(NamedTuple):
    """A picture of the front's machine, table by table."""

    issued: int
    slots: frozenset[tuple[Rid, Vid]]
    groups: tuple[tuple[Vid, tuple[Vid, ...]], ...]
    live: tuple[tuple[Vid, Entry], ...]
    ended: tuple[tuple[Vid, How], ...]


class FrontMachine:
    """The front's table of live requests, its rid slots, and its memory of ended ones.

    Args:
        front_id: high bits of every vid issued here.
        remembered: how many ended vids to remember the end of.
    """

    __slots__ = ("_ended", "_front_id", "_groups", "_issued", "_live", "_remembered", "_slots", "dropped")

    def __init__(self, *, front_id: int = 0, remembered: int = 4096) -> None:
        self._front_id = front_id
        self._remembered = remembered
        self._issued = 0
        self._live: dict[Vid, Entry] = {}
        self._slots: dict[Rid, Vid] = {}
        self._groups: dict[Vid, tuple[Vid, ...]] = {}
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
        return self._issue(rid, None)

    def replace(self, rid: Rid) -> tuple[Vid, Replaced | None]:
        """Take a rid's slot as `submit` does; a request that holds it is aborted.

        Returns:
            The vid, and what was replaced.
        """
        holder = self._slots.get(rid)
        replaced = None if holder is None else Replaced(holder, self.abort(holder))
        return self._issue(rid, None), replaced

    def submit_group(self, rids: Sequence[Rid]) -> tuple[Vid, ...]:
        """Take the slots of several rids, all or none, and issue a vid for each; the first is the group's id.

        Raises:
            DuplicateRid: a slot is taken, or named twice.
            LocalProtocolError: there is no rid.
        """
        if not rids:
            raise LocalProtocolError("a group has at least one request")
        seen = set(self._slots)
        for rid in rids:
            if rid in seen:
                raise DuplicateRid(rid)
            seen.add(rid)
        group = make_vid(self._front_id, self._issued)
        vids = tuple(self._issue(rid, group) for rid in rids)
        self._groups[group] = vids
        return vids

    def send(self, vid: Vid, replica: int = 0) -> None:
        """Note that the request goes to a scheduler now.

        Args:
            vid: which.
            replica: number of the scheduler and its detokenizer.

        Raises:
            LocalProtocolError: it was sent before, or is over.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is not FrontState.NEW:
            raise LocalProtocolError(f"vid {vid} cannot be sent: it is {self.state(vid).value}")
        self._move(vid, entry._replace(replica=replica), FrontEvent.SEND)

    def abort(self, vid: Vid) -> bool:
        """Note that the caller's scope has ended; idempotent, and silent when the request is over.

        Returns:
            Whether an AbortReq has to be posted.
        """
        entry = self._live.get(vid)
        if entry is None or entry.state is FrontState.CLOSING:
            return False
        return self._move(vid, entry, FrontEvent.ABORT) is FrontState.CLOSING

    def group(self, vid: Vid) -> Vid | None:
        """Return the group that a live request belongs to; None: it does not live, or is alone."""
        entry = self._live.get(vid)
        return None if entry is None else entry.group

    def abort_group(self, group: Vid) -> list[Vid]:
        """Note that the caller of a group has left; as `abort` of each of its vids.

        Returns:
            The vids of which an AbortReq has to be posted.
        """
        return [vid for vid in self._groups.get(group, ()) if self.abort(vid)]

    def abort_all(self) -> AbortedAll:
        """Abort every request, whoever waits for it, those included that were not sent yet."""
        told: list[Vid] = []
        up_to: dict[int, Vid] = {}
        for vid, entry in self._of(None):
            if entry.state is not FrontState.CLOSING:
                told.append(vid)
                if self._move(vid, entry, FrontEvent.ABORT) is FrontState.CLOSING:
                    up_to[entry.replica] = max(vid, up_to.get(entry.replica, vid))
        return AbortedAll(tuple(told), up_to)

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
        if end is None and entry.state is _LIVE and entry.offset == offset:
            # As most rows are; what follows would come to the same.
            self._live[vid] = Entry(_LIVE, entry.rid, offset + count, entry.replica, entry.group)
            return vid
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

    def lost(self, replica: int | None = None) -> list[Vid]:
        """Note that a replica has died and that what it had does not go on.

        Args:
            replica: which; None: the last one, so that what was not sent yet ends as well.

        Returns:
            The vids whose callers are still there and have to be told.
        """
        told = []
        for vid, entry in self._of(replica):
            if entry.state is not FrontState.CLOSING:
                told.append(vid)
            self._move(vid, entry, FrontEvent.LOST)
        return told

    def moved(self, replica: int) -> list[Move]:
        """Note that a replica has died, and issue a vid for each request that goes on elsewhere.

        Whose caller has left does not go on. The new vids are to be sent.
        """
        moves = []
        for vid, entry in self._of(replica):
            if entry.state is FrontState.CLOSING:
                self._move(vid, entry, FrontEvent.LOST)
                continue
            group = entry.group
            siblings = () if group is None else self._groups[group]
            self._move(vid, entry, FrontEvent.MOVE)
            new = self._issue(entry.rid, group)
            if group is not None:  # in the place of the old one, which has just left
                self._groups[group] = tuple(new if sibling == vid else sibling for sibling in siblings)
            moves.append(Move(vid, new))
        return moves

    def replica_of(self, vid: Vid) -> int | None:
        """The replica that a live vid was sent to; None if it was not sent, or is over."""
        entry = self._live.get(vid)
        return None if entry is None or entry.state is FrontState.NEW else entry.replica

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

    def live(self) -> Iterator[tuple[Vid, Entry]]:
        """Return what is held of each vid that is not over, the oldest first."""
        return iter(self._live.items())

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
        twin._groups = self._groups.copy()
        twin._ended = self._ended.copy()
        twin.dropped = self.dropped
        return twin

    def key(self) -> FrontKey:
        """Return a hashable picture: equal for machines that behave alike from here on."""
        return FrontKey(
            self._issued,
            frozenset(self._slots.items()),
            tuple(self._groups.items()),
            tuple(self._live.items()),
            tuple(self._ended.items()),
        )

    def _issue(self, rid: Rid, group: Vid | None) -> Vid:
        vid = make_vid(self._front_id, self._issued)
        self._issued += 1
        self._live[vid] = Entry(FrontState.NEW, rid, group=group)
        self._slots[rid] = vid
        return vid

    def _of(self, replica: int | None) -> list[tuple[Vid, Entry]]:
        return [
            (vid, entry)
            for vid, entry in self._live.items()
            if replica is None or (entry.replica == replica and entry.state is not FrontState.NEW)
        ]

    def _receive_absent(self, vid: Vid) -> None:
        if front_of(vid) != self._front_id or count_of(vid) >= self._issued:
            raise RemoteProtocolError(f"vid {vid} was never issued by front {self._front_id}")
        how = self._ended.get(vid)
        if how is How.ENDED or how is How.UNSENT:
            raise RemoteProtocolError(f"vid {vid} is over ({how.value}), nothing of it can follow")
        self.dropped += 1

    def _move(self, vid: Vid, entry: Entry, event: FrontEvent) -> FrontState:
        state = FRONT_TABLE[entry.state, event]
        gone = state is FrontState.CLOSING or state is FrontState.OVER
        if gone and self._slots.get(entry.rid) == vid:
            del self._slots[entry.rid]
        if state is FrontState.OVER:
            del self._live[vid]
            self._remember(vid, _HOW[event])
            self._leave_group(vid, entry.group)
        else:
            self._live[vid] = entry._replace(state=state)
        return state

    def _leave_group(self, vid: Vid, group: Vid | None) -> None:
        if group is None:
            return
        left = tuple(sibling for sibling in self._groups[group] if sibling != vid)
        if left:
            self._groups[group] = left
        else:
            del self._groups[group]

    def _remember(self, vid: Vid, how: How) -> None:
        self._ended[vid] = how
        if len(self._ended) > self._remembered:
            del self._ended[next(iter(self._ended))]


_LIVE: Final = FrontState.LIVE  # to look a member up takes five times as long
_HOW: Final = {
    FrontEvent.ABORT: How.UNSENT,
    FrontEvent.END: How.ENDED,
    FrontEvent.LOST: How.LOST,
    FrontEvent.MOVE: How.MOVED,
}
