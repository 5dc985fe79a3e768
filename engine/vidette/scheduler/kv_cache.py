"""`KVCache`: which blocks of the pool a request holds, and which hold what others can use again; pure.

A block is free, or a request's own, or in the prefix cache. What a request has computed passes into the cache
block by block as it is filled, while the request goes on using it; so whoever comes next with the same
beginning finds it, and a request that is retracted finds itself. Cached blocks that no request uses are as
good as free: they are evicted when there are not enough of those.

The rule for a request that is aborted is that of every other: its whole blocks are right, so they stay cached
until they are evicted, and only the unfinished one at its end is freed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.blocks import BlockPool
from vidette.scheduler.host_cache import TieredCache
from vidette.scheduler.radix import KVEvent, Namespace, Node, RadixCache

Tokens = NDArray[np.int32]


class NextBlock(NamedTuple):
    """The first whole block of a request that is not cached: where it belongs, and what it holds."""

    space: Namespace
    parent: int
    """Of the node that it belongs under, which names no other as long as something of it lives; 0: a root."""
    tokens: bytes


class Hold:
    """What one request holds of the pool.

    Attributes:
        blocks: numbers of its blocks, in the order of its tokens.
        shared: how many of them, from the first, are in the cache; the rest are its own.
        node: where in the cache these end.
        loaded: how many came back from the second tier for it.
        table: the numbers once more, for a plan to copy; behind them may be zeros.
        version: another whenever a number has changed, and none that another hold of the cache ever had.
    """

    __slots__ = ("blocks", "loaded", "node", "shared", "table", "version")

    def __init__(self, blocks: list[int], node: Node, *, loaded: int, version: int) -> None:
        self.version = version
        self.loaded = loaded
        self.blocks = blocks
        self.shared = len(blocks)
        self.node = node
        self.table: NDArray[np.int32] = np.array(blocks, dtype=np.int32)

    def append(self, blocks: list[int], version: int) -> None:
        """Hold more blocks."""
        self.version = version
        start = len(self.blocks)
        self.blocks += blocks
        if len(self.blocks) > len(self.table):
            more = np.zeros(max(len(blocks), start, 8), dtype=np.int32)
            self.table = np.concatenate((self.table[:start], more))
        self.table[start : len(self.blocks)] = blocks

    def share(self, blocks: Sequence[int], node: Node, version: int) -> None:
        """Hold what is in the cache in the place of its first blocks."""
        self.version = version
        count = len(blocks)
        self.blocks[:count] = blocks
        self.table[:count] = blocks
        self.node, self.shared = node, count

    @property
    def alone(self) -> int:
        """How many of them nobody else uses: those that others could have without it."""
        count, node = len(self.blocks) - self.shared, self.node
        while node.parent is not None and node.locks == 1:
            count += len(node.blocks)
            node = node.parent
        return count


class Found(NamedTuple):
    """What a request would find in the cache.

    Args:
        tokens: how many of its tokens.
        pinned: blocks that could be evicted now, and not any more once it uses them.
        next: its first whole block that is not there; None if there is none.
    """

    tokens: int
    pinned: int
    next: NextBlock | None


class KVCache:
    """The blocks of one pool.

    Args:
        num_blocks: size of the pool.
        radix: the prefix cache; one with a second tier if evicted blocks are to come back.
    """

    def __init__(self, num_blocks: int, radix: RadixCache) -> None:
        self._pool = BlockPool(num_blocks)
        self._radix = radix
        self._versions = count(1)

    @property
    def available(self) -> int:
        """Blocks that are free, or can be had by evicting what is cached."""
        return self._pool.free + self._radix.evictable

    @property
    def held(self) -> int:
        """Blocks that requests hold, those included that they share."""
        return self._pool.taken - self._radix.evictable

    @property
    def cached(self) -> int:
        """Blocks in the cache that no request uses."""
        return self._radix.evictable

    def peek(self, space: Namespace, tokens: Tokens, limit: int) -> int:
        """Return how many tokens `find` would find; nothing changes."""
        return self._radix.peek(space, tokens[: limit // BLOCK_SIZE * BLOCK_SIZE])

    @property
    def lost(self) -> int:
        """Blocks that are neither free nor in the cache: 0 once nobody holds any, unless some were lost."""
        return self._pool.taken - self._radix.cached

    @property
    def tiered(self) -> bool:
        """Whether there is a second tier."""
        return isinstance(self._radix, TieredCache)

    @property
    def host_cached(self) -> int:
        """Blocks in the second tier."""
        return self._radix.host_cached

    def find(self, space: Namespace, tokens: Tokens, limit: int) -> Found:
        """Look what a request would find.

        Args:
            space: whose cache.
            tokens: all that are known of it.
            limit: at most so many of them may be taken from the cache.
        """
        whole = limit // BLOCK_SIZE * BLOCK_SIZE
        match = self._radix.match(space, tokens[:whole])
        end = match.host_node or match.node
        there = (len(match.blocks) + match.host_blocks) * BLOCK_SIZE
        # What lies in the second tier takes free blocks to come back to: as if as many were pinned.
        pinned = self._radix.newly_locked(end) + match.host_blocks
        return Found(there, pinned, _next_block(space, end, tokens, there))

    def begin(self, space: Namespace, tokens: Tokens, limit: int) -> Hold:
        """Have a request hold what is there of its beginning; arguments as for `find`."""
        match = self._radix.match(space, tokens[: limit // BLOCK_SIZE * BLOCK_SIZE])
        end = match.host_node or match.node
        self._radix.lock(end)
        loaded = self._take(match.host_blocks)
        self._radix.load(match, loaded)
        blocks = [*match.blocks, *loaded]
        return Hold(blocks, end, loaded=len(loaded), version=next(self._versions))

    def grow(self, hold: Hold, length: int) -> None:
        """Have a request hold blocks for so many tokens.

        Raises:
            ValueError: there are not enough, which whoever schedules has to see to.
        """
        missing = -(-length // BLOCK_SIZE) - len(hold.blocks)
        if missing > 0:
            hold.append(self._take(missing), next(self._versions))

    def _take(self, wanted: int) -> list[int]:
        self._pool.give_back(self._radix.evict(wanted - self._pool.free))
        return self._pool.take(wanted)

    def share(
        self, hold: Hold, space: Namespace, tokens: Tokens, computed: int, priority: int = 0
    ) -> NextBlock | None:
        """Put the whole blocks that a request has computed into the cache; return what it computes next.

        Where another has put the same there meanwhile, the request goes on with that one's.
        """
        whole = computed // BLOCK_SIZE
        if whole > hold.shared:
            inserted = self._radix.insert(
                space, tokens[: whole * BLOCK_SIZE], hold.blocks[:whole], priority=priority
            )
            self._radix.lock(inserted.node)
            self._radix.unlock(hold.node)
            self._pool.give_back(inserted.surplus)
            hold.share(inserted.blocks, inserted.node, next(self._versions))
        return _next_block(space, hold.node, tokens, hold.shared * BLOCK_SIZE)

    def release(self, hold: Hold, space: Namespace, tokens: Tokens, computed: int, priority: int = 0) -> None:
        """Let go of all that a request holds; its whole blocks stay cached."""
        self.share(hold, space, tokens, computed, priority)
        self._radix.unlock(hold.node)
        self._pool.give_back(hold.blocks[hold.shared :])
        hold.blocks = []

    def discard(self, hold: Hold) -> None:
        """Let go of all that a request holds whose logits were nonsense; nobody is to find it."""
        self._radix.unlock(hold.node)
        self._pool.give_back(self._radix.drop(hold.node))
        self._pool.give_back(hold.blocks[hold.shared :])
        hold.blocks = []

    def clear(self) -> int:
        """Empty the cache, but for what requests use; return how many blocks became free."""
        blocks = self._radix.clear()
        self._pool.give_back(blocks)
        return len(blocks)

    def clear_host(self) -> int:
        """Empty the second tier, but for what is about to come back; return how many blocks were dropped."""
        return self._radix.clear_host()

    def take_events(self) -> list[KVEvent]:
        """Return what was stored and removed since the last call, if that is recorded."""
        return self._radix.take_events()


def _next_block(space: Namespace, node: Node, tokens: Tokens, start: int) -> NextBlock | None:
    end = start + BLOCK_SIZE
    if end > len(tokens):
        return None
    # Roots come and go, and another's may have the same address.
    return NextBlock(space, 0 if node.parent is None else id(node), tokens[start:end].tobytes())
