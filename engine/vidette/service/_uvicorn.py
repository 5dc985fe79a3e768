"""Uvicorn, on the asyncio loop of the running program; the one module that knows asyncio."""

from __future__ import annotations

import asyncio  # noqa: TID251  uvicorn is an asyncio server
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Final

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from vidette.service.sockets import HEAD_BYTES, KEEP_ALIVE_SECONDS

UNSENT_BYTES: Final = 4 * 1024
"""Of an answer that the kernel has not taken; then the answer waits, and its events are merged. Each that
uvloop keeps costs some 700 bytes besides."""
HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class UvicornServer(uvicorn.Server):
    """Uvicorn that says when it listens, does nothing while idle, and leaves the signals alone.

    Args:
        app: what to serve.
        sock: listens.
        tls: how to speak TLS, if so.
        closing_seconds: how long connections have to take what was sent to them, at the end.
    """

    def __init__(
        self, app: ASGIApp, sock: socket.socket, tls: ssl.SSLContext | None, closing_seconds: float
    ) -> None:
        super().__init__(_config(app, tls, closing_seconds))
        self.server_state = _State()
        self.listening = anyio.Event()
        self._sock = sock
        self._told = anyio.Event()

    async def run_until_told(self) -> None:
        """Serve until `stop()`, also if everything around is cancelled: connections are closed in order.

        It takes no longer than `closing_seconds` and two ticks of uvicorn's.
        """
        with anyio.CancelScope(shield=True):
            await self.serve([self._sock])

    def stop(self) -> None:
        """Take no more connections, and close those that there are."""
        self.should_exit = True
        self._told.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn looks ten times a second whether it is there."""
        await self._told.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: they belong to the program."""
        yield


class _State(ServerState):
    """What connections share, the header with the date among it."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0

    def refresh_date(self) -> None:
        """See that the date is that of now, to the second."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.default_headers = [(b"date", formatdate(second, usegmt=True).encode())]


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn's, with bounds on heads: it collects them however long they get, and take."""

    server_state: _State
    _unfinished = 0
    """Bytes that have come since a head, a piece of a body or a request was last complete."""
    _late: asyncio.TimerHandle | None = None
    """Closes the connection if a head does not become complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, which has to ask for something."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        self._expect_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and close the connection if it only ever swallows."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > HEAD_BYTES and not self.transport.is_closing():
            if not self._answering:
                self.transport.write(HEAD_TOO_LONG)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that a head is complete."""
        self._unfinished = 0
        self._expect_no_head()
        self.server_state.refresh_date()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that a piece of a body is."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is."""
        self._unfinished = 0
        super().on_message_complete()

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(KEEP_ALIVE_SECONDS, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        self._late = None
        if self._answering:
            self._expect_head()
        else:
            self.timeout_keep_alive_handler()

    def _expect_no_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _config(app: ASGIApp, tls: ssl.SSLContext | None, closing_seconds: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # it warns of whatever nonsense a client sends
        access_log=False,  # it would tell who asked what
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=closing_seconds,  # type: ignore[arg-type]  # seconds need not be whole
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
