"""The whole of a world, and how things happen in it.

Two pictures are equal if only names differ that mean nothing any more: which rid a slot is, and what became
of vids of which nothing can come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar, NamedTuple, Self, TypeVar

from vidette_protocol.errors import DuplicateRid
from vidette_protocol.ids import Rid, Vid, front_of, label
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import (
    DetokenizerMachine,
    End,
    FrontMachine,
    FrontState,
    Row,
    SchedulerMachine,
    unheard,
)
from vidette_protocol.lifecycle.front import FrontKey
from vidette_protocol.world.bounds import Action, Ask, Between, Bounds, Queue, Stream
from vidette_protocol.world.choices import NAMES, batches, draining, rid_of, singles
from vidette_protocol.world.replica import Replica
from vidette_protocol.world.telling import tell


class Parts(NamedTuple):
    """Which classes play the roles; mutants take the place of the real ones here."""

    front: type[FrontMachine] = FrontMachine
    scheduler: type[SchedulerMachine] = SchedulerMachine
    detokenizer: type[DetokenizerMachine] = DetokenizerMachine
    unheard: Callable[[int, int, int], int] = unheard
    """The callers' side: how many tokens of a row are new to one who has heard so many."""


class World:
    """The protocol of requests as one value.

    Args:
        parts: the classes to play the roles.
        bounds: how large it is.
    """

    __slots__ = (
        "aborts",
        "asks",
        "bounds",
        "cut",
        "faults",
        "fronts",
        "losses",
        "parts",
        "replicas",
        "retractions",
        "streams",
        "texts",
        "touched",
    )

    names: ClassVar = NAMES
    """What can happen at all."""

    def __init__(self, parts: Parts = Parts(), bounds: Bounds = Bounds()) -> None:  # noqa: B008  immutable
        self.parts = parts
        self.bounds = bounds
        remembered = bounds.uses * (1 + bounds.losses)
        self.fronts = [parts.front(front_id=number, remembered=remembered) for number in range(bounds.fronts)]
        self.replicas = [self._new_replica() for _ in range(bounds.replicas)]
        self.asks: Queue = {}
        """In flight, front to scheduler."""
        self.aborts: Queue = {}
        """In flight, front to scheduler, by the second sender (`split_senders`)."""
        self.texts: dict[Between, tuple[Row, ...]] = {}
        """In flight, detokenizer to front."""
        self.cut: frozenset[Between] = frozenset()
        """Links whose replica has died, which the front has not noticed yet."""
        self.streams: dict[Vid, Stream] = {}
        """By the vid that a request was submitted under."""
        self.touched = 1
        """How many replicas can be told from others: those that were sent something."""
        self.retractions = 0
        self.losses = 0
        self.faults: tuple[str, ...] = ()
        """Broken rules that were seen on the way here, but for those that a replica saw."""

    def _new_replica(self) -> Replica:
        scheduler = self.parts.scheduler(remembered=self.bounds.remembered)
        return Replica(scheduler, self.parts.detokenizer(), self.bounds.chunks)

    def copy(self) -> Self:
        """Return a world in the same state; machines are shared until one of the two changes them."""
        twin = type(self).__new__(type(self))
        twin.parts = self.parts
        twin.bounds = self.bounds
        twin.fronts = self.fronts.copy()
        twin.replicas = self.replicas.copy()
        twin.asks = self.asks.copy()
        twin.aborts = self.aborts.copy()
        twin.texts = self.texts.copy()
        twin.cut = self.cut
        twin.streams = self.streams.copy()
        twin.touched = self.touched
        twin.retractions = self.retractions
        twin.losses = self.losses
        twin.faults = self.faults
        return twin

    def _front(self, number: int) -> FrontMachine:
        """Return a front that may be changed."""
        self.fronts[number] = front = self.fronts[number].copy()
        return front

    def _replica(self, number: int) -> Replica:
        """Return a replica that may be changed."""
        self.replicas[number] = replica = self.replicas[number].copy()
        return replica

    def front_state(self, vid: Vid) -> FrontState:
        """Where a vid stands in its front."""
        return self.fronts[front_of(vid)].state(vid)

    # --- pictures --------------------------------------------------------------

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        fronts = [front.key() for front in self.fronts]
        forgotten = self._forgotten(fronts)
        parts: list[object] = [_picture(front, forgotten) for front in fronts]
        for replica in self.replicas:
            parts += replica.key(forgotten)
        here = [
            (first, stream.vid, stream.scope, stream.ends, 0 if stream.ends else stream.heard, stream.replica)
            for first, stream in self.streams.items()
            if stream.here
        ]
        parts += (
            tuple(here),
            (_unordered(self.asks), _unordered(self.aborts)),
            _unordered(self.texts),
            (self.cut, len(self.streams), self.touched, self.retractions, self.losses, self.faults),
        )
        return tuple(parts)

    def _forgotten(self, fronts: list[FrontKey]) -> AbstractSet[Vid]:
        """Vids that are over and of which nothing can come: how they ended does not matter any more."""
        ended = {vid for front in fronts for vid, _ in front.ended}
        if ended:
            for replica in self.replicas:
                ended.difference_update(replica.mentioned())
            for queue in (self.asks, self.aborts):
                for asks in queue.values():
                    ended.difference_update([ask.vid for ask in asks])
            for texts in self.texts.values():
                ended.difference_update([text.vid for text in texts])
        return ended

    def check(self) -> list[str]:
        """Return a sentence for each rule that is broken."""
        return violations(self)

    def tell(self, action: Action, after: Self) -> str:
        """Return in a line what an action does."""
        return tell(self, action, after)

    # --- what can happen ---------------------------------------------------------

    def enabled(self) -> list[Action]:
        """List everything that can happen next, in a fixed order."""
        return [*singles(self), *batches(self)]

    def singles(self) -> list[Action]:
        """List what can happen next but for launches and landings, whose choices grow as 2**n."""
        return list(singles(self))

    def draining(self) -> list[Action]:
        """List what happens without new work, and without anybody's choice."""
        return list(draining(self))

    # --- how it happens ------------------------------------------------------------

    def apply(self, action: Action) -> Self:
        """Return the world after an action; what a machine raises is noted as a fault.

        Args:
            action: one of those that are enabled.

        Raises:
            ValueError: there is no such action.
        """
        if action.name not in self.names:
            raise ValueError(f"no such action: {action.name!r}")
        after = self.copy()
        try:
            after._act(action)
        except Exception as error:  # noqa: BLE001  a machine that crashes is a find; its story is wanted, not ours
            after._fault(f"{type(error).__name__}: {error}")
        return after

    def _act(self, action: Action) -> None:
        between = (action.front, action.replica)
        match action.name:
            case "submit":
                (rid,) = action.rids
                self._open(self._front(action.front).submit(rid), rid)
            case "replace":
                self._take(action.front, *action.rids)
            case "submit group":
                vids = self._front(action.front).submit_group(action.rids)
                for vid, rid in zip(vids, action.rids, strict=True):
                    self._open(vid, rid, scope=vids[0])
            case "group is refused":
                self._refuse(action)
            case "send":
                (vid,) = action.vids
                self._send(vid, action.replica)
            case "leave":
                self._leave(*action.vids)
            case "abort all":
                self._abort_all(action.front)
            case "request arrives" | "abort arrives":
                self._ask(_first(self.asks, between), action.replica)
            case "overtaking abort arrives":
                self._ask(_first(self.aborts, between), action.replica)
            case "launch":
                self._replica(action.replica).launch(action.vids)
            case "land":
                self._replica(action.replica).land(action.vids, action.counts)
            case "reject":
                self._replica(action.replica).reject(*action.vids)
            case "expire":
                self._replica(action.replica).expire(*action.vids)
            case "retract":
                self.retractions += 1
                self._replica(action.replica).retract(*action.vids)
            case "row arrives":
                row = self._replica(action.replica).pass_row()
                _append(self.texts, (front_of(row.vid), action.replica), row)
            case "text arrives":
                self._hear(action.front, _first(self.texts, between))
            case "replica is lost":
                self._lose(action.replica)
            case _:
                self.cut -= {between}
                self._notice(*between)

    def _open(self, vid: Vid, rid: Rid, scope: Vid | None = None) -> None:
        self.streams[vid] = Stream(vid, rid, vid if scope is None else scope)

    def _take(self, number: int, rid: Rid) -> None:
        front = self._front(number)
        vid, replaced = front.replace(rid)
        self._open(vid, rid)
        if replaced is not None:
            self._note(self._first_of(replaced.vid), ends=True)
            if replaced.post:
                self._post_abort(front, replaced.vid)

    def _refuse(self, action: Action) -> None:
        before = self.fronts[action.front].key()
        front = self._front(action.front)
        try:
            front.submit_group(action.rids)
        except DuplicateRid:
            if front.key() != before:
                self._fault("7: a group that was refused has left something behind")
        else:
            self._fault("3: a group took a slot that another request holds")

    def _send(self, vid: Vid, number: int) -> None:
        front = self._front(front_of(vid))
        front.send(vid, number)
        first = self._first_of(vid)
        stream = self.streams[first] = self.streams[first]._replace(replica=number)
        self.touched = max(self.touched, number + 1)
        self._post(self.asks, number, Ask(vid, abort=False, floor=front.floor, resumed=stream.heard))

    def _leave(self, scope: Vid) -> None:
        vids = []
        for first, stream in self.streams.items():
            if stream.scope == scope and stream.here:
                self.streams[first] = stream._replace(here=False)
                vids.append(stream.vid)
        front = self._front(front_of(scope))
        # A block of several requests leaves by its group, whose id is the scope; one of one by its vid.
        group = sum(stream.scope == scope for stream in self.streams.values()) > 1
        for vid in front.abort_group(scope) if group else [vid for vid in vids if front.abort(vid)]:
            self._post_abort(front, vid)

    def _abort_all(self, number: int) -> None:
        front = self._front(number)
        told, up_to = front.abort_all()
        for vid in told:
            self._note(self._first_of(vid), ends=True)
        for stream in self.streams.values():
            if stream.here and not stream.ends and front_of(stream.vid) == number:
                self._fault(f"9: the caller of vid {label(stream.vid)} is not told that all were aborted")
        for replica, vid in up_to.items():
            # By the link of the requests: it must not overtake any.
            self._post(self.asks, replica, Ask(vid, abort=True, floor=front.floor, every=True))

    def _post_abort(self, front: FrontMachine, vid: Vid) -> None:
        number = front.replica_of(vid)
        assert number is not None
        queue = self.aborts if self.bounds.split_senders else self.asks
        self._post(queue, number, Ask(vid, abort=True, floor=front.floor))

    def _post(self, queue: Queue, number: int, ask: Ask) -> None:
        between = (front_of(ask.vid), number)
        if between not in self.cut:  # else it is sent to one who is dead
            _append(queue, between, ask)

    def _ask(self, ask: Ask, number: int) -> None:
        replica = self._replica(number)
        replica.scheduler.pass_floor(ask.floor)
        for vid in replica.scheduler.vids_up_to(ask.vid) if ask.every else (ask.vid,):
            replica.ask(vid, abort=ask.abort, resumed=ask.resumed)

    def _hear(self, number: int, row: Row) -> None:
        to = self._front(number).receive(*row)
        if to is None:
            return
        if to != row.vid:
            self._fault(f"3: the caller of vid {label(to)} hears what belongs to vid {label(row.vid)}")
        first = self._first_of(to)
        stream = self.streams[first]
        if row.end is End.ABORT and stream.here:
            self._fault(f"3: the caller of vid {label(to)} hears of an abort that it never asked for")
        new = self.parts.unheard(stream.heard, row.offset, row.tokens)
        first_new = row.offset + row.tokens - new
        if first_new != stream.heard and (new or row.end is not None):
            self._fault(f"4: vid {label(to)} has {stream.heard} tokens and hears of token {first_new}")
        self.streams[first] = stream._replace(heard=stream.heard + new)
        self._note(first, ends=row.end is not None)

    def _note(self, first: Vid, *, ends: bool) -> None:
        """Note that a caller hears something."""
        stream = self.streams[first]
        if not stream.here:
            self._fault(f"2: vid {label(stream.vid)} hears something after its scope has ended")
        if stream.ends:
            self._fault(f"1: vid {label(stream.vid)} hears something after its end")
        self.streams[first] = stream._replace(ends=stream.ends + ends)

    def _first_of(self, vid: Vid) -> Vid:
        """Return the vid that the request was submitted under which a vid carries now.

        Raises:
            LookupError: it carries none any more.
        """
        for first, stream in self.streams.items():
            if stream.vid == vid:
                return first
        raise LookupError(f"vid {label(vid)} carries no request any more, and yet something of it is heard")

    def _lose(self, number: int) -> None:
        """Let a replica die with all it holds; what has left it may still come."""
        self.losses += 1
        self.replicas[number] = self._new_replica()
        for front in range(len(self.fronts)):
            self.asks.pop((front, number), None)
            self.aborts.pop((front, number), None)
        self.cut |= {(front, number) for front in range(len(self.fronts))}

    def _notice(self, number: int, replica: int) -> None:
        """Let a front find out that a replica has died."""
        front = self._front(number)
        if self.bounds.resume:
            for move in front.moved(replica):
                first = self._first_of(move.old)
                self.streams[first] = self.streams[first]._replace(vid=move.new, replica=None)
        else:
            alone = len(self.replicas) == 1
            for vid in front.lost(None if alone else replica):
                first = self._first_of(vid)
                if not alone and self.streams[first].replica != replica:
                    self._fault(
                        f"9: the caller of vid {label(vid)} is told of the death of another's replica"
                    )
                self._note(first, ends=True)
        for stream in self.streams.values():
            waits = stream.here and not stream.ends and front_of(stream.vid) == number
            if waits and stream.replica == replica:
                self._fault(f"9: the caller of vid {label(stream.vid)} waits for a replica that is dead")

    def _fault(self, text: str) -> None:
        self.faults += (text,)

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight: all that can still happen is what callers do, or a loss."""
        if self.asks or self.aborts or self.texts or self.cut:
            return False
        return all(replica.settled for replica in self.replicas)


def _picture(front: FrontKey, forgotten: AbstractSet[Vid]) -> tuple[object, ...]:
    """Return the picture of a front with its slots named in the order of the requests that live."""
    live, slots = front.live, front.slots
    names: dict[Rid, Rid] = {}
    for _, entry in live:
        if entry.rid not in names:
            names[entry.rid] = rid_of(len(names))
    if any(rid != name for rid, name in names.items()):
        live = tuple((vid, entry._replace(rid=names[entry.rid])) for vid, entry in live)
        slots = frozenset((names.get(rid, rid), vid) for rid, vid in slots)
    ended = tuple(item for item in front.ended if item[0] not in forgotten) if forgotten else front.ended
    return (front.issued, slots, front.groups, live, ended)


_Item = TypeVar("_Item")


def _unordered(queues: Mapping[Between, tuple[_Item, ...]]) -> object:
    """Return a picture of queues of which it does not matter which was used first."""
    return tuple(queues.items()) if len(queues) < 2 else frozenset(queues.items())


def _append(queues: dict[Between, tuple[_Item, ...]], between: Between, item: _Item) -> None:
    queues[between] = (*queues.get(between, ()), item)


def _first(queues: dict[Between, tuple[_Item, ...]], between: Between) -> _Item:
    """Take the first item of a queue; there is no empty one."""
    item, *rest = queues.pop(between)
    if rest:
        queues[between] = tuple(rest)
    return item
