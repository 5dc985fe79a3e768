"""`LifecycleMachine`: worlds far beyond what can be explored, walked at random by Hypothesis.

There is a rule for each kind of action, and each draws from what is possible just then, so that a failing
program reads as a story: `state.submit(rid='r0')`, `state.send(vid=0)`, `state.launch(vids=[0])`. Every
history ends by letting all that lives come to its end, after which nothing may be held anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar, Final, NamedTuple, NoReturn, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vidette_fuzz.stories import Counterexample, counterexample
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.invariants import violations
from vidette_protocol.world import Action, Bounds, Parts, World

LARGE: Final = Bounds(rids=3, uses=12, tokens=4, split_senders=True, chunks=1, losses=1)
"""As much as a random walk can make use of: senders that are split and a loss include histories without."""

HISTORIES_A_ROUND: Final = 25
"""`run_lifecycle` looks at the clock after so many histories."""
STEPS: Final = 80
"""Most actions of a history, before it is brought to its end."""


class RuleBroken(AssertionError):  # noqa: N818  it is a finding
    """A history breaks a rule of the protocol; `counterexample` tells it."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__(str(counterexample))
        self.counterexample = counterexample


class LifecycleReport(NamedTuple):
    """What a random walk found.

    Args:
        histories: how many were walked to their end.
        violations: those that broke a rule; the walk stops at the first.
    """

    histories: int
    violations: tuple[Counterexample, ...]


_Drawn = TypeVar("_Drawn")


def _drawn(choose: Callable[[LifecycleMachine], st.SearchStrategy[_Drawn]]) -> st.SearchStrategy[_Drawn]:
    """Draw from what is possible in the machine's world just then."""
    return st.runner().flatmap(choose)


def _vid_for(name: str) -> st.SearchStrategy[Vid]:
    return _drawn(lambda machine: st.sampled_from([action.vids[0] for action in machine.possible(name)]))


def _can(name: str) -> Callable[[LifecycleMachine], bool]:
    return lambda machine: bool(machine.possible(name))


class LifecycleMachine(RuleBasedStateMachine):
    """A world of the real machines; `lifecycle_machine` makes one of others."""

    parts: ClassVar[Parts] = Parts()
    bounds: ClassVar[Bounds] = LARGE

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.parts, self.bounds)
        self.actions: list[Action] = []
        self.broken: RuleBroken | None = None
        self._singles = self.world.singles()

    def possible(self, name: str) -> list[Action]:
        """Return what can happen next under a name, other than launches and landings."""
        return [action for action in self._singles if action.name == name]

    @property
    def in_flight(self) -> list[Action]:
        """What the links can bring next."""
        return [action for action in self._singles if action.name.endswith(" arrives")]

    @property
    def anything(self) -> bool:
        """Whether anything can happen next."""
        return bool(self._singles or self.world.launchable or self.world.batch)

    def happen(self, name: str, *vids: Vid, rid: Rid | None = None) -> None:
        """Let an action happen."""
        action = Action(name, vids, rid)
        self.actions.append(action)
        self.world = self.world.apply(action)
        self._singles = self.world.singles()

    # --- clients and the front ---------------------------------------------------

    @precondition(_can("submit"))
    @rule(rid=_drawn(lambda machine: st.sampled_from([action.rid for action in machine.possible("submit")])))
    def submit(self, rid: Rid) -> None:
        """A client submits a request."""
        self.happen("submit", rid=rid)

    @precondition(_can("send"))
    @rule(vid=_vid_for("send"))
    def send(self, vid: Vid) -> None:
        """The front has tokenised a request and sends it."""
        self.happen("send", vid)

    @precondition(_can("leave"))
    @rule(vid=_vid_for("leave"))
    def leave(self, vid: Vid) -> None:
        """A caller's scope ends."""
        self.happen("leave", vid)

    # --- the links -----------------------------------------------------------------

    @precondition(_can("request arrives"))
    @rule()
    def request_arrives(self) -> None:
        """A request reaches the scheduler."""
        self.happen("request arrives")

    @precondition(_can("abort arrives"))
    @rule()
    def abort_arrives(self) -> None:
        """An abort reaches the scheduler, by the link of the requests."""
        self.happen("abort arrives")

    @precondition(_can("overtaking abort arrives"))
    @rule()
    def overtaking_abort_arrives(self) -> None:
        """An abort reaches the scheduler, by a link of its own."""
        self.happen("overtaking abort arrives")

    @precondition(_can("row arrives"))
    @rule()
    def row_arrives(self) -> None:
        """A row reaches the detokenizer."""
        self.happen("row arrives")

    @precondition(_can("text arrives"))
    @rule()
    def text_arrives(self) -> None:
        """A row reaches the front."""
        self.happen("text arrives")

    @precondition(lambda machine: bool(machine.in_flight))
    @rule()
    def all_arrives(self) -> None:
        """All that is in flight reaches where it goes, and what comes of it too; so histories get further."""
        while (flying := self.in_flight) and not self.world.faults:
            self.happen(flying[0].name)

    # --- the scheduler ---------------------------------------------------------------

    @precondition(_can("reject"))
    @rule(vid=_vid_for("reject"))
    def reject(self, vid: Vid) -> None:
        """The scheduler cannot serve a request."""
        self.happen("reject", vid)

    @precondition(lambda machine: machine.world.launchable)
    @rule(vids=_drawn(lambda machine: _some(machine.world.launchable, at_least=1)))
    def launch(self, vids: list[Vid]) -> None:
        """A batch goes to the device."""
        self.happen("launch", *vids)

    @precondition(lambda machine: machine.world.batch)
    @rule(ends=_drawn(lambda machine: _some(machine.world.batch)))
    def land(self, ends: list[Vid]) -> None:
        """The batch comes back; those that have all their tokens end, and some others."""
        self.happen("land", *sorted({*ends, *self.world.must_end}))

    @precondition(_can("replica is lost"))
    @rule()
    def replica_is_lost(self) -> None:
        """Scheduler and detokenizer die."""
        self.happen("replica is lost")

    @precondition(lambda machine: not machine.anything)
    @rule()
    def rest(self) -> None:
        """All requests were made and are over: let the rest of the history pass."""

    # --- what must hold ----------------------------------------------------------------

    @precondition(lambda machine: bool(violations(machine.world)))
    @invariant()
    def rules_hold(self) -> None:
        """No rule is broken.

        The precondition keeps it out of the failing program but for the one time that it is broken.

        Raises:
            RuleBroken: one is.
        """
        self._break()

    def teardown(self) -> None:
        """Let everything come to its end without new work, and see that nothing is left."""
        if self.broken is None:
            for action in self._drain():
                self.happen(action.name, *action.vids)
                if violations(self.world):
                    self.rules_hold()
            if not self.world.settled or len(self.world.front):
                self._break("8: no new work comes, and yet it does not become quiescent")

    def _break(self, *rules: str) -> NoReturn:
        found = counterexample(self.parts, self.bounds, self.actions)
        self.broken = RuleBroken(found._replace(rules=found.rules + rules))
        raise self.broken

    def _drain(self) -> Iterator[Action]:
        # Each action uses something up (a message, a token, a request that lives), so there are not many;
        # a machine that is at fault may go round for ever.
        for _ in range(100 * self.bounds.uses):
            world = self.world
            yours = [action for action in world.singles() if action.name not in _NOT_DRAINING]
            if yours:
                yield yours[0]
            elif world.batch:
                yield Action("land", world.batch)
            elif world.launchable:
                yield Action("launch", tuple(world.launchable))
            else:
                return


_NOT_DRAINING: Final = frozenset({"submit", "leave", "reject", "replica is lost"})
_Item = TypeVar("_Item")


def _some(items: list[_Item] | tuple[_Item, ...], *, at_least: int = 0) -> st.SearchStrategy[list[_Item]]:
    return st.lists(st.sampled_from(items), unique=True, min_size=at_least)


def lifecycle_machine(
    parts: Parts = Parts(),  # noqa: B008  immutable
    bounds: Bounds = LARGE,
) -> type[LifecycleMachine]:
    """Return a LifecycleMachine of other parts, or within other bounds."""
    return type("LifecycleMachine", (LifecycleMachine,), {"parts": parts, "bounds": bounds})


def run_lifecycle(
    parts: Parts = Parts(),  # noqa: B008  immutable
    seconds: float = 10.0,
    seed: int = 0,
    *,
    bounds: Bounds = LARGE,
    shrink: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LifecycleReport:
    """Walk random histories until a rule breaks or the time is up.

    Args:
        parts: the classes that play the roles.
        seconds: how long; at least one round of histories is walked.
        seed: the same seed walks the same histories, as far as the time allows.
        bounds: how large the worlds are.
        shrink: whether to look for a shorter story, which may take minutes more; None: only if the parts are
            the real ones, since a mutant is to be caught and not to be explained.
        clock: what the seconds are read from.
    """
    histories = 0

    def teardown(machine: LifecycleMachine) -> None:
        nonlocal histories
        histories += 1
        LifecycleMachine.teardown(machine)

    counted = type("Counted", (lifecycle_machine(parts, bounds),), {"teardown": teardown})
    if shrink is None:
        shrink = parts == Parts()
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    began = clock()
    number = seed
    while True:
        try:
            run_state_machine_as_test(hypothesis.seed(number)(counted), settings=_settings(phases))
        except RuleBroken as broken:
            return LifecycleReport(histories, (broken.counterexample,))
        if clock() - began >= seconds:
            return LifecycleReport(histories, ())
        # Seeds of a round are far from those of the next run, which is likely to be started with seed + 1.
        number += 1_000_003


def _settings(phases: list[Phase]) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=HISTORIES_A_ROUND,
        stateful_step_count=STEPS,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]  its metaclass is odd
        verbosity=Verbosity.quiet,
    )
