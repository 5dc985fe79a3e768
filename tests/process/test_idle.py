"""An engine that has nothing to do does nothing: no polling anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from tests.process.conftest import DEADLINE
from vidette import open_engine
from vidette.testing import wait_quiescent

WINDOW = 3.0
"""Seconds to look; a poll every 10 ms would take about 20 ms of CPU in it."""
ALLOWED = 0.005
"""Share of one core: the contract of the service."""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, to the nanosecond."""
    return (
        sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
        / 1e9
    )


async def test_idle_cpu_is_zero(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("warm up", sampling_params={"max_new_tokens": 8}) as stream:
                await stream.read()
            statistics = await wait_quiescent(engine)
            pids = [os.getpid(), *(process.pid for process in statistics.processes)]
            # Idleness is a statement about time that passes, so this test has to let some pass.
            await anyio.sleep(0.5)
            before = sum(map(cpu_seconds, pids))
            await anyio.sleep(WINDOW)
            used = sum(map(cpu_seconds, pids)) - before
            after = await engine.heartbeat()
    assert used < ALLOWED * WINDOW, f"{used * 1000:.1f} ms of CPU in {WINDOW} s"
    assert after.steps == statistics.steps
