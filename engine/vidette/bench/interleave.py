"""Timing that a busy machine bends as little as may be: all candidates in turns, each time in another order.

What else runs on the machine slows down whatever is timed just then. So a run takes many short turns of every
candidate, mixed, and keeps the median turn of each; what is compared are medians of the same run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from random import Random
from statistics import median
from typing import Final, NamedTuple, Self

Samples = dict[str, list[float]]
"""What was measured of each candidate, one number for each run."""

TURN_SECONDS: Final = 0.001
"""About how long a candidate is timed in one turn, so that the clock itself does not count."""
DEPTHS: Final = 160
"""Each turn begins at another depth of the stack: CPython maps 16 KiB more of it for a call that does not fit
any more, and unmaps them when it returns. Measured, that adds 8 us to a call, or not, as chance has it."""


class Effort(NamedTuple):
    """How much is measured.

    Args:
        runs: how many numbers there are in the end of each candidate.
        turns: how often each candidate is timed within a run.
        rng: what the order of candidates is drawn from.
    """

    runs: int
    turns: int
    rng: Random

    @classmethod
    def seeded(cls, seed: int, *, runs: int, turns: int) -> Self:
        """Return an effort whose order, and whose contents, come from a seed."""
        return cls(runs, turns, Random(seed))

    def share(self, part: int) -> Self:
        """Return the same with so many times fewer turns, for what takes longer."""
        return self._replace(turns=max(1, self.turns // part))


def time_calls(candidates: Mapping[str, Callable[[], object]], effort: Effort) -> Samples:
    """Time calls; return seconds per call."""
    samples: Samples = {name: [] for name in candidates}
    with _no_collections():
        counts = {name: _count_calls(call) for name, call in candidates.items()}
        for _ in range(effort.runs):
            turns: Samples = {name: [] for name in candidates}
            for name in _turns(candidates, effort):
                turn = partial(_time_calls, candidates[name], counts[name])
                turns[name].append(_call_at(effort.rng.randrange(DEPTHS), turn) / counts[name])
            for name, seconds in turns.items():
                samples[name].append(median(seconds))
    return samples


async def time_trips(candidates: Mapping[str, Callable[[], Awaitable[float]]], effort: Effort) -> Samples:
    """Have candidates time themselves; return their numbers."""
    samples: Samples = {name: [] for name in candidates}
    for _ in range(effort.runs):
        turns: Samples = {name: [] for name in candidates}
        for name in _turns(candidates, effort):
            turns[name].append(await candidates[name]())
        for name, numbers in turns.items():
            samples[name].append(median(numbers))
    return samples


def _turns(candidates: Mapping[str, object], effort: Effort) -> Generator[str]:
    for _ in range(effort.turns):
        names = list(candidates)
        effort.rng.shuffle(names)
        yield from names


def _count_calls(call: Callable[[], object]) -> int:
    """Return how many calls fill a turn; calling it warms up what it calls."""
    count = 1
    while (seconds := _time_calls(call, count)) < TURN_SECONDS / 2:
        count = max(2 * count, int(count * TURN_SECONDS / max(seconds, 1e-6)) // 2)
    return max(1, round(count * TURN_SECONDS / seconds))


def _call_at(depth: int, turn: Callable[[], float]) -> float:
    return turn() if depth == 0 else _call_at(depth - 1, turn)


def _time_calls(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in repeat(None, count):
        call()
    return time.perf_counter() - started


@contextmanager
def _no_collections() -> Generator[None]:
    """Keep the garbage collector out, as `timeit` does: it would cost those most that make most objects."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
