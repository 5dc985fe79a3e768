"""`Deadlines`: which requests have to end when; pure.

A heap, so that a step costs as much with ten thousand deadlines as with ten. A request that ends before its
deadline leaves an entry behind, which is dropped when its turn comes, or when most of the heap is such.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

from vidette_protocol.ids import Vid

Key = TypeVar("Key", Vid, str)

SLACK: Final = 64
"""Stale entries that are kept whatever the number of live ones."""


class Deadlines(Generic[Key]):
    """Times by vid, or by another name."""

    __slots__ = ("_heap", "_when")

    def __init__(self) -> None:
        self._heap: list[tuple[float, Key]] = []
        self._when: dict[Key, float] = {}

    def set(self, vid: Key, when: float) -> None:
        """Give a vid its deadline; it has none yet.

        Args:
            vid: which.
            when: on the clock of `passed`.
        """
        self._when[vid] = when
        heapq.heappush(self._heap, (when, vid))

    def drop(self, vid: Key) -> None:
        """Forget a vid's deadline; nothing if it has none."""
        if self._when.pop(vid, None) is not None:
            self._compact()

    def passed(self, now: float) -> list[Key]:
        """Return the vids whose deadline has passed, the earliest first, and forget them."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            when, vid = heapq.heappop(self._heap)
            if self._when.get(vid) == when:
                del self._when[vid]
                due.append(vid)
        self._compact()
        return due

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._when) + SLACK:
            self._heap = [(when, vid) for vid, when in self._when.items()]
            heapq.heapify(self._heap)

    @property
    def next(self) -> float | None:
        """When the next deadline is; None if there is none."""
        while self._heap and self._when.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        """Return how many vids have a deadline."""
        return len(self._when)
