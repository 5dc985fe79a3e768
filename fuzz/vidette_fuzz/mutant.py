"""`Mutant`: a fault that was put in on purpose; `mutants` holds all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vidette_protocol.exploring import Explorable


class Mutant(NamedTuple):
    """A fault that was put in on purpose.

    Args:
        name: for the command line.
        report: the public report of the fault it stands for.
        story: in a sentence, what goes wrong.
        configuration: name of the configuration that shows it.
        small: makes the smallest kind of world that shows it.
        large: makes a world for a random walk.
    """

    name: str
    report: str
    story: str
    configuration: str
    small: Callable[[], Explorable[Any]]
    large: Callable[[], Explorable[Any]]
