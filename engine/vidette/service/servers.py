"""`serving()`: a server for the app, whichever runs on the event loop of the program.

That is uvicorn on asyncio, and HTTP of hypercorn's on Trio. What they have in common is done here: the socket
is bound before, signals are left to whoever runs the program, and a stop is our gate's business.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
from sniffio import current_async_library
from starlette.types import ASGIApp

from vidette._groups import Body, bare
from vidette.service.gate import Gate
from vidette.service.limits import ServiceLimits
from vidette.service.sockets import CLOSING_SECONDS, listen


class Server(Protocol):
    """A server that runs as a task of ours.

    Attributes:
        listening: set once connections are taken.
    """

    listening: anyio.Event

    async def run_until_told(self) -> None:
        """Serve until `stop()`, also if everything around is cancelled: connections are closed in order."""
        ...

    def stop(self) -> None:
        """Take no more connections, and close those that there are once they have taken what was sent."""
        ...


@asynccontextmanager
async def serving(
    app: ASGIApp,
    sock: socket.socket,
    *,
    gate: Gate,
    drain_seconds: float = 5.0,
    drain: Callable[[float], Coroutine[Any, Any, object]] | None = None,
    tls: ssl.SSLContext | None = None,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  immutable
    closing_seconds: float = CLOSING_SECONDS,
) -> AsyncGenerator[None]:
    """Serve an app while the block runs; in it, the socket listens.

    Leaving it stops in order: new requests are refused with 503 at once, those inside have `drain_seconds` to
    end, are ended then, and last the connections are closed. That takes `closing_seconds` and PARTING_SECONDS
    longer than `drain_seconds` at most, whatever clients do.

    Args:
        app: what to serve.
        sock: from `bind()`; it is closed at the end.
        gate: the gate of the app.
        drain_seconds: how long requests have to end by themselves.
        drain: ends what they wait for, after so many seconds: `Engine.drain`. None: they are cancelled.
        tls: from `tls_context()`; None: plain HTTP.
        limits: bounds of the service, on connections among others.
        closing_seconds: how long clients have to take what was sent to them.

    Raises:
        UsageError: somebody else listens there.
    """
    listen(sock)
    server = _make_server(app, sock, tls, closing_seconds, limits)
    body = Body()
    with bare(body):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run_until_told)
            try:
                await server.listening.wait()
                with body.watched():
                    yield
            finally:
                try:
                    await gate.drain(drain_seconds, drain)
                finally:
                    gate.cancel()
                    server.stop()


def _make_server(
    app: ASGIApp,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    closing_seconds: float,
    limits: ServiceLimits,
) -> Server:
    # Imported here: one of them is needed.
    if current_async_library() == "asyncio":
        from vidette.service._uvicorn import UvicornServer  # noqa: PLC0415

        return UvicornServer(app, sock, tls, closing_seconds, limits)
    from vidette.service._hypercorn import HypercornServer  # noqa: PLC0415

    return HypercornServer(app, sock, tls, closing_seconds, limits)
