"""What a connection does on uvicorn, seen from its transport: what cannot be had from a kernel at will."""

from __future__ import annotations

import socket
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Receive, Scope, Send

from vidette.service import ServiceLimits
from vidette.service._uvicorn import UNSENT_BYTES, UvicornServer, _Protocol

SECONDS = 20.0
SIZE = 5 * UNSENT_BYTES


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Uvicorn runs nowhere else."""
    backend: str = request.param
    return backend


class Pipe:
    """A transport whose client reads what the test says."""

    def __init__(self, sock: socket.socket) -> None:
        self.held = 0
        self.aborted = anyio.Event()
        self.protocol: Any = None
        self._sock = sock
        self._high = 0
        self._paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self.held

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._sock if name == "socket" else default

    def is_closing(self) -> bool:
        return self.aborted.is_set()

    def write(self, data: bytes) -> None:
        self.held += len(data)
        if self.held > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def read(self, count: int) -> None:
        self.held -= count
        if self._paused and self.held <= self._high // 4:
            self._paused = False
            self.protocol.resume_writing()

    def close(self) -> None:
        """Wait for the client to read the rest, as a transport does."""

    def abort(self) -> None:
        self.aborted.set()
        self.protocol.connection_lost(None)


async def test_who_does_not_read_the_last_of_an_answer_is_cut_off() -> None:
    """So little of it is left that the transport takes more again."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"%d" % SIZE)]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"x" * SIZE})

    limits = ServiceLimits(unread_seconds=0.05, head_seconds=0.02)
    with socket.socket() as sock:
        server = UvicornServer(app, sock, None, 1.0, limits)
        server.config.load()
        pipe = Pipe(sock)
        pipe.protocol = protocol = _Protocol(server.config, server.server_state, {})
        protocol.connection_made(cast("Any", pipe))
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with anyio.fail_after(SECONDS):
            while pipe.held < SIZE:
                await anyio.lowlevel.checkpoint()
            pipe.read(pipe.held - 100)
            await pipe.aborted.wait()
        assert pipe.held == 100
