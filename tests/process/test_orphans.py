"""Nothing outlives the front: not its processes, not shared memory, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.process.conftest import DEADLINE, start_script, wait_gone

FRONT = """
import sys, anyio, vidette
async def main():
    async with vidette.open_engine("toy", topology="processes") as engine:
        print(*(process.pid for process in engine.statistics().processes), flush=True)
        params = {{"max_new_tokens": 8000, "ignore_eos": True}}
        async with engine.generate("x", sampling_params=params) as stream:
            await anext(stream)
            print("generating", flush=True)
            {then}
anyio.run(main, backend={backend!r})
"""


def start_front(backend: str, then: str) -> tuple[subprocess.Popen[str], list[int]]:
    front = start_script(FRONT.format(backend=backend, then=then))
    assert front.stdout is not None
    pids = [int(word) for word in front.stdout.readline().split()]
    assert front.stdout.readline() == "generating\n"
    assert len(pids) == 2
    return front, pids


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_front_that_is_killed_takes_its_processes_along(
    backend: str, ending: signal.Signals, shared_memory_unchanged: None
) -> None:
    front, pids = start_front(backend, "await anyio.sleep_forever()")
    try:
        front.send_signal(ending)
        front.communicate(timeout=DEADLINE)
    finally:
        front.kill()
    assert front.returncode != 0
    assert all(wait_gone(pid) for pid in pids)


@pytest.mark.parametrize("then", ["raise LookupError('mine')", "sys.exit(3)", "return"])
def test_a_front_that_leaves_takes_its_processes_along(then: str, shared_memory_unchanged: None) -> None:
    front, pids = start_front("trio", then)
    _, stderr = front.communicate(timeout=DEADLINE)
    # Its exit waits for them: none is left at this very moment.
    assert all(wait_gone(pid, 0) for pid in pids)
    assert front.returncode == {"raise": 1, "sys.ex": 3, "return": 0}[then[:6].strip(" L")]
    assert ("LookupError: mine" in stderr) == then.startswith("raise")
    assert "ExceptionGroup" not in stderr


def test_a_front_that_is_stopped_is_not_gone() -> None:
    """Its processes wait for it (SIGSTOP, a debugger, a laptop lid), and go when it does."""
    front, pids = start_front("asyncio", "await anyio.sleep_forever()")
    try:
        front.send_signal(signal.SIGSTOP)
        assert not any(wait_gone(pid, 0.2) for pid in pids)
    finally:
        front.kill()
        front.communicate(timeout=DEADLINE)
    assert all(wait_gone(pid) for pid in pids)


def test_a_child_whose_parent_is_gone_before_it_looks_exits() -> None:
    """A child compares its parent with the one that started it: no window is left open."""
    read, write = os.pipe()
    try:
        spec = (
            '{"links":{},"guard":%d,"parent":1,"die_with_thread":true,'
            '"incarnation":0,"backend":"asyncio","config":{}}'
        )
        child = subprocess.run(
            [sys.executable, "-m", "vidette._child", "scheduler", spec % read],
            pass_fds=[read],
            timeout=DEADLINE,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(read)
        os.close(write)
    assert (child.returncode, child.stderr) == (0, "")
