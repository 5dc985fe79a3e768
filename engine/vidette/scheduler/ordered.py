"""`Ordered`: a set of tuples that is read in order while it changes; pure.

The tuples lie sorted in chunks of a few hundred, so that adding or removing one moves a few hundred pointers
and not all of them: it costs about a microsecond, with a hundred thousand as with ten. Nothing that was
removed stays behind, unlike in a heap, and reading does not disturb it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT", bound=tuple[object, ...])

CHUNK: Final = 512
"""Most items in a chunk: few enough to move at once, and enough that there are few chunks."""


class Ordered(Generic[ItemT]):
    """Different tuples that compare with each other, from the least to the greatest.

    Args:
        chunk: most items in a chunk; one of fewer than a quarter is joined to its neighbour.
    """

    __slots__ = ("_chunk", "_chunks", "_lasts")

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
        self._chunks: list[list[ItemT]] = []
        self._lasts: list[ItemT] = []  # the greatest of each chunk

    @property
    def first(self) -> ItemT | None:
        """The least; None if there is none."""
        return self._chunks[0][0] if self._chunks else None

    def add(self, item: ItemT) -> None:
        """Put an item where it belongs; it is not there yet."""
        if not self._chunks:
            self._chunks.append([item])
            self._lasts.append(item)
            return
        place = min(bisect_left(self._lasts, item), len(self._lasts) - 1)
        insort(self._chunks[place], item)
        self._lasts[place] = self._chunks[place][-1]
        self._split(place)

    def remove(self, item: ItemT) -> None:
        """Take an item out.

        Raises:
            KeyError: it is not there.
        """
        place = bisect_left(self._lasts, item)
        chunk = self._chunks[place] if place < len(self._chunks) else []
        index = bisect_left(chunk, item)
        if index == len(chunk) or chunk[index] != item:
            raise KeyError(item)
        del chunk[index]
        if not chunk:
            del self._chunks[place], self._lasts[place]
            return
        self._lasts[place] = chunk[-1]
        if len(chunk) < self._chunk // 4 and len(self._chunks) > 1:
            self._join(max(place - 1, 0))

    def _split(self, place: int) -> None:
        chunk = self._chunks[place]
        if len(chunk) > self._chunk:
            half = len(chunk) // 2
            self._chunks[place : place + 1] = [chunk[:half], chunk[half:]]
            self._lasts.insert(place, chunk[half - 1])

    def _join(self, place: int) -> None:
        self._chunks[place] += self._chunks.pop(place + 1)
        del self._lasts[place]
        self._split(place)

    def __iter__(self) -> Iterator[ItemT]:
        """Read all from the least on; nothing is added or removed meanwhile."""
        for chunk in self._chunks:
            yield from chunk

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(map(len, self._chunks))
