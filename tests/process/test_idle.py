"""An engine that has nothing to do does nothing: no polling anywhere."""

from __future__ import annotations

import os

import anyio

from tests.process.conftest import DEADLINE
from vidette import open_engine
from vidette.bench.idle import family, measure_idle
from vidette.testing import wait_quiescent

WINDOW = 3.0
"""Seconds to look; a poll every 10 ms would take about 20 ms of CPU in it."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Of a second of CPU time, as the kernel counts it for people."""


async def test_idle_cpu_is_zero(topology: str) -> None:
    """No tick of the CPU goes by, in any process or thread, while nothing lives."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("warm up", sampling_params={"max_new_tokens": 8}) as stream:
                await stream.read()
            statistics = await wait_quiescent(engine)
            assert {process.pid for process in statistics.processes} <= family(os.getpid())
            # Idleness is a statement about time that passes, so this test has to let some pass.
            await anyio.sleep(0.5)
            percent = await measure_idle(WINDOW)
            after = await engine.heartbeat()
    used = percent / 100 * WINDOW
    assert round(used * TICKS) == 0, f"{used * 1000:.1f} ms of CPU in {WINDOW} s"
    assert after.steps == statistics.steps
