"""Who else computes: what others took of the machine while something was measured, and waiting for less.

What is kept of several tries is the one that others disturbed least, whatever was measured in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

Found = TypeVar("Found")

NOTICEABLE: Final = 0.05
"""From this share of all cores on, what is measured is bent by it."""
LOOK_SECONDS: Final = 0.5
"""How long one looks whether the machine is quiet."""
_IDLE: Final = (3, 4)
"""Columns of /proc/stat in which nobody computes: idle, and waiting for a disk."""
_COLUMNS: Final = 8
"""Columns that add up to all time; those behind are parts of others."""


class Watch(Protocol):
    """Counts from its making on."""

    def share(self) -> float:
        """Return what others took since then, as a share of all cores."""
        ...


class Others:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._all, self._theirs = _read()

    def share(self) -> float:
        """Return what others took since then, as a share of all cores; the host of these is one of them."""
        everything, theirs = _read()
        return max(0.0, theirs - self._theirs) / max(everything - self._all, 1e-9)


class Patience:
    """Seconds to spend on waiting for a quiet machine, and on measuring again what was disturbed.

    Args:
        seconds: in all; 0: everything is measured once, at once.
        watch: begins to count what others take.
        sleep: waits.
        clock: seconds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        watch: Callable[[], Watch] = Others,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left = seconds
        self._watch = watch
        self._sleep = sleep
        self._clock = clock

    def measure(self, call: Callable[[], Found]) -> tuple[Found, float]:
        """Measure once the machine is quiet; return what was found and the share of others meanwhile."""
        best: tuple[Found, float] | None = None
        while True:
            self._wait()
            watch, started = self._watch(), self._clock()
            found = call(), watch.share()
            if best is None or found[1] < best[1]:
                best = found
            self._left -= self._clock() - started
            if found[1] < NOTICEABLE or self._left <= 0:
                return best

    def _wait(self) -> None:
        while self._left > 0:
            watch = self._watch()
            self._sleep(LOOK_SECONDS)
            self._left -= LOOK_SECONDS
            if watch.share() < NOTICEABLE:
                return


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
