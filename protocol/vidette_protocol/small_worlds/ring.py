"""`RingWorld`: front, scheduler and detokenizer in a ring of bounded links, and callers who are slow.

Every link holds a few frames and then is full, and whoever writes to a full link cannot go on with it. What
keeps a ring of these from standing still for ever is one thing: **the front never stops reading**, neither
while its own sends are stuck nor for a caller who is slow. What it cannot send it parks (admission bounds
it), and what a caller does not take is merged into that caller's one pending delta. The compute thread parks
its output too, up to a high-water mark; above it, it makes no more, and takes no new requests.

Rules: each caller reads exactly what was made for him, in order (4); one delta is pending at most, and no
place holds more than its bound (7); nobody waits for ever (8).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from vidette_protocol.lifecycle.pending import PendingDelta
from vidette_protocol.small_worlds.model import Model, Step


class FrontPolicy:
    """When the front reads."""

    def reads(self, *, stuck: bool, unread: bool) -> bool:
        """Return whether it reads the next row.

        Args:
            stuck: something of its own is parked, since the link to the scheduler was full.
            unread: the caller whose row comes next has not taken what came before.
        """
        del stuck, unread
        return True


class SchedulerPolicy:
    """When the scheduler takes a request, and when its compute thread sends what is parked."""

    def takes(self, *, full: bool) -> bool:
        """Return whether it takes the next request.

        Args:
            full: its output is parked up to the high-water mark.
        """
        return not full

    def sends(self, *, busy: bool) -> bool:
        """Return whether the thread sends, now that there is room.

        Args:
            busy: there are requests to compute for.
        """
        del busy
        return True


class RingParts(NamedTuple):
    """Which classes play the roles; mutants take the place of the real ones here."""

    front: type[FrontPolicy] = FrontPolicy
    scheduler: type[SchedulerPolicy] = SchedulerPolicy
    pending: type[PendingDelta[bool]] = PendingDelta


class RingBounds(NamedTuple):
    """How large a world is.

    Args:
        callers: how many there are, with a request each.
        tokens: output tokens of each request.
        room: frames that a link holds.
        high_water: rows parked at the compute thread from which on nothing more is made.
        in_turn: whether one task reads all streams, one after the other.
    """

    callers: int = 2
    tokens: int = 2
    room: int = 1
    high_water: int = 1
    in_turn: bool = False


class Row(NamedTuple):
    """A token on its way."""

    caller: int
    token: int


class RingWorld(Model):
    """A ring of bounded links as one value.

    Args:
        parts: the classes that play the roles.
        bounds: how large it is.
    """

    __slots__ = (
        "_bounds",
        "_parts",
        "asks",
        "heard",
        "outbox",
        "parked",
        "pending",
        "rows",
        "running",
        "texts",
    )

    def __init__(self, parts: RingParts = RingParts(), bounds: RingBounds = RingBounds()) -> None:  # noqa: B008  immutable
        super().__init__()
        self._parts = parts
        self._bounds = bounds
        self.outbox: tuple[int, ...] = ()
        """Parked at the front: requests that the link had no room for."""
        self.asks: tuple[int, ...] = ()
        """In flight, front to scheduler."""
        self.running: dict[int, int] = {}
        """Requests at the scheduler, with the tokens each has made."""
        self.parked: tuple[Row, ...] = ()
        """Parked at the compute thread."""
        self.rows: tuple[Row, ...] = ()
        """In flight, scheduler to detokenizer."""
        self.texts: tuple[Row, ...] = ()
        """In flight, detokenizer to front."""
        self.pending: list[PendingDelta[bool]] = []
        """What each caller has not taken yet."""
        self.heard: list[tuple[int, ...]] = []
        """What each caller has read."""

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        twin = type(self).__new__(type(self))
        twin._parts = self._parts
        twin._bounds = self._bounds
        twin.faults = self.faults
        twin.outbox = self.outbox
        twin.asks = self.asks
        twin.running = self.running.copy()
        twin.parked = self.parked
        twin.rows = self.rows
        twin.texts = self.texts
        twin.pending = [pending.copy() for pending in self.pending]
        twin.heard = self.heard.copy()
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        return (
            self.outbox,
            self.asks,
            tuple(sorted(self.running.items())),
            self.parked,
            self.rows,
            self.texts,
            tuple(pending.key() for pending in self.pending),
            tuple(self.heard),
            self.faults,
        )

    # --- what can happen -----------------------------------------------------

    def enabled(self) -> list[Step]:
        """List everything that can happen next, in a fixed order."""
        new = [Step("submit")] if len(self.heard) < self._bounds.callers else []
        return [*self.draining(), *new]

    def _draining(self) -> Iterator[Step]:
        room = self._bounds.room
        if self.outbox and len(self.asks) < room:
            yield Step("front sends")
        scheduler = self._parts.scheduler()
        if self.asks and scheduler.takes(full=self._full):
            yield Step("scheduler takes")
        if not self._full:
            yield from (Step("make", (caller,)) for caller in self.running)
        if self.parked and len(self.rows) < room and scheduler.sends(busy=bool(self.running)):
            yield Step("thread sends")
        if self.rows and len(self.texts) < room:
            yield Step("detokenizer passes on")
        if self.texts and self._parts.front().reads(
            stuck=bool(self.outbox), unread=bool(self.pending[self.texts[0].caller])
        ):
            yield Step("front reads")
        yield from (Step("caller reads", (caller,)) for caller in self._readers())

    @property
    def _full(self) -> bool:
        return len(self.parked) >= self._bounds.high_water

    def _readers(self) -> Iterator[int]:
        for caller, pending in enumerate(self.pending):
            if pending:
                yield caller
            if self._bounds.in_turn and not pending.over:
                return

    # --- how it happens ------------------------------------------------------

    def _act(self, step: Step) -> None:
        match step:
            case Step("submit"):
                self.outbox = (*self.outbox, len(self.heard))
                self.pending.append(self._parts.pending())
                self.heard.append(())
            case Step("front sends"):
                self.asks, self.outbox = (*self.asks, self.outbox[0]), self.outbox[1:]
            case Step("scheduler takes"):
                self.running[self.asks[0]] = 0
                self.asks = self.asks[1:]
            case Step("make", (caller,)):
                self._make(caller)
            case Step("thread sends"):
                self.rows, self.parked = (*self.rows, self.parked[0]), self.parked[1:]
            case Step("detokenizer passes on"):
                self.texts, self.rows = (*self.texts, self.rows[0]), self.rows[1:]
            case Step("front reads"):
                row, self.texts = self.texts[0], self.texts[1:]
                last = row.token + 1 == self._bounds.tokens
                self.pending[row.caller].deliver(str(row.token), (row.token,), last or None)
            case Step("caller reads", (caller,)):
                self._read(caller)
            case _:
                raise ValueError(f"no such step: {step}")

    def _make(self, caller: int) -> None:
        token = self.running[caller]
        self.parked = (*self.parked, Row(caller, token))
        if token + 1 == self._bounds.tokens:
            del self.running[caller]
        else:
            self.running[caller] = token + 1

    def _read(self, caller: int) -> None:
        taken = self.pending[caller].take()
        assert taken is not None
        heard = self.heard[caller] + taken.token_ids
        if heard != tuple(range(len(heard))) or taken.text != "".join(map(str, taken.token_ids)):
            self._fault(f"4: caller {caller} has read tokens {heard}, the last as {taken.text!r}")
        if (taken.end is not None) != (len(heard) == self._bounds.tokens):
            self._fault(f"1: caller {caller} has read {len(heard)} tokens when its end comes, or does not")
        self.heard[caller] = heard

    # --- what must hold ------------------------------------------------------

    def check(self) -> list[str]:
        """Return a sentence for every rule that is broken; empty when all hold."""
        return [*super().check(), *self._too_much()]

    def _too_much(self) -> Iterator[str]:
        for caller, pending in enumerate(self.pending):
            if pending.deltas > 1:
                yield f"7: {pending.deltas} deltas wait for caller {caller}, who is slow"

    def _leftovers(self) -> list[str]:
        return [
            f"8: caller {caller} waits with {len(heard)} tokens, and nothing can happen any more"
            for caller, heard in enumerate(self.heard)
            if len(heard) < self._bounds.tokens
        ]

    # --- how it is told ------------------------------------------------------

    def tell(self, step: Step, after: Self) -> str:
        """Return in a line what a step does."""
        match step:
            case Step("submit"):
                return f"caller {len(self.heard)} submits a request"
            case Step("front sends"):
                return f"the front sends the request of caller {self.outbox[0]}"
            case Step("scheduler takes"):
                return f"the scheduler takes the request of caller {self.asks[0]}"
            case Step("make", (caller,)):
                return f"the scheduler makes token {self.running[caller]} for caller {caller}"
            case Step("thread sends"):
                return f"the compute thread sends {_row(self.parked[0])}"
            case Step("detokenizer passes on"):
                return f"the detokenizer passes on {_row(self.rows[0])}"
            case Step("front reads"):
                return f"the front reads {_row(self.texts[0])}"
            case _:
                (caller,) = step.of
                return f"caller {caller} has now read {len(after.heard[caller])} tokens"


def _row(row: Row) -> str:
    return f"token {row.token} for caller {row.caller}"
