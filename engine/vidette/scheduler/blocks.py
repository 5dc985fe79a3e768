"""Who holds which blocks of the KV pool: pure accounting, no memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class BlockPool(Generic[Owner]):
    """A fixed number of blocks, each free or held by one owner.

    Args:
        num_blocks: size of the pool, at least 1.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 1")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: dict[Owner, list[int]] = {}

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many blocks somebody holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, owner: Owner, count: int) -> list[int]:
        """Give an owner its blocks, all at once or none.

        Raises:
            ValueError: it holds some already, or fewer than `count` are free.
        """
        if owner in self._held:
            raise ValueError(f"{owner!r} holds blocks already")
        if count > len(self._free):
            raise ValueError(f"{count} blocks are wanted, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(count)]
        self._held[owner] = blocks
        return list(blocks)

    def release(self, owner: Owner) -> int:
        """Take back all blocks of an owner; return how many (0 if it holds none)."""
        blocks = self._held.pop(owner, [])
        self._free.extend(blocks)
        return len(blocks)

    def holders(self) -> list[Owner]:
        """Who holds blocks."""
        return list(self._held)
