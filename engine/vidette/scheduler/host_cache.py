"""A second tier of the prefix cache, in host memory: what the pool has no room for is kept and comes back.

The tree is that of `radix`. Each of its nodes lies in one place: in the pool (it has `blocks`), or in the
second tier (it has `slots`). Below a node of the second tier all are of the second tier, so a match is a
stretch in the pool and then, perhaps, one in host memory. Nothing is kept twice: the tiers together hold as
much as both have room for.

A leaf that is evicted from the pool is copied out. If the second tier is full, what is there and goes before
the leaf in the order of eviction (lowest priority, then least recently used) makes room; if that is not
enough, the beginning of the leaf is kept and its end is dropped. Whatever hangs from a leaf goes before it in
that order, so nothing is ever left without its beginning.

Whoever wants the second stretch of a match has it loaded:

1. `lock(match.host_node)`, so that it stays whatever is evicted, in both tiers,
2. have `match.host_blocks` free blocks, by `evict` if need be,
3. `load(match, blocks)`: from now on they are the cache's, and the whole prefix lies in the pool.

Who computes it anew instead loses nothing: `insert` takes the new blocks and drops the copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE, BlockCopier
from vidette.scheduler.radix import Match, Node, RadixCache


class BlockStore(Protocol):
    """Memory for copies of blocks, in numbered slots. Which of them are in use is the cache's to know."""

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        ...

    def put(self, slots: Sequence[int], payload: NDArray[Any]) -> None:
        """Keep copies: row `i` of the payload in slot `slots[i]`."""
        ...

    def get(self, slots: Sequence[int]) -> NDArray[Any]:
        """Return what is in these slots, in this order."""
        ...

    def drop(self, slots: Sequence[int]) -> None:
        """Forget what is in these slots."""
        ...


class HostMemory:
    """A `BlockStore` in RAM, taken from the system as it fills.

    Args:
        capacity: how many blocks.
        half: whether floating-point values are kept in 16 bits: half the memory, but a value that comes back
            is off by up to 1/2048 of itself (by 3e-8 if it is below 6e-5; beyond 65504 it becomes that), so a
            text may depend on whether its prefix was here. Otherwise all comes back bit for bit.
    """

    def __init__(self, capacity: int, *, half: bool = False) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}; it is 0 or more")
        self._capacity = capacity
        self._half = half
        self._rows: NDArray[Any] | None = None
        self._dtype: np.dtype[Any] = np.dtype(np.float32)

    @property
    def capacity(self) -> int:
        """How many blocks it has room for."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes it takes when it is full; 0 as long as nothing was kept."""
        return 0 if self._rows is None else self._rows.nbytes

    def put(self, slots: Sequence[int], payload: NDArray[Any]) -> None:
        """Keep copies, as `BlockStore.put` says."""
        half = self._half and np.issubdtype(payload.dtype, np.floating)
        if self._rows is None:
            self._dtype = payload.dtype
            shape = (self._capacity, *payload.shape[1:])
            self._rows = np.empty(shape, dtype=np.float16 if half else payload.dtype)
        if half:
            most = np.finfo(np.float16).max
            payload = payload.clip(-most, most)
        self._rows[list(slots)] = payload

    def get(self, slots: Sequence[int]) -> NDArray[Any]:
        """Return copies, as `BlockStore.get` says."""
        assert self._rows is not None, "something was put"
        return self._rows[list(slots)].astype(self._dtype, copy=False)

    def drop(self, slots: Sequence[int]) -> None:
        """Nothing: a slot is written before it is read again."""


class TieredCache(RadixCache):
    """A prefix cache whose evicted blocks go to a store.

    Args:
        copier: copies blocks out of the pool and back into it; the model.
        store: the second tier.
        block_size: tokens of a block.
        record_events: as for `RadixCache`. A block is removed when neither tier has it any more.
    """

    def __init__(
        self,
        copier: BlockCopier,
        store: BlockStore,
        block_size: int = BLOCK_SIZE,
        *,
        record_events: bool = False,
    ) -> None:
        super().__init__(block_size, record_events=record_events)
        self._copier = copier
        self._store = store
        self._free_slots = list(range(store.capacity - 1, -1, -1))
        self._host_leaves: list[tuple[int, int, int, Node]] = []

    @property
    def host_cached(self) -> int:
        """How many blocks are in the second tier."""
        return self._store.capacity - len(self._free_slots)

    def load(self, match: Match, blocks: Sequence[int]) -> None:
        """Copy what a match found in the second tier into the pool, as `RadixCache.load` says."""
        super().load(match, blocks)
        path: list[Node] = []
        node = match.host_node
        while node is not None and node.slots:
            path.append(node)
            node = node.parent
        slots = [slot for node in reversed(path) for slot in node.slots]
        if len(slots) != match.host_blocks:
            raise ValueError("what was found in the second tier is not there any more: lock it first")
        if slots:
            self._copier.import_blocks(blocks, self._store.get(slots))
            self._settle(path[::-1], blocks)

    def clear_host(self) -> int:
        """Empty the second tier but for what is locked; return how many blocks were dropped."""
        before = self.host_cached
        while (leaf := self._next_host_leaf()) is not None:
            self._drop_host(leaf)
        return before - self.host_cached

    # --- what the tree asks ------------------------------------------------------

    def _settle(self, path: list[Node], blocks: Sequence[int]) -> None:
        """Have the nodes of a way lie in the pool, in the blocks at their place."""
        place = 0
        for node in path:
            count = len(node.blocks) + len(node.slots)
            if node.slots:
                self._free(node)
                node.blocks = list(blocks[place : place + count])
                assert node.parent is not None
                node.parent.resident += 1
                self._cached += count
                self._evictable += 0 if node.locks else count
            place += count
        for node in path:
            self._queue(node)

    def _queue(self, node: Node) -> None:
        super()._queue(node)
        if node.slots and not (node.host_queued or node.locks or node.children):
            node.host_queued = True
            entry = (node.priority, node.used, next(self._serial), node)
            heapq.heappush(self._host_leaves, entry)

    def _give_up(self, leaf: Node) -> list[int]:
        """Copy a leaf out, or as much of its beginning as there is room for; drop the rest."""
        freed: list[int] = []
        room = self._make_room(leaf)
        if room < len(leaf.blocks):
            upper = self._split(leaf, room * self._width) if room else None
            freed += super()._give_up(leaf)
            if upper is None:
                return freed
            leaf = upper
        leaf.slots = [self._free_slots.pop() for _ in leaf.blocks]
        self._store.put(leaf.slots, self._copier.export_blocks(leaf.blocks))
        freed += self._vacate(leaf)
        self._queue(leaf)
        return freed

    def _drop_all(self) -> list[int]:
        self.clear_host()
        freed: list[int] = []
        while (leaf := self._next_leaf()) is not None:
            freed += super()._give_up(leaf)
        return freed

    # --- the second tier ---------------------------------------------------------

    def _make_room(self, leaf: Node) -> int:
        """Return for how many blocks of a leaf there is room, once all that goes before it has gone."""
        wanted = len(leaf.blocks)
        while len(self._free_slots) < wanted:
            victim = self._next_host_leaf((leaf.priority, leaf.used))
            if victim is None:
                break
            excess = len(self._free_slots) + len(victim.slots) - wanted
            if excess > 0:
                self._split(victim, excess * self._width)
            self._drop_host(victim)
        return min(wanted, len(self._free_slots))

    def _next_host_leaf(self, most: tuple[int, int] | None = None) -> Node | None:
        """Take the leaf that goes next out of the heap, unless its (priority, stamp) is above `most`."""
        while self._host_leaves:
            priority, used, _, node = self._host_leaves[0]
            fresh = (node.priority, node.used) == (priority, used)
            if fresh and most is not None and (priority, used) > most:
                return None
            heapq.heappop(self._host_leaves)
            node.host_queued = False
            if not fresh:
                self._queue(node)
            elif node.slots and not (node.locks or node.children):
                return node
        return None

    def _drop_host(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        self._free(leaf)
        self._detach(leaf)
        self._queue(parent)

    def _free(self, node: Node) -> None:
        self._store.drop(node.slots)
        self._free_slots += node.slots
        node.slots = []


def make_cache(copier: BlockCopier, host_blocks: int, *, record_events: bool = False) -> RadixCache:
    """Return a prefix cache, with a second tier in RAM if that has any blocks."""
    if not host_blocks:
        return RadixCache(record_events=record_events)
    return TieredCache(copier, HostMemory(host_blocks), record_events=record_events)
