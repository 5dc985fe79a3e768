"""Uvicorn, on the asyncio loop of the running program; the one module that knows asyncio."""

from __future__ import annotations

import asyncio  # noqa: TID251  uvicorn is an asyncio server
import contextvars
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from typing import Any, Final

import anyio
import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from vidette.service.crowds import FULL, Crowd
from vidette.service.limits import ServiceLimits
from vidette.service.responses import ON_GONE
from vidette.service.sockets import BACKLOG, HEAD_BYTES, forget_unsent

UNSENT_BYTES: Final = 4 * 1024
"""Of an answer that the kernel has not taken; then the answer waits, and its events are merged. Each that
uvloop keeps costs some 700 bytes besides."""
REQUESTS_AHEAD: Final = 8
"""A connection is read, and its end noticed, while fewer requests wait for the answer to the one before."""
RETRY_SECONDS: Final = 0.1
"""After which a connection is taken, if there was no memory or descriptor for it."""
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
        limits: bounds of the service.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        closing_seconds: float,
        limits: ServiceLimits,
    ) -> None:
        super().__init__(_config(app, closing_seconds, limits))
        self.server_state = self._state = _State(Crowd(app, limits.connections), limits)
        self.listening = anyio.Event()
        self._sock = sock
        self._tls = tls
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002  it is known
        """Start to listen, and say so."""
        self._state.context = contextvars.copy_context()
        self.servers = []
        if self._tls is None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._new_protocol, sock=self._sock, backlog=BACKLOG)
            self.servers.append(server)
        self.started = True
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn looks ten times a second whether it is there."""
        async with anyio.create_task_group() as accepting:
            if self._tls is not None:
                accepting.start_soon(self._accept, accepting)
            await self._told.wait()
            accepting.cancel_scope.cancel("the server is stopping")

    def _new_protocol(self) -> _Protocol:
        return _Protocol(self.config, self._state, {})

    async def _accept(self, handshakes: anyio.abc.TaskGroup) -> None:
        """Take connections that are to speak TLS: asyncio tells of those only that do already."""
        self._sock.setblocking(False)
        while True:
            try:
                plain, _ = await asyncio.get_running_loop().sock_accept(self._sock)
            except OSError:  # no descriptor is left, or the client has left
                await anyio.sleep(RETRY_SECONDS)
                continue
            if self._state.crowd.app_for(self._state.open + 1) is None:
                plain.close()
            else:
                protocol = self._new_protocol()
                self._state.arriving.add(protocol)
                handshakes.start_soon(self._shake_hands, plain, protocol)

    async def _shake_hands(self, plain: socket.socket, protocol: _Protocol) -> None:
        limits = self._state.limits
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                plain,
                ssl=self._tls,
                ssl_handshake_timeout=limits.head_seconds,
                ssl_shutdown_timeout=limits.unread_seconds,
            )
        except OSError:  # it speaks something else, takes too long, or has left
            pass
        finally:
            self._state.arriving.discard(protocol)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: they belong to the program."""
        yield


class _State(ServerState):
    """What connections share, the header with the date among it.

    Args:
        crowd: says what answers on them.
        limits: bounds of the service.
    """

    def __init__(self, crowd: Crowd, limits: ServiceLimits) -> None:
        super().__init__()
        self.crowd = crowd
        self.limits = limits
        self.arriving: set[_Protocol] = set()
        """Connections that do not speak TLS yet."""
        self.context = contextvars.Context()
        """That of the server, in which requests begin."""
        self._second = 0

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self.connections) + len(self.arriving)

    def refresh_date(self) -> None:
        """See that the date is that of now, to the second."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.default_headers = [(b"date", formatdate(second, usegmt=True).encode())]


class _Parser(httptools.HttpRequestParser):
    """HTTP/1.1 of httptools', which gets the head of a request again if that offers to speak something else.

    With the offer, such a request ends at its head, and its body would be taken for the next one.

    Args:
        protocol: is told what comes.
    """

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol
        self._begin()

    def _begin(self) -> None:
        super().__init__(self._protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def feed_data(self, data: Any) -> None:
        """Parse what has come."""
        rest = memoryview(data)
        while rest:
            try:
                super().feed_data(rest)
                break
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
                head = self._protocol.head_without_offer()
                self._begin()
                super().feed_data(head)


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn's, with bounds on heads, which it collects however long they get and take, and on
    clients that do not read. That one has left is noticed also if it has sent something ahead.
    """

    server_state: _State
    _unfinished = 0
    """Bytes that have come since a head, a piece of a body or a request was last complete."""
    _late: asyncio.TimerHandle | None = None
    """Closes the connection if a head does not become complete, or a body that nobody wants."""
    _unread: asyncio.TimerHandle | None = None
    """Cuts the client off if it takes nothing of what waits for it."""
    _running: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the last that came."""
    _leave: Callable[[], None] | None = None
    """What it wants to have called when the client goes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, which has to ask for something, if there is room for it."""
        super().connection_made(transport)
        self.parser = _Parser(self)
        self.server_state.arriving.discard(self)
        app: Any = self.server_state.crowd.app_for(self.server_state.open)
        if app is None:
            transport.write(FULL)
            transport.close()
            return
        self.app = app
        transport.set_write_buffer_limits(UNSENT_BYTES)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let it go."""
        self._expect_no_head()
        self._expect_no_reader()
        super().connection_lost(exc)
        if self._running is not None:
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()
            if self._leave is not None:
                self._leave()
            self._forget_running()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and close the connection if it only ever swallows."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > HEAD_BYTES and not self.transport.is_closing():
            if self._may_refuse:
                self.transport.write(HEAD_TOO_LONG)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with what came, and close the connection."""
        if self._may_refuse:
            super().send_400_response(msg)
        else:
            self.transport.close()

    @property
    def _may_refuse(self) -> bool:
        """Whether what comes can be refused: nothing that came before it has its answer still before it."""
        running = self._running
        if running is None or running.response_complete:
            return True
        return running is self.cycle and running.more_body and not running.response_started

    # --- what comes -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that a head is complete; one with an offer comes again."""
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("this is no proxy")
        if self.parser.should_upgrade():
            return
        self._unfinished = 0
        self._expect_no_head()
        self.server_state.refresh_date()
        super().on_headers_complete()
        self.headers = []  # those of the app: what comes behind a body in chunks is none of them
        if 0 < len(self.pipeline) < REQUESTS_AHEAD:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Note that a piece of a body is."""
        self._unfinished = 0
        if self._leave is None or self.cycle is not self._running:  # else nobody reads it any more
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is."""
        if self.parser.should_upgrade():
            return
        self._unfinished = 0
        super().on_message_complete()
        if not self._answering:  # it was refused before, and nobody has begun to wait for the next one
            self._expect_no_head()
            self._expect_head()

    def head_without_offer(self) -> bytes:
        """Return the last head as it was, but for an offer to go on in something else."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.scope[ON_GONE] = partial(self._on_gone, cycle)  # type: ignore[typeddict-unknown-key]
        # Around it may be the context of the request before, or of whatever had the client read on.
        self.server_state.context.copy().run(super()._start_asgi_task, cycle, app)

    def _on_gone(self, cycle: RequestResponseCycle, leave: Callable[[], None]) -> None:
        if cycle is not self._running or cycle.disconnected or cycle.response_complete:
            leave()  # `receive()` would say so, too
            return
        self._leave = leave
        self.flow.resume_reading()  # else its end might not be noticed; `receive()` does so, too

    def _forget_running(self) -> None:
        """Let go of what is called when the client goes, and of what that is asked of, which is this."""
        self._leave = None
        if self._running is not None:
            self._running.scope.pop(ON_GONE, None)  # type: ignore[typeddict-item]

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _expect_head(self, seconds: float | None = None) -> None:
        if self._late is None:
            seconds = self.server_state.limits.head_seconds if seconds is None else seconds
            self._late = self.loop.call_later(seconds, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        self._late = None
        if self._answering:
            self._expect_head()
        else:
            self.timeout_keep_alive_handler()

    def timeout_keep_alive_handler(self) -> None:
        """Close it, without waiting for an idle client to take its leave of TLS."""
        if self.transport.get_write_buffer_size():
            super().timeout_keep_alive_handler()
        else:
            self.transport.abort()

    def _expect_no_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    # --- what goes ------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Note that an answer waits for its reader."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """Note that it does not any more; the end of one may."""
        super().resume_writing()
        self._expect_reader()

    def on_response_complete(self) -> None:
        """Note that an answer is complete, be it read or not."""
        self._forget_running()
        super().on_response_complete()
        self._expect_reader()
        if not self.pipeline and self.cycle.more_body:  # which nobody wants
            self._expect_head(self.server_state.limits.body_seconds)

    def _expect_reader(self) -> None:
        self._expect_no_reader()
        waiting = self.transport.get_write_buffer_size()
        if waiting:
            seconds = self.server_state.limits.unread_seconds
            self._unread = self.loop.call_later(seconds, self._cut_off_unless_read, waiting)

    def _cut_off_unless_read(self, before: int) -> None:
        """Cut the client off if no less waits for it than before; what is still being said says it again."""
        waiting = self.transport.get_write_buffer_size()
        if waiting < before or (self._answering and not self.flow.write_paused):
            self._expect_reader()
        else:
            forget_unsent(self.transport.get_extra_info("socket"))
            self.transport.abort()

    def _expect_no_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _config(app: ASGIApp, closing_seconds: float, limits: ServiceLimits) -> uvicorn.Config:
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
        timeout_keep_alive=limits.head_seconds,  # type: ignore[arg-type]  # seconds need not be whole
        timeout_graceful_shutdown=closing_seconds,  # type: ignore[arg-type]
    )
