"""`Statistics` and `Ledgers`: a picture of an engine."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from vidette._health import Health
from vidette._ring import ProcessInfo
from vidette.front.totals import Totals
from vidette_protocol.messages import KvMetrics, SchedulerTotals


class Ledgers(Struct, frozen=True):
    """What is held, by whom; all zero when nothing lives.

    Args:
        front: requests that are not over in the front, those included whose abort is on its way.
        scheduler: requests that the scheduler holds.
        detokenizer: requests that the detokenizers hold.
        blocks: blocks of the KV pool that are taken.
        arena: extents of the memory shared with the scheduler that are taken, lent or viewed, either way.
        lora: adapters that are held (there are none yet).
        sessions: sessions that are open.
    """

    front: int
    scheduler: int
    detokenizer: int
    blocks: int
    arena: int = 0
    lora: int = 0
    sessions: int = 0

    def total(self) -> int:
        """Return the sum of all ledgers."""
        return sum(msgspec.structs.astuple(self))


class Statistics(Struct, frozen=True):
    """A picture of an engine.

    What the other roles hold is as of the last they said, and every step that changes it says so: once the
    front's ledger is zero, all of it is current.

    Args:
        ledgers: what is held, by whom.
        totals: what has become of requests since the start.
        waiting: requests that wait for blocks or their turn.
        steps: steps the scheduler has taken.
        processes: the processes of the engine besides this one.
        health: whether it lives, makes progress, and is ready.
        restarts: how often scheduler and detokenizer were started again after one of them had died.
        incarnation: how often that was tried.
        turning: whether they run, as far as is known; requests wait while they are started again.
        draining: whether the engine is being closed, and takes nothing new.
        scheduler: what the scheduler has done since it was started.
        running: requests that hold blocks and are computed.
        max_running: most that can be at once.
        blocks_total: blocks of the KV pool.
        blocks_cached: those of them that no request uses, kept for whoever begins alike; as good as free.
        blocks_host: blocks in the second tier of the cache.
    """

    ledgers: Ledgers
    totals: Totals
    waiting: int
    steps: int
    processes: tuple[ProcessInfo, ...]
    health: Health
    restarts: int = 0
    incarnation: int = 0
    turning: bool = True
    draining: bool = False
    scheduler: SchedulerTotals = SchedulerTotals()
    running: int = 0
    max_running: int = 0
    blocks_total: int = 0
    blocks_cached: int = 0
    blocks_host: int = 0

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1."""
        return self.ledgers.blocks / self.blocks_total if self.blocks_total else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of the tokens of prompts that the prefix cache had, since the scheduler was started."""
        begun = self.scheduler.begun_tokens
        return self.scheduler.cached_tokens / begun if begun else 0.0

    @property
    def retractions(self) -> int:
        """How often a request's blocks were taken for others since the scheduler was started."""
        return self.scheduler.retracted

    @property
    def step_age_s(self) -> float:
        """How old the oldest question is that the step loop has not answered; 0 if none is on its way."""
        return self.health.silence_s

    def kv_metrics(self) -> KvMetrics:
        """Return what whoever routes is told: how full the scheduler is."""
        return KvMetrics(
            request_active_slots=self.running,
            request_total_slots=self.max_running,
            kv_active_blocks=self.ledgers.blocks,
            kv_total_blocks=self.blocks_total,
            num_requests_waiting=self.waiting,
            gpu_cache_usage_perc=self.usage,
            gpu_prefix_cache_hit_rate=self.cache_hit_rate,
        )
