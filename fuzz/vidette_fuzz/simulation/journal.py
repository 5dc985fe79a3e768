"""`Journal`: what happened in a history, when, and what was wrong with it."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import anyio

MOST_VIOLATIONS: Final = 20
"""After so many nothing is learnt from more."""


class Event(NamedTuple):
    """Something that happened.

    Args:
        when: seconds of simulated time since the history began.
        what: a sentence, or an action of the world, which is one as a string.
    """

    when: float
    what: object

    def __str__(self) -> str:
        """Return it as a line of a story."""
        return f"{self.when:10.4f}  {self.what}"


class Journal:
    """Kept by everybody in one history."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: Counter[str] = Counter()
        """What the adversary has done, by kind."""
        self.violations: list[str] = []

    def note(self, what: object) -> None:
        """Write down what happens now."""
        self.events.append(Event(anyio.current_time(), what))

    def harm(self, kind: str, what: object = None) -> None:
        """Count what the adversary does; write it down if there is something to say."""
        self.faults[kind] += 1
        if what is not None:
            self.note(what)

    def violate(self, rule: str) -> None:
        """Write down that a rule is broken.

        Args:
            rule: the number of the rule in the architecture, section 3, and what breaks it.
        """
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(rule)
            self.note(f"BROKEN {rule}")
