"""Deterministic simulation: the engine's own code, an adversary, and a clock that jumps.

`simulate(seed)` is one history: clients ask an engine whose links delay, stall, split and join what they
carry, whose replica dies and is started anew, all in simulated time and in one thread. Nothing in it is
random but for the seed, so a history can be had again: `vidette fuzz replay SEED`.

The order in which tasks run is drawn by Trio itself, which makes it the same each time once it runs under
Hypothesis; so a history is an example of a property test without input. Where in Trio's order of random
numbers it begins depends on the seed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Final, NamedTuple

import anyio
import anyio.lowlevel
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from vidette_fuzz.simulation.adversary import Adversary
from vidette_fuzz.simulation.clients import Client, Habits
from vidette_fuzz.simulation.engine import Build, Fate, Generation, Stock
from vidette_fuzz.simulation.journal import Event, Journal

MOST_SECONDS: Final = 1e6
"""Simulated seconds after which a history that has not ended never will."""


class History(NamedTuple):
    """What happened in one history.

    Args:
        seed: of it.
        events: in their order.
        seconds: of simulated time.
        requests: that clients made, control calls included.
        faults: what the adversary did, by kind.
        violations: a sentence for each rule that was broken.
    """

    seed: int
    events: tuple[Event, ...]
    seconds: float
    requests: int
    faults: Counter[str]
    violations: tuple[str, ...]

    def __str__(self) -> str:
        """Return its story."""
        broken = [f"broken: {rule}" for rule in self.violations]
        return "\n".join([f"seed {self.seed}", *map(str, self.events), *broken])


class SimulationReport(NamedTuple):
    """What a run of many histories found.

    Args:
        histories: how many there were.
        seconds: of simulated time, in all.
        requests: in all.
        faults: what the adversary did, by kind.
        violations: histories that broke a rule; the run stops at the first.
    """

    histories: int
    seconds: float
    requests: int
    faults: Counter[str]
    violations: tuple[History, ...]


def simulate(seed: int, build: Build = Build(), stock: Stock | None = None) -> History:  # noqa: B008  immutable
    """Run one history.

    Args:
        seed: of everything in it.
        build: what the engines are made of.
        stock: shared by histories, to save time.
    """
    histories: list[History] = []
    stock = Stock() if stock is None else stock

    @settings(
        max_examples=1,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]  its metaclass is odd
    )
    @given(st.none())
    def run(_: None) -> None:
        clock = MockClock(autojump_threshold=0)
        place = _Place(seed, build, stock)
        histories.append(anyio.run(place.run, backend="trio", backend_options={"clock": clock}))

    run()
    return histories[0]


def run_simulation(
    seconds: float,
    seed: int = 0,
    build: Build = Build(),  # noqa: B008  immutable
    *,
    most: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SimulationReport:
    """Run histories for some time, until one of them breaks a rule.

    Args:
        seconds: how long, on a real clock; there is one history at least.
        seed: of the first; each one's is larger by one than the one's before.
        build: what the engines are made of.
        most: stop after so many.
        clock: read once a history.
    """
    end, stock, faults, simulated, requests = clock() + seconds, Stock(), Counter[str](), 0.0, 0
    for number in count() if most is None else range(most):
        history = simulate(seed + number, build, stock)
        faults += history.faults
        simulated += history.seconds
        requests += history.requests
        if history.violations or clock() >= end or number + 1 == most:
            broken = (history,) if history.violations else ()
            return SimulationReport(number + 1, simulated, requests, faults, broken)
    raise ValueError(f"most is {most}; there is one history at least")


class _Place:
    """One history: its clients, and the engines that they find."""

    def __init__(self, seed: int, build: Build, stock: Stock) -> None:
        self.journal = Journal()
        self._seed = seed
        self._build = build
        self._stock = stock
        self._random = Random(seed)
        self._adversary = Adversary(Random(f"adversary {seed}"), self.journal)
        self._generations: list[Generation] = []
        self._changed = anyio.Event()
        self._over = False

    async def run(self) -> History:
        random = self._random
        async with anyio.create_task_group() as tasks:  # which takes some of Trio's random numbers
            for _ in range(2):
                tasks.start_soon(_turn, self._seed % 61)
        habits = Habits.draw(random)
        clients = [
            Client(number, Random(random.random()), self, habits, random.randrange(2, 10))
            for number in range(random.randrange(1, 9))
        ]
        idle = anyio.Event()
        with anyio.move_on_after(MOST_SECONDS) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run_engines, idle)
                async with anyio.create_task_group() as asking:
                    for client in clients:
                        asking.start_soon(client.run)
                idle.set()
        for generation in self._generations:
            generation.check_front()
        if scope.cancelled_caught:
            self.journal.violate("8: somebody waits for ever")
        journal = self.journal
        return History(
            self._seed,
            tuple(journal.events),
            anyio.current_time(),
            sum(client.asked for client in clients),
            journal.faults,
            tuple(journal.violations),
        )

    async def wait_engine(self) -> Generation | None:
        while not self._over:
            generation = self._generations[-1] if self._generations else None
            if generation is None or generation.over:
                await self._changed.wait()
            elif generation.manager is None:
                await generation.opened.wait()
            else:
                return generation
        return None

    async def _run_engines(self, idle: anyio.Event) -> None:
        for number, fate in enumerate(self._fates()):
            generation = Generation(self._stock, self._build, self._adversary)
            self._generations.append(generation)
            if number:
                self.journal.harm("restart", "another engine is started")
            self._change()
            await generation.run(fate, idle)
            if idle.is_set():
                break
        self._over = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _fates(self) -> Iterator[Fate]:
        random = self._random
        for _ in range(random.choice([0, 0, 1, 2, 4])):
            after = random.choice([random.uniform(0, 0.1), random.expovariate(1), random.expovariate(1 / 40)])
            yield Fate(random.choice(["scheduler", "detokenizer", "both", "both", "close"]), after)
        yield Fate("quiet")


async def _turn(times: int) -> None:
    for _ in range(times):
        await anyio.lowlevel.checkpoint()
