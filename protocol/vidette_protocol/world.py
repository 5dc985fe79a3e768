"""`World`: the three machines, joined by FIFO links into one value that can be explored.

A world is the whole protocol without any process: clients that come and go, the front's, the scheduler's
and the detokenizer's machine, and the messages in flight between them. `enabled()` lists what can happen
next, `apply()` makes it happen in a copy. The explorer walks all of it breadth first, the Hypothesis machine
walks it at random; both drive the very machines that the engine runs.

The world observes from outside what no machine can be asked: who heard what, which blocks are held, what
was aborted before which launch. `invariants.py` judges these observations.

What is left out, and why it may be: the contents of messages (the machines never look at them), time (every
order of events is explored instead), and several fronts (they share nothing but the scheduler's table, whose
entries do not know of each other).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple, Self

from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import (
    DetokenizerMachine,
    End,
    FrontMachine,
    FrontState,
    Row,
    SchedulerMachine,
)
from vidette_protocol.lifecycle.scheduler import SchedulerState


class Parts(NamedTuple):
    """Which classes play the roles; mutants take the place of the real ones here."""

    front: type[FrontMachine] = FrontMachine
    scheduler: type[SchedulerMachine] = SchedulerMachine
    detokenizer: type[DetokenizerMachine] = DetokenizerMachine


class Bounds(NamedTuple):
    """How large a world is.

    Args:
        rids: slots that clients may use.
        uses: requests submitted in all.
        tokens: most output tokens of a request.
        reuse_at_once: whether a rid is used again before its abort is acknowledged.
        split_senders: whether aborts travel by a link of their own, so that one may overtake its request.
        chunks: how often a request lands before its first token (its prefill is chunked).
        losses: how often the scheduler and its detokenizer die, and are replaced by new ones.
        remembered: how many ended vids the scheduler remembers; few, so that some are forgotten.
    """

    rids: int = 2
    uses: int = 3
    tokens: int = 2
    reuse_at_once: bool = True
    split_senders: bool = False
    chunks: int = 0
    losses: int = 0
    remembered: int = 1


class Action(NamedTuple):
    """Something that can happen: a name and what it happens to."""

    name: str
    vids: tuple[Vid, ...] = ()
    rid: Rid | None = None

    def __str__(self) -> str:
        """Return it as a line of a story."""
        what = "" if self.rid is None else f" {self.rid}"
        return self.name + what + "".join(f" #{vid}" for vid in self.vids)


class Ask(NamedTuple):
    """A request or an abort on its way to the scheduler."""

    vid: Vid
    abort: bool
    floor: Vid


class Heard(NamedTuple):
    """What one caller has heard so far."""

    rid: Rid
    here: bool = True
    tokens: int = 0
    ends: int = 0


class World:
    """The protocol as one value.

    Args:
        parts: the classes to play the roles.
        bounds: how large it is.
    """

    __slots__ = (
        "_bounds",
        "_parts",
        "aborted",
        "aborts",
        "asks",
        "batch",
        "callers",
        "chunks",
        "detokenizer",
        "faults",
        "front",
        "holding",
        "losses",
        "rows",
        "scheduler",
        "texts",
    )

    def __init__(self, parts: Parts = Parts(), bounds: Bounds = Bounds()) -> None:  # noqa: B008  immutable
        self._parts = parts
        self._bounds = bounds
        self.front = parts.front(remembered=bounds.uses)
        self.scheduler = parts.scheduler(remembered=bounds.remembered)
        self.detokenizer = parts.detokenizer()
        self.asks: tuple[Ask, ...] = ()
        """In flight, front to scheduler."""
        self.aborts: tuple[Ask, ...] = ()
        """In flight, front to scheduler, by the second sender (`split_senders`)."""
        self.rows: tuple[Row, ...] = ()
        """In flight, scheduler to detokenizer."""
        self.texts: tuple[Row, ...] = ()
        """In flight, detokenizer to front."""
        self.callers: dict[Vid, Heard] = {}
        self.batch: tuple[Vid, ...] = ()
        """What is on the device."""
        self.holding: frozenset[Vid] = frozenset()
        """Vids that hold blocks."""
        self.aborted: frozenset[Vid] = frozenset()
        """Vids whose abort the scheduler has applied."""
        self.chunks: dict[Vid, int] = {}
        """Landings of a live vid that were chunks of its prefill."""
        self.losses = 0
        """How often a scheduler and its detokenizer have died."""
        self.faults: tuple[str, ...] = ()
        """Broken invariants that were seen on the way here."""

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        twin = type(self).__new__(type(self))
        twin._bounds = self._bounds
        twin._parts = self._parts
        twin.front = self.front.copy()
        twin.scheduler = self.scheduler.copy()
        twin.detokenizer = self.detokenizer.copy()
        twin.asks = self.asks
        twin.aborts = self.aborts
        twin.rows = self.rows
        twin.texts = self.texts
        twin.callers = self.callers.copy()
        twin.batch = self.batch
        twin.holding = self.holding
        twin.aborted = self.aborted
        twin.chunks = self.chunks.copy()
        twin.losses = self.losses
        twin.faults = self.faults
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have equal futures, and break the same rules."""
        return (
            self.front.key(),
            self.scheduler.key(),
            self.detokenizer.key(),
            self.asks,
            self.aborts,
            self.rows,
            self.texts,
            tuple(self.callers.items()),
            self.batch,
            self.holding,
            self.aborted,
            tuple(sorted(self.chunks.items())),
            self.losses,
            self.faults,
        )

    # --- what can happen -----------------------------------------------------

    def enabled(self) -> list[Action]:
        """List everything that can happen next, in a fixed order."""
        return [*self.singles(), *self._batches()]

    def singles(self) -> list[Action]:
        """List what can happen next but for launches and landings, whose choices grow as 2**n."""
        return list(self._singles())

    def _singles(self) -> Iterator[Action]:
        yield from self._submits()
        for vid, heard in self.callers.items():
            if heard.here:
                if self.front.state(vid) is FrontState.NEW:
                    yield Action("send", (vid,))
                yield Action("leave", (vid,))
        if self.asks:
            yield Action("request arrives" if not self.asks[0].abort else "abort arrives")
        if self.aborts:
            yield Action("overtaking abort arrives")
        for vid in self.scheduler.vids():
            if self.scheduler.state(vid) is SchedulerState.WAITING:
                yield Action("reject", (vid,))
        if self.rows:
            yield Action("row arrives")
        if self.texts:
            yield Action("text arrives")
        if self.losses < self._bounds.losses:
            yield Action("replica is lost")

    def _batches(self) -> Iterator[Action]:
        if self.batch:
            must_end = self.must_end
            yield from (Action("land", ends) for ends in _subsets(self.batch) if must_end.issubset(ends))
        else:
            yield from (Action("launch", batch) for batch in _subsets(self.launchable) if batch)

    def _submits(self) -> Iterator[Action]:
        if len(self.callers) >= self._bounds.uses:
            return
        used = {heard.rid for heard in self.callers.values()}
        for number in range(self._bounds.rids):
            rid = Rid(f"r{number}")
            if rid not in used:
                # Slots that were never used are alike: one stands for all of them.
                yield Action("submit", rid=rid)
                return
            if self.front.holder(rid) is None and (self._bounds.reuse_at_once or not self._closing(rid)):
                yield Action("submit", rid=rid)

    @property
    def launchable(self) -> list[Vid]:
        """Vids that the next batch may contain."""
        if self.batch:
            return []
        return [vid for vid in self.scheduler.vids() if self.scheduler.state(vid) in _LAUNCHABLE]

    @property
    def must_end(self) -> frozenset[Vid]:
        """Vids on the device that come to their own end when they land, as they have all their tokens."""
        return frozenset(
            vid
            for vid in self.batch
            if self.scheduler.state(vid) is not SchedulerState.OVER
            and not self._prefilling(vid)
            and self.scheduler.offset(vid) + 1 >= self._bounds.tokens
        )

    def _prefilling(self, vid: Vid) -> bool:
        return self.chunks.get(vid, 0) < self._bounds.chunks

    def _closing(self, rid: Rid) -> bool:
        return any(
            heard.rid == rid and self.front.state(vid) is FrontState.CLOSING
            for vid, heard in self.callers.items()
        )

    # --- how it happens ------------------------------------------------------

    def apply(self, action: Action) -> Self:
        """Return the world after an action; what a machine raises is noted as a fault.

        Args:
            action: one of those that are enabled.

        Raises:
            ValueError: there is no such action.
        """
        if action.name not in _NAMES:
            raise ValueError(f"no such action: {action.name!r}")
        after = self.copy()
        try:
            after._act(action)
        except Exception as error:  # noqa: BLE001  a machine that crashes is a find; its story is wanted, not ours
            after._fault(f"{type(error).__name__}: {error}")
        return after

    def _act(self, action: Action) -> None:
        match action.name:
            case "submit":
                assert action.rid is not None
                self.callers[self.front.submit(action.rid)] = Heard(action.rid)
            case "send":
                (vid,) = action.vids
                self.front.send(vid)
                self.asks += (Ask(vid, abort=False, floor=self.front.floor),)
            case "leave":
                self._leave(*action.vids)
            case "request arrives" | "abort arrives":
                ask, self.asks = self.asks[0], self.asks[1:]
                self._ask(ask)
            case "overtaking abort arrives":
                ask, self.aborts = self.aborts[0], self.aborts[1:]
                self._ask(ask)
            case "launch":
                self._launch(action.vids)
            case "land":
                self._land(action.vids)
            case "reject":
                self._emit(self.scheduler.reject(*action.vids))
            case "row arrives":
                row, self.rows = self.rows[0], self.rows[1:]
                self.detokenizer.receive(*row)
                self.texts += (row,)
            case "text arrives":
                row, self.texts = self.texts[0], self.texts[1:]
                self._hear(row)
            case _:
                self._lose()

    def _leave(self, vid: Vid) -> None:
        self.callers[vid] = self.callers[vid]._replace(here=False)
        if self.front.abort(vid):
            ask = Ask(vid, abort=True, floor=self.front.floor)
            if self._bounds.split_senders:
                self.aborts += (ask,)
            else:
                self.asks += (ask,)

    def _ask(self, ask: Ask) -> None:
        self.scheduler.pass_floor(ask.floor)
        if ask.abort:
            self.aborted |= {ask.vid}
            self._emit(self.scheduler.abort(ask.vid))
        else:
            self._emit(self.scheduler.request(ask.vid))

    def _launch(self, batch: tuple[Vid, ...]) -> None:
        self.scheduler.launch(batch)
        for vid in batch:
            if vid in self.aborted:
                self._fault(f"6: vid {vid} was launched after its abort was applied")
        self.batch = batch
        self.holding |= set(batch)

    def _land(self, ends: tuple[Vid, ...]) -> None:
        batch, self.batch = self.batch, ()
        for vid in batch:
            made = 1
            if self._prefilling(vid):
                made = 0
                self.chunks[vid] = self.chunks.get(vid, 0) + 1
            self._emit(self.scheduler.land(vid, made, end=vid in ends), landing=True)

    def _emit(self, row: Row | None, *, landing: bool = False) -> None:
        if row is None:
            return
        self.rows += (row,)
        if row.end is None:
            return
        if row.vid in self.batch:
            self._fault(f"6: blocks of vid {row.vid} were freed while it is in a batch on the device")
        if landing and row.vid not in self.holding:
            self._fault(f"5: blocks of vid {row.vid} were freed twice")
        self.holding -= {row.vid}
        self.chunks.pop(row.vid, None)

    def _lose(self) -> None:
        """Let the scheduler and the detokenizer die with all they hold; what has left them may still come."""
        self.losses += 1
        self.scheduler = self._parts.scheduler(remembered=self._bounds.remembered)
        self.detokenizer = self._parts.detokenizer()
        self.asks = self.aborts = ()
        self.rows = ()
        self.batch = ()
        self.holding = self.aborted = frozenset()
        self.chunks = {}
        for vid in self.front.lost():
            self._note(vid, self.callers[vid], ends=True)

    def _hear(self, row: Row) -> None:
        to = self.front.receive(*row)
        if to is None:
            return
        heard = self.callers[to]
        if to != row.vid:
            self._fault(f"3: the caller of vid {to} hears what belongs to vid {row.vid}")
        if row.end is End.ABORT and heard.here:
            self._fault(f"3: the caller of vid {to} hears of an abort that it never asked for")
        if heard.tokens != row.offset:
            self._fault(f"4: vid {to} has {heard.tokens} tokens and hears of token {row.offset}")
        self._note(to, heard._replace(tokens=row.offset + row.tokens), ends=row.end is not None)

    def _note(self, vid: Vid, heard: Heard, *, ends: bool) -> None:
        if not heard.here:
            self._fault(f"2: vid {vid} hears something after its scope has ended")
        if heard.ends:
            self._fault(f"1: vid {vid} hears something after its end")
        self.callers[vid] = heard._replace(ends=heard.ends + ends)

    def _fault(self, text: str) -> None:
        self.faults += (text,)

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight: all that can still happen is what callers do, or a loss."""
        links = self.asks or self.aborts or self.rows or self.texts
        return not (links or self.batch or self.launchable)


def _subsets(vids: Sequence[Vid]) -> Iterator[tuple[Vid, ...]]:
    for size in range(len(vids) + 1):
        yield from combinations(vids, size)


_NAMES: Final = frozenset(
    {
        "submit",
        "send",
        "leave",
        "request arrives",
        "abort arrives",
        "overtaking abort arrives",
        "launch",
        "land",
        "reject",
        "row arrives",
        "text arrives",
        "replica is lost",
    }
)
_LAUNCHABLE: Final = frozenset({SchedulerState.WAITING, SchedulerState.RUNNING})
