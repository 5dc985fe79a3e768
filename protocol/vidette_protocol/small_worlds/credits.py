"""`CreditWorld`: an arena from both ends: messages that take extents, views that die in any order.

A message wants all its extents at once, or waits; one that is patient waits until there is room, any other
one goes by frame when its time is up, and one that is longer than the arena does so at once. What is produced
is posted or dropped, and the block around it is left at some moment after. The consumer looks at what comes,
makes slices of it, and lets go in any order; or drops a message half decoded, of which views are left for a
while that nobody looks at. Either end may die: what a dead consumer held is free once the producer notes it,
and credits of the dead may come later still.

Rules: no extent is lent twice at once, and nothing is written while a view of it lives (5, and 4 for what the
view shows); what is neither taken nor lent is free (5); in the end nothing is held at either end (7), and
nobody waits for ever (8).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Self

from vidette_protocol.lifecycle.credits import BorrowMachine, CreditMachine, CreditState, Extent
from vidette_protocol.small_worlds.model import Model, Step


class CreditParts(NamedTuple):
    """Which classes play the roles; mutants take the place of the real ones here."""

    producer: type[CreditMachine] = CreditMachine
    consumer: type[BorrowMachine] = BorrowMachine


class CreditBounds(NamedTuple):
    """How large a world is.

    Args:
        arena: how long it is, in granules.
        messages: the buffers of each message, in granules.
        patient: whether messages wait for room for ever, instead of going by frame.
        slices: whether the consumer makes slices.
        deaths: how often the consumer dies, and is replaced.
        producer_dies: whether the producer may die.
    """

    arena: int = 2
    messages: tuple[tuple[int, ...], ...] = ((1, 1), (1,), (1, 1))
    patient: bool = False
    slices: bool = False
    deaths: int = 0
    producer_dies: bool = False


class Stage(Enum):
    """Where one message stands at the producer."""

    NEW = "new"
    WAITING = "waiting"
    READY = "ready"
    POSTED = "posted"
    """Its block is still open."""
    OVER = "over"


class Sending(NamedTuple):
    """One message at the producer."""

    stage: Stage = Stage.NEW
    extents: tuple[Extent, ...] = ()


class View(NamedTuple):
    """What the consumer sees of one extent.

    Args:
        message: whose bytes they are: the truth, which no machine knows.
        loan: which use of the extent it is of.
        whole: whether the array itself lives.
        sliced: whether a slice of it lives.
        fresh: whether no slice was made yet.
        looked_at: whether anybody still cares what is in it.
    """

    message: int
    loan: Extent
    whole: bool = True
    sliced: bool = False
    fresh: bool = True
    looked_at: bool = True


class Parcel(NamedTuple):
    """A message on its way: where its buffers begin, and how long they are."""

    message: int
    places: tuple[tuple[int, int], ...]


class CreditWorld(Model):
    """An arena and its two ends as one value.

    Args:
        parts: the classes that play the roles.
        bounds: how large it is.
    """

    __slots__ = (
        "_bounds",
        "_parts",
        "consumer",
        "credits",
        "deaths",
        "messages",
        "parcels",
        "producer",
        "torn",
        "views",
    )

    def __init__(
        self,
        parts: CreditParts = CreditParts(),  # noqa: B008  immutable
        bounds: CreditBounds = CreditBounds(),  # noqa: B008  immutable
    ) -> None:
        super().__init__()
        self._parts = parts
        self._bounds = bounds
        self.producer: CreditMachine | None = parts.producer(bounds.arena, 1)
        """None: it is dead."""
        self.consumer = parts.consumer(bounds.arena, 1)
        self.messages = tuple(Sending() for _ in bounds.messages)
        self.parcels: tuple[Parcel, ...] = ()
        """In flight, producer to consumer."""
        self.credits: tuple[tuple[int, tuple[int, ...]], ...] = ()
        """In flight, consumer to producer: the generation of the link, and where extents begin."""
        self.views: tuple[View, ...] = ()
        self.deaths = 0
        self.torn = False
        """Whether one end is dead and the other has not noted it."""

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        twin = type(self).__new__(type(self))
        twin._parts = self._parts
        twin._bounds = self._bounds
        twin.faults = self.faults
        twin.producer = None if self.producer is None else self.producer.copy()
        twin.consumer = self.consumer.copy()
        twin.messages = self.messages
        twin.parcels = self.parcels
        twin.credits = self.credits
        twin.views = self.views
        twin.deaths = self.deaths
        twin.torn = self.torn
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        producer = self.producer
        held = tuple(
            (
                sending.stage,
                *((one.start, producer is not None and producer.holds(one)) for one in sending.extents),
            )
            for sending in self.messages
        )
        views = tuple(
            (view.message, view.loan.start, view.loan.nbytes, self.consumer.views(view.loan), *view[2:])
            for view in self.views
        )
        return (
            None if producer is None else producer.key(),
            self.consumer.key(),
            held,
            self.parcels,
            self.credits,
            views,
            self.deaths,
            self.torn,
            self.faults,
        )

    # --- what can happen -----------------------------------------------------

    def enabled(self) -> list[Step]:
        """List everything that can happen next, in a fixed order."""
        return [*self.draining(), *self._chosen()]

    def _draining(self) -> Iterator[Step]:
        for number, sending in enumerate(self.messages):
            match sending.stage:
                case Stage.WAITING:
                    if self._finds_room(number):
                        yield Step("find room", (number,))
                    if not self._bounds.patient:
                        yield Step("go by frame", (number,))
                case Stage.READY:
                    yield Step("post", (number,))
                case Stage.POSTED:
                    yield Step("leave the block", (number,))
        if self.torn:
            yield Step("death is noted")
        if self.parcels and self._consumer_lives:
            yield Step("arrive")
        if self.consumer.due and self._consumer_lives:
            yield Step("send credits")
        if self.credits and self.producer is not None:
            yield Step("credits arrive")
        for number, view in enumerate(self.views):
            if view.whole and view.looked_at:
                yield Step("array dies", (number,))
            if view.sliced:
                yield Step("slice dies", (number,))

    def _chosen(self) -> Iterator[Step]:
        alike = set[tuple[int, ...]]()
        for number, sending in enumerate(self.messages):
            wanted = self._bounds.messages[number]
            if sending.stage is Stage.NEW and wanted not in alike:
                alike.add(wanted)  # of those that want the same, one stands for all
                yield Step("begin", (number,))
        for number, sending in enumerate(self.messages):
            if sending.stage is Stage.WAITING or sending.stage is Stage.READY:
                yield Step("give up", (number,))
        if self.parcels and self._consumer_lives:
            yield Step("arrive and drop")
        for number, view in enumerate(self.views):
            if not view.looked_at:  # an error may keep it for as long as it likes
                yield Step("array dies", (number,))
        if self._bounds.slices:
            for number, view in enumerate(self.views):
                if view.fresh and view.whole and view.looked_at:
                    yield Step("slice", (number,))
        if self.producer is not None and not self.torn:
            if self.deaths < self._bounds.deaths:
                yield Step("consumer dies")
            if self._bounds.producer_dies:
                yield Step("producer dies")

    @property
    def _consumer_lives(self) -> bool:
        return not self.torn or self.producer is None

    def _finds_room(self, number: int) -> bool:
        """Whether a message that waits would get something now."""
        assert self.producer is not None
        return bool(self.producer.copy().take(self._missing(number)))

    def _missing(self, number: int) -> tuple[int, ...]:
        return self._bounds.messages[number][len(self.messages[number].extents) :]

    # --- how it happens ------------------------------------------------------

    def _act(self, step: Step) -> None:
        match step:
            case Step("begin" | "find room", (number,)):
                self._take(number)
            case Step("go by frame", (number,)):
                self._release(number)
                self._post(number, ())
            case Step("post", (number,)):
                self._post(number, self.messages[number].extents)
            case Step("leave the block" | "give up", (number,)):
                self._release(number)
                self._set(number, stage=Stage.OVER)
            case Step("arrive"):
                self._arrive()
            case Step("arrive and drop"):
                self._drop()
            case Step("slice", (number,)):
                view = self.views[number]
                self.consumer.view(view.loan)
                self._look(number, view._replace(sliced=True, fresh=False))
            case Step("array dies", (number,)):
                self.consumer.drop(self.views[number].loan)
                self._look(number, self.views[number]._replace(whole=False))
            case Step("slice dies", (number,)):
                self.consumer.drop(self.views[number].loan)
                self._look(number, self.views[number]._replace(sliced=False))
            case Step("send credits"):
                credit = self._generation, tuple(self.consumer.credits())
                if self.producer is not None:
                    self.credits = (*self.credits, credit)
            case Step("credits arrive"):
                assert self.producer is not None
                (generation, starts), self.credits = self.credits[0], self.credits[1:]
                self.producer.credit(starts, generation)
            case _:
                self._die(step)

    def _die(self, step: Step) -> None:
        match step.name:
            case "consumer dies":
                self.torn = True
                self.deaths += 1
                self.parcels = ()
                self.views = ()
                self.consumer = self._parts.consumer(self._bounds.arena, 1)
            case "producer dies":
                self.torn = True
                self.producer = None
                self.messages = tuple(Sending(Stage.OVER) for _ in self.messages)
                self.credits = ()
            case "death is noted":
                self.torn = False
                if self.producer is None:
                    self.parcels = ()
                    self.consumer.lost()
                else:
                    self.producer.lost()
            case _:
                raise ValueError(f"no such step: {step}")

    @property
    def _generation(self) -> int:
        """Of the link that the living consumer has."""
        return self.deaths

    def _take(self, number: int) -> None:
        assert self.producer is not None
        sending = self.messages[number]
        if not self.producer.fits(self._bounds.messages[number]):
            self._post(number, ())
            return
        got = self.producer.take(self._missing(number)) or []
        extents = (*sending.extents, *got)
        complete = len(extents) == len(self._bounds.messages[number])
        self._set(number, stage=Stage.READY if complete else Stage.WAITING, extents=extents)
        for extent in got:  # written at once, which is the worst case
            self._write(number, extent)

    def _write(self, number: int, extent: Extent) -> None:
        def overlaps(start: int, nbytes: int) -> bool:
            return start < extent.start + extent.nbytes and extent.start < start + nbytes

        for other, sending in enumerate(self.messages):
            if other != number and any(overlaps(one.start, one.nbytes) for one in self._taken(sending)):
                self._fault(f"5: messages {other} and {number} are produced in the same bytes")
        for parcel in self.parcels:
            if any(overlaps(*place) for place in parcel.places):
                self._fault(
                    f"5: message {number} is written over message {parcel.message}, which is on its way"
                )
        for view in self.views:
            if view.looked_at and overlaps(view.loan.start, view.loan.nbytes):
                self._fault(f"5: message {number} is written over message {view.message}, which is looked at")

    def _taken(self, sending: Sending) -> tuple[Extent, ...]:
        return sending.extents if sending.stage in {Stage.WAITING, Stage.READY} else ()

    def _release(self, number: int) -> None:
        assert self.producer is not None
        self.producer.release(self.messages[number].extents)

    def _post(self, number: int, extents: tuple[Extent, ...]) -> None:
        assert self.producer is not None
        self.producer.lend(extents)
        self._set(number, stage=Stage.POSTED, extents=extents)
        if self._consumer_lives:
            places = tuple((extent.start, extent.nbytes) for extent in extents)
            self.parcels = (*self.parcels, Parcel(number, places))

    def _arrive(self) -> list[View]:
        parcel, self.parcels = self.parcels[0], self.parcels[1:]
        views = [View(parcel.message, self.consumer.borrow(*place)) for place in parcel.places]
        self.views = (*self.views, *views)
        return views

    def _drop(self) -> None:
        """Give back what the next message names; an error keeps what was made of it for a while."""
        before = self.views
        views = self._arrive()
        for view in views:
            self.consumer.give_back(view.loan)
        self.views = (*before, *(view._replace(looked_at=False) for view in views))

    def _look(self, number: int, view: View) -> None:
        left = (view,) if view.whole or view.sliced else ()
        self.views = (*self.views[:number], *left, *self.views[number + 1 :])

    def _set(self, number: int, *, stage: Stage, extents: tuple[Extent, ...] = ()) -> None:
        changed = Sending(stage, extents)
        self.messages = (*self.messages[:number], changed, *self.messages[number + 1 :])

    # --- what must hold ------------------------------------------------------

    def check(self) -> list[str]:
        """Return a sentence for every rule that is broken; empty when all hold."""
        return [*super().check(), *self._unbalanced()]

    def _unbalanced(self) -> Iterator[str]:
        if self.producer is None:
            return
        lent = [start for parcel in self.parcels for start, _ in parcel.places]
        lent += [view.loan.start for view in self.views if view.looked_at]
        for start in lent:
            state = self.producer.state(start)
            if state is not CreditState.LENT:
                yield f"5: byte {start} is the consumer's, but its producer takes it for {state.value}"
        taken = [extent for sending in self.messages for extent in self._taken(sending)]
        for extent in taken:
            if not self.producer.holds(extent):
                yield f"5: byte {extent.start} is being produced in, but is not taken"
        if self.producer.free + self.producer.used != self._bounds.arena:
            yield "5: what is free, taken and lent is not the whole arena"

    def _leftovers(self) -> list[str]:
        found = [
            f"8: message {number} waits for room, and nothing can happen any more"
            for number, sending in enumerate(self.messages)
            if sending.stage is Stage.WAITING
        ]
        tables = {
            "producer": 0 if self.producer is None else len(self.producer),
            "consumer": len(self.consumer),
        }
        found += [
            f"7: the {name} still holds {count} extents at quiescence"
            for name, count in tables.items()
            if count
        ]
        return found

    # --- how it is told ------------------------------------------------------

    def tell(self, step: Step, after: Self) -> str:
        """Return in a line what a step does."""
        match step:
            case Step("begin" | "find room", (number,)):
                sending = after.messages[number]
                got = ", ".join(str(extent.start) for extent in sending.extents) or "nothing"
                if sending.stage is Stage.POSTED:
                    return f"message {number} is too long for the arena, and goes by frame"
                waits = " and waits" if sending.stage is Stage.WAITING else ""
                return f"message {number} has room at {got}{waits}"
            case Step("go by frame", (number,)):
                return f"message {number} has waited long enough, and goes by frame"
            case Step("post", (number,)):
                return f"message {number} is posted"
            case Step("give up", (number,)):
                return f"message {number} is given up before it is posted"
            case Step("leave the block", (number,)):
                return f"the block around message {number} is left"
            case Step("arrive"):
                return f"message {self.parcels[0].message} reaches the consumer"
            case Step("arrive and drop"):
                return f"message {self.parcels[0].message} reaches the consumer, who drops it half decoded"
            case Step("slice", (number,)):
                return f"the consumer makes a slice of what lies at {self.views[number].loan.start}"
            case Step("array dies" | "slice dies", (number,)):
                what = step.name.partition(" ")[0]
                return f"the {what} at {self.views[number].loan.start} dies"
            case Step("send credits"):
                said = ", ".join(map(str, after.credits[-1][1])) if after.credits else "nobody"
                return f"the consumer sends a credit for {said}"
            case Step("credits arrive"):
                return f"a credit for {', '.join(map(str, self.credits[0][1]))} reaches the producer"
            case Step("death is noted"):
                return "the death is noted at the other end"
            case _:
                return f"the {step.name}"
