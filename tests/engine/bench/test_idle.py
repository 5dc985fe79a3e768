"""CPU time of processes: whose is counted, and from when on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from vidette.bench.idle import cpu_seconds, family, measure_idle

BURNS = "print(flush=True)\nwhile True: pass"
SLEEPS = "import signal; print(flush=True); signal.pause()"
GIVES_BIRTH = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended with their own, and waited for."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with child:
            pass


def wait_begun(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], 30)[0]


def test_a_family_is_a_process_and_all_below_it(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(GIVES_BIRTH)
    children.append(child)
    wait_begun(child)  # by its own child, whose output is the same
    below = family(child.pid)
    assert child.pid in below
    assert len(below) == 2
    assert below | {os.getpid()} <= family(os.getpid())
    assert os.getppid() not in family(os.getpid())


def test_the_time_of_a_process_that_has_ended_is_zero(children: list[subprocess.Popen[bytes]]) -> None:
    child = start(BURNS)
    children.append(child)
    wait_begun(child)
    assert cpu_seconds(child.pid) > 0
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert cpu_seconds(child.pid) == 0


async def test_whoever_works_is_counted_and_whoever_sleeps_is_not(
    children: list[subprocess.Popen[bytes]],
) -> None:
    children += [start(BURNS), start(SLEEPS)]
    for child in children:
        wait_begun(child)
    burns, sleeps = (child.pid for child in children)
    with anyio.fail_after(30):
        # By the ratio: how much of a core is to be had depends on who else works.
        assert await measure_idle(0.2, burns) > 10 * await measure_idle(0.2, sleeps)


async def test_one_that_is_new_is_counted_and_one_that_is_gone_is_forgotten(
    children: list[subprocess.Popen[bytes]],
) -> None:
    children.append(start(BURNS))
    (child,) = children
    wait_begun(child)
    gone = 2**22 + 1  # larger than any pid
    seen = iter([{gone}, {gone, child.pid}])
    assert await measure_idle(0.01, child.pid, processes=lambda _: next(seen)) > 0
