"""`Refinement`: walks a world along with the engine, and says where the two part.

Every call on a machine of the running engine is an action of the world: it has to be possible there just
then, and has to lead to the same tables. So whatever holds in all worlds, which the explorer has looked at,
holds of the code as well.

There is one detokenizer in the world. Where the engine has several, a row may overtake those of vids that
others have, and their tables together are its table.

Two things are coarser in the world. A landing that tells nothing is left out, be it a chunk of a prefill or
one whose token is to be told with later ones; so a request that has told nothing still waits there. And what
an abort finds over already, the scheduler's shell need not pass on: it is applied when its turn has come,
where it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vidette_fuzz.simulation.journal import Journal
from vidette_protocol.ids import Rid, Vid, label
from vidette_protocol.lifecycle import (
    DetokenizerMachine,
    FrontMachine,
    Row,
    SchedulerMachine,
    SchedulerState,
)
from vidette_protocol.world import Action, Ask, Bounds, World

ENOUGH: Final = 4096
"""More than one history has of anything; how many ended vids each machine remembers."""
BOUNDS: Final = Bounds(
    rids=1,
    uses=ENOUGH,
    tokens=ENOUGH,
    several=ENOUGH,
    deadlines=True,
    losses=1,
    retractions=ENOUGH,
    remembered=ENOUGH,
)
"""What can happen in the world of an engine that fails when its replica dies."""
LINK: Final = (0, 0)


class Refinement:
    """The world of one engine from its start to its end.

    Args:
        journal: where actions are noted, and where it is said if they are not possible.
        detokenizers: how many the engine has.
    """

    def __init__(self, journal: Journal, *, detokenizers: int = 1) -> None:
        self.world = World(bounds=BOUNDS)
        self.front: FrontMachine | None = None
        self.scheduler: SchedulerMachine | None = None
        self.detokenizers: list[DetokenizerMachine] = []
        self._journal = journal
        self._count = detokenizers
        self._on = True
        self._dead = False
        self._noticed = False
        self._batch: list[Vid] = []
        self._made: list[Row] = []

    # --- the front ---------------------------------------------------------------

    def submitted(self, name: str, rids: tuple[Rid, ...]) -> None:
        """Clients have submitted something; which rids are in use the world's own front says."""
        self._apply(Action(name, rids=rids))

    def sent(self, vid: Vid) -> None:
        """The front has sent a request."""
        self._happen(Action("send", (vid,)))

    def left(self, vid: Vid) -> None:
        """A caller leaves; a block of several requests leaves all of them, one by one."""
        stream = self.world.streams.get(vid)
        if self._on and (stream is None or stream.here):
            self._happen(Action("leave", (vid if stream is None else stream.scope,)))

    def text_came(self, row: Row, to: Vid | None) -> None:
        """A row has come to the front, and was routed."""
        texts = self._overtake(row, self.world.texts.get(LINK, ()))
        if self._noticed and (not texts or texts[0] != row):
            # It was on its way when the replica died.
            if self._on and to is not None:
                self._part(f"2: a row of vid {label(row.vid)} is heard, whose replica has died")
            return
        if self._count > 1 and texts:
            self.world = self.world.copy()
            self.world.texts[LINK] = texts
        self._arrive("text arrives", row, texts)

    def lost(self) -> None:
        """The front has noticed that the replica is dead."""
        self.died()
        self._happen(Action("loss is noticed"))
        self._noticed = True
        self.compare()

    # --- the scheduler -----------------------------------------------------------

    def asked(self, vid: Vid, *, abort: bool, resumed: int = 0) -> None:
        """A request or an abort has come to the step loop."""
        if not self._on or self._dead:
            return
        asks = self.world.asks.get(LINK, ())
        while asks and asks[0][:2] != (vid, abort) and self._over(asks[0]):
            self._apply(Action("abort arrives"))
            asks = self.world.asks.get(LINK, ())
        name = "abort arrives" if abort else "request arrives"
        if not asks or (asks[0].vid, asks[0].abort, asks[0].resumed) != (vid, abort, resumed):
            self._part(f"refinement: {name} of vid {label(vid)}, but on the link of the world is {asks[:1]}")
        else:
            self._happen(Action(name))

    def _over(self, ask: Ask) -> bool:
        state = self.world.replicas[0].scheduler.state(ask.vid)
        return ask.abort and state is SchedulerState.OVER

    def happened(self, name: str, vid: Vid) -> None:
        """Something has become of a request at the scheduler."""
        if not self._dead:
            self._happen(Action(name, (vid,)))

    def retracted(self, vid: Vid) -> None:
        """The blocks of a request were taken; in the world, one that has made nothing yet waits anyway."""
        if self._on and self.world.replicas[0].scheduler.state(vid) is SchedulerState.RUNNING:
            self.happened("retract", vid)

    def launched(self, vids: Sequence[Vid]) -> None:
        """A batch has gone to the device."""
        self._batch = list(vids)

    def landed(self, vid: Vid, row: Row | None) -> None:
        """A request has come back from the device."""
        self._batch.remove(vid)
        if row is not None:
            self._made.append(row)
        if self._batch or not self._made or self._dead:
            return
        made, self._made = self._made, []
        replica = self.world.replicas[0]
        vids = tuple(row.vid for row in made)
        if self._on and not set(vids) <= set(replica.launchable):
            self._part(f"6: vids {[*map(label, vids)]} are launched; {replica.launchable} may be")
        self._apply(Action("launch", vids))
        ends = tuple(row.vid for row in made if row.end is not None)
        self._apply(Action("land", ends, counts=tuple(row.tokens for row in made)))

    def stepped(self) -> None:
        """A step is done."""
        if not self._dead:
            self.compare()

    # --- the detokenizer -----------------------------------------------------------

    def row_came(self, row: Row) -> None:
        """A row has come to the detokenizer."""
        if self._dead:
            return
        rows = self._overtake(row, self.world.replicas[0].rows)
        if self._count > 1:
            self.world = self.world.copy()
            self.world.replicas[0] = replica = self.world.replicas[0].copy()
            replica.rows = rows
        self._arrive("row arrives", row, rows)

    # --- beginnings and ends ---------------------------------------------------------

    def died(self) -> None:
        """The replica is dead; what its parts still do does not count."""
        if self._on and not self._dead:
            self._apply(Action("replica is lost"))
        self._dead = True

    def quiet(self) -> None:
        """The engine says that it is quiet: so is the world, which then keeps nothing."""
        while self._on and (asks := self.world.asks.get(LINK)):
            if not self._over(asks[0]):
                self._part(f"8: {asks[0]} is on its way for ever")
                return
            self._apply(Action("abort arrives"))
        if self._on and not self.world.settled:
            self._part("8: the engine is quiet, and its world is not")
        self.compare()

    def stop(self) -> None:
        """The engine is told to stop, which no world is."""
        self._on = False

    def compare(self) -> None:
        """Compare the tables of the machines with those of the world, and judge the world."""
        if not self._on:
            return
        world = self.world
        rules = world.check()
        if rules:
            self._part(rules[0])
        elif self.front is not None and self.front.key() != world.fronts[0].key():
            self._part(f"refinement: the front has {self.front.key()}, its world {world.fronts[0].key()}")
        if self._dead or not self._on:
            return
        replica = world.replicas[0]
        if self.scheduler is not None and _tables(self.scheduler) != _tables(replica.scheduler):
            ours, its = _tables(self.scheduler), _tables(replica.scheduler)
            self._part(f"refinement: the scheduler has {ours}, its world {its}")
        elif self.detokenizers:
            ours_, its_ = self._open(), replica.detokenizer.key()
            if ours_ != its_:
                self._part(f"refinement: the detokenizers have {ours_}, their world {its_}")

    def _open(self) -> tuple[tuple[Vid, int], ...]:
        return tuple(sorted(item for machine in self.detokenizers for item in machine.key()))

    def _overtake(self, row: Row, queue: tuple[Row, ...]) -> tuple[Row, ...]:
        """Return what is on a way with a row first, unless one is before it that the same detokenizer has."""
        place = queue.index(row) if row in queue else 0
        before = queue[:place]
        if not before or any((row.vid - other.vid) % self._count == 0 for other in before):
            return queue
        return (row, *before, *queue[place + 1 :])

    def _arrive(self, name: str, row: Row, queue: tuple[Row, ...]) -> None:
        if self._on and (not queue or queue[0] != row):
            self._part(f"refinement: {name}: {row}, but on the link of the world is {queue[:1]}")
        else:
            self._happen(Action(name))

    def _happen(self, action: Action) -> None:
        """Apply an action that has to be possible."""
        if self._on and action not in self.world.singles():
            self._part(f"refinement: {action} happens, which the world does not allow")
        self._apply(action)

    def _apply(self, action: Action) -> None:
        if self._on:
            before = self.world
            self.world = before.apply(action)
            self._journal.note(before.tell(action, self.world))

    def _part(self, rule: str) -> None:
        self._on = False
        self._journal.violate(rule)


def _tables(machine: SchedulerMachine) -> tuple[object, ...]:
    """Return the tables of a scheduler, in which whoever holds blocks looks like who waits for them.

    So does who is in flight: in the world a batch is launched when it lands.
    """
    live, tombstones, ended = machine.key()
    waiting = SchedulerState.WAITING
    begun = SchedulerState.RUNNING, SchedulerState.LAUNCHED
    return (
        tuple((vid, entry._replace(state=waiting) if entry.state in begun else entry) for vid, entry in live),
        tombstones,
        ended,
    )
