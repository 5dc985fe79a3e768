"""The generated parts of docs/reference/mutants.md."""

from __future__ import annotations

from collections.abc import Iterable

from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.explore import explore
from vidette_fuzz.mutants import MUTANTS


def parts() -> dict[str, str]:
    """Return what belongs between the markers of the page, by the name in the marker.

    Every mutant is hunted until it is caught, which takes seconds; what comes out of it is always the same.
    """
    return {"configurations": _configurations(), "mutants": _mutants()}


def _configurations() -> str:
    return _table(
        ["configuration", "what is in it"], ([name, each.about] for name, each in CONFIGURATIONS.items())
    )


def _mutants() -> str:
    rows = []
    for name, mutant in MUTANTS.items():
        found = explore(mutant.small)
        assert found.violation is not None
        (rule, *_), steps = found.violation.rules, len(found.violation.story)
        number, colon, _ = rule.partition(": ")
        broken = number if colon and number.isdigit() else "raises"
        effort = [broken, str(steps), f"{found.states:,}"]
        rows.append([f"`{name}`", mutant.story, mutant.report, mutant.configuration, *effort])
    head = ["mutant", "what goes wrong", "seen in", "configuration", "rule", "steps", "states"]
    return _table(head, rows)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
