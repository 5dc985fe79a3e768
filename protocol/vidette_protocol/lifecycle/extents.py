"""Which stretches of an arena are free: arithmetic alone, no memory.

Only the producer allocates, so nothing is shared with the other process and nothing needs a lock. The first
gap that is large enough is taken, in whole granules; what is given back joins the gaps beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Self

from vidette_protocol.errors import LocalProtocolError

GRANULE: Final = 4096
"""Extents begin and end at multiples of a page, so whatever begins an extent is aligned."""


def whole(nbytes: int, granule: int = GRANULE) -> int:
    """Return how much an extent for so many bytes takes: whole granules, at least one."""
    return max(-(-nbytes // granule), 1) * granule


class Extents:
    """The gaps in a stretch of memory, kept in order.

    Args:
        nbytes: how long the memory is, a multiple of the granule.
        granule: what extents begin and end at multiples of, in bytes.
    """

    __slots__ = ("_granule", "_lengths", "_starts", "free", "nbytes")

    def __init__(self, nbytes: int, granule: int = GRANULE) -> None:
        if nbytes <= 0 or nbytes % granule:
            raise ValueError(f"{nbytes} bytes are no whole number of granules of {granule}")
        self.nbytes = nbytes
        self.free = nbytes
        """Bytes in all gaps together."""
        self._granule = granule
        self._starts = [0]
        self._lengths = [nbytes]

    def take(self, sizes: Sequence[int]) -> list[int] | None:
        """Take an extent for each of the sizes, or none at all.

        Args:
            sizes: in bytes; each is rounded up to whole granules.

        Returns:
            Where they begin, or None if they do not all fit just now.
        """
        lengths = [whole(size, self._granule) for size in sizes]
        if sum(lengths) > self.free:
            return None
        taken: list[int] = []
        for length in lengths:
            start = self._take_one(length)
            if start is None:
                for earlier, nbytes in zip(taken, sizes, strict=False):
                    self.give(earlier, nbytes)
                return None
            taken.append(start)
        return taken

    def give(self, start: int, nbytes: int) -> None:
        """Give an extent back.

        Args:
            start: where it begins.
            nbytes: as it was taken, rounded or not.

        Raises:
            LocalProtocolError: some of it is free already, or it lies outside.
        """
        end = start + whole(nbytes, self._granule)
        after = bisect_right(self._starts, start)
        before = after - 1
        floor = self._starts[before] + self._lengths[before] if before >= 0 else 0
        ceiling = self._starts[after] if after < len(self._starts) else self.nbytes
        if start % self._granule or start < floor or end > ceiling:
            raise LocalProtocolError(f"bytes {start} to {end} of an arena are not taken")
        self.free += end - start
        joins_before = before >= 0 and floor == start
        joins_after = after < len(self._starts) and ceiling == end
        if joins_before and joins_after:
            self._lengths[before] += end - start + self._lengths[after]
            del self._starts[after], self._lengths[after]
        elif joins_before:
            self._lengths[before] += end - start
        elif joins_after:
            self._starts[after] = start
            self._lengths[after] += end - start
        else:
            self._starts.insert(after, start)
            self._lengths.insert(after, end - start)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Where each gap begins and how long it is, in order."""
        return list(zip(self._starts, self._lengths, strict=True))

    def copy(self) -> Self:
        """Return an independent one with the same gaps."""
        twin = type(self).__new__(type(self))
        twin.nbytes = self.nbytes
        twin.free = self.free
        twin._granule = self._granule
        twin._starts = self._starts.copy()
        twin._lengths = self._lengths.copy()
        return twin

    def _take_one(self, length: int) -> int | None:
        for index, room in enumerate(self._lengths):
            if room >= length:
                start = self._starts[index]
                if room == length:
                    del self._starts[index], self._lengths[index]
                else:
                    self._starts[index] += length
                    self._lengths[index] -= length
                self.free -= length
                return start
        return None
