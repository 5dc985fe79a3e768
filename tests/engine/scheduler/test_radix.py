"""The prefix cache: what it finds, keeps and gives up, beside a naive model of blocks by prefix."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from vidette.scheduler.radix import Inserted, Namespace, Node, RadixCache, block_hashes
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

HERE = Namespace()
SIZE = 2
"""Tokens of a block."""


def ids(text: str) -> NDArray[np.int32]:
    """Return one token for each character."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.int32)


def cache_of(*prompts: str, **options: bool) -> RadixCache:
    """Return a cache that was given prompts, one after the other, with block numbers 0, 1, 2, ..."""
    cache = RadixCache(SIZE, **options)
    number = 0
    for prompt in prompts:
        count = len(prompt) // SIZE
        cache.insert(HERE, ids(prompt), range(number, number + count))
        number += count
    return cache


def found(cache: RadixCache, prompt: str, space: Namespace = HERE) -> tuple[int, ...]:
    return cache.match(space, ids(prompt)).blocks


# --- match and insert -----------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is() -> None:
    cache = RadixCache(SIZE)
    match = cache.match(HERE, ids("abcd"))
    assert match.blocks == ()
    assert (match.host_blocks, match.host_node) == (0, None)
    assert cache.newly_locked(match.node) == 0
    assert cache.insert(HERE, ids(""), []).blocks == ()
    assert (cache.cached, cache.evictable, cache.evict(3), cache.clear()) == (0, 0, [], [])


@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [
        ("aabbccdd", (0, 1, 2, 3)),
        ("aabbccddee", (0, 1, 2, 3)),
        ("aabbccd", (0, 1, 2)),
        ("aabbcx", (0, 1)),
        ("aabx", (0,)),
        ("ax", ()),
        ("a", ()),
        ("", ()),
        ("bbccdd", ()),
    ],
)
def test_the_longest_prefix_in_whole_blocks_is_found(prompt: str, blocks: tuple[int, ...]) -> None:
    cache = cache_of("aabbccdd")
    assert cache.peek(HERE, ids(prompt)) == len(blocks) * SIZE
    assert found(cache, prompt) == blocks
    assert found(cache, "aabbccdd") == (0, 1, 2, 3)


def test_what_is_cached_stays_and_the_rest_is_surplus() -> None:
    cache = cache_of("aabbcc")
    assert cache.insert(HERE, ids("aabbddee"), [7, 1, 8, 9])[1:] == ((0, 1, 8, 9), (7,))
    assert cache.insert(HERE, ids("aabb"), [10, 11])[1:] == ((0, 1), (10, 11))
    assert cache.insert(HERE, ids("aabb"), [0, 1])[1:] == ((0, 1), ())
    assert (cache.cached, cache.evictable) == (5, 5)
    assert found(cache, "aabbcc") == (0, 1, 2)


def test_the_given_numbers_are_copied() -> None:
    cache = RadixCache(SIZE)
    tokens, blocks = ids("aabb").copy(), [4, 5]
    cache.insert(HERE, tokens, blocks)
    tokens[:] = 0
    blocks.clear()
    assert found(cache, "aabb") == (4, 5)


@pytest.mark.parametrize(("prompt", "count"), [("aab", 1), ("aabb", 1), ("a", 0), ("aa", 2)])
def test_tokens_and_blocks_have_to_agree(prompt: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"^{len(prompt)} tokens do not fill {count} blocks of 2$"):
        RadixCache(SIZE).insert(HERE, ids(prompt), range(count))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace("ab", "c"), Namespace("a", "bc")),
        (Namespace(None), Namespace("")),
        (Namespace("a", None), Namespace(None, "a")),
        (Namespace("a", None), Namespace("a", "")),
        (Namespace("a\0b"), Namespace("a", "b")),
    ],
)
def test_namespaces_share_nothing(one: Namespace, other: Namespace) -> None:
    cache = RadixCache(SIZE)
    cache.insert(one, ids("aabb"), [1, 2])
    assert found(cache, "aabb", other) == ()
    assert cache.peek(other, ids("aabb")) == 0
    assert cache.insert(other, ids("aabb"), [3, 4]).surplus == ()
    assert (found(cache, "aabb", one), found(cache, "aabb", other)) == ((1, 2), (3, 4))
    assert not set(block_hashes(one, ids("aabb"), SIZE)) & set(block_hashes(other, ids("aabb"), SIZE))


def test_a_namespace_with_nothing_in_it_takes_no_memory() -> None:
    cache = RadixCache(SIZE)
    for salt in map(str, range(20)):
        cache.match(Namespace(cache_salt=salt), ids("aabb"))
        cache.insert(Namespace(cache_salt=salt), ids("aabb"), [1, 2])
        assert sorted(cache.evict(2)) == [1, 2]
    assert cache._roots == {}
    assert cache._leaves == []


def test_a_long_prompt_in_many_pieces() -> None:
    count = sys.getrecursionlimit() * 3
    tokens = np.arange(count * SIZE, dtype=np.int32)
    cache = RadixCache(SIZE)
    for done in range(1, count + 1, 7):
        cache.insert(HERE, tokens[: done * SIZE], range(done))
    match = cache.match(HERE, tokens)
    assert match.blocks == tuple(range(done))
    cache.lock(match.node)
    assert cache.evictable == 0
    cache.unlock(match.node)
    assert sorted(cache.evict(done)) == list(range(done))


# --- locks ---------------------------------------------------------------------------------------


def test_a_locked_prefix_stays_and_what_hangs_from_it_does_not() -> None:
    cache = cache_of("aabbccdd")
    node = cache.match(HERE, ids("aabb")).node
    assert cache.newly_locked(node) == 2
    cache.lock(node)
    cache.lock(node)
    assert (cache.newly_locked(node), cache.evictable, cache.cached) == (0, 2, 4)
    assert cache.evict(4) == [2, 3]
    cache.unlock(node)
    assert cache.evict(4) == []
    cache.unlock(node)
    assert cache.evictable == 2
    assert cache.evict(4) == [0, 1]


def test_a_lock_outlives_the_splits_of_its_node() -> None:
    cache = cache_of("aabbccdd")
    node = cache.match(HERE, ids("aabbccdd")).node
    cache.lock(node)
    upper = cache.match(HERE, ids("aa")).node
    cache.insert(HERE, ids("aabbxx"), [0, 1, 9])
    assert spelled(node) == ids("aabbccdd").tobytes()
    assert (cache.cached, cache.evictable) == (5, 1)
    cache.lock(upper)
    assert cache.evict(9) == [9]
    cache.unlock(node)
    assert (cache.evictable, cache.newly_locked(node)) == (3, 3)
    assert sorted(cache.evict(9)) == [1, 2, 3]
    cache.unlock(upper)
    assert cache.clear() == [0]


def test_a_node_that_is_gone_or_not_locked_is_refused() -> None:
    cache = cache_of("aabb")
    node = cache.match(HERE, ids("aabb")).node
    with pytest.raises(ValueError, match=r"^the node is not locked$"):
        cache.unlock(node)
    assert cache.evict(1) == [1]
    with pytest.raises(ValueError, match=r"^the node was evicted: lock it before anything else is done$"):
        cache.lock(node)
    assert found(cache, "aabb") == (0,)


def test_a_locked_root_is_the_root_of_its_namespace() -> None:
    cache = RadixCache(SIZE, record_events=True)
    root = cache.match(HERE, ids("aabb")).node
    cache.lock(root)
    cache.lock(root)
    assert cache.match(HERE, ids("ccdd")).node is root
    assert cache.match(Namespace("other"), ids("ccdd")).node is not root
    cache.insert(HERE, ids("aabb"), [0, 1])
    assert cache.clear() == [0, 1]
    assert cache.take_events()[1:] == [AllBlocksCleared()]
    cache.unlock(root)
    assert cache.match(HERE, ids("aabb")).node is root
    cache.unlock(root)
    with pytest.raises(ValueError, match=r"^the node is not locked$"):
        cache.unlock(root)
    assert cache._roots == {}


def test_a_root_that_was_replaced_does_no_harm() -> None:
    cache = RadixCache(SIZE)
    root = cache.match(HERE, ids("aabb")).node
    cache.insert(HERE, ids("aabb"), [0, 1])
    cache.lock(root)
    cache.unlock(root)
    assert found(cache, "aabb") == (0, 1)


# --- eviction --------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first_and_from_its_end() -> None:
    cache = cache_of("aabbcc", "ddeeff", "gghhii")
    found(cache, "ddee")
    found(cache, "aabbcc")
    assert cache.evict(1) == [5]
    assert cache.evict(3) == [6, 7, 8]
    assert cache.evict(2) == [3, 4]
    assert found(cache, "aabbcc") == (0, 1, 2)


def test_a_look_is_no_use() -> None:
    cache = cache_of("aa", "bb")
    cache.peek(HERE, ids("aa"))
    assert cache.evict(1) == [0]


def test_the_lowest_priority_goes_first_whatever_was_used() -> None:
    cache = RadixCache(SIZE)
    cache.insert(HERE, ids("aabb"), [0, 1], priority=5)
    cache.insert(HERE, ids("aacc"), [0, 2])
    cache.insert(HERE, ids("dd"), [3], priority=-1)
    cache.insert(HERE, ids("ee"), [4], priority=2)
    found(cache, "dd")
    assert [cache.evict(1) for _ in range(5)] == [[3], [2], [4], [1], [0]]


def test_a_prefix_has_the_highest_priority_it_was_given() -> None:
    cache = RadixCache(SIZE)
    cache.insert(HERE, ids("aabb"), [0, 1])
    cache.insert(HERE, ids("cc"), [2], priority=1)
    cache.insert(HERE, ids("aa"), [0], priority=3)
    cache.insert(HERE, ids("aabb"), [0, 1], priority=2)
    cache.insert(HERE, ids("aabb"), [0, 1])
    assert [cache.evict(1) for _ in range(3)] == [[2], [1], [0]]


def test_leaves_do_not_pile_up() -> None:
    cache = cache_of("aabb", "aacc", "dd")
    for _ in range(100):
        match = cache.match(HERE, ids("aabb"))
        cache.lock(match.node)
        cache.insert(HERE, ids("aabb"), match.blocks)
        cache.unlock(match.node)
    assert len(cache._leaves) <= 4


def test_clear_leaves_what_is_locked() -> None:
    cache = cache_of("aabb", "aacc", "dd")
    node = cache.match(HERE, ids("aacc")).node
    cache.lock(node)
    assert sorted(cache.clear()) == [1, 4]
    assert found(cache, "aacc") == (0, 3)


# --- events ----------------------------------------------------------------------------------------


def test_events_tell_what_is_stored_and_removed() -> None:
    cache = cache_of(record_events=True)
    space = Namespace("lora")
    cache.insert(space, ids("aabbcc"), [0, 1, 2])
    cache.insert(space, ids("aabbdd"), [0, 1, 3])
    hashes = block_hashes(space, ids("aabbcc"), SIZE)
    other = block_hashes(space, ids("aabbdd"), SIZE)[2]
    assert cache.take_events() == [
        BlockStored(hashes, None, ids("aabbcc").tolist(), SIZE),
        BlockStored([other], hashes[1], ids("dd").tolist(), SIZE),
    ]
    cache.match(space, ids("aabbcc"))
    cache.evict(3)
    assert cache.take_events() == [BlockRemoved([other]), BlockRemoved(hashes[2:]), BlockRemoved([hashes[1]])]
    cache.clear()
    assert cache.take_events() == [AllBlocksCleared()]
    assert cache.take_events() == []


def test_a_clear_that_leaves_something_names_what_it_took() -> None:
    cache = cache_of("aabb", record_events=True)
    hashes = block_hashes(HERE, ids("aabb"), SIZE)
    cache.lock(cache.match(HERE, ids("aa")).node)
    cache.clear()
    assert cache.take_events()[1:] == [BlockRemoved(hashes[1:])]


def test_nothing_is_recorded_unless_asked_for() -> None:
    cache = cache_of("aabb")
    cache.clear()
    assert cache.take_events() == []


def test_hashes_are_the_same_in_every_process() -> None:
    assert block_hashes(HERE, ids("aabbc"), SIZE) == [9053385598442233258, 4054982907231240424]
    assert block_hashes(Namespace("", "s"), ids("aabbc"), SIZE) == naive_hashes(("", "s"), "aabb")


# --- beside a naive model ----------------------------------------------------------------------------

Key = tuple[Namespace, str]


class Entry:
    """A block of the model."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.priority = -(10**9)
        self.used = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.used


class NaiveCache:
    """Blocks by namespace and everything before their end; each by itself, found by looking at all."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.locked: list[Key] = []
        self.stamp = 0

    def prefixes(self, space: Namespace, text: str) -> Iterator[Key]:
        return ((space, text[:end]) for end in range(SIZE, len(text) + 1, SIZE))

    def find(self, space: Namespace, text: str) -> list[Key]:
        return [key for key in self.prefixes(space, text) if key in self.entries]

    def use(self, keys: list[Key], priority: int = 0) -> None:
        self.stamp += 1
        for key in keys:
            self.entries[key].used = self.stamp
            self.entries[key].priority = max(self.entries[key].priority, priority)

    def is_locked(self, key: Key) -> bool:
        return any(space == key[0] and text.startswith(key[1]) for space, text in self.locked)

    def evict(self, count: int) -> set[int]:
        freed: set[int] = set()
        while len(freed) < count:
            parents = {(space, text[:-SIZE]) for space, text in self.entries}
            leaves = [key for key in self.entries if key not in parents and not self.is_locked(key)]
            if not leaves:
                break
            freed.add(self.entries.pop(min(leaves, key=lambda key: self.entries[key].order)).number)
        return freed


def naive_hashes(space: tuple[str | None, str | None], text: str) -> list[int]:
    packed = b""
    for field in space:
        packed += b"\xff" * 8 if field is None else len(field).to_bytes(8, "little") + field.encode()
    digests = [blake2b(packed, digest_size=8).digest()]
    for start in range(0, len(text) // SIZE * SIZE, SIZE):
        block = text[start : start + SIZE].encode("utf-32-le")
        digests.append(blake2b(digests[-1] + block, digest_size=8).digest())
    return [int.from_bytes(digest, "little") for digest in digests[1:]]


def spelled(node: Node | None) -> bytes:
    """Return the tokens on the way to a node."""
    parts = []
    while node is not None:
        parts.append(node.tokens)
        node = node.parent
    return b"".join(reversed(parts))


class CacheMachine(RuleBasedStateMachine):
    """Whatever is asked: the cache finds, keeps and gives up what the model does, and no block is lost."""

    spaces = st.sampled_from([Namespace("ab", "c"), Namespace("a", "bc")])
    rarely = st.sampled_from([False, False, False, False, True])
    texts = st.lists(st.sampled_from(["aa", "ab", "bb"]), max_size=5).map("".join)

    @initialize(num_blocks=st.integers(6, 16))
    def make(self, num_blocks: int) -> None:
        self.cache = RadixCache(SIZE, record_events=True)
        self.model = NaiveCache()
        self.free = list(range(num_blocks))
        self.num_blocks = num_blocks
        self.held: list[tuple[Node, Key]] = []
        self.told: set[int] = set()

    @rule(space=spaces, text=texts, tail=st.sampled_from(["", "a"]), lock=rarely)
    def match(self, space: Namespace, text: str, tail: str, lock: bool) -> None:
        text += tail
        keys = self.model.find(space, text)
        assert self.cache.peek(space, ids(text)) == SIZE * len(keys)
        match = self.cache.match(space, ids(text))
        assert match.blocks == tuple(self.model.entries[key].number for key in keys)
        self.model.use(keys, priority=-(10**9))
        end = keys[-1] if keys else (space, "")
        assert spelled(match.node) == ids(end[1]).tobytes()
        if lock:
            self.lock(match.node, end)

    def lock(self, node: Node, key: Key) -> None:
        path = list(self.model.prefixes(*key))
        assert self.cache.newly_locked(node) == sum(not self.model.is_locked(key) for key in path)
        self.cache.lock(node)
        self.model.locked.append(key)
        self.held.append((node, key))

    @rule(place=st.integers(0, 3))
    def unlock(self, place: int) -> None:
        if self.held:
            node, key = self.held.pop(place % len(self.held))
            self.cache.unlock(node)
            self.model.locked.remove(key)

    @rule(place=st.integers(0, 3))
    def lock_again(self, place: int) -> None:
        if self.held:
            self.lock(*self.held[place % len(self.held)])

    @rule(space=spaces, text=texts, priority=st.integers(-1, 2), reuse=st.booleans(), lock=rarely)
    def insert(self, space: Namespace, text: str, priority: int, reuse: bool, lock: bool) -> None:
        self.evict(len(text) // SIZE - len(self.free))
        keys = self.model.find(space, text)
        given = [self.model.entries[key].number for key in keys] if reuse else []
        wanted = len(text) // SIZE - len(given)
        if wanted > len(self.free):
            return
        given += [self.free.pop() for _ in range(wanted)]
        inserted: Inserted = self.cache.insert(space, ids(text), given, priority=priority)
        path = list(self.model.prefixes(space, text))
        surplus = []
        for key, number in zip(path, given, strict=True):
            kept = self.model.entries.setdefault(key, Entry(number)).number
            surplus += [number] if kept != number else []
        self.model.use(path, priority)
        assert inserted.blocks == tuple(self.model.entries[key].number for key in path)
        assert inserted.surplus == tuple(surplus)
        assert spelled(inserted.node) == ids(text).tobytes()
        self.free += inserted.surplus
        if lock:
            self.lock(inserted.node, (space, text))

    @rule(count=st.integers(0, 4))
    def evict(self, count: int) -> None:
        freed = self.cache.evict(count)
        assert len(freed) == len(set(freed)) <= max(count, 0)
        assert set(freed) == self.model.evict(count)
        self.free += freed

    @rule(really=rarely)
    def clear(self, really: bool) -> None:
        if not really:
            return
        freed = self.cache.clear()
        assert set(freed) == self.model.evict(self.num_blocks)
        self.free += freed
        if not self.held:
            assert self.cache.cached == 0

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        numbers = [entry.number for entry in self.model.entries.values()]
        assert sorted(self.free + numbers) == list(range(self.num_blocks))
        assert self.cache.cached == len(numbers)

    @invariant()
    def what_is_not_locked_can_be_evicted(self) -> None:
        assert self.cache.evictable == sum(not self.model.is_locked(key) for key in self.model.entries)

    @invariant()
    def who_holds_a_node_holds_its_prefix(self) -> None:
        for node, (space, text) in self.held:
            assert spelled(node) == ids(text).tobytes()
            path, filled = self.cache._descend(space, ids(text).tobytes())
            assert path[-1] is node
            assert filled == len(node.tokens)

    @invariant()
    def events_add_up(self) -> None:
        for event in self.cache.take_events():
            match event:
                case BlockStored():
                    assert event.parent_block_hash is None or event.parent_block_hash in self.told
                    assert not self.told & set(event.block_hashes)
                    assert len(event.token_ids) == SIZE * len(event.block_hashes)
                    self.told |= set(event.block_hashes)
                case BlockRemoved():
                    assert self.told >= set(event.block_hashes)
                    self.told -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.told.clear()
        assert self.told == {naive_hashes(space, text)[-1] for space, text in self.model.entries}


CacheMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
