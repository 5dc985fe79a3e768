"""Which blocks of the KV pool are free: pure accounting, no memory."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """A fixed number of blocks, each free or taken.

    Args:
        num_blocks: size of the pool, at least 1.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 1")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._taken = bytearray(num_blocks)

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def taken(self) -> int:
        """How many blocks somebody holds."""
        return self.num_blocks - len(self._free)

    def take(self, count: int) -> list[int]:
        """Take so many blocks, all at once or none.

        Raises:
            ValueError: fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks are wanted, {len(self._free)} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._taken[block] = 1
        return blocks

    def give_back(self, blocks: Iterable[int]) -> None:
        """Give blocks back.

        Raises:
            ValueError: one of them is free already; those before it are given back.
        """
        for block in blocks:
            if not self._taken[block]:
                raise ValueError(f"block {block} is given back twice")
            self._taken[block] = 0
            self._free.append(block)
