"""What subscribers are told of the prefix cache leads to the set of blocks that it holds."""

from __future__ import annotations

from typing import NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.front.conftest import DEADLINE, Front

from vidette import EngineBroken, EngineClosed, UsageError
from vidette.front import kv_events
from vidette.front.kv_events import MAX_UNREAD, KVEvents, KVEventStream
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import KVEventBatch
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored

Event = BlockStored | BlockRemoved | AllBlocksCleared
SIZE = 2
MOVES = ("tell", "tell", "tell", "subscribe", "read", "restart", "clear")


def stored(*hashes: int, parent: int | None = None, size: int = SIZE) -> BlockStored:
    """Return an event of blocks whose tokens tell which they are."""
    return BlockStored(list(hashes), parent, [hash_ * 10 for hash_ in hashes for _ in range(size)], size)


def batch(*events: Event, ts: float = 1.0) -> KVEventBatch:
    return KVEventBatch(ts=ts, events=list(events))


class Held(NamedTuple):
    """What a router knows of a block."""

    parent: int | None
    tokens: tuple[int, ...]


class Router:
    """Does as it is told."""

    def __init__(self) -> None:
        self.blocks: dict[int, Held] = {}

    def take(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            match event:
                case BlockStored(hashes, parent, tokens, size):
                    assert parent is None or parent in self.blocks, "it follows a block that is not there"
                    for number, hash_ in enumerate(hashes):
                        self.blocks[hash_] = Held(parent, tuple(tokens[number * size : (number + 1) * size]))
                        parent = hash_
                case BlockRemoved(hashes):
                    for hash_ in hashes:
                        del self.blocks[hash_]
                case AllBlocksCleared():
                    self.blocks.clear()


class Tree:
    """Prefixes as the scheduler's cache has them: a block hangs from another, and leaves go first."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self._next = 0

    def grow(self, parent: int | None, count: int) -> BlockStored:
        hashes = list(range(self._next + 1, self._next + 1 + count))
        self._next += count
        event = stored(*hashes, parent=parent)
        for hash_ in hashes:
            self.parents[hash_], parent = parent, hash_
        return event

    def drop(self, leaf: int) -> BlockRemoved:
        del self.parents[leaf]
        return BlockRemoved([leaf])

    @property
    def leaves(self) -> list[int]:
        return sorted(self.parents.keys() - set(self.parents.values()))


# --- the set of blocks -----------------------------------------------------------------------------


@given(st.data())
def test_a_reader_has_the_set_of_blocks_however_slow_it_is(data: st.DataObject) -> None:
    """Once a subscriber has read all that waits for it, what it knows is what is cached, whenever it came,
    however much it missed, and whatever became of the scheduler; and what waits is bounded."""
    events, tree = KVEvents(told=True), Tree()
    readers: list[tuple[KVEventStream, Router]] = []
    few = data.draw(st.integers(2, 12), label="bound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_events, "MAX_UNREAD", few)
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(MOVES)):
                case "tell":
                    told: list[Event] = []
                    for _ in range(data.draw(st.integers(1, 3))):
                        if len(tree.parents) > 0 and data.draw(st.booleans()):
                            told.append(tree.drop(data.draw(st.sampled_from(tree.leaves))))
                        else:
                            parent = data.draw(st.sampled_from([None, *tree.parents]))
                            told.append(tree.grow(parent, data.draw(st.integers(1, 4))))
                    events.deliver(batch(*told))
                case "subscribe":
                    stream = KVEventStream(events)
                    events._streams.append(stream)
                    readers.append((stream, Router()))
                case "read" if readers:
                    stream, router = data.draw(st.sampled_from(readers))
                    if (told_now := stream.take_nowait()) is not None:
                        router.take(told_now)
                case "restart":
                    tree.parents.clear()
                    events.reset()
                case "clear":
                    tree.parents.clear()
                    events.deliver(batch(AllBlocksCleared()))
            for stream, _ in readers:
                waiting = [kv_events._blocks_in(each) for each in stream._unread]
                assert sum(waiting) == stream._blocks <= few
    for stream, router in readers:
        while (told_now := stream.take_nowait()) is not None:
            router.take(told_now)
        assert {hash_: held.parent for hash_, held in router.blocks.items()} == tree.parents
        assert all(held.tokens == (hash_ * 10,) * SIZE for hash_, held in router.blocks.items())
    assert len(events) == len(tree.parents)


def test_blocks_that_follow_each_other_are_told_as_one() -> None:
    events = KVEvents(told=True, clock=lambda: 7.0)
    events.deliver(batch(stored(1, 2), stored(3, parent=2), stored(4, parent=1), stored(5)))
    told: list[Event] = [AllBlocksCleared(), stored(1, 2, 3), stored(4, parent=1), stored(5)]
    assert events.snapshot() == batch(*told, ts=7.0)


def test_a_batch_that_makes_no_sense_breaks_the_protocol() -> None:
    events = KVEvents(told=True)
    with pytest.raises(RemoteProtocolError, match="2 blocks of 2 tokens have 3 tokens"):
        events.deliver(batch(BlockStored([1, 2], None, [1, 2, 3], 2)))


# --- subscribing -----------------------------------------------------------------------------------


async def test_each_subscriber_is_told_all_at_his_own_pace() -> None:
    events = KVEvents(told=True, clock=lambda: 7.0)
    events.deliver(batch(stored(1)))
    news = [batch(stored(2, parent=1)), batch(BlockRemoved([2]))]
    async with events.subscribe() as quick, events.subscribe() as slow:
        for stream in (quick, slow):
            assert await anext(stream) == batch(AllBlocksCleared(), stored(1), ts=7.0)
        events.deliver(news[0])
        assert await anext(quick) == news[0]
        events.deliver(news[1])
        assert [await anext(quick), await anext(slow), await anext(slow)] == [news[1], *news]
    events.deliver(batch(stored(3)))
    assert len(quick) == len(slow) == 0
    assert not events._streams


async def test_one_who_waits_is_woken() -> None:
    events = KVEvents(told=True)
    heard: list[KVEventBatch] = []

    async def read(stream: KVEventStream) -> None:
        heard.append(await anext(stream))

    with anyio.fail_after(DEADLINE):
        async with events.subscribe() as stream, anyio.create_task_group() as tasks:
            await anext(stream)
            tasks.start_soon(read, stream)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            events.deliver(batch(stored(1)))
    assert heard == [batch(stored(1))]


async def test_who_does_not_read_is_told_anew() -> None:
    events = KVEvents(told=True)
    async with events.subscribe() as stream:
        await anext(stream)
        events.deliver(batch(stored(*range(1, MAX_UNREAD + 1), size=1)))
        assert len(stream) == 1
        events.deliver(batch(BlockRemoved([MAX_UNREAD])))
        assert len(stream) == 0
        events.deliver(batch(BlockRemoved([MAX_UNREAD - 1])))
        told = await anext(stream)
        assert told.events == [AllBlocksCleared(), stored(*range(1, MAX_UNREAD - 1), size=1)]


async def test_what_was_told_can_be_read_behind_the_end() -> None:
    events = KVEvents(told=True)
    async with events.subscribe() as stream:
        await anext(stream)
        events.deliver(batch(stored(1)))
        events.end(lambda: EngineBroken("it broke"))
        events.end(lambda: EngineClosed("too late to count"))
        assert await anext(stream) == batch(stored(1))
        for _ in range(2):
            with pytest.raises(EngineBroken, match="it broke"):
                await anext(stream)
        with pytest.raises(EngineBroken, match="it broke"):
            async with events.subscribe():
                pytest.fail("nothing can be subscribed to any more")


@pytest.mark.parametrize("end", ["leave", "end"])
async def test_one_who_waits_hears_of_the_end(end: str) -> None:
    events = KVEvents(told=True)
    errors: list[Exception] = []

    async def read(stream: KVEventStream) -> None:
        try:
            await anext(stream)
        except Exception as error:  # noqa: BLE001  looked at below
            errors.append(error)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            async with events.subscribe() as stream:
                await anext(stream)
                tasks.start_soon(read, stream)
                await anyio.wait_all_tasks_blocked()
                if end == "end":
                    events.end(lambda: EngineBroken("it broke"))
                    await anyio.wait_all_tasks_blocked()
    (error,) = errors
    assert type(error) is (EngineBroken if end == "end" else UsageError)


# --- the front -------------------------------------------------------------------------------------


async def test_a_front_passes_on_what_its_scheduler_says() -> None:
    async with Front.serving(kv_events=True) as front, front.manager.kv_events.subscribe() as stream:
        assert (await anext(stream)).events == [AllBlocksCleared()]
        front.scheduler.post(batch(stored(1, 2), ts=5.0))
        assert await anext(stream) == batch(stored(1, 2), ts=5.0)


async def test_another_scheduler_begins_with_an_empty_cache() -> None:
    async with Front.serving(kv_events=True) as front, front.manager.kv_events.subscribe() as stream:
        await anext(stream)
        front.scheduler.post(batch(stored(1, 2)))
        await front.until(lambda: len(front.manager.kv_events) == 2)
        front.manager.lose(lambda: EngineBroken("it died"))
        front.attach()
        assert (await anext(stream)).events == [AllBlocksCleared()]
        front.scheduler.post(batch(stored(3)))
        assert await anext(stream) == batch(stored(3))
        front.manager.shutdown()
        with pytest.raises(EngineClosed):
            await anext(stream)


async def test_a_front_that_is_told_nothing_says_so() -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError, match="kv_events=True") as raised:
            async with front.manager.kv_events.subscribe():
                pytest.fail("there is nothing to hear")
        assert raised.value.param == "kv_events"
