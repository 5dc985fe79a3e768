"""What must hold in every world; each is a numbered rule of the architecture, section 3.

1. Exactly one end per request; nothing is delivered after it.
2. Nothing is delivered to a caller whose scope has ended, and nothing goes on for him elsewhere.
3. Nothing of one vid ever reaches the caller of another.
4. Token offsets have no gap and no repeat, whichever vids a request goes through.
5. Blocks are held by live requests only, and freed once; a request that the front has let go of is not live.
6. After an abort is applied, no batch that launches later contains that vid; blocks in a batch on the device
   are freed only when it lands.
7. At quiescence every table is empty.
8. From every reachable state, if no new work comes, the system becomes quiescent.
9. When a replica dies, whoever waits for it is told or goes on elsewhere, and nobody else is told.
10. A decode of arbitrary bytes gives a message or `DecodeError`. (The codec's: no world shows it.)

Rules 1 to 4, 6 and 9 are about moments, so the world notes a breach as it happens; the others are about
states and are judged here. What a machine raises is a breach of its own: in a world, both sides are ours.
Rule 8 needs no search of its own: every action but a new caller uses something up, so every path ends, and it
is enough that wherever one ends, nobody waits and nothing is held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vidette_protocol.ids import Vid, label
from vidette_protocol.lifecycle import FrontState

if TYPE_CHECKING:
    from vidette_protocol.world import World


def violations(world: World) -> list[str]:
    """Return a sentence for every rule that a world breaks; empty when all hold."""
    found = list(world.faults)
    for replica in world.replicas:
        found += replica.faults
        live = replica.scheduler.vids()
        strangers = replica.holding.difference(live)
        if strangers:
            found.append(f"5: blocks are held by vids {_labels(strangers)}, which are not live")
        orphans = [vid for vid in live if world.front_state(vid) is FrontState.OVER]
        if orphans:
            found.append(f"5: the scheduler works for vids {_labels(orphans)}, which the front has let go of")
    for stream in world.streams.values():
        if stream.ends > 1:
            found.append(f"1: vid {label(stream.vid)} has had {stream.ends} ends")
    if world.settled:
        found += _leftovers(world)
    return found


def _leftovers(world: World) -> list[str]:
    found = []
    to_be_sent = 0
    for stream in world.streams.values():
        if not stream.here:
            continue
        if world.front_state(stream.vid) is FrontState.NEW:
            to_be_sent += 1
        elif not stream.ends:
            found.append(f"8: the caller of vid {label(stream.vid)} waits, and nothing can happen any more")
    tables = {
        "front": sum(map(len, world.fronts)) - to_be_sent,
        "scheduler": sum(len(replica.scheduler) for replica in world.replicas),
        "detokenizer": sum(len(replica.detokenizer) for replica in world.replicas),
        "KV pool": sum(len(replica.holding) for replica in world.replicas),
        "memory of overtaking aborts": _tombstones(world),
        "table of groups": _groups(world),
    }
    found += [f"7: the {name} still holds {count} at quiescence" for name, count in tables.items() if count]
    return found


def _tombstones(world: World) -> int:
    """Tombstones that outlive the next frames, once the fronts hold nothing (their floors spare none)."""
    if any(map(len, world.fronts)):
        return 0
    left = 0
    for replica in world.replicas:
        if replica.scheduler.tombstones:
            scheduler = replica.scheduler.copy()
            for front in world.fronts:
                scheduler.pass_floor(front.floor)
            left += scheduler.tombstones
    return left


def _groups(world: World) -> int:
    """Groups of which no request lives any more."""
    return sum(len(front.key().groups) for front in world.fronts if not len(front))


def _labels(vids: Iterable[Vid]) -> str:
    return f"[{', '.join(map(label, sorted(vids)))}]"
