"""Helpers of the tests that run real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DEADLINE = 30.0
"""Seconds that anything here may take on a busy machine; never asserted, only to end a hang."""


@pytest.fixture(params=["inline", "processes"])
def topology(request: pytest.FixtureRequest) -> str:
    """Both topologies."""
    name: str = request.param
    return name


@pytest.fixture
def shared_memory_unchanged() -> Iterator[None]:
    """Fail if a test leaves something in shared memory."""
    before = set(Path("/dev/shm").iterdir())
    yield
    assert set(Path("/dev/shm").iterdir()) <= before


def wait_gone(pid: int, timeout: float = DEADLINE) -> bool:
    """Wait until a process has ended; return whether it has."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(pidfd)


def start_script(source: str) -> subprocess.Popen[str]:
    """Start a plain script in a Python of its own; its output is piped."""
    return subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
