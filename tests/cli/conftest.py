"""The command as a process: its lines, its end, and the processes that belong to it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

SECONDS = 60.0
"""How long anything of these tests may take on a machine that does other things as well."""


class Command:
    """`vidette ARGUMENTS`, running; both of its outputs are read from pipes."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "vidette.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.children: list[int] = []
        """A pidfd of each process that was seen to belong to it."""

    def read_until(self, stream: str, end: str) -> str:
        """Read "stdout" or "stderr" until it has said something."""
        pipe = getattr(self.process, stream)
        said, deadline = "", time.monotonic() + SECONDS
        while end not in said:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{end!r} did not come within {SECONDS} s, but: {said}"
            piece = os.read(pipe.fileno(), 4096).decode()
            assert piece, f"the command ended without {end!r}: {said}"
            said += piece
        return said

    def find_children(self, count: int) -> None:
        """Find the processes that it has started."""
        self.look_for_children()
        assert len(self.children) == count

    def look_for_children(self) -> None:
        """Find those processes that it has started by now."""
        while self.children:
            os.close(self.children.pop())
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    self.children.append(os.pidfd_open(int(stat.parent.name)))

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(signum)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return exit status and what was left in both outputs. No child may be left."""
        out, err = self.process.communicate(timeout=SECONDS)
        for pidfd in self.children:
            ready, _, _ = select.select([pidfd], [], [], SECONDS)
            assert ready, "a process is left"
        return self.process.returncode, out.decode(), err.decode()

    def close(self) -> None:
        """Give everything back."""
        self.process.kill()
        self.process.communicate()
        for pidfd in self.children:
            os.close(pidfd)


class Commands:
    """Starts commands; whatever still runs at the end of a test is killed."""

    def __init__(self) -> None:
        self.started: list[Command] = []

    def __call__(self, *arguments: str) -> Command:
        """Start `vidette ARGUMENTS`."""
        command = Command(*arguments)
        self.started.append(command)
        return command


@pytest.fixture
def vidette_command() -> Generator[Commands]:
    commands = Commands()
    yield commands
    for command in commands.started:
        command.close()
