"""What must hold in every world; each is a numbered rule of the architecture, section 3.

1. Exactly one end per vid; nothing is delivered after it.
2. Nothing is delivered to a caller whose scope has ended.
3. Nothing of one vid ever reaches the caller of another.
4. Token offsets have no gap and no repeat.
5. Blocks are held by live requests only, and freed once; a request that the front has let go of is not live.
6. After an abort is applied, no batch that launches later contains that vid; blocks in a batch on the device
   are freed only when it lands.
7. At quiescence every table is empty.
8. From every reachable state, if no new work comes, the system becomes quiescent.

Rules 1 to 4 and 6 are about moments, so the world notes a breach as it happens; the others are about states
and are judged here. What a machine raises is a breach of its own: in a world, both sides are ours. Rule 8
needs no search of its own: every action but a new caller uses something up, so every path ends, and it is
enough that wherever one ends, nobody waits and nothing is held.
"""

from __future__ import annotations

from vidette_protocol.lifecycle import FrontState
from vidette_protocol.world import World


def violations(world: World) -> list[str]:
    """Return a sentence for every rule that a world breaks; empty when all hold."""
    found = list(world.faults)
    live = set(world.scheduler.vids())
    strangers = sorted(world.holding - live)
    if strangers:
        found.append(f"5: blocks are held by vids {strangers}, which are not live")
    orphans = [vid for vid in world.scheduler.vids() if world.front.state(vid) is FrontState.OVER]
    if orphans:
        found.append(f"5: the scheduler works for vids {orphans}, which the front has let go of")
    found.extend(
        f"1: vid {vid} has had {heard.ends} ends" for vid, heard in world.callers.items() if heard.ends > 1
    )
    if world.settled:
        found.extend(_leftovers(world))
    return found


def _leftovers(world: World) -> list[str]:
    found = [
        f"8: the caller of vid {vid} waits, and nothing can happen any more"
        for vid, heard in world.callers.items()
        if heard.here and not heard.ends and world.front.state(vid) is not FrontState.NEW
    ]
    waiting_to_be_sent = sum(world.front.state(vid) is FrontState.NEW for vid in world.callers)
    tables = {
        "front": len(world.front) - waiting_to_be_sent,
        "scheduler": len(world.scheduler),
        "detokenizer": len(world.detokenizer),
        "KV pool": len(world.holding),
        "memory of overtaking aborts": _tombstones(world),
    }
    found.extend(
        f"7: the {name} still holds {count} at quiescence" for name, count in tables.items() if count
    )
    return found


def _tombstones(world: World) -> int:
    """Tombstones that would outlive the next frame, once the front holds nothing (its floor spares none)."""
    if len(world.front):
        return 0
    scheduler = world.scheduler.copy()
    scheduler.pass_floor(world.front.floor)
    return scheduler.tombstones
