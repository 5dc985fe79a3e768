"""What a benchmark finds: numbers by name, and sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from vidette.bench.interleave import Samples

OURS: Final = "ours"
"""The candidate that the others are compared with."""


class Finding(NamedTuple):
    """What was measured under one name.

    Args:
        name: stable; other programs look for it.
        unit: of the values.
        values: one for each run.
    """

    name: str
    unit: str
    values: list[float]


@dataclass(frozen=True)
class Results:
    """What one part of a benchmark found.

    Args:
        findings: numbers by name.
        notes: sentences for people.
        details: what else there is for a report, by name.
    """

    findings: list[Finding]
    notes: list[str]
    details: Mapping[str, object] = field(default_factory=dict)

    def __add__(self, other: Results) -> Results:
        """Put the results of two parts together."""
        return Results(
            self.findings + other.findings, self.notes + other.notes, {**self.details, **other.details}
        )


def compare(what: str, seconds: Samples, *, name: str = "") -> Results:
    """Return how many times longer others take than ours, run by run.

    Args:
        what: was done; findings are named `WHAT_vs_OTHER`.
        seconds: of each candidate, ours among them.
        name: of the one finding, if it is named otherwise.
    """
    ours = seconds[OURS]
    findings = [
        Finding(name or f"{what}_vs_{other}", "x", [a / b for a, b in zip(theirs, ours, strict=True)])
        for other, theirs in seconds.items()
        if other != OURS
    ]
    times = ", ".join(f"{other} {median(values) * 1e6:.4g}" for other, values in seconds.items())
    return Results(findings, [f"{what}, microseconds: {times}"])
