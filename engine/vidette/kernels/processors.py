"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")


def usable_processors(cgroup: Path = CGROUP) -> int:
    """Return how many processors this process may use: that it may run on, and that a container leaves it.

    Args:
        cgroup: where the limits of the own group are, of version 2 (`cpu.max`) or 1 (`cpu/cpu.cfs_quota_us`).
            A part of a processor counts as one.
    """
    usable = len(os.sched_getaffinity(0))
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
            if int(quota) > 0:  # version 1 has -1 for no limit, version 2 a word
                usable = min(usable, max(1, -(-int(quota) // int(period))))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # no such group, or no limit
    return usable
