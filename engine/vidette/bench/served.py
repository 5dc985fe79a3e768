"""Servers as processes of their own: `vidette serve`, and the bare one it is compared with."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from vidette.bench.client import BenchFailed

READY_SECONDS: Final = 120.0
"""How long a server may take until it serves; it loads a model."""
END_SECONDS: Final = 30.0
LINE_BYTES: Final = 64 * 1024
ADDRESS: Final = re.compile(rb" on http://(127\.0\.0\.1):(\d+)$")


class Served(NamedTuple):
    """A server that runs.

    Args:
        pid: of the process that speaks HTTP.
        address: where.
    """

    pid: int
    address: tuple[str, int]


@asynccontextmanager
async def served(module: str, *arguments: str) -> AsyncGenerator[Served]:
    """Run a Python module that serves, and says where on stderr, while the block runs.

    Raises:
        BenchFailed: it does not.
    """
    command: Sequence[str] = [sys.executable, "-m", module, *arguments]
    process = await anyio.open_process(command, stdin=None, stdout=None)
    try:
        with anyio.move_on_after(READY_SECONDS):
            address = await _hear(process)
            if address is not None:
                yield Served(process.pid, address)
                return
        raise BenchFailed(f"{' '.join(command[1:])} does not serve")
    finally:
        with anyio.move_on_after(END_SECONDS, shield=True):
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            await process.wait()
        with anyio.CancelScope(shield=True):  # it is killed if it still runs
            await process.aclose()


async def _hear(process: Process) -> tuple[str, int] | None:
    """Return where it says that it serves; None if it ends before."""
    assert process.stderr is not None
    lines = BufferedByteReceiveStream(process.stderr)
    try:
        while True:
            found = ADDRESS.search(await lines.receive_until(b"\n", LINE_BYTES))
            if found:
                return found[1].decode(), int(found[2])
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
        return None
