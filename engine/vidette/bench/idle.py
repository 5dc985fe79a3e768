"""What an engine costs while nothing is asked of it: CPU time of its process and of all below it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import anyio

from vidette.api import open_engine
from vidette.bench.results import Finding, Results
from vidette.config import Topology

SETTLE_SECONDS: Final = 0.5
"""How long what was done before may go on: threads that end, memory that is given back."""
WARM_UP: Final = {"max_new_tokens": 32, "ignore_eos": True}
"""Every part of the engine has worked before it is watched."""
PROC: Final = Path("/proc")
CPUCLOCK_SCHED: Final = 2
"""Low bits of the clock of a process's CPU time: of all its threads, those included that have ended."""


def family(pid: int) -> set[int]:
    """Return a process and all processes below it, as far as they run now."""
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            # The name of a process is in parentheses, and may have any characters.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, before = {pid}, 0
    while len(found) > before:
        before = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, to the nanosecond; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)  # what clock_getcpuclockid(3) makes of a pid
    except OSError:
        return 0.0


async def measure_idle(
    seconds: float, pid: int | None = None, *, processes: Callable[[int], Collection[int]] = family
) -> float:
    """Watch a process and all below it while it should do nothing.

    Args:
        seconds: how long.
        pid: of the process; None: this one.
        processes: finds those below it.

    Returns:
        The CPU time of all of them, in percent of one core.
    """
    root = os.getpid() if pid is None else pid
    before = {each: cpu_seconds(each) for each in processes(root)}
    began = time.monotonic()
    await anyio.sleep(seconds)
    took = time.monotonic() - began
    # Those that are known first: to look for others takes time of this process. One that has ended meanwhile
    # is known no more, and one that is new counts from its beginning.
    used = sum(max(0.0, cpu_seconds(each) - clock) for each, clock in before.items())
    used += sum(cpu_seconds(each) for each in set(processes(root)) - before.keys())
    return 100 * used / took


async def bench_idle(
    model: str, topologies: Collection[Topology], *, seconds: float, runs: int, say: Callable[[str], None]
) -> Results:
    """Measure an engine that has worked and has nothing to do, in each topology.

    Args:
        model: a known name, "toy", or the path of a GGUF file.
        topologies: which.
        seconds: of each run.
        runs: how many of each.
        say: told what is measured.
    """
    findings = []
    for topology in topologies:
        say(f"{topology}: {runs} times {seconds:g} s of nothing")
        async with open_engine(model, topology=topology) as engine:
            async with engine.generate("warm up", sampling_params=WARM_UP) as stream:
                await stream.read()
            await engine.wait_quiet()
            await anyio.sleep(SETTLE_SECONDS)
            values = [await measure_idle(seconds) for _ in range(runs)]
            await engine.heartbeat()  # and it was there all the time
        findings.append(Finding(f"idle_cpu_percent_{topology}", "%", values))
    return Results(findings, ["percent of one core, all processes and threads together"])
