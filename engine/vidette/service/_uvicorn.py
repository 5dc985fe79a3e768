"""A server for the app: uvicorn, on the asyncio loop of the running program.

This is the one module that knows asyncio. Uvicorn runs as a task of ours: the socket is bound before it
starts, signals are left to whoever runs the program, and a stop is our gate's business.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vidette._groups import Body, bare
from vidette.errors import UsageError
from vidette.service.gate import Gate

KEEP_ALIVE_SECONDS = 5
"""How long a connection may be idle."""
HEAD_BYTES = 64 * 1024
"""Longest request line and headers together, give or take what one read brings."""
HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
CONNECTION_BYTES = 128 * 1024
"""What the kernel is asked to take for a client that does not read; it takes twice as much, counting its own
records. Left to itself, it takes up to 4 MiB: nothing of ours, but of the machine's."""
CLOSING_SECONDS = 2
"""How long connections have to take what was sent to them, once the server has stopped."""


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Return a socket that is bound and does not listen yet; port 0 takes any that is free.

    Raises:
        UsageError: the host is not this machine alone and `allow_remote` is not set, or cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"host {host!r} has no address: {error.strerror}", param="host") from error
    if not allow_remote and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(
            f"host {host!r} can be reached from other machines, and there is no key that they would have to "
            "know; use 127.0.0.1, or allow it with --allow-remote",
            param="host",
        )
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CONNECTION_BYTES)  # of each that is accepted
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_serve(address, error) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the address of a bound socket, as a browser takes it."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def serving(
    app: ASGIApp,
    sock: socket.socket,
    *,
    gate: Gate,
    drain_seconds: float = 5.0,
    drain: Callable[[float], Coroutine[Any, Any, object]] | None = None,
) -> AsyncGenerator[None]:
    """Serve an app while the block runs; in it, the socket listens.

    Leaving it stops in order: new requests are refused with 503 at once, those inside have `drain_seconds` to
    end, are ended then, and last the connections are closed. That takes CLOSING_SECONDS and PARTING_SECONDS
    longer than `drain_seconds` at most, whatever clients do.

    Args:
        app: what to serve.
        sock: from `bind()`; it is closed at the end.
        gate: the gate of the app.
        drain_seconds: how long requests have to end by themselves.
        drain: ends what they wait for, after so many seconds: `Engine.drain`. None: they are cancelled.

    Raises:
        UsageError: somebody else listens there.
    """
    config = uvicorn.Config(
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
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    try:
        # Two programs can bind one port; only one can listen.
        sock.listen(config.backlog)
    except OSError as error:
        raise _cannot_serve(sock.getsockname(), error) from error
    server = _Server(config)
    body = Body()
    with bare(body):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_until_told, sock)
            try:
                await server.listening.wait()
                with body.watched():
                    yield
            finally:
                try:
                    await gate.drain(drain_seconds, drain)
                finally:
                    gate.cancel()
                    server.should_exit = True


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn's, with a bound on heads: httptools collects a header however long it gets."""

    _unfinished = 0
    """Bytes that have come since a head, a piece of a body or a request was last complete."""

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and close the connection if it only ever swallows."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > HEAD_BYTES and not self.transport.is_closing():
            cycle: RequestResponseCycle | None = self.cycle  # None before the first request
            if cycle is None or cycle.response_complete:
                self.transport.write(HEAD_TOO_LONG)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Note that a head is complete."""
        self._unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that a piece of a body is."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is."""
        self._unfinished = 0
        super().on_message_complete()


class _Server(uvicorn.Server):
    """Uvicorn that says when it listens, and that leaves the signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def run_until_told(self, sock: socket.socket) -> None:
        """Serve until `should_exit`, also if everything around is cancelled: connections are closed in order.

        It takes no longer than CLOSING_SECONDS and two ticks of uvicorn's.
        """
        with anyio.CancelScope(shield=True):
            await self.serve([sock])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: they belong to the program."""
        yield


def _cannot_serve(address: Sequence[object], error: OSError) -> UsageError:
    host, port = address[:2]
    return UsageError(
        f"cannot serve on {host} port {port}: {os.strerror(error.errno or 0)}; choose another (0 takes any)",
        param="port",
    )
