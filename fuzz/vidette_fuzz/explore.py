"""Breadth-first exploration: every world that can be reached within bounds, and whether all rules hold there.

Breadth first, since then the first broken rule that turns up has a shortest story. A state costs about a
hundred bytes once it is expanded: its picture is collapsed into a row of small numbers, and of the way to it
only the last step is kept.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette_fuzz.stories import Counterexample, counterexample
from vidette_protocol.invariants import violations
from vidette_protocol.world import Action, Bounds, Parts, World

CONFIGURATIONS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "chunked prefill": Bounds(rids=1, uses=2, tokens=1, chunks=1),
        "replica lost": Bounds(rids=1, uses=2, tokens=1, losses=1),
        "split senders": Bounds(rids=1, uses=2, tokens=2, split_senders=True),
        "reuse after acknowledgement": Bounds(rids=1, uses=3, tokens=2, reuse_at_once=False),
        "two rids": Bounds(rids=2, uses=2, tokens=2),
        "reuse at once": Bounds(rids=1, uses=3, tokens=2),
        "everything": Bounds(rids=2, uses=2, tokens=2, split_senders=True, chunks=1, losses=1),
    }
)
"""Worlds small enough to explore on every push, smallest first."""

LONG_CONFIGURATIONS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "reuse at once, more tokens": Bounds(rids=1, uses=3, tokens=3),
        "split senders, more uses": Bounds(rids=1, uses=3, tokens=2, split_senders=True),
        "reuse at once, more uses": Bounds(rids=1, uses=4, tokens=2),
        "two rids, more uses": Bounds(rids=2, uses=3, tokens=2),
        "everything, more uses": Bounds(rids=2, uses=3, tokens=2, split_senders=True, chunks=1, losses=1),
    }
)
"""Worlds for long runs: a minute each, the last hours and some GiB of memory."""

Clock = Callable[[], float]


class Exploration(NamedTuple):
    """What an exploration found.

    Args:
        states: different worlds that were reached.
        depth: actions on the longest of the shortest ways to one.
        complete: whether these are all worlds within the bounds.
        seconds: time it took.
        violation: the shortest run that breaks a rule; None if none was found.
    """

    states: int
    depth: int
    complete: bool
    seconds: float
    violation: Counterexample | None = None

    @property
    def states_per_s(self) -> float:
        """Different worlds reached in a second."""
        return self.states / self.seconds if self.seconds > 0 else 0.0


def explore(
    parts: Parts = Parts(),  # noqa: B008  immutable
    bounds: Bounds = Bounds(),  # noqa: B008  immutable
    *,
    max_states: int | None = None,
    budget_s: float | None = None,
    clock: Clock = time.monotonic,
) -> Exploration:
    """Explore a world breadth first, until a rule breaks, all is seen, or the budget is spent.

    Args:
        parts: the classes that play the roles.
        bounds: how large the world is.
        max_states: stop, incomplete, once so many states are known.
        budget_s: stop, incomplete, after so many seconds.
        clock: what the seconds are read from.
    """
    began = clock()
    initial = World(parts, bounds)
    known = _Known(initial)
    queue = deque([(0, initial)])
    depth = 0

    def result(*, complete: bool, violation: Counterexample | None = None) -> Exploration:
        return Exploration(len(known), depth, complete, clock() - began, violation)

    while True:
        for _ in range(len(queue)):
            if max_states is not None and len(known) >= max_states:
                return result(complete=False)
            if budget_s is not None and clock() - began >= budget_s:
                return result(complete=False)
            index, world = queue.popleft()
            for choice, action in enumerate(world.enabled()):
                after = world.apply(action)
                child = known.add(after, parent=index, choice=choice)
                if child is None:
                    continue
                if violations(after):
                    depth += 1
                    story = counterexample(parts, bounds, known.way_to(child, initial))
                    return result(complete=False, violation=story)
                queue.append((child, after))
        if not queue:
            return result(complete=True)
        depth += 1


def explore_all(
    budget_s: float | None = None,
    *,
    parts: Parts = Parts(),  # noqa: B008  immutable
    configurations: Mapping[str, Bounds] = CONFIGURATIONS,
    clock: Clock = time.monotonic,
) -> list[tuple[str, Exploration]]:
    """Explore one configuration after the other.

    Args:
        budget_s: seconds for all together; what is not reached in time is reported as incomplete.
        parts: the classes that play the roles.
        configurations: bounds by name.
        clock: what the seconds are read from.

    Returns:
        Each name with what was found, in the order of the table.
    """
    began = clock()
    found = []
    for name, bounds in configurations.items():
        left = None if budget_s is None else max(0.0, budget_s - (clock() - began))
        found.append((name, explore(parts, bounds, budget_s=left, clock=clock)))
    return found


class _Known:
    """The states seen so far, numbered in the order of their discovery, and the way to each.

    A picture is kept as SPIN's collapse compression does: each part of it is looked up in a table of its own,
    since the parts recur in ever new combinations, and only their numbers are stored. This is exact. The way
    is a number too: which of its parent's enabled actions led here.
    """

    def __init__(self, initial: World) -> None:
        self._tables: list[dict[object, int]] = [{} for _ in initial.key()]
        self._pictures: set[bytes] = set()
        self._parents = array("q")
        self._choices = array("I")
        self.add(initial, parent=-1, choice=0)

    def add(self, world: World, *, parent: int, choice: int) -> int | None:
        """Return the number of a new state, or None if it is known."""
        parts = zip(self._tables, world.key(), strict=True)
        picture = array("I", [table.setdefault(part, len(table)) for table, part in parts]).tobytes()
        if picture in self._pictures:
            return None
        self._pictures.add(picture)
        self._parents.append(parent)
        self._choices.append(choice)
        return len(self._parents) - 1

    def way_to(self, state: int, initial: World) -> list[Action]:
        """Return the actions that lead from the initial world to a state."""
        choices: list[int] = []
        while state:
            choices.append(self._choices[state])
            state = self._parents[state]
        world, way = initial, []
        for choice in reversed(choices):
            way.append(world.enabled()[choice])
            world = world.apply(way[-1])
        return way

    def __len__(self) -> int:
        return len(self._parents)
