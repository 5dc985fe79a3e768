"""`ExploredCache`: the engine's cache, whose tables can be looked at; `Memory`: what was computed into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.kv_cache import Hold, KVCache
from vidette.scheduler.radix import Node, RadixCache

NOTHING = -1
"""In a place of the pool where nothing was computed."""


class ExploredRadix(RadixCache):
    """The prefix cache; a mutant takes its place."""

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots."""
        left = [child for root in self._roots.values() for child in root.children.values()]
        while left:
            node = left.pop()
            yield node
            left += node.children.values()

    def picture(self) -> tuple[object, ...]:
        """Return what is cached, how often it is locked, and in what order it was used."""
        used = sorted({node.used for node in self.nodes()})
        return tuple(
            sorted(_picture(child, used) for root in self._roots.values() for child in root.children.values())
        )


def _picture(node: Node, used: list[int]) -> tuple[bytes, int, int, tuple[object, ...]]:
    below = tuple(sorted(_picture(child, used) for child in node.children.values()))
    return node.tokens, node.locks, used.index(node.used), below


class ExploredCache(KVCache):
    """The blocks of one pool.

    Args:
        num_blocks: size of the pool.
        radix: the prefix cache.
    """

    def __init__(self, num_blocks: int, radix: ExploredRadix) -> None:
        super().__init__(num_blocks, radix)
        self.explored = radix

    def free(self) -> list[int]:
        """Return the numbers of the blocks that are free."""
        return self._pool._free

    def check(self, holds: Iterable[Hold]) -> Iterator[str]:
        """Yield a sentence for each rule that the accounts break: held and cached are all that is taken."""
        shared: set[int] = set()
        own: list[int] = []
        for hold in holds:
            shared.update(hold.blocks[: hold.shared])
            own += hold.blocks[hold.shared :]
        used = len(shared.union(own))
        cached = [block for node in self.explored.nodes() for block in node.blocks]
        if self.held != used:
            yield f"5: {used} blocks are used by live requests, and {self.held} are held"
        if len({*cached, *own}) < len(cached) + len(own):
            yield "5: a block belongs to two"
        if not shared.issubset(cached):
            yield "5: a live request shares a block that was evicted"
        if self.lost != len(own):
            yield f"5: {self.lost} blocks are neither free nor cached, and {len(own)} are somebody's own"
        if not shared.isdisjoint(self.free()) or not set(own).isdisjoint(self.free()):
            yield "5: a block that a live request holds is free"


class Read(NamedTuple):
    """Tokens and where their keys and values are."""

    tokens: NDArray[np.int32]
    blocks: list[int]


class Memory:
    """Which token was computed into each place of the pool.

    Args:
        num_blocks: size of the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        self._places = np.full(num_blocks * BLOCK_SIZE, NOTHING, dtype=np.int32)

    def write(self, blocks: list[int], first: int, tokens: NDArray[np.int32]) -> None:
        """Note that tokens are computed.

        Args:
            blocks: of the request.
            first: position of the first of these tokens in it.
            tokens: which.
        """
        for place, token in enumerate(tokens.tolist(), first):
            self._places[blocks[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE] = token

    def forget(self, blocks: Iterable[int]) -> None:
        """Note that blocks are free."""
        for block in blocks:
            self._places[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = NOTHING

    def holds(self, read: Read) -> bool:
        """Return whether what was computed is what is read."""
        tokens = read.tokens
        if not len(tokens):
            return True
        if len(tokens) > len(read.blocks) * BLOCK_SIZE:
            return False
        there = np.concatenate(
            [self._places[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] for block in read.blocks]
        )
        return bool(np.array_equal(there[: len(tokens)], tokens))
