"""rid and vid: the two names of a request.

A *rid* is a reusable slot, named by the caller. A *vid* is one use of a slot: 63 bits, the front's id in
the high 15, a counter that only grows in the low 48. A vid is never reused, so a message that carries one
can be judged by it alone, whatever has become of the slot since. In JSON a vid is a string, since numbers
above 2**53 do not survive JavaScript.
"""

from __future__ import annotations

from typing import NewType

Rid = NewType("Rid", str)
Vid = NewType("Vid", int)

COUNTER_BITS = 48
FRONT_BITS = 15
MAX_FRONT_ID = (1 << FRONT_BITS) - 1
MAX_COUNTER = (1 << COUNTER_BITS) - 1
MAX_VID = (1 << (FRONT_BITS + COUNTER_BITS)) - 1


def make_vid(front_id: int, count: int) -> Vid:
    """Join a front's id and its counter to a vid.

    Args:
        front_id: 0 to MAX_FRONT_ID, unique among the fronts of a deployment.
        count: 0 to MAX_COUNTER; 2**48 requests take nine years at a million a second.

    Raises:
        ValueError: one of them is out of range.
    """
    if not 0 <= front_id <= MAX_FRONT_ID:
        raise ValueError(f"front_id {front_id} is not within 0 to {MAX_FRONT_ID}")
    if not 0 <= count <= MAX_COUNTER:
        raise ValueError(f"count {count} is not within 0 to {MAX_COUNTER}")
    return Vid(front_id << COUNTER_BITS | count)


def front_of(vid: Vid) -> int:
    """Return the id of the front that issued a vid."""
    return vid >> COUNTER_BITS


def count_of(vid: Vid) -> int:
    """Return the position of a vid in its front's order of issue."""
    return vid & MAX_COUNTER


def label(vid: Vid) -> str:
    """Return a vid for people: its count, behind the front's id unless that is 0."""
    front, count = front_of(vid), count_of(vid)
    return f"{front}:{count}" if front else str(count)
