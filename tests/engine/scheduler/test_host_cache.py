"""The second tier: what leaves the pool comes back as it was, or was rightly dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from vidette.scheduler.host_cache import HostMemory, TieredCache
from vidette.scheduler.radix import Match, Namespace, RadixCache, block_hashes
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

HERE = Namespace()
SIZE = 2


def ids(text: str) -> NDArray[np.int32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.int32)


def content(space: Namespace, text: str) -> list[int]:
    """Return what every block of a prompt has to hold: something of all that is before its end."""
    return [hash_ >> 1 for hash_ in block_hashes(space, ids(text), SIZE)]


class Pool:
    """Blocks that hold one number each; what nobody holds is -1."""

    def __init__(self, num_blocks: int, capacity: int, **options: bool) -> None:
        self.values = np.full(num_blocks, -1, dtype=np.int64)
        self.free = list(range(num_blocks))
        self.copied: list[int] = []
        self.cache = TieredCache(self, HostMemory(capacity), SIZE, **options)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        assert (self.values[list(blocks)] != -1).all()
        self.copied.append(len(blocks))
        return self.values[list(blocks), None]

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        self.values[list(blocks)] = payload[:, 0]

    def take(self, count: int) -> list[int]:
        """Return so many free blocks, which others make room for if need be and possible."""
        self.give_back(self.cache.evict(count - len(self.free)))
        return [self.free.pop() for _ in range(min(count, len(self.free)))]

    def give_back(self, blocks: Sequence[int]) -> None:
        self.values[list(blocks)] = -1
        self.free += blocks

    def put(self, text: str, space: Namespace = HERE, priority: int = 0) -> None:
        """Compute all blocks of a prompt and insert them."""
        blocks = self.take(len(text) // SIZE)
        assert len(blocks) == len(text) // SIZE
        self.values[blocks] = content(space, text)
        self.give_back(self.cache.insert(space, ids(text), blocks, priority=priority).surplus)

    def load(self, text: str, space: Namespace = HERE) -> Match:
        """Have all that is cached of a prompt in the pool."""
        match = self.cache.match(space, ids(text))
        if match.host_node is not None:
            self.cache.lock(match.host_node)
            self.cache.load(match, self.take(match.host_blocks))
            self.cache.unlock(match.host_node)
        match = self.cache.match(space, ids(text))
        assert self.values[list(match.blocks)].tolist() == content(space, text)[: len(match.blocks)]
        return match

    def found(self, text: str) -> tuple[int, int]:
        """Return how many blocks of a prompt are in the pool, and how many after these in the second tier."""
        match = self.cache.match(HERE, ids(text))
        assert self.cache.peek(HERE, ids(text)) == SIZE * (len(match.blocks) + match.host_blocks)
        return len(match.blocks), match.host_blocks


def test_what_was_evicted_comes_back() -> None:
    pool = Pool(4, 10)
    pool.put("aabbcc")
    pool.put("ddeeff")
    assert pool.found("aabbcc") == (1, 2)
    assert pool.found("aabbxx") == (1, 1)
    assert pool.load("aabbcc").host_node is None
    assert pool.found("aabbcc") == (3, 0)
    assert pool.found("ddeeff") == (1, 2)
    assert (pool.cache.cached, pool.cache.evictable, pool.cache.host_cached) == (4, 4, 2)


def test_it_can_go_and_come_back_again_and_again() -> None:
    pool = Pool(6, 6)
    pool.put("aabbcc")
    for count in (1, 2, 3, 3, 2, 1, 3):
        pool.give_back(pool.cache.evict(count))
        assert pool.found("aabbcc") == (3 - count, count)
        pool.load("aabbcc")
        assert len(pool.free) == 3
        assert (pool.cache.cached, pool.cache.evictable, pool.cache.host_cached) == (3, 3, 0)


def test_a_node_is_copied_at_once() -> None:
    pool = Pool(8, 10)
    pool.put("aabbccddee")
    pool.put("ffgghhiijjkkll")
    assert pool.copied == [4]


def test_what_is_computed_anew_needs_no_copy() -> None:
    pool = Pool(8, 10)
    pool.put("aabbccdd")
    pool.cache.lock(pool.cache.match(HERE, ids("aa")).node)
    pool.give_back(pool.cache.evict(3))
    assert pool.found("aabbccdd") == (1, 3)
    pool.put("aabbcc")
    assert pool.found("aabbccdd") == (3, 1)
    assert (pool.cache.cached, pool.cache.evictable, pool.cache.host_cached) == (3, 2, 1)
    assert len(pool.free) == 5


def test_a_full_second_tier_keeps_what_was_used_last() -> None:
    pool = Pool(10, 3)
    pool.put("aabb")
    pool.put("ccdd")
    pool.give_back(pool.cache.evict(4))
    assert pool.found("aabb") == (0, 1)
    assert pool.found("ccdd") == (0, 2)
    pool.put("ee")
    pool.found("ccdd")
    pool.give_back(pool.cache.evict(1))
    assert (pool.found("aabb"), pool.found("ccdd"), pool.found("ee")) == ((0, 0), (0, 2), (0, 1))


def test_what_is_less_worth_than_the_second_tier_is_dropped() -> None:
    pool = Pool(10, 2)
    pool.put("aabb", priority=1)
    pool.give_back(pool.cache.evict(2))
    pool.put("ccdd")
    pool.give_back(pool.cache.evict(2))
    assert (pool.found("aabb"), pool.found("ccdd")) == ((0, 2), (0, 0))
    assert len(pool.free) == 10


def test_the_beginning_is_kept_where_not_all_fits() -> None:
    pool = Pool(10, 3)
    pool.put("aabbccddee")
    assert len(pool.cache.evict(5)) == 5
    assert pool.found("aabbccddee") == (0, 3)


def test_without_room_it_is_a_cache_of_one_tier() -> None:
    pool = Pool(10, 0)
    pool.put("aabb")
    assert len(pool.cache.evict(9)) == 2
    assert (pool.found("aabb"), pool.copied) == ((0, 0), [])


def test_what_is_locked_stays_in_the_second_tier() -> None:
    pool = Pool(10, 2)
    pool.put("aabb")
    pool.give_back(pool.cache.evict(2))
    match = pool.cache.match(HERE, ids("aabb"))
    assert match.host_node is not None
    pool.cache.lock(match.host_node)
    pool.put("ccdd")
    pool.give_back(pool.cache.evict(2))
    assert pool.cache.clear_host() == 0
    assert (pool.found("aabb"), pool.found("ccdd")) == ((0, 2), (0, 0))
    pool.cache.unlock(match.host_node)
    assert pool.cache.clear_host() == 2
    assert pool.found("aabb") == (0, 0)


def test_a_load_that_cannot_be_is_refused() -> None:
    pool = Pool(10, 2)
    pool.put("aabb")
    pool.give_back(pool.cache.evict(2))
    match = pool.cache.match(HERE, ids("aabb"))
    with pytest.raises(ValueError, match=r"^1 blocks for 2 of the second tier$"):
        pool.cache.load(match, [0])
    pool.cache.clear_host()
    with pytest.raises(
        ValueError, match=r"^what was found in the second tier is not there any more: lock it first$"
    ):
        pool.cache.load(match, [0, 1])


def test_clear_empties_both_tiers() -> None:
    pool = Pool(10, 10, record_events=True)
    pool.put("aabbcc")
    pool.give_back(pool.cache.evict(2))
    pool.cache.take_events()
    pool.give_back(pool.cache.clear())
    assert (pool.cache.cached, pool.cache.host_cached, len(pool.free)) == (0, 0, 10)
    assert pool.cache.take_events() == [AllBlocksCleared()]


def test_a_block_is_removed_when_no_tier_has_it() -> None:
    pool = Pool(10, 10, record_events=True)
    pool.put("aabbcc")
    pool.cache.take_events()
    pool.give_back(pool.cache.evict(2))
    assert pool.cache.take_events() == []
    pool.cache.clear_host()
    assert pool.cache.take_events() == [BlockRemoved(block_hashes(HERE, ids("aabbcc"), SIZE)[1:])]


# --- memory ----------------------------------------------------------------------------------------


def test_memory_keeps_what_it_is_given() -> None:
    memory = HostMemory(5)
    assert (memory.capacity, memory.nbytes) == (5, 0)
    values = np.arange(12, dtype=np.int64).reshape(3, 2, 2)
    memory.put([4, 0, 2], values)
    assert memory.nbytes == 5 * 4 * 8
    assert memory.get([2, 4]).tolist() == values[[2, 0]].tolist()
    memory.drop([4, 2])


@given(values=arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=True)))
def test_exact_memory_is_exact(values: NDArray[np.float32]) -> None:
    memory = HostMemory(3)
    memory.put([0, 1, 2], values)
    assert memory.get([0, 1, 2]).tobytes() == values.tobytes()


@given(values=arrays(np.float32, (3, 4), elements=st.floats(-(2.0**40), 2.0**40, width=32)))
def test_half_memory_is_off_by_what_it_says(values: NDArray[np.float32]) -> None:
    memory = HostMemory(3, half=True)
    memory.put([0, 1, 2], values)
    kept = memory.get([0, 1, 2])
    assert kept.dtype == np.float32
    assert memory.nbytes == values.nbytes // 2
    expected = values.astype(np.float64).clip(-65504, 65504)
    assert (np.abs(kept - expected) <= np.maximum(np.abs(expected) / 2048, 3e-8)).all()
    memory.put([0, 1, 2], kept)
    assert memory.get([0, 1, 2]).tobytes() == kept.tobytes()


def test_half_memory_leaves_integers_alone() -> None:
    memory = HostMemory(1, half=True)
    memory.put([0], np.array([[2**40 + 1]]))
    assert memory.get([0]).tolist() == [[2**40 + 1]]


def test_a_capacity_is_not_negative() -> None:
    with pytest.raises(ValueError, match=r"^capacity is -1; it is 0 or more$"):
        HostMemory(-1)


# --- beside a naive model ----------------------------------------------------------------------------

Key = tuple[Namespace, str]


class Entry:
    """A block of the model."""

    def __init__(self) -> None:
        self.order = (-(10**9), 0)
        self.in_pool = True


class NaiveTiers:
    """Blocks by everything before their end, each by itself, found by looking at all."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[Key, Entry] = {}
        self.locked: list[Key] = []
        self.stamp = 0

    def path(self, space: Namespace, text: str) -> list[Key]:
        return [(space, text[:end]) for end in range(SIZE, len(text) + 1, SIZE)]

    def use(self, keys: list[Key], priority: int = -(10**9)) -> None:
        self.stamp += 1
        for key in keys:
            entry = self.entries[key]
            entry.order = (max(entry.order[0], priority), self.stamp)

    def is_locked(self, key: Key) -> bool:
        return any(space == key[0] and text.startswith(key[1]) for space, text in self.locked)

    def worst(self, *, in_pool: bool) -> Key | None:
        """Return the leaf of a tier that goes next."""
        parents = {
            (space, text[:-SIZE]) for (space, text), entry in self.entries.items() if entry.in_pool >= in_pool
        }
        leaves = [
            key
            for key, entry in self.entries.items()
            if entry.in_pool is in_pool and key not in parents and not self.is_locked(key)
        ]
        return min(leaves, key=lambda key: self.entries[key].order, default=None)

    def evict(self, count: int) -> int:
        """Return how many blocks of the pool became free."""
        freed = 0
        while freed < count and (key := self.worst(in_pool=True)) is not None:
            entry = self.entries[key]
            while sum(not other.in_pool for other in self.entries.values()) >= self.capacity:
                victim = self.worst(in_pool=False)
                if victim is None or self.entries[victim].order > entry.order:
                    del self.entries[key]
                    break
                del self.entries[victim]
            entry.in_pool = False
            freed += 1
        return freed


class TiersMachine(RuleBasedStateMachine):
    """Whatever is asked: each block is where the model has it, holds what it should, and none is lost."""

    spaces = st.sampled_from([Namespace("ab", "c"), Namespace("a", "bc")])
    rarely = st.sampled_from([False, False, False, False, True])
    texts = st.lists(st.sampled_from(["aa", "ab", "bb"]), max_size=5).map("".join)

    @initialize(num_blocks=st.integers(5, 8), capacity=st.sampled_from([0, 2, 5, 10]))
    def make(self, num_blocks: int, capacity: int) -> None:
        self.pool = Pool(num_blocks, capacity, record_events=True)
        self.num_blocks = num_blocks
        self.model = NaiveTiers(capacity)
        self.held: list[tuple[Any, Key]] = []
        self.told: set[int] = set()

    def found(self, space: Namespace, text: str) -> list[Key]:
        return [key for key in self.model.path(space, text) if key in self.model.entries]

    def evict_both(self, count: int) -> None:
        freed = self.pool.cache.evict(count)
        assert len(freed) == self.model.evict(count)
        self.pool.give_back(freed)

    @rule(space=spaces, text=texts, lock=rarely)
    def load(self, space: Namespace, text: str, lock: bool) -> None:
        keys = self.found(space, text)
        match = self.pool.cache.match(space, ids(text))
        self.model.use(keys)
        places = [self.model.entries[key].in_pool for key in keys]
        assert [True] * len(match.blocks) + [False] * match.host_blocks == places
        self.check(space, text, match.blocks)
        if match.host_node is None:
            if lock:
                self.lock(match.node, (space, text[: len(keys) * SIZE]))
            return
        self.lock(match.host_node, keys[-1])
        self.evict_both(match.host_blocks - len(self.pool.free))
        if len(self.pool.free) >= match.host_blocks:
            blocks = [self.pool.free.pop() for _ in range(match.host_blocks)]
            self.pool.cache.load(match, blocks)
            for key in keys:
                self.model.entries[key].in_pool = True
            again = self.pool.cache.match(space, ids(text))
            self.model.use(keys)
            assert again.blocks == (*match.blocks, *blocks)
            assert again.node is match.host_node
            self.check(space, text, again.blocks)
        if not lock:
            self.unlock(-1)

    def check(self, space: Namespace, text: str, blocks: Sequence[int]) -> None:
        assert self.pool.values[list(blocks)].tolist() == content(space, text)[: len(blocks)]

    def lock(self, node: Any, key: Key) -> None:
        self.pool.cache.lock(node)
        self.held.append((node, key))
        self.model.locked.append(key)

    @rule(place=st.integers(0, 3))
    def unlock(self, place: int) -> None:
        if self.held:
            node, key = self.held.pop(place if place < 0 else place % len(self.held))
            self.pool.cache.unlock(node)
            self.model.locked.remove(key)

    @rule(space=spaces, text=texts, priority=st.integers(-1, 2), lock=rarely)
    def insert(self, space: Namespace, text: str, priority: int, lock: bool) -> None:
        count = len(text) // SIZE
        self.evict_both(count - len(self.pool.free))
        if count > len(self.pool.free):
            return
        blocks = [self.pool.free.pop() for _ in range(count)]
        self.pool.values[blocks] = content(space, text)
        inserted = self.pool.cache.insert(space, ids(text), blocks, priority=priority)
        path = self.model.path(space, text)
        in_pool = [key in self.model.entries and self.model.entries[key].in_pool for key in path]
        assert len(inserted.surplus) == sum(in_pool)
        for key in path:
            self.model.entries.setdefault(key, Entry()).in_pool = True
        self.model.use(path, priority)
        self.check(space, text, inserted.blocks)
        self.pool.give_back(inserted.surplus)
        if lock:
            self.lock(inserted.node, (space, text))

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        self.evict_both(count)

    @rule(really=rarely, host=st.booleans())
    def clear(self, really: bool, host: bool) -> None:
        if not really:
            return
        gone = [
            key
            for key, entry in self.model.entries.items()
            if not self.model.is_locked(key) and not (host and entry.in_pool)
        ]
        if host:
            assert self.pool.cache.clear_host() == len(gone)
        else:
            self.pool.give_back(self.pool.cache.clear())
        for key in gone:
            del self.model.entries[key]

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        cache, in_pool = self.pool.cache, [entry.in_pool for entry in self.model.entries.values()]
        assert cache.cached == sum(in_pool)
        assert cache.host_cached == len(in_pool) - sum(in_pool)
        assert cache.cached + len(self.pool.free) == self.num_blocks
        assert cache.evictable == sum(
            entry.in_pool and not self.model.is_locked(key) for key, entry in self.model.entries.items()
        )

    @invariant()
    def events_add_up(self) -> None:
        for event in self.pool.cache.take_events():
            match event:
                case BlockStored():
                    assert not self.told & set(event.block_hashes)
                    self.told |= set(event.block_hashes)
                case BlockRemoved():
                    assert self.told >= set(event.block_hashes)
                    self.told -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.told.clear()
        expected = {block_hashes(space, ids(text), SIZE)[-1] for space, text in self.model.entries}
        assert self.told == expected


TiersMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTiersMachine = TiersMachine.TestCase


def test_the_tree_alone_has_no_second_tier() -> None:
    cache = RadixCache(SIZE)
    cache.insert(HERE, ids("aabb"), [0, 1])
    cache.evict(1)
    match = cache.match(HERE, ids("aabb"))
    assert match[2:] == (0, None)
    cache.load(match, [])
    with pytest.raises(ValueError, match=r"^1 blocks for 0 of the second tier$"):
        cache.load(match, [1])
    assert (cache.host_cached, cache.clear_host()) == (0, 0)
