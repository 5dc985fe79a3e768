"""The JSON that commands print as their last line with `--json`."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct


class Check(Struct, frozen=True):
    """One measured or counted value.

    Args:
        name: stable; other programs look for it.
        value: the median over the runs.
        unit: of value, low and high.
        runs: how many.
        low: the smallest.
        high: the largest.
    """

    name: str
    value: float
    unit: str
    runs: int
    low: float
    high: float


class Machine(Struct, frozen=True):
    """Where it ran."""

    cpu: str
    cores: int
    python: str
    torch: str


class Report(Struct, frozen=True):
    """What a command found out.

    Args:
        command: its name without `vidette`.
        version: of vidette.
        machine: where it ran.
        checks: what was measured.
        ledgers: what was held afterwards, if the command looks at that.
        notes: sentences for people.
        faults: what was done to it on purpose, by kind, if the command does such things.
        details: what else there is, by name, if the command has more to say.
    """

    command: str
    version: str
    machine: Machine
    checks: list[Check]
    ledgers: dict[str, int] | None = None
    notes: list[str] = []
    faults: dict[str, int] | None = None
    details: dict[str, object] | None = None

    def to_json(self) -> str:
        """Return it as one line."""
        return msgspec.json.encode(self).decode()


def check(name: str, values: float | Sequence[float], unit: str) -> Check:
    """Return a check of one value, or of the median of several runs."""
    runs = [float(value) for value in values] if isinstance(values, Sequence) else [float(values)]
    return Check(name, median(runs), unit, len(runs), min(runs), max(runs))


def this_machine() -> Machine:
    """Describe the machine this runs on; reads no more than names and counts."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or "unknown",
    )
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return Machine(cpu, cores, platform.python_version(), version("torch"))


def make_report(
    command: str,
    checks: list[Check],
    *,
    ledgers: dict[str, int] | None = None,
    notes: list[str] | None = None,
    faults: Mapping[str, int] | None = None,
    details: Mapping[str, object] | None = None,
) -> Report:
    """Put a report together for this machine and version."""
    by_kind = None if faults is None else dict(sorted(faults.items()))
    more = dict(details) if details else None
    return Report(
        command, version("vidette"), this_machine(), checks, ledgers, notes or [], by_kind, details=more
    )
