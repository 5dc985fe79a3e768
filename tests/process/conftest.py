"""Helpers of the tests that run real processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HEAVY = {
    "test_all_are_ended_at_once_and_garbage_is_left_out",
    "test_as_text_nothing_that_one_says_poses_as_another_line",
    "test_eight_streams_go_on_without_a_seam",
    "test_many_at_once_say_what_each_says_alone",
    "test_of_an_error_that_tells_all_there_is_no_traceback",
    "test_opening_again_and_again_leaves_nothing_behind",
    "test_storm",
    "test_streams_go_on_after_a_death",
    "test_streams_of_both_go_on_when_one_dies",
    "test_two_engines_live_side_by_side",
    "test_what_stands_still_is_seen_and_what_hangs_is_killed",
    "test_whatever_python_says_is_an_object_in_a_line",
    "test_why_one_ends_is_such_a_line_and_the_front_says_its_message",
}
"""Tests that take many seconds: those on Trio are left to `make test-long`."""
DEADLINE = 60.0
"""Seconds that anything here may take on a busy machine; never asserted, only to end a hang."""


@pytest.hookimpl(tryfirst=True)  # before those that are marked are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is heavy on one of two backends."""
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in HEAVY and HERE in item.path.parents:
            backend = item.callspec.params.get("anyio_backend")
            if backend == "trio" and "inline" not in item.callspec.params.values():
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=["inline", "processes"])
def topology(request: pytest.FixtureRequest) -> str:
    """Both topologies."""
    name: str = request.param
    return name


@pytest.fixture
def shared_memory_unchanged() -> Iterator[None]:
    """Fail if a test leaves something in shared memory; what others use just then goes by itself."""
    before = set(Path("/dev/shm").iterdir())
    yield
    deadline = time.monotonic() + DEADLINE
    while not set(Path("/dev/shm").iterdir()) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
