"""The machines of an arena's two ends: who holds which extent, and who owes a credit for it.

One extent, as its producer sees it:

    TAKEN     something is produced in it, or it waits to be posted
    LENT      a message that names it was posted: it is the consumer's
    (over)    free

and as its consumer sees it:

    VIEWED    somebody here looks at it
    DUE       its last view has died; a credit has to be posted
    ORPHANED  the producer is gone, and views are left: the memory lives as long as they do
    (over)    credited, or nobody is left to take a credit

On the wire an extent is named by where it begins, which is enough: it is lent once at a time. Who holds one
at either end needs more, since the same bytes may be another's by the time he lets go: each use of them has a
serial number there, as each use of a rid has a vid.

A message gets all its extents at once or none, so whoever waits for room holds nothing that others wait for.
There is one way back for each: `release` for what was not posted, `credit` for what was, `lost` for what a
dead consumer held. Once the arena is closed there is nothing to take, so all of it is free at once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.lifecycle.extents import GRANULE, Extents, whole


class CreditState(Enum):
    """Where one extent stands at its producer."""

    TAKEN = "taken"
    LENT = "lent"
    OVER = "over"


class CreditEvent(Enum):
    """What can happen to one extent at its producer."""

    LEND = "lend"
    RELEASE = "release"
    CREDIT = "credit"
    LOST = "lost"
    CLOSE = "close"


CREDIT_TABLE: Final[dict[tuple[CreditState, CreditEvent], CreditState]] = {
    (CreditState.TAKEN, CreditEvent.LEND): CreditState.LENT,
    (CreditState.TAKEN, CreditEvent.RELEASE): CreditState.OVER,
    (CreditState.TAKEN, CreditEvent.LOST): CreditState.TAKEN,
    (CreditState.TAKEN, CreditEvent.CLOSE): CreditState.OVER,
    (CreditState.LENT, CreditEvent.CREDIT): CreditState.OVER,
    (CreditState.LENT, CreditEvent.LOST): CreditState.OVER,
    (CreditState.LENT, CreditEvent.CLOSE): CreditState.OVER,
}


class Extent(NamedTuple):
    """One use of a stretch of an arena.

    Args:
        start: where it begins: its name on the wire.
        nbytes: how much was asked for.
        serial: which use this is, of those of the whole arena; either end counts for itself.
    """

    start: int
    nbytes: int
    serial: int


class CreditMachine:
    """The producer's ledger of an arena.

    Args:
        nbytes: how long the arena is, a multiple of the granule.
        granule: what extents begin and end at multiples of, in bytes.
    """

    __slots__ = ("_closed", "_extents", "_granule", "_out", "_taken", "generation")

    def __init__(self, nbytes: int, granule: int = GRANULE) -> None:
        self._granule = granule
        self._extents = Extents(nbytes, granule)
        self._out: dict[int, tuple[Extent, CreditState]] = {}
        self._taken = 0
        self._closed = False
        self.generation = 0
        """How many consumers have died; a link that carries credits notes it when it opens."""

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether extents of these sizes fit at all: for others no one need wait."""
        return not self._closed and sum(whole(size, self._granule) for size in sizes) <= self.nbytes

    def take(self, sizes: Sequence[int]) -> list[Extent] | None:
        """Take an extent of each size for one message, or none of them if they do not all fit just now."""
        starts = None if self._closed else self._extents.take(sizes)
        if starts is None:
            return None
        taken = []
        for start, nbytes in zip(starts, sizes, strict=True):
            extent = Extent(start, nbytes, self._taken)
            self._taken += 1
            self._out[start] = extent, CreditState.TAKEN
            taken.append(extent)
        return taken

    def find(self, offset: int) -> Extent:
        """Return the extent that an offset lies in, which has to be taken and not lent.

        Raises:
            LocalProtocolError: it is not.
        """
        extent, state = self._out.get(offset) or next(
            (one for one in self._out.values() if one[0].start <= offset < one[0].start + one[0].nbytes),
            _NOTHING,
        )
        if state is not CreditState.TAKEN:
            raise LocalProtocolError("memory of an arena is used after it was sent or given back")
        return extent

    def holds(self, extent: Extent) -> bool:
        """Return whether this use of an extent is taken and not lent."""
        return self._out.get(extent.start) == (extent, CreditState.TAKEN)

    def lend(self, extents: Sequence[Extent]) -> None:
        """Note that a message which names these extents is being posted.

        Raises:
            LocalProtocolError: one of them was sent or given back before, or is named twice.
        """
        if not all(map(self.holds, extents)) or len(set(extents)) < len(extents):
            raise LocalProtocolError("memory of an arena is sent after it was sent or given back")
        for extent in extents:
            self._move(extent.start, CreditEvent.LEND)

    def release(self, extents: Iterable[Extent]) -> bool:
        """Give back those of the extents that were not lent; idempotent.

        Returns:
            Whether there is more room now.
        """
        dropped = [extent for extent in extents if self.holds(extent)]
        for extent in dropped:
            self._move(extent.start, CreditEvent.RELEASE)
        return bool(dropped)

    def credit(self, starts: Sequence[int], generation: int = 0) -> bool:
        """Note that the consumer is done with extents: with all of these, or the credit is refused.

        Args:
            starts: where they begin.
            generation: of the link that brought it. A credit of a consumer that is dead is late, not wrong:
                what it held is free already, and may be the next one's.

        Returns:
            Whether there is more room now.

        Raises:
            RemoteProtocolError: one of them is not lent, or not any more, or is named twice.
        """
        if generation < self.generation or self._closed:
            return False
        seen = set[int]()
        for start in starts:
            if start in seen or self.state(start) is not CreditState.LENT:
                raise RemoteProtocolError(f"a credit for byte {start} of an arena, which is not lent")
            seen.add(start)
        for start in starts:
            self._move(start, CreditEvent.CREDIT)
        return bool(seen)

    def lost(self) -> bool:
        """Note that the consumer has died: all it held is free. What is only taken stays its holder's.

        Returns:
            Whether there is more room now.
        """
        self.generation += 1
        before = len(self._out)
        for start in list(self._out):
            self._move(start, CreditEvent.LOST)
        return len(self._out) < before

    def close(self) -> None:
        """Note that the arena is done with: nothing is held, and nothing can be taken; idempotent."""
        self._closed = True
        for start in list(self._out):
            self._move(start, CreditEvent.CLOSE)

    def state(self, start: int) -> CreditState:
        """Where the extent stands that begins there."""
        held = self._out.get(start)
        return CreditState.OVER if held is None else held[1]

    @property
    def nbytes(self) -> int:
        """How long the arena is."""
        return self._extents.nbytes

    @property
    def free(self) -> int:
        """Bytes that are neither taken nor lent."""
        return self._extents.free

    @property
    def used(self) -> int:
        """Bytes that are taken or lent, in whole granules."""
        return sum(whole(extent.nbytes, self._granule) for extent, _ in self._out.values())

    @property
    def lent(self) -> int:
        """How many extents the consumer holds, as far as it has said."""
        return sum(state is CreditState.LENT for _, state in self._out.values())

    def __len__(self) -> int:
        """Return how many extents are taken or lent."""
        return len(self._out)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self).__new__(type(self))
        twin._granule = self._granule
        twin._extents = self._extents.copy()
        twin._out = self._out.copy()
        twin._taken = self._taken
        twin._closed = self._closed
        twin.generation = self.generation
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for machines that behave alike from here on.

        Serial numbers are left out: whoever holds an extent has them in his own picture.
        """
        out = ((start, extent.nbytes, state) for start, (extent, state) in self._out.items())
        return (self.generation, self._closed, *sorted(out, key=_start_of))

    def _move(self, start: int, event: CreditEvent) -> None:
        extent, state = self._out[start]
        after = CREDIT_TABLE[state, event]
        if after is CreditState.OVER:
            del self._out[start]
            self._extents.give(start, extent.nbytes)
        else:
            self._out[start] = extent, after


_NOTHING: Final = (Extent(0, 0, -1), CreditState.OVER)


def _start_of(row: tuple[int, int, CreditState]) -> int:
    return row[0]


# --- the consumer -----------------------------------------------------------------------------------------


class BorrowState(Enum):
    """Where one extent stands at its consumer."""

    VIEWED = "viewed"
    DUE = "due"
    ORPHANED = "orphaned"
    OVER = "over"


class BorrowEvent(Enum):
    """What can happen to one extent at its consumer."""

    VIEW = "view"
    DIES = "a view dies"
    LAST_DIES = "the last view dies"
    GIVE_BACK = "give back"
    CREDIT = "credit"
    LOST = "lost"


BORROW_TABLE: Final[dict[tuple[BorrowState, BorrowEvent], BorrowState]] = {
    (BorrowState.VIEWED, BorrowEvent.VIEW): BorrowState.VIEWED,
    (BorrowState.VIEWED, BorrowEvent.DIES): BorrowState.VIEWED,
    (BorrowState.VIEWED, BorrowEvent.LAST_DIES): BorrowState.DUE,
    (BorrowState.VIEWED, BorrowEvent.GIVE_BACK): BorrowState.DUE,
    (BorrowState.VIEWED, BorrowEvent.LOST): BorrowState.ORPHANED,
    (BorrowState.DUE, BorrowEvent.CREDIT): BorrowState.OVER,
    (BorrowState.DUE, BorrowEvent.LOST): BorrowState.OVER,
    (BorrowState.ORPHANED, BorrowEvent.VIEW): BorrowState.ORPHANED,
    (BorrowState.ORPHANED, BorrowEvent.DIES): BorrowState.ORPHANED,
    (BorrowState.ORPHANED, BorrowEvent.LAST_DIES): BorrowState.OVER,
    (BorrowState.ORPHANED, BorrowEvent.GIVE_BACK): BorrowState.OVER,
    (BorrowState.ORPHANED, BorrowEvent.LOST): BorrowState.ORPHANED,
}


class _Borrowed(NamedTuple):
    loan: Extent
    state: BorrowState
    end: int
    views: int


class BorrowMachine:
    """What the consumer of an arena holds of it.

    Args:
        nbytes: how long the arena is.
        granule: what extents begin and end at multiples of, in bytes.
    """

    __slots__ = ("_borrowed", "_due", "_granule", "_held", "_nbytes", "_starts")

    def __init__(self, nbytes: int, granule: int = GRANULE) -> None:
        self._nbytes = nbytes
        self._granule = granule
        self._borrowed = 0
        self._starts: list[int] = []  # of what is held, in order
        self._held: dict[int, _Borrowed] = {}
        self._due: list[int] = []

    def borrow(self, start: int, nbytes: int) -> Extent:
        """Note that a message names an extent, and that there is one view of it now.

        Returns:
            This use of it, as this end counts them: what its views are views of.

        Raises:
            DecodeError: there is no such extent, or part of it is held already.
        """
        end = start + whole(nbytes, self._granule)
        if start < 0 or start % self._granule or nbytes < 1 or end > self._nbytes:
            raise DecodeError(f"{nbytes} bytes at {start} of an arena of {self._nbytes}")
        after = bisect_right(self._starts, start)
        if (after and self._held[self._starts[after - 1]].end > start) or (
            after < len(self._starts) and self._starts[after] < end
        ):
            raise DecodeError(f"{nbytes} bytes at {start} of an arena are lent twice")
        loan = Extent(start, nbytes, self._borrowed)
        self._borrowed += 1
        insort(self._starts, start)
        self._held[start] = _Borrowed(loan, BorrowState.VIEWED, end, views=1)
        return loan

    def views(self, loan: Extent) -> int:
        """Return how many views there are of this use of an extent; none once it was given back."""
        held = self._held.get(loan.start)
        return held.views if held is not None and held.loan == loan else 0

    def view(self, loan: Extent) -> None:
        """Note that there is one more view of an extent, as a slice is.

        Raises:
            LocalProtocolError: there is none that it could be made of.
        """
        if not self.views(loan):
            raise LocalProtocolError(f"byte {loan.start} of an arena is not viewed")
        self._move(loan.start, BorrowEvent.VIEW, +1)

    def drop(self, loan: Extent) -> bool:
        """Note that a view has died, the last of which makes a credit due.

        Nothing if the extent was given back before: its place may be another message's by now.

        Returns:
            Whether it was the last one.
        """
        views = self.views(loan)
        if views:
            self._move(loan.start, BorrowEvent.LAST_DIES if views == 1 else BorrowEvent.DIES, -1)
        return views == 1

    def give_back(self, loan: Extent) -> None:
        """Make a credit due although views may be left, which nobody looks at any more; idempotent.

        So it is with what a message named that is dropped, or that was half decoded.
        """
        views = self.views(loan)
        if views:
            self._move(loan.start, BorrowEvent.GIVE_BACK, -views)

    def credits(self) -> list[int]:
        """Return where the extents begin that a credit is due for, each once: post them."""
        due = self._due.copy()
        for start in due:
            self._move(start, BorrowEvent.CREDIT, 0)
        return due

    def lost(self) -> None:
        """Note that the producer is gone: nothing is due any more."""
        for start in list(self._held):
            self._move(start, BorrowEvent.LOST, 0)

    def state(self, start: int) -> BorrowState:
        """Where the extent stands that begins there."""
        held = self._held.get(start)
        return BorrowState.OVER if held is None else held.state

    @property
    def due(self) -> int:
        """How many credits are due."""
        return len(self._due)

    def __len__(self) -> int:
        """Return how many extents are viewed, or due."""
        return len(self._held)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self)(self._nbytes, self._granule)
        twin._borrowed = self._borrowed
        twin._starts = self._starts.copy()
        twin._held = self._held.copy()
        twin._due = self._due.copy()
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for machines that behave alike from here on.

        Serial numbers are left out: whoever has a view knows of which use it is.
        """
        held = (self._held[start] for start in self._starts)
        return (*((one.loan.start, one.end, one.state, one.views) for one in held), *self._due)

    def _move(self, start: int, event: BorrowEvent, views: int) -> None:
        held = self._held[start]
        after = BORROW_TABLE[held.state, event]
        if held.state is BorrowState.DUE:
            self._due.remove(start)
        if after is BorrowState.OVER:
            del self._held[start]
            del self._starts[bisect_right(self._starts, start) - 1]
            return
        if after is BorrowState.DUE:
            self._due.append(start)
        self._held[start] = held._replace(state=after, views=held.views + views)
