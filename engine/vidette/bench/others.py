"""Who else computes: what other programs took of the machine while something was measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NOTICEABLE: Final = 0.05
"""From this share of all cores on, what is measured is bent by it."""
_IDLE: Final = (3, 4)
"""Columns of /proc/stat in which nobody computes: idle, and waiting for a disk."""
_COLUMNS: Final = 8
"""Columns that add up to all time; those behind are parts of others."""


class Others:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._all, self._theirs = _read()

    def share(self) -> float:
        """Return what others took since then, as a share of all cores; the host of these is one of them."""
        everything, theirs = _read()
        return max(0.0, theirs - self._theirs) / max(everything - self._all, 1e-9)


def _read() -> tuple[float, float]:
    first = Path("/proc/stat").read_text("ascii").partition("\n")[0]
    return _count(first, os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]))


def _count(line: str, ticks_a_second: int, ours: float) -> tuple[float, float]:
    """Return seconds of all cores, and how many of them others took.

    Args:
        line: the first one of /proc/stat.
        ticks_a_second: its unit.
        ours: seconds that this process and its children took.
    """
    ticks = [int(word) for word in line.split()[1 : 1 + _COLUMNS]]
    busy = sum(ticks) - sum(ticks[column] for column in _IDLE)
    return sum(ticks) / ticks_a_second, busy / ticks_a_second - ours
