"""Breadth-first exploration: every world that can be reached within bounds, and whether all rules hold there.

Breadth first, since then the first broken rule that turns up has a shortest story. A state costs about a
hundred bytes once it is expanded: its picture is collapsed into a row of small numbers, and of the way to it
only the last step is kept.

A search can stop and go on. What is saved is the way to each state and nothing else; when it is loaded, every
way is walked again, which takes less than half of the time that the search took.
"""

from __future__ import annotations

import json
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vidette_fuzz.stories import Counterexample, counterexample
from vidette_protocol.exploring import Explorable

Clock = Callable[[], float]
Maker = Callable[[], Explorable[Any]]


class Exploration(NamedTuple):
    """What an exploration found.

    Args:
        states: different worlds that were reached.
        depth: actions on the longest of the shortest ways to one; if it is not complete, those up to which
            it is.
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


class SavedByAnother(ValueError):  # noqa: N818  what it is told
    """A saved search belongs to another world, or to another version of it."""


class Search:
    """A search that can go on where it stopped.

    Args:
        make: makes the initial world.
        clock: what seconds are read from.
    """

    def __init__(self, make: Maker, *, clock: Clock = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._initial = make()
        self._known = _Known(self._initial)
        self._frontier = deque([self._initial])
        self._expanded = 0
        """States whose followers are known; the frontier begins behind them."""
        self._level_end = 1
        self._depth = 0
        self._seconds = 0.0
        self._violation: Counterexample | None = None

    def run(self, *, max_states: int | None = None, budget_s: float | None = None) -> Exploration:
        """Go on until a rule breaks, all is seen, or the budget is spent.

        Args:
            max_states: stop once so many states are known.
            budget_s: stop after so many seconds.
        """
        began = self._clock()
        known, frontier = self._known, self._frontier
        while frontier and self._violation is None:
            if max_states is not None and len(known) >= max_states:
                break
            if budget_s is not None and self._clock() - began >= budget_s:
                break
            self._note_level()
            world = frontier.popleft()
            for choice, action in enumerate(world.enabled()):
                after = world.apply(action)
                child = known.add(after, parent=self._expanded, choice=choice)
                if child is None:
                    continue
                frontier.append(after)
                if after.check():
                    self._depth += 1
                    self._violation = counterexample(self._make, known.way_to(child, self._initial))
                    break
            self._expanded += 1
        self._seconds += self._clock() - began
        return self.result

    @property
    def result(self) -> Exploration:
        """What was found up to now."""
        complete = not self._frontier and self._violation is None
        return Exploration(len(self._known), self._depth, complete, self._seconds, self._violation)

    def save(self, path: Path, fingerprint: str) -> None:
        """Write down how far it has come.

        Args:
            path: the file.
            fingerprint: of the world; what is loaded has to have the same.
        """
        head = {
            "fingerprint": fingerprint,
            "states": len(self._known),
            "expanded": self._expanded,
            "seconds": self._seconds,
        }
        ways = self._known.ways()
        path.write_bytes(json.dumps(head).encode() + b"\n" + ways)

    def load(self, path: Path, fingerprint: str) -> None:
        """Walk every way of a saved search again; only a search that has not run can.

        Raises:
            SavedByAnother: it does not fit.
        """
        first, _, ways = path.read_bytes().partition(b"\n")
        head = json.loads(first)
        if head["fingerprint"] != fingerprint:
            raise SavedByAnother("it was saved by another version of the protocol, or of its bounds")
        parents, choices = _ways_from(ways, head["states"])
        actions: Sequence[Any] = ()
        latest = -1
        for parent, choice in zip(parents, choices, strict=True):
            if (
                parent != latest
            ):  # the children of one come together, and parents in the order of the frontier
                while self._expanded < parent:
                    self._expand_known()
                self._note_level()
                actions, latest = self._frontier[0].enabled(), parent
            after = self._frontier[0].apply(actions[choice])
            if self._known.add(after, parent=parent, choice=choice) is None:
                raise SavedByAnother("it comes by a state twice")
            self._frontier.append(after)
        while self._expanded < head["expanded"]:
            self._expand_known()
        self._seconds = head["seconds"]

    def _expand_known(self) -> None:
        self._note_level()
        self._frontier.popleft()
        self._expanded += 1

    def _note_level(self) -> None:
        """Note that a level is known to its end, if the next state to be expanded is the first of it."""
        if self._expanded == self._level_end:
            self._depth += 1
            self._level_end = len(self._known)


def explore(
    make: Maker,
    *,
    max_states: int | None = None,
    budget_s: float | None = None,
    clock: Clock = time.monotonic,
) -> Exploration:
    """Explore a world breadth first, until a rule breaks, all is seen, or the budget is spent.

    Args:
        make: makes the initial world.
        max_states: stop, incomplete, once so many states are known.
        budget_s: stop, incomplete, after so many seconds.
        clock: what the seconds are read from.
    """
    return Search(make, clock=clock).run(max_states=max_states, budget_s=budget_s)


class _Known:
    """The states seen so far, numbered in the order of their discovery, and the way to each.

    A picture is kept as SPIN's collapse compression does: each part of it is looked up in a table of its own,
    since the parts recur in ever new combinations, and only their numbers are stored. This is exact. The way
    is a number too: which of its parent's enabled actions led here.
    """

    def __init__(self, initial: Explorable[Any]) -> None:
        self._tables: list[dict[object, int]] = [{} for _ in initial.key()]
        self._pictures: set[bytes] = set()
        self._parents = array("q")
        self._choices = array("I")
        self.add(initial, parent=-1, choice=0)

    def add(self, world: Explorable[Any], *, parent: int, choice: int) -> int | None:
        """Return the number of a new state, or None if it is known."""
        parts = zip(self._tables, world.key(), strict=True)
        picture = array("I", [table.setdefault(part, len(table)) for table, part in parts]).tobytes()
        if picture in self._pictures:
            return None
        self._pictures.add(picture)
        self._parents.append(parent)
        self._choices.append(choice)
        return len(self._parents) - 1

    def way_to(self, state: int, initial: Explorable[Any]) -> list[object]:
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

    def ways(self) -> bytes:
        """Return the way to each state but the initial one, packed; parents come in ascending order."""
        return self._parents[1:].tobytes() + self._choices[1:].tobytes()

    def __len__(self) -> int:
        return len(self._parents)


def _ways_from(ways: bytes, states: int) -> tuple[array[int], array[int]]:
    parents, choices = array("q"), array("I")
    border = (states - 1) * parents.itemsize
    parents.frombytes(ways[:border])
    choices.frombytes(ways[border:])
    return parents, choices
