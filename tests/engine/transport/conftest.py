"""What several tests of the transport need: full sockets, threads that block, and an eye on descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

DEADLINE = 20.0
"""Seconds after which whatever was to happen is taken not to happen."""


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Fail a test that leaves a descriptor open."""
    before = _descriptors()
    yield
    left = {number: what for number, what in _descriptors().items() if before.get(number) != what}
    assert not left, f"descriptors were left open: {left}"


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  names, not paths
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return found


@pytest.fixture
def small_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two joined sockets, neither blocking, that hold a few KiB between them."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        for end in (left, right):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel makes its minimum of it
        yield left, right


@pytest.fixture
def wait_blocked() -> Callable[[threading.Thread, Any], None]:
    return _wait_blocked


def _wait_blocked(thread: threading.Thread, function: FunctionType) -> None:
    """Wait until a thread is in a system call that this Python function made."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        assert thread.is_alive(), f"{thread.name} has ended"
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and frame.f_code is function.__code__:
            return
        os.sched_yield()
    pytest.fail(f"{thread.name} does not get to {function.__qualname__}")
