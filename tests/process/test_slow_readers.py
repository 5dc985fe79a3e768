"""Streams that nobody iterates: what is kept for each is as long as its output, and then nothing."""

from __future__ import annotations

import gc
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

import vidette
from tests.process.conftest import DEADLINE
from vidette import SamplingParams

STREAMS = {"processes": 1000, "inline": 200}
"""In one process the compute thread and the loop take turns, which takes ten times as long."""
TOKENS = 100
MOST_KIB = 64
"""For each stream, in all processes together: docs/reference/limits.md says the same."""


def resident(engine: vidette.Engine) -> int:
    """Return the resident KiB of this process and those of the engine."""
    gc.collect()
    pids = ["self", *(str(process.pid) for process in engine.statistics().processes)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize() // 1024


@pytest.mark.long
async def test_streams_that_nobody_iterates_keep_memory_flat(topology: str) -> None:
    streams = STREAMS[topology]
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True, sampling_seed=1)
    async with vidette.open_engine("toy", topology=topology, kv_tokens=1 << 14) as engine:
        with anyio.fail_after(10 * DEADLINE):
            async with engine.generate("x", sampling_params=params) as stream:
                whole = await stream.read()
            before = resident(engine)
            async with AsyncExitStack() as blocks:
                opened = [
                    await blocks.enter_async_context(engine.generate("x", sampling_params=params))
                    for _ in range(streams)
                ]
                await engine.wait_quiet()
                assert engine.statistics().ledgers.total() == 0
                assert resident(engine) - before < streams * MOST_KIB
                async with engine.generate("x", sampling_params=params) as stream:
                    assert (await stream.read()).text == whole.text
                (delta,) = [delta async for delta in opened[-1]]  # one, with all of it
                assert (delta.text, delta.token_ids) == (whole.text, whole.token_ids)
            assert engine.statistics().ledgers.total() == 0
