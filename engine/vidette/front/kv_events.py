"""`KVEvents`: what the prefix cache of the scheduler holds, and who is told how that changes.

While events are told, the front keeps the set of cached blocks as well: whoever comes late, or has not read
for too long, is given all of it once, behind an `AllBlocksCleared`, and changes from there on. So whoever
does as he is told always has the right set, and what waits for him is bounded.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

import anyio
import anyio.lowlevel

from vidette.errors import Error, UsageError
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import KVEventBatch
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

MAX_UNREAD: Final = 65536
"""Most blocks in the events that wait for one subscriber."""


class KVEventStream:
    """Changes of the prefix cache, as they come; iterate over it, from one task.

    The first batch begins with `AllBlocksCleared` and then has all that is cached; the next have what has
    changed. It begins anew so whenever its reader was too slow, and when another scheduler takes the place of
    one that has died, with an empty cache.
    """

    def __init__(self, events: KVEvents) -> None:
        self._events = events
        self._unread: deque[KVEventBatch] = deque()
        self._blocks = 0
        self._anew = True
        self._failure: Callable[[], Error] | None = None
        self._news = anyio.Event()
        self._waiting = False

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> KVEventBatch:
        """Wait for the next batch.

        Raises:
            EngineBroken, EngineClosed: the engine serves no more, and all that was told before was read.
            UsageError: the block was left meanwhile.
            anyio.BusyResourceError: another task waits for the next batch.
        """
        await anyio.lowlevel.checkpoint()
        while (batch := self.take_nowait()) is None:
            if self._failure is not None:
                raise self._failure()
            if self._waiting:
                raise anyio.BusyResourceError("reading from")
            self._waiting, self._news = True, anyio.Event()
            try:
                await self._news.wait()
            finally:
                self._waiting = False
        return batch

    def take_nowait(self) -> KVEventBatch | None:
        """Return the next batch if there is one already."""
        if self._anew:
            self._anew = False
            return self._events.snapshot()
        if not self._unread:
            return None
        batch = self._unread.popleft()
        self._blocks -= _blocks_in(batch)
        return batch

    # --- the front's side ----------------------------------------------------------

    def put(self, batch: KVEventBatch) -> None:
        """Note what has changed; if too much waits, have all be told anew instead."""
        if not self._anew:  # else it will be told with the rest
            self._unread.append(batch)
            self._blocks += _blocks_in(batch)
            if self._blocks > MAX_UNREAD:
                self.begin_anew()
        self._news.set()

    def begin_anew(self) -> None:
        """Have all be told that is cached when it is read next."""
        self._unread.clear()
        self._blocks, self._anew = 0, True
        self._news.set()

    def fail(self, failure: Callable[[], Error]) -> None:
        """Raise an error once all is read."""
        self._failure = failure
        self._news.set()

    def leave(self) -> None:
        """End the stream because its block is left; another task may wait for it still."""
        self._unread.clear()
        self._blocks, self._anew = 0, False
        self.fail(_left)

    def __len__(self) -> int:
        """Return how many batches wait to be read."""
        return len(self._unread)


class _Block(NamedTuple):
    """A cached block: the hash of the one before, and what it holds."""

    parent: int | None
    tokens: array[int]


class KVEvents:
    """The cache of one front's scheduler, and the subscribers.

    Args:
        told: whether the scheduler tells its events.
        clock: seconds since the epoch.
    """

    def __init__(self, *, told: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._told = told
        self._clock = clock
        self._blocks: dict[int, _Block] = {}  # no block comes before the one that it follows
        self._streams: list[KVEventStream] = []
        self._failure: Callable[[], Error] | None = None

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[KVEventStream]:
        """Open a stream of events, which ends with the block.

        Raises:
            UsageError: no events are told.
            EngineBroken, EngineClosed: the engine serves no more.
        """
        if not self._told:
            raise UsageError(
                "this engine tells no events of its cache; open it with kv_events=True", param="kv_events"
            )
        await anyio.lowlevel.checkpoint()
        if self._failure is not None:
            raise self._failure()
        stream = KVEventStream(self)
        self._streams.append(stream)
        try:
            yield stream
        finally:
            self._streams.remove(stream)
            stream.leave()

    def deliver(self, batch: KVEventBatch) -> None:
        """Take what the scheduler says; synchronous.

        Raises:
            RemoteProtocolError: tokens and hashes of a block do not go together.
        """
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        self._blocks.pop(block, None)
                case AllBlocksCleared():
                    self._blocks.clear()
        for stream in self._streams:
            stream.put(batch)

    def _store(self, event: BlockStored) -> None:
        size, tokens = event.block_size, array("i", event.token_ids)
        if len(tokens) != size * len(event.block_hashes):
            raise RemoteProtocolError(
                f"{len(event.block_hashes)} blocks of {size} tokens have {len(tokens)} tokens"
            )
        parent = event.parent_block_hash
        for number, block in enumerate(event.block_hashes):
            self._blocks[block] = _Block(parent, tokens[number * size : (number + 1) * size])
            parent = block

    def snapshot(self) -> KVEventBatch:
        """Return what leads to the set as it is now, whatever was known before."""
        events: list[BlockStored | BlockRemoved | AllBlocksCleared] = [AllBlocksCleared()]
        hashes: list[int] = []
        tokens: list[int] = []
        last: BlockStored | None = None
        for block, (parent, held) in self._blocks.items():
            if last is None or parent is None or parent != hashes[-1]:
                hashes, tokens = [], []
                last = BlockStored(hashes, parent, tokens, len(held))
                events.append(last)
            hashes.append(block)
            tokens += held
        return KVEventBatch(ts=self._clock(), events=events)

    def reset(self) -> None:
        """Note that the scheduler is gone, and its cache with it."""
        self._blocks.clear()
        for stream in self._streams:
            stream.begin_anew()

    def end(self, failure: Callable[[], Error]) -> None:
        """Raise an error, made anew for each, for those who have read all; the first call counts."""
        if self._failure is None:
            self._failure = failure
            for stream in self._streams:
                stream.fail(failure)

    def __len__(self) -> int:
        """Return how many blocks are cached, as far as that was told."""
        return len(self._blocks)


def _blocks_in(batch: KVEventBatch) -> int:
    return sum(
        1 if isinstance(event, AllBlocksCleared) else len(event.block_hashes) for event in batch.events
    )


def _left() -> Error:
    return UsageError("the block of these events was left; read them inside of it")
