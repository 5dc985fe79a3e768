"""The prefix cache: which blocks of the KV pool hold which prefix; pure, without memory of its own.

Every namespace has a tree. A node is a stretch of tokens, a whole number of blocks, without a branch inside;
the way from the root to a node spells a prompt's beginning, and the nodes' block numbers are where its keys
and values lie. Children are found by the bytes of their first block, and a node is compared as a whole, so a
walk costs a few operations for each node and no Python for each token. Tokens themselves are compared, never
hashes of them: no two prompts can be taken for one another. Two namespaces share no node, so a request never
learns from its speed what another tenant asked.

Where a walk ends inside a node, the node is split. The new node is the upper part, so whoever holds the node
goes on holding the same prefix: the *end* of a node never changes, only its beginning.

A lock counts on a node and on all above it. So below a node that is not locked nothing is, and every block
that is not locked can be evicted, leaf by leaf. A walk stamps all nodes on its way with one number that only
grows, and `insert` raises their priority to its own. So no node has a stamp or a priority below one of its
descendants, and taking always the leaf with the lowest (priority, stamp) takes blocks in that order overall.
Leaves wait in a heap, at most one entry each; an entry whose node was stamped, locked or extended since is
put right when it comes up, so nothing is ever searched for.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import BLOCK_SIZE
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
"""What routers are told."""


class Namespace(NamedTuple):
    """Whose prefixes these are. Two fields, never joined to one text, so no two namespaces look alike.

    Args:
        extra_key: the caller's own division, such as an adapter.
        cache_salt: a tenant's secret.
    """

    extra_key: str | None = None
    cache_salt: str | None = None


class Node:
    """A stretch of cached tokens; to callers, a name for the prefix that ends with it."""

    __slots__ = (
        "blocks",
        "children",
        "hashes",
        "host_queued",
        "locks",
        "parent",
        "priority",
        "queued",
        "resident",
        "slots",
        "space",
        "tokens",
        "used",
    )

    def __init__(self, parent: Node | None, tokens: bytes = b"", space: Namespace | None = None) -> None:
        self.parent = parent
        """None for a root, and for a node that is in the tree no more."""
        self.tokens = tokens
        """Packed int32, whole blocks."""
        self.space = space
        """Whose root this is; None for any other node."""
        self.children: dict[bytes, Node] = {}
        """By the tokens of their first block."""
        self.resident = 0
        """How many of the children have `blocks`."""
        self.blocks: list[int] = []
        """Numbers of its blocks in the pool; none if it lies in a second tier."""
        self.slots: list[int] = []
        """Numbers of its blocks in the second tier; none if it lies in the pool."""
        self.hashes: list[int] = []
        """One for each block, while events are recorded; of a root, one that its children begin with."""
        self.locks = 0
        self.priority = 0
        self.used = 0
        """Stamp of the last walk through it."""
        self.queued = False
        """Whether it has an entry in the heap of leaves."""
        self.host_queued = False
        """Whether it has one in the second tier's."""


class Match(NamedTuple):
    """The longest prefix in whole blocks that is cached.

    Args:
        node: where it ends; the root of the namespace if nothing is cached.
        blocks: its blocks in the pool.
        host_blocks: how many blocks of it follow in the second tier (`host_cache`).
        host_node: where those end; None if there are none.
    """

    node: Node
    blocks: tuple[int, ...]
    host_blocks: int = 0
    host_node: Node | None = None


class Inserted(NamedTuple):
    """What became of the blocks that were inserted.

    Args:
        node: where the prefix ends.
        blocks: those that hold it now.
        surplus: those of the given that the cache did not take, since it has others: the caller's still.
    """

    node: Node
    blocks: tuple[int, ...]
    surplus: tuple[int, ...]


class RadixCache:
    """Block numbers by prefix. It owns the numbers it was given until it returns them.

    Args:
        block_size: tokens of a block.
        record_events: whether `take_events` has something to say.
    """

    def __init__(self, block_size: int = BLOCK_SIZE, *, record_events: bool = False) -> None:
        self._block_size = block_size
        self._width = 4 * block_size
        self._roots: dict[Namespace, Node] = {}
        self._leaves: list[tuple[int, int, int, Node]] = []
        self._serial = itertools.count()
        self._stamp = 0
        self._cached = 0
        self._evictable = 0
        self._record = record_events
        self._events: list[KVEvent] = []

    @property
    def cached(self) -> int:
        """Blocks of the pool that the cache owns."""
        return self._cached

    @property
    def evictable(self) -> int:
        """Those that are not locked; all of them can be evicted."""
        return self._evictable

    @property
    def host_cached(self) -> int:
        """Blocks in the second tier; 0 if there is none."""
        return 0

    def match(self, space: Namespace, tokens: NDArray[np.int32]) -> Match:
        """Find the longest cached prefix in whole blocks; it was used just now."""
        path = self._reach(space, self._pack(tokens))
        self._touch(path)
        node = path[-1]
        count = sum(len(step.slots) for step in path)
        if not count:
            return Match(node, _blocks_of(path))
        return Match(next(step for step in reversed(path) if not step.slots), _blocks_of(path), count, node)

    def peek(self, space: Namespace, tokens: NDArray[np.int32]) -> int:
        """Return how many tokens `match` would find, in either tier; nothing changes."""
        path, filled = self._descend(space, self._pack(tokens))
        return (sum(len(node.tokens) for node in path[:-1]) + filled) // 4

    def lock(self, node: Node) -> None:
        """Keep a node and all above it until `unlock`; may be called several times.

        While a root is locked, by itself or with what is below it, `match` names the same one again.

        Raises:
            ValueError: the node was evicted.
        """
        if node.parent is None and node.space is None:
            raise ValueError("the node was evicted: lock it before anything else is done")
        while node.parent is not None:
            if not node.locks:
                self._evictable -= len(node.blocks)
            node.locks += 1
            node = node.parent
        node.locks += 1
        assert node.space is not None
        self._roots.setdefault(node.space, node)

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of this node.

        Raises:
            ValueError: it is not locked.
        """
        if not node.locks:
            raise ValueError("the node is not locked")
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self._evictable += len(node.blocks)
                self._queue(node)
            node = node.parent
        node.locks -= 1
        self._forget_empty(node)

    def newly_locked(self, node: Node) -> int:
        """Return how many blocks `lock` of this node would make unevictable."""
        count = 0
        while node.parent is not None and not node.locks:
            count += len(node.blocks)
            node = node.parent
        return count

    def insert(
        self, space: Namespace, tokens: NDArray[np.int32], blocks: Sequence[int], *, priority: int = 0
    ) -> Inserted:
        """Take over the blocks of a prefix. What is cached already stays; a block of it may be given again.

        Args:
            space: whose it is.
            tokens: of all the blocks.
            blocks: numbers of its blocks, in order.
            priority: blocks of a lower one are evicted first; the prefix has the highest it was given.

        Raises:
            ValueError: the tokens are not those of so many blocks.
        """
        if len(tokens) != len(blocks) * self._block_size:
            raise ValueError(f"{len(tokens)} tokens do not fill {len(blocks)} blocks of {self._block_size}")
        data = self._pack(tokens)
        path = self._reach(space, data)
        self._touch(path)
        self._settle(path, blocks)
        kept = _blocks_of(path)
        for node in path:
            node.priority = max(node.priority, priority)
        if len(kept) < len(blocks):
            self._roots[space] = path[0]
            path.append(
                self._extend(path[-1], data[len(kept) * self._width :], blocks[len(kept) :], priority)
            )
        surplus = tuple(given for given, own in zip(blocks, kept, strict=False) if given != own)
        return Inserted(path[-1], (*kept, *blocks[len(kept) :]), surplus)

    def evict(self, count: int) -> list[int]:
        """Give up blocks that are not locked: lowest priority first, then least recently used.

        Args:
            count: how many. Of a node only as many as needed go, from its end.

        Returns:
            Their numbers, which are the caller's from now on; fewer only if all others are locked.
        """
        freed: list[int] = []
        while len(freed) < count and (leaf := self._next_leaf()) is not None:
            excess = len(freed) + len(leaf.blocks) - count
            if excess > 0:
                self._split(leaf, excess * self._width)
            freed += self._give_up(leaf)
        return freed

    def load(self, match: Match, blocks: Sequence[int]) -> None:
        """Copy what a match found in the second tier into the pool; the blocks pass to the cache.

        Args:
            match: what was found; its `host_node` is locked since.
            blocks: `match.host_blocks` free ones; none where there is no second tier.

        Raises:
            ValueError: there are more or fewer, or what was found is not there any more.
        """
        if len(blocks) != match.host_blocks:
            raise ValueError(f"{len(blocks)} blocks for {match.host_blocks} of the second tier")

    def clear_host(self) -> int:
        """Empty the second tier but for what is locked; return how many blocks were dropped."""
        return 0

    def drop(self, node: Node) -> list[int]:
        """Give up a node, and what is above it as far as nothing else needs that; return the numbers."""
        freed: list[int] = []
        while node.parent is not None and node.blocks and not (node.locks or node.children):
            parent = node.parent
            freed += RadixCache._give_up(self, node)  # for good, also where there is a second tier
            node = parent
        return freed

    def clear(self) -> list[int]:
        """Give up everything that is not locked; return the numbers."""
        told = len(self._events)
        freed = self._drop_all()
        if self._record and all(not root.children for root in self._roots.values()):
            # One event in place of all of them.
            self._events[told:] = [AllBlocksCleared()]
        return freed

    def take_events(self) -> list[KVEvent]:
        """Return what happened since the last call, in order; nothing unless events are recorded."""
        events, self._events = self._events, []
        return events

    # --- walks -----------------------------------------------------------------

    def _pack(self, tokens: NDArray[np.int32]) -> bytes:
        whole = len(tokens) // self._block_size * self._block_size
        return np.asarray(tokens[:whole], dtype=np.int32).tobytes()

    def _descend(self, space: Namespace, data: bytes) -> tuple[list[Node], int]:
        """Return the nodes on the way, the root first, and how many bytes of the last one are shared."""
        node = self._roots.get(space)
        if node is None:
            # Kept once it is locked or inserted into: a namespace that is only asked for takes no memory.
            node = Node(None, space=space)
            if self._record:
                node.hashes = [_namespace_hash(space)]
        path = [node]
        done = 0
        while done < len(data):
            child = node.children.get(data[done : done + self._width])
            if child is None:
                break
            path.append(child)
            if not data.startswith(child.tokens, done):
                return path, _shared(child.tokens, data, done) // self._width * self._width
            done += len(child.tokens)
            node = child
        return path, len(node.tokens)

    def _reach(self, space: Namespace, data: bytes) -> list[Node]:
        """Return the nodes on the way, of which the last is split if it goes on differently."""
        path, filled = self._descend(space, data)
        if filled < len(path[-1].tokens):
            path[-1] = self._split(path[-1], filled)
        return path

    def _touch(self, path: list[Node]) -> None:
        self._stamp += 1
        for node in path:
            node.used = self._stamp

    # --- changes of the tree ----------------------------------------------------

    def _settle(self, path: list[Node], blocks: Sequence[int]) -> None:
        """Make what lies in another tier on the way of an insert lie in its blocks. Here there is none."""

    def _extend(self, parent: Node, tokens: bytes, blocks: Sequence[int], priority: int) -> Node:
        """Add a leaf."""
        node = Node(parent, tokens)
        node.blocks = list(blocks)
        node.priority, node.used = priority, self._stamp
        parent.children[tokens[: self._width]] = node
        parent.resident += 1
        self._cached += len(blocks)
        self._evictable += len(blocks)
        self._queue(node)
        if self._record:
            before = parent.hashes[-1]
            node.hashes = _chain(before, tokens, self._width)
            ids = np.frombuffer(tokens, dtype=np.int32).tolist()
            known = None if parent.space is not None else before
            self._events.append(BlockStored(list(node.hashes), known, ids, self._block_size))
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node after `at` bytes; return the new node above it."""
        parent, count = node.parent, at // self._width
        assert parent is not None
        upper = Node(parent, node.tokens[:at])
        node.tokens = node.tokens[at:]
        upper.blocks, node.blocks = node.blocks[:count], node.blocks[count:]
        upper.slots, node.slots = node.slots[:count], node.slots[count:]
        upper.hashes, node.hashes = node.hashes[:count], node.hashes[count:]
        # Whoever locked the node locked all of it.
        upper.locks, upper.priority, upper.used = node.locks, node.priority, node.used
        upper.children[node.tokens[: self._width]] = node
        upper.resident = 1 if node.blocks else 0
        parent.children[upper.tokens[: self._width]] = upper
        node.parent = upper
        return upper

    def _detach(self, leaf: Node) -> None:
        """Take a node out of the tree."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        del parent.children[leaf.tokens[: self._width]]
        leaf.parent = None
        if self._record:
            self._events.append(BlockRemoved(leaf.hashes))
        self._forget_empty(parent)

    def _forget_empty(self, node: Node) -> None:
        """Drop a root that has nothing under it and that nobody locks."""
        space = node.space
        if space is not None and self._roots.get(space) is node and not (node.children or node.locks):
            del self._roots[space]

    # --- eviction ----------------------------------------------------------------

    def _queue(self, node: Node) -> None:
        """Have a node evicted in its turn, if it is a leaf that nobody locks."""
        if node.blocks and not (node.queued or node.locks or node.resident):
            node.queued = True
            heapq.heappush(self._leaves, (node.priority, node.used, next(self._serial), node))

    def _next_leaf(self) -> Node | None:
        """Take the leaf that goes next out of the heap; None: there is no more."""
        while self._leaves:
            priority, used, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if (node.priority, node.used) != (priority, used):
                self._queue(node)
            elif node.blocks and not (node.locks or node.resident):
                return node
        return None

    def _vacate(self, leaf: Node) -> list[int]:
        """Take its blocks from an unlocked leaf."""
        blocks, leaf.blocks = leaf.blocks, []
        self._cached -= len(blocks)
        self._evictable -= len(blocks)
        parent = leaf.parent
        assert parent is not None
        parent.resident -= 1
        self._queue(parent)
        return blocks

    def _give_up(self, leaf: Node) -> list[int]:
        """Part with the blocks of a leaf, and with the leaf."""
        blocks = self._vacate(leaf)
        self._detach(leaf)
        return blocks

    def _drop_all(self) -> list[int]:
        """Part with all that is not locked."""
        return self.evict(self._evictable)


def block_hashes(space: Namespace, tokens: NDArray[np.int32], block_size: int = BLOCK_SIZE) -> list[int]:
    """Return what events call the whole blocks of a prompt: 64 bits of each block and everything before it.

    The same in every process, so that a router can ask for a prompt. The cache itself does not go by them.
    """
    whole = len(tokens) // block_size * block_size
    data = np.asarray(tokens[:whole], dtype=np.int32).tobytes()
    return _chain(_namespace_hash(space), data, 4 * block_size)


def _chain(before: int, data: bytes, width: int) -> list[int]:
    hashes = []
    for start in range(0, len(data), width):
        before = _hash(before.to_bytes(8, "little") + data[start : start + width])
        hashes.append(before)
    return hashes


def _namespace_hash(space: Namespace) -> int:
    """Each field with its length before it, so that no two namespaces read alike."""
    packed = b""
    for field in space:
        text = b"" if field is None else field.encode("utf-8", "surrogatepass")
        packed += (-1 if field is None else len(text)).to_bytes(8, "little", signed=True) + text
    return _hash(packed)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _shared(tokens: bytes, data: bytes, start: int) -> int:
    """Return how many bytes of a node's tokens are those of the data from `start`, in whole tokens."""
    ours = np.frombuffer(tokens, dtype=np.int32)
    theirs = np.frombuffer(data, dtype=np.int32, offset=start)
    count = min(len(ours), len(theirs))
    differ = np.flatnonzero(ours[:count] != theirs[:count])
    return 4 * int(differ[0] if len(differ) else count)


def _blocks_of(path: Iterable[Node]) -> tuple[int, ...]:
    return tuple(itertools.chain.from_iterable(node.blocks for node in path))
