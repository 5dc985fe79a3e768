"""`Supervisor`: keeps a ring turning, and puts another in its place when it breaks down.

Whichever role ended, all are started again: a process that runs cannot inherit the links to a new one. The
tasks of a ring are in a group of their own, so that all of it is gone before the next is started: processes
reaped, tasks ended, descriptors closed.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from vidette._health import Health, Watchdog, take_health
from vidette._ring import Breakdown, ProcessInfo, Ring
from vidette.config import EngineConfig
from vidette.errors import EngineBroken, EngineClosed, UsageError
from vidette.front.manager import TokenizerManager
from vidette_protocol.messages import Ready

logger = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 60.0
"""Within how long deaths are counted against `max_restarts`."""


class Own:
    """Owns tasks apart from the scope of whoever starts them.

    A caller whose scope is cancelled leaves his block first, and may still read there what comes meanwhile;
    so the engine's own tasks end when the engine is closed, and not before.

    Args:
        shield: whether the tasks outlive the cancellation of a scope around them.
    """

    def __init__(self, *, shield: bool) -> None:
        self.scope = anyio.CancelScope(shield=shield)
        """Cancelled when the tasks have to end."""
        self.ended = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._begun = anyio.Event()

    async def run(self) -> None:
        """Hold the tasks until the scope is cancelled, and they have ended."""
        try:
            with self.scope:
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    self._begun.set()
                    await anyio.sleep_forever()
        finally:
            self.ended.set()

    async def wait_tasks(self) -> anyio.abc.TaskGroup:
        """Wait until tasks can be started, which `run()` sees to."""
        with anyio.CancelScope(shield=True):  # bounded: the task begins in the next turn of the loop
            await self._begun.wait()
        await anyio.lowlevel.checkpoint()
        assert self._tasks is not None
        return self._tasks


class Backoff:
    """When to start again after a death, and when no more.

    Args:
        config: `max_restarts`, `restart_delay`, `max_restart_delay`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque()

    def note(self, now: float) -> float | None:
        """Note a death; return the seconds to wait before the restart, or None if there were too many."""
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        count = len(self._deaths)
        if count >= self._config.max_restarts:
            return None
        self._deaths.append(now)
        # Not by a power of a large count: that is no float any more.
        doubled: float = self._config.restart_delay * 2.0 ** min(count, 64)
        return min(doubled, self._config.max_restart_delay)


class Start(Protocol):
    """Starts a ring."""

    def __call__(self, tasks: anyio.abc.TaskGroup, /, *, incarnation: int) -> Ring:
        """Return a ring whose tasks are in a group.

        Raises:
            OSError: a process cannot be started.
            UsageError: nothing can be recorded where it should be.
        """
        ...


class Supervisor:
    """The ring that turns now, and what becomes of the engine when it breaks down.

    Args:
        config: how the engine is built.
        tasks: owns everything.
        start: starts a ring, with its tasks in a group, as such an incarnation.
    """

    def __init__(
        self,
        config: EngineConfig,
        tasks: anyio.abc.TaskGroup,
        start: Start,
    ) -> None:
        self.breakdown: Breakdown | None = None
        """What ended the engine before its time."""
        self.ended = anyio.Event()
        """Set once the engine has broken down, or is told to stop."""
        self.restarts = 0
        """How often another ring has taken the place of one that died."""
        self.incarnation = 0
        """How many rings were started before this one, those that never turned included."""
        self.config = config
        self._tasks = tasks
        self._start = start
        self._backoff = Backoff(config)
        self._scope = anyio.CancelScope()
        self._ring: Ring | None = None
        self._own: Own | None = None
        self._ring_tasks: anyio.abc.TaskGroup | None = None
        self._replaced = anyio.Event()

    @property
    def ring(self) -> Ring:
        """The ring that turns, or did last."""
        assert self._ring is not None
        return self._ring

    @property
    def turning(self) -> bool:
        """Whether the ring turns, as far as is known."""
        return self._ring is not None and self._ring.opened and self._ring.breakdown is None

    async def wait_broken(self) -> EngineBroken:
        """Wait until the engine breaks for good; return the error that all waiters get.

        Raises:
            EngineClosed: it was closed, and was not broken before.
        """
        await self.ended.wait()
        if self.breakdown is None:
            raise EngineClosed("the engine was closed, and was not broken before")
        return self.breakdown.error()

    def health(self, manager: TokenizerManager) -> Health:
        """Return how the engine is, with this front."""
        ended = "the engine was closed" if self.breakdown is None else self.breakdown.message
        return take_health(
            ended if self.ended.is_set() else None,
            turning=self.turning,
            draining=manager.drain.begun,
            pulse=manager.pulse,
            ledger=manager.scheduler_ledger,
            stall_timeout=self.config.stall_timeout,
        )

    async def wait_turning(self) -> None:
        """Wait until a ring turns, or none will any more."""
        await anyio.lowlevel.checkpoint()
        while not (self.turning or self.ended.is_set()):
            await self._replaced.wait()

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """The processes besides this one; none between the death of one and the next start."""
        return () if self._ring is None or self._ring.breakdown is not None else self._ring.processes

    async def open(self) -> Ready:
        """Start a ring, and wait until it turns.

        Raises:
            EngineBroken: it broke down before, or took too long.
            OSError: a process could not be started.
            UsageError: nothing can be recorded where it should be.
        """
        own = self._own = Own(shield=False)
        # Not by start(): in a scope that is cancelled already, that waits for what is shielded.
        self._tasks.start_soon(own.run)
        tasks = self._ring_tasks = await own.wait_tasks()
        self._ring = self._start(tasks, incarnation=self.incarnation)
        timeout = self.config.start_timeout
        with anyio.move_on_after(timeout):
            return await self._ring.open()
        raise EngineBroken(
            f"the engine was not ready within {timeout} s; a larger start_timeout would wait longer"
        )

    def serve(self, manager: TokenizerManager) -> None:
        """Have a front hear the ring that was opened, and all that follow it."""
        self._hear(manager)
        self._tasks.start_soon(manager.calls.collector.run)
        self._tasks.start_soon(self._supervise, manager)

    async def stop(self, timeout: float) -> None:
        """End what turns, in order if it is told to by ShutdownReq; after `timeout` seconds kill it."""
        self.ended.set()
        self._replaced.set()
        self._scope.cancel("the engine is being closed")
        if self._ring is not None:
            await self._ring.stop(timeout if self.turning else 0)

    def close(self) -> None:
        """Kill what still runs, and give every descriptor back; all tasks must have ended."""
        if self._ring is not None:
            self._ring.close()

    # --- after a death ------------------------------------------------------------------

    async def _supervise(self, manager: TokenizerManager) -> None:
        with self._scope:
            while True:
                await self.ring.ended.wait()
                breakdown = self.ring.breakdown
                if breakdown is None:  # told to stop
                    return
                while breakdown is not None:
                    delay = self._delay()
                    if delay is None:
                        self._give_up(manager, breakdown)
                        return
                    manager.lose(breakdown.error)
                    logger.warning("%s; it is started again in %g s", breakdown.message, delay)
                    breakdown = await self._replace(manager, delay)

    def _delay(self) -> float | None:
        return None if self.config.supervision == "fail" else self._backoff.note(anyio.current_time())

    def _give_up(self, manager: TokenizerManager, breakdown: Breakdown) -> None:
        if self.config.supervision == "restart":
            most = f"; it is not started again (max_restarts is {self.config.max_restarts})"
            breakdown = msgspec.structs.replace(breakdown, message=breakdown.message + most)
        self.ring.kill()  # one that took too long to start runs still
        self.breakdown = breakdown
        self.ended.set()
        self._replaced.set()
        manager.end(breakdown.error)

    async def _replace(self, manager: TokenizerManager, delay: float) -> Breakdown | None:
        """Put another ring in the place of the one that died; return what became of that if it failed."""
        await self._end_ring()
        await anyio.sleep(delay)
        self.incarnation += 1
        try:
            ready = await self.open()
        except EngineBroken as error:
            return self.ring.breakdown or Breakdown(str(error))
        except (OSError, UsageError) as error:
            return Breakdown(f"the engine cannot be started again: {error}", cause=error)
        # From here on nothing awaits: what the ring says is heard from its beginning.
        self.restarts += 1
        self._hear(manager)
        manager.attach(self.ring.scheduler, self.ring.detokenizers, ready)
        self._replaced.set()
        self._replaced = anyio.Event()
        return None

    async def _end_ring(self) -> None:
        """End a ring with all that belongs to it; harmless if that was done."""
        if self._ring is not None:
            await self._ring.stop(0)
        if self._own is not None:
            self._own.scope.cancel("the ring has broken down")
            await self._own.ended.wait()
        self.close()

    def _hear(self, manager: TokenizerManager) -> None:
        assert self._ring_tasks is not None
        self._ring_tasks.start_soon(self.ring.hear, "scheduler", manager.hear_scheduler)
        for shard, link in enumerate(self.ring.detokenizers):
            self._ring_tasks.start_soon(self.ring.hear, link.peer, partial(manager.hear_detokenizer, shard))
        self._ring_tasks.start_soon(Watchdog(self.config, self.ring, manager.pulse).run)
        self._ring_tasks.start_soon(manager.pulse.run)
