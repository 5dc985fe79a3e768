"""Random walks by Hypothesis over whatever can be explored, far beyond the bounds of an exploration.

A walk chooses a kind of action, and then one of that kind, among those that are possible just then; what is
in flight may be brought home at a stroke, so that walks get further. Every history ends by letting all that
lives come to its end, after which nothing may be held anywhere.

`Walk` is for every world; `machines.LifecycleMachine` adds rules with names of their own for requests, so
that a failing program reads as a story.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

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

from vidette_fuzz.configurations import Maker
from vidette_fuzz.stories import Counterexample, counterexample
from vidette_protocol.exploring import Explorable

HISTORIES_A_ROUND: Final = 25
"""`run_walk` looks at the clock after so many histories."""
STEPS: Final = 80
"""Most actions of a history, before it is brought to its end."""
MOST_DRAINED: Final = 2000
"""A history that is not at its end after so many actions without new work never will be."""
FAULTS: Final = frozenset(
    {
        *("leave", "replace", "group is refused", "abort all", "overtaking abort arrives"),
        *("reject", "expire", "retract", "replica is lost", "flush", "close session", "time passes"),
        *("launch fails", "pause"),
        *("die", "close", "give up", "leave the block", "arrive and drop", "consumer dies", "producer dies"),
    }
)
"""Actions of the worlds that are no part of an undisturbed life: who leaves, dies, is late or is refused."""


class RuleBroken(AssertionError):  # noqa: N818  it is a finding
    """A history breaks a rule of the protocol; `counterexample` tells it."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__(str(counterexample))
        self.counterexample = counterexample


class WalkReport(NamedTuple):
    """What a random walk found.

    Args:
        histories: how many were walked to their end.
        violations: those that broke a rule; the walk stops at the first.
        faults: what happened in them that is one of FAULTS, by its name.
    """

    histories: int
    violations: tuple[Counterexample, ...]
    faults: Counter[str]


class History(RuleBasedStateMachine):
    """One history of a world: what has happened, and what must hold; those derived from it add rules."""

    make: ClassVar[Maker]

    def __init__(self) -> None:
        super().__init__()
        self.world: Explorable[Any] = type(self).make()  # pyright: ignore[reportAttributeAccessIssue]  it is static
        self.actions: list[Any] = []
        self.broken: RuleBroken | None = None

    def happen(self, action: Any) -> None:
        """Let an action happen."""
        self.actions.append(action)
        self.world = self.world.apply(action)

    @precondition(lambda history: bool(history.world.check()))
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
        if self.broken is not None:
            return
        for _ in range(MOST_DRAINED):
            left = self.world.draining()
            if not left:
                return
            self.happen(left[0])
            if self.world.check():
                self._break()
        self._break("8: no new work comes, and yet it does not become quiescent")

    def _break(self, *rules: str) -> NoReturn:
        make: Maker = type(self).make  # pyright: ignore[reportAttributeAccessIssue]  it is static
        found = counterexample(make, self.actions)
        self.broken = RuleBroken(found._replace(rules=found.rules + rules))
        raise self.broken


class Walk(History):
    """A walk over any world."""

    @precondition(lambda walk: bool(walk.world.enabled()))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Something happens."""
        kinds: dict[str, list[Any]] = {}
        for action in self.world.enabled():
            kinds.setdefault(action.name, []).append(action)
        kind = data.draw(st.sampled_from(list(kinds)))
        self.happen(data.draw(st.sampled_from(kinds[kind])))

    @precondition(lambda walk: bool(walk.world.draining()))
    @rule()
    def drain(self) -> None:
        """What is in flight comes where it goes, a few steps far."""
        for _ in range(5):
            left = self.world.draining()
            if not left or self.world.check():
                return
            self.happen(left[0])

    @precondition(lambda walk: not walk.world.enabled())
    @rule()
    def rest(self) -> None:
        """Nothing can happen any more: let the rest of the history pass."""


def walk_of(make: Maker, kind: type[History] = Walk) -> type[History]:
    """Return the walk of a world.

    Args:
        make: makes the initial world.
        kind: of walk.
    """
    return type(kind.__name__, (kind,), {"make": staticmethod(make)})


def run_walk(
    make: Maker,
    seconds: float = 10.0,
    seed: int = 0,
    *,
    kind: type[History] = Walk,
    shrink: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> WalkReport:
    """Walk random histories until a rule breaks or the time is up.

    Args:
        make: makes the initial world.
        seconds: how long; at least one round of histories is walked.
        seed: the same seed walks the same histories, as far as the time allows.
        kind: of walk.
        shrink: whether to look for a shorter story, which may take minutes more; a mutant is to be caught and
            not to be explained.
        clock: what the seconds are read from.
    """
    histories, faults = 0, Counter[str]()
    walk = walk_of(make, kind)

    def teardown(history: History) -> None:
        nonlocal histories
        histories += 1
        faults.update(action.name for action in history.actions if action.name in FAULTS)
        walk.teardown(history)

    counted = type("Counted", (walk,), {"teardown": teardown})
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    began = clock()
    number = seed
    while True:
        try:
            run_state_machine_as_test(hypothesis.seed(number)(counted), settings=_settings(phases))
        except RuleBroken as broken:
            return WalkReport(histories, (broken.counterexample,), faults)
        if clock() - began >= seconds:
            return WalkReport(histories, (), faults)
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
