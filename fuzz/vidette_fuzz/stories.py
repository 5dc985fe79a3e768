"""A run of the protocol, told line by line, so that a broken rule can be understood without a debugger."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vidette_protocol.exploring import Explorable


class Counterexample(NamedTuple):
    """A run that breaks a rule.

    Args:
        actions: the run; `replay` walks it again.
        story: the same, one readable line for each action.
        rules: what it breaks, a sentence for each rule.
    """

    actions: tuple[Any, ...]
    story: tuple[str, ...]
    rules: tuple[str, ...]

    def __str__(self) -> str:
        """Return the story with numbered lines, and what it breaks."""
        lines = [f"{number}. {line}" for number, line in enumerate(self.story, start=1)]
        return "\n".join([*lines, *(f"broken: {rule}" for rule in self.rules)])


def replay(make: Callable[[], Explorable[Any]], actions: Iterable[Any]) -> list[Explorable[Any]]:
    """Return the worlds of a run, from the initial one to the last."""
    worlds = [make()]
    for action in actions:
        worlds.append(worlds[-1].apply(action))
    return worlds


def counterexample(make: Callable[[], Explorable[Any]], actions: Iterable[Any]) -> Counterexample:
    """Tell a run that ends in a broken rule."""
    actions = tuple(actions)
    worlds = replay(make, actions)
    story = tuple(
        before.tell(action, after) for before, action, after in zip(worlds, actions, worlds[1:], strict=False)
    )
    return Counterexample(actions, story, tuple(worlds[-1].check()))
