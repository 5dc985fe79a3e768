"""Events of the prefix cache through a whole engine: who follows them knows what the scheduler has cached."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from tests.process.conftest import DEADLINE
from vidette import Engine, EngineClosed, GenerateReqInput, SamplingParams, UsageError, open_engine, sync
from vidette.models import BLOCK_SIZE
from vidette.scheduler.radix import Namespace, block_hashes
from vidette.testing import wait_quiescent
from vidette_protocol.messages import FlushCacheReqInput, KVEventBatch
from vidette_protocol.messages.kv import AllBlocksCleared, BlockRemoved, BlockStored


class Router:
    """Follows the events of an engine."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.removed = 0
        self.batches: list[KVEventBatch] = []
        self._news = anyio.Event()

    async def follow(self, engine: Engine) -> None:
        async with engine.kv_events() as events:
            async for batch in events:
                self.take(batch)
                self._news.set()

    def take(self, batch: KVEventBatch) -> None:
        self.batches.append(batch)
        for event in batch.events:
            match event:
                case BlockStored(hashes, parent, tokens, size):
                    assert parent is None or parent in self.blocks
                    assert (size, len(tokens)) == (BLOCK_SIZE, BLOCK_SIZE * len(hashes))
                    self.blocks |= set(hashes)
                case BlockRemoved(hashes):
                    assert self.blocks >= set(hashes)
                    self.blocks -= set(hashes)
                    self.removed += len(hashes)
                case AllBlocksCleared():
                    self.blocks.clear()

    async def until_it_knows(self, blocks: set[int]) -> None:
        with anyio.fail_after(DEADLINE):
            while self.blocks != blocks:
                self._news = anyio.Event()
                await self._news.wait()


def ask(ids: list[int], count: int, **options: Any) -> GenerateReqInput:
    params = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    return GenerateReqInput(input_ids=ids, sampling_params=params, **options)


async def blocks_of(engine: Engine, ids: list[int], count: int, extra_key: str | None = None) -> set[int]:
    """Serve a request; return the blocks that it leaves behind."""
    async with engine.generate(ask(ids, count, extra_key=extra_key)) as stream:
        answer = await stream.read()
    computed = np.array([*ids, *answer.token_ids][:-1], dtype=np.int32)
    return set(block_hashes(Namespace(extra_key, None), computed))


async def test_a_router_knows_what_is_cached(topology: str) -> None:
    began = time.time()
    router, late = Router(), Router()
    with anyio.fail_after(2 * DEADLINE):
        async with open_engine("toy", topology=topology, kv_events=True) as engine:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(router.follow, engine)
                shared = [7 + place % 50 for place in range(70)]
                expected: set[int] = set()
                for key in (None, None, "other"):
                    expected |= await blocks_of(engine, [*shared, len(expected)], 20, key)
                assert len(expected) > 10
                await router.until_it_knows(expected)
                tasks.start_soon(late.follow, engine)
                await late.until_it_knows(expected)
                statistics = await wait_quiescent(engine)
                assert statistics.blocks_cached == len(expected)
                assert (await engine.control(FlushCacheReqInput(id=0))).success
                for each in (router, late):
                    await each.until_it_knows(set())
                expected = await blocks_of(engine, shared, 5)
                for each in (router, late):
                    await each.until_it_knows(expected)
                tasks.cancel_scope.cancel()
    times = [batch.ts for batch in router.batches]
    assert began <= times[0]
    assert times[-1] <= time.time()
    assert len(router.batches) > len(late.batches)


async def test_a_router_knows_what_is_evicted() -> None:
    router = Router()
    options: dict[str, Any] = {"kv_tokens": 20 * BLOCK_SIZE, "host_kv_tokens": 4 * BLOCK_SIZE}
    with anyio.fail_after(2 * DEADLINE):
        async with open_engine("toy", kv_events=True, **options) as engine:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(router.follow, engine)
                seen: set[int] = set()
                for start in range(6):
                    seen |= await blocks_of(engine, [(start + place * 3) % 250 for place in range(100)], 20)
                flushed = await engine.control(FlushCacheReqInput(id=0))  # answered behind the events
                assert flushed.success
                await router.until_it_knows(set())
                assert router.removed >= len(seen) - 24
                tasks.cancel_scope.cancel()


@pytest.mark.long
async def test_another_scheduler_begins_with_an_empty_cache() -> None:
    router = Router()
    options: dict[str, Any] = {"topology": "processes", "supervision": "restart", "restart_delay": 0.01}
    with anyio.fail_after(2 * DEADLINE):
        async with open_engine("toy", kv_events=True, **options) as engine:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(router.follow, engine)
                await router.until_it_knows(await blocks_of(engine, list(range(60)), 4))
                (pid,) = (each.pid for each in engine.statistics().processes if each.role == "scheduler")
                os.kill(pid, signal.SIGKILL)
                await router.until_it_knows(set())
                await engine.wait_turning()
                expected = await blocks_of(engine, list(range(100, 170)), 4)
                await router.until_it_knows(expected)
                tasks.cancel_scope.cancel()


async def test_events_have_to_be_asked_for_when_the_engine_is_opened() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            with pytest.raises(UsageError, match="kv_events=True"):
                async with engine.kv_events():
                    pytest.fail("there are none")


async def test_events_end_with_the_engine() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", kv_events=True) as engine:
            events = engine.kv_events()
            stream = await events.__aenter__()
            assert (await anext(stream)).events == [AllBlocksCleared()]
        with pytest.raises(EngineClosed):
            await anext(stream)
        await events.__aexit__(None, None, None)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_without_a_loop_of_ones_own(backend: Any) -> None:
    with sync.open_engine("toy", backend=backend, kv_events=True) as engine, engine.kv_events() as events:
        assert next(iter(events)).events == [AllBlocksCleared()]
        with engine.generate(ask(list(range(40)), 2)) as stream:
            stream.read()
        batch = next(events)
        assert isinstance(batch.events[0], BlockStored)
        assert batch.events[0].block_hashes[:2] == block_hashes(Namespace(), np.arange(32, dtype=np.int32))
