"""`LifecycleMachine`: worlds of requests far beyond what can be explored, walked at random by Hypothesis.

There is a rule for each kind of action, and each draws from what is possible just then, so that a failing
program reads as a story: `state.submit(action=submit r1)`, `state.send(action=send #0)`,
`state.launch(replica=0, vids=[0])`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from vidette_fuzz.configurations import CONFIGURATIONS, Maker, requests
from vidette_fuzz.walks import History, Walk, WalkReport, run_walk, walk_of
from vidette_protocol.ids import Vid
from vidette_protocol.world import Action, Bounds, World

LARGE: Final = Bounds(
    rids=3,
    uses=12,
    tokens=4,
    fronts=2,
    replicas=2,
    replace=True,
    group=2,
    abort_all=True,
    split_senders=True,
    chunks=1,
    deadlines=True,
    several=3,
    retractions=4,
    losses=2,
    resume=True,
)
"""As much as a random walk can make use of: what may happen need not."""

_Drawn = TypeVar("_Drawn")


def _drawn(choose: Callable[[LifecycleMachine], st.SearchStrategy[_Drawn]]) -> st.SearchStrategy[_Drawn]:
    """Draw from what is possible in the machine's world just then."""
    return st.runner().flatmap(choose)


def _one(name: str) -> st.SearchStrategy[Action]:
    return _drawn(lambda machine: st.sampled_from(machine.possible(name)))


def _can(name: str) -> Callable[[LifecycleMachine], bool]:
    return lambda machine: bool(machine.possible(name))


class LifecycleMachine(History):
    """A world of the real machines, with everything in it."""

    make: ClassVar[Maker] = staticmethod(requests(LARGE))
    world: World  # pyright: ignore[reportIncompatibleVariableOverride]  it is made by `make` alone

    def __init__(self) -> None:
        super().__init__()
        self._singles = self.world.singles()

    def possible(self, name: str) -> list[Action]:
        """Return what can happen next under a name, other than launches and landings."""
        return [action for action in self._singles if action.name == name]

    @property
    def in_flight(self) -> list[Action]:
        """What the links can bring next."""
        return [action for action in self._singles if action.name.endswith(" arrives")]

    @property
    def launchable(self) -> list[int]:
        """Replicas that can launch a batch."""
        return [number for number, replica in enumerate(self.world.replicas) if replica.launchable]

    @property
    def landing(self) -> list[int]:
        """Replicas whose batch can land."""
        return [number for number, replica in enumerate(self.world.replicas) if replica.batch]

    @property
    def waited_for(self) -> bool:
        """Whether a caller waits for something that was sent: else a death is soon told."""
        streams = self.world.streams.values()
        return any(stream.here and stream.replica is not None and not stream.ends for stream in streams)

    @property
    def anything(self) -> bool:
        """Whether anything can happen next, but for a death that concerns nobody."""
        singles = any(action.name != "replica is lost" for action in self._singles)
        return singles or bool(self.launchable or self.landing)

    def happen(self, action: Action) -> None:
        """Let an action happen."""
        super().happen(action)
        self._singles = self.world.singles()

    # --- clients and the fronts ----------------------------------------------------

    @precondition(_can("submit"))
    @rule(action=_one("submit"))
    def submit(self, action: Action) -> None:
        """A client submits a request."""
        self.happen(action)

    @precondition(_can("replace"))
    @rule(action=_one("replace"))
    def replace(self, action: Action) -> None:
        """A client submits a request under a rid that is in use, whose request has to go."""
        self.happen(action)

    @precondition(_can("submit group"))
    @rule(action=_one("submit group"))
    def submit_group(self, action: Action) -> None:
        """A client submits several requests together."""
        self.happen(action)

    @precondition(_can("group is refused"))
    @rule(action=_one("group is refused"))
    def group_is_refused(self, action: Action) -> None:
        """A client submits several requests together, and one of the rids is in use."""
        self.happen(action)

    @precondition(_can("send"))
    @rule(action=_one("send"))
    def send(self, action: Action) -> None:
        """A front has tokenised a request and sends it."""
        self.happen(action)

    @precondition(_can("leave"))
    @rule(action=_one("leave"), hurry=st.booleans())
    def leave(self, action: Action, hurry: bool) -> None:
        """A caller's scope ends; the abort may overtake all else at once."""
        self.happen(action)
        if hurry:
            for overtaking in self.possible("overtaking abort arrives"):
                self.happen(overtaking)

    @precondition(_can("abort all"))
    @rule(action=_one("abort all"))
    def abort_all(self, action: Action) -> None:
        """All requests of a front are aborted at once."""
        self.happen(action)

    @precondition(_can("loss is noticed"))
    @rule(action=_one("loss is noticed"))
    def loss_is_noticed(self, action: Action) -> None:
        """A front finds out that a replica has died."""
        self.happen(action)

    # --- the links -----------------------------------------------------------------

    @precondition(_can("request arrives"))
    @rule(action=_one("request arrives"))
    def request_arrives(self, action: Action) -> None:
        """A request reaches a scheduler."""
        self.happen(action)

    @precondition(_can("abort arrives"))
    @rule(action=_one("abort arrives"))
    def abort_arrives(self, action: Action) -> None:
        """An abort reaches a scheduler, by the link of the requests."""
        self.happen(action)

    @precondition(_can("overtaking abort arrives"))
    @rule(action=_one("overtaking abort arrives"))
    def overtaking_abort_arrives(self, action: Action) -> None:
        """An abort reaches a scheduler, by a link of its own."""
        self.happen(action)

    @precondition(_can("row arrives"))
    @rule(action=_one("row arrives"))
    def row_arrives(self, action: Action) -> None:
        """A row reaches a detokenizer."""
        self.happen(action)

    @precondition(_can("text arrives"))
    @rule(action=_one("text arrives"))
    def text_arrives(self, action: Action) -> None:
        """A row reaches a front."""
        self.happen(action)

    @precondition(lambda machine: bool(machine.in_flight))
    @rule()
    def all_arrives(self) -> None:
        """All that is in flight reaches where it goes, and what comes of it too; so histories get further."""
        while (flying := self.in_flight) and not self.world.check():
            self.happen(flying[0])

    # --- the schedulers --------------------------------------------------------------

    @precondition(_can("reject"))
    @rule(action=_one("reject"))
    def reject(self, action: Action) -> None:
        """A scheduler cannot serve a request."""
        self.happen(action)

    @precondition(_can("expire"))
    @rule(action=_one("expire"))
    def expire(self, action: Action) -> None:
        """The deadline of a request passes at its scheduler."""
        self.happen(action)

    @precondition(_can("retract"))
    @rule(action=_one("retract"))
    def retract(self, action: Action) -> None:
        """A request has to give its blocks up."""
        self.happen(action)

    @precondition(lambda machine: bool(machine.launchable))
    @rule(data=st.data())
    def launch(self, data: st.DataObject) -> None:
        """A batch goes to the device."""
        number = data.draw(st.sampled_from(self.launchable), label="replica")
        vids = data.draw(_some(self.world.replicas[number].launchable, at_least=1), label="vids")
        self.happen(Action("launch", tuple(vids), replica=number))

    @precondition(lambda machine: bool(machine.landing))
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """A batch comes back; those that have all their tokens end, and some others."""
        number = data.draw(st.sampled_from(self.landing), label="replica")
        replica, bounds = self.world.replicas[number], self.world.bounds
        ways = [data.draw(st.sampled_from(ways)) for ways in replica.may_land(bounds.tokens, bounds.several)]
        ends = tuple(vid for vid, (_, end) in zip(replica.batch, ways, strict=True) if end)
        self.happen(Action("land", ends, replica=number, counts=tuple(made for made, _ in ways)))

    @precondition(lambda machine: machine.waited_for and bool(machine.possible("replica is lost")))
    @rule(action=_one("replica is lost"), noticed=st.booleans())
    def replica_is_lost(self, action: Action, noticed: bool) -> None:
        """A scheduler and its detokenizer die, which may be noticed before what they said last has come."""
        self.happen(action)
        if noticed:
            for notice in self.possible("loss is noticed"):
                self.happen(notice)

    @precondition(lambda machine: not machine.anything)
    @rule()
    def rest(self) -> None:
        """All requests were made and are over: let the rest of the history pass."""


def _some(items: list[Vid], *, at_least: int = 0) -> st.SearchStrategy[list[Vid]]:
    return st.lists(st.sampled_from(items), unique=True, min_size=at_least)


def kind_of(make: Maker) -> type[History]:
    """Return the kind of walk that tells most about a world."""
    return LifecycleMachine if type(make()) is World else Walk


def lifecycle_machine(make: Maker) -> type[History]:
    """Return a LifecycleMachine of other parts or within other bounds; for another world, its own walk."""
    return walk_of(make, kind_of(make))


def run_lifecycle(
    seconds: float = 10.0,
    seed: int = 0,
    *,
    make: Maker | None = None,
    shrink: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> WalkReport:
    """Walk random histories until a rule breaks or the time is up.

    Args:
        seconds: how long; at least one round of histories is walked.
        seed: the same seed walks the same histories, as far as the time allows.
        make: makes the initial world; None: one with everything, and those of the configurations as
            far as the time allows.
        shrink: whether to look for a shorter story, which may take minutes more.
        clock: what the seconds are read from.
    """
    if make is not None:
        return run_walk(make, seconds, seed, kind=kind_of(make), shrink=shrink, clock=clock)
    makers = [requests(LARGE), *(configuration.large for configuration in CONFIGURATIONS.values())]
    began = clock()
    histories, faults = 0, Counter[str]()
    for number, each in enumerate(makers):
        left = seconds - (clock() - began)
        if number and left <= 0:
            break
        share = left / (len(makers) - number)
        report = run_walk(each, share, seed, kind=kind_of(each), shrink=shrink, clock=clock)
        histories += report.histories
        faults += report.faults
        if report.violations:
            return WalkReport(histories, report.violations, faults)
    return WalkReport(histories, (), faults)
