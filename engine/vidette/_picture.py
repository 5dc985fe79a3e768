"""`picture_of()`: what an engine holds and has done, gathered from its front and its supervisor."""

from __future__ import annotations

import msgspec

from vidette._statistics import Ledgers, Statistics
from vidette._supervisor import Supervisor
from vidette.front.manager import TokenizerManager


def picture_of(manager: TokenizerManager, supervisor: Supervisor) -> Statistics:
    """Return a picture of an engine as of now.

    Args:
        manager: its front.
        supervisor: of its processes.
    """
    ledger = manager.scheduler_ledger
    turning = supervisor.turning
    return Statistics(
        ledgers=Ledgers(
            front=len(manager),
            # What a process held has ended with it.
            scheduler=ledger.live if turning else 0,
            detokenizer=manager.detokenizer_open if turning else 0,
            blocks=ledger.blocks_used if turning else 0,
            arena=supervisor.ring.scheduler.bulk_statistics().held if turning else 0,
            sessions=ledger.sessions if turning else 0,
        ),
        totals=msgspec.structs.replace(manager.totals),
        waiting=ledger.waiting,
        steps=ledger.steps,
        processes=supervisor.processes,
        health=supervisor.health(manager),
        restarts=supervisor.restarts,
        incarnation=supervisor.incarnation,
        turning=turning,
        draining=manager.drain.begun,
        scheduler=ledger.totals,
        running=ledger.running,
        max_running=manager.ready.max_running,
        blocks_total=manager.ready.num_blocks,
        blocks_cached=ledger.blocks_cached,
        blocks_host=ledger.blocks_host,
    )
