"""`Model`: what the small worlds have in common: actions that happen in a copy, and faults that are noted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, Self


class Step(NamedTuple):
    """Something that can happen: a name, and the numbers of what it happens to."""

    name: str
    of: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return it as a short line."""
        return " ".join([self.name, *map(str, self.of)])


class Model(ABC):
    """A world whose `_act` makes a step happen in place; `apply` does so in a copy."""

    __slots__ = ("faults",)

    def __init__(self) -> None:
        self.faults: tuple[str, ...] = ()
        """Broken rules that were seen on the way here."""

    @abstractmethod
    def enabled(self) -> list[Step]:
        """List everything that can happen next, in a fixed order."""

    @abstractmethod
    def _draining(self) -> Iterator[Step]:
        """List what happens by itself, without new work and without a death, in a fixed order."""

    @abstractmethod
    def copy(self) -> Self:
        """Return an independent world in the same state."""

    @abstractmethod
    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""

    @abstractmethod
    def tell(self, step: Step, after: Any) -> str:
        """Return in a line what a step does; `after`, of the same class, is what it leads to."""

    @abstractmethod
    def _act(self, step: Step) -> None:
        """Make a step happen."""

    @abstractmethod
    def _leftovers(self) -> list[str]:
        """Return a sentence for each rule that is broken if nothing happens by itself any more."""

    def draining(self) -> list[Step]:
        """List what happens by itself, without new work and without a death."""
        return list(self._draining())

    def apply(self, step: Step) -> Self:
        """Return the world after a step; what a machine raises is noted as a fault."""
        after = self.copy()
        try:
            after._act(step)
        except Exception as error:  # noqa: BLE001  a machine that crashes is a find; its story is wanted, not ours
            after._fault(f"{type(error).__name__}: {error}")
        return after

    def check(self) -> list[str]:
        """Return a sentence for every rule that is broken; empty when all hold."""
        if self.faults or next(self._draining(), None) is not None:
            return list(self.faults)
        return self._leftovers()

    def _fault(self, text: str) -> None:
        self.faults += (text,)
