"""HTTP/1.1 of hypercorn's, on streams of ours; for Trio, which uvicorn does not run on.

Of hypercorn this has the protocol, from bytes to ASGI and back. How connections are taken, read, written and
closed is done here. Its own server sends inside of a shield, so a client that does not read holds what it
asked for, and the server's end, as long as it likes; and one that fails in a way nobody thought of takes all
others along. As with uvicorn, HTTP/1.1 is all that is spoken.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import ssl
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.tls import TLSStream
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Event as Spoken
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

from vidette.service.crowds import CLOSE, FULL, Crowd
from vidette.service.limits import ServiceLimits
from vidette.service.sockets import HEAD_BYTES, forget_unsent

logger = logging.getLogger(__name__)

READ_BYTES: Final = 64 * 1024
"""Longest piece that is read at once; so much is read while a request waits for the answer before it."""
UNSENT_BYTES: Final = 64 * 1024
"""An answer waits while more than that was not taken by the kernel yet."""
WRITE_BYTES: Final = 16 * 1024
"""Longest piece that waits in the kernel's queue."""
AHEAD_BYTES: Final = 64 * 1024
"""A body is not read while the app has so much of it before it."""
LINGER_SECONDS: Final = 1.0
"""How long a client that was refused may go on sending, so that it gets to read why."""
RETRY_SECONDS: Final = 0.1
"""After which a connection is taken, if there was no memory or descriptor for it."""

_LOST: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""What reading and writing raises when the client is gone."""
_AUTHORITY: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""What comes before the path, if a client names the whole URL."""
_LENGTHS: Final = {b"content-length", b"transfer-encoding"}
"""Headers that say how long a body is."""

_Send = Callable[[Any], Awaitable[None]]
_Put = Callable[[Any], Awaitable[None]]


class HypercornServer:
    """A server that runs as a task of ours.

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
        self.listening = anyio.Event()
        self._crowd = Crowd(app, limits.connections)
        self._limits = limits
        self._open = 0
        """Connections, those included that do not speak TLS yet."""
        self._sock = sock
        self._tls = tls
        self._closing_seconds = closing_seconds
        self._config = _config()
        self._context = WorkerContext(None)
        self._connections: set[_Connection] = set()
        self._told = anyio.Event()
        self._left = anyio.Event()

    async def run_until_told(self) -> None:
        """Serve until `stop()`, also if everything around is cancelled: connections are closed in order."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as connections:
                async with (
                    await SocketListener.from_socket(self._sock) as listener,
                    anyio.create_task_group() as accepting,
                ):
                    accepting.start_soon(self._accept, listener, connections)
                    self.listening.set()
                    await self._told.wait()
                    accepting.cancel_scope.cancel("the server is stopping")
                await self._context.terminated.set()
                for connection in self._connections:
                    connection.close_if_idle()
                with anyio.move_on_after(self._closing_seconds):
                    while self._connections:
                        await self._left.wait()
                connections.cancel_scope.cancel("the server has waited long enough")

    def stop(self) -> None:
        """Take no more connections, and close those that there are."""
        self._told.set()

    async def _accept(self, listener: SocketListener, connections: anyio.abc.TaskGroup) -> None:
        while True:
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError):  # no descriptor is left, or the client has left
                await anyio.sleep(RETRY_SECONDS)
            else:
                connections.start_soon(self._serve, stream)

    async def _serve(self, plain: SocketStream) -> None:
        """Serve one connection; whatever goes wrong with it is its own affair."""
        connection: _Connection | None = None
        self._open += 1
        try:
            app = self._crowd.app_for(self._open)
            if app is None:
                if self._tls is None:
                    plain.extra(SocketAttribute.raw_socket).send(FULL)  # noqa: S610  it is no database
                return
            stream: ByteStream = plain
            if self._tls is not None:
                with anyio.move_on_after(self._limits.head_seconds) as scope:
                    stream = await TLSStream.wrap(
                        plain, server_side=True, ssl_context=self._tls, standard_compatible=False
                    )
                if scope.cancelled_caught:
                    return
            connection = _Connection(app, self._config, self._context, stream, plain, limits=self._limits)
            self._connections.add(connection)
            await connection.run()
        except _LOST:
            pass
        except BaseExceptionGroup as group:
            errors, others = group.split(Exception)
            if errors is not None and errors.split(_LOST)[1] is not None:
                logger.exception("a connection failed in a way that is a bug")
            if others is not None:
                raise others from None
        except Exception:
            logger.exception("a connection failed in a way that is a bug")
        finally:
            self._open -= 1
            if connection is not None:
                self._connections.discard(connection)
                self._left.set()
                self._left = anyio.Event()
            with anyio.CancelScope(shield=True):  # it waits for nothing
                await plain.aclose()


class _Connection:
    """One connection: what comes goes to the protocol, and what that says goes out, in one piece each.

    Args:
        app: answers.
        config: of the protocol.
        context: what all connections share.
        stream: of the connection.
        plain: what is below it, if it speaks TLS.
        limits: bounds of the service.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        context: WorkerContext,
        stream: ByteStream,
        plain: SocketStream,
        *,
        limits: ServiceLimits,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._stream = stream
        self._limits = limits
        self._raw = raw = plain.extra(SocketAttribute.raw_socket)  # noqa: S610  it is no database
        self._socket = raw if stream is plain else None
        self._addresses = (raw.getpeername()[:2], raw.getsockname()[:2])
        self._idle = True
        self._gone = False
        self._reading = anyio.CancelScope(deadline=anyio.current_time() + limits.head_seconds)
        self._ahead = b""
        self._unsent = bytearray()
        self._news = anyio.Event()
        self._taken = anyio.Event()

    async def run(self) -> None:
        """Serve it to its end."""
        app: Any = self._app  # what calls it is _Answers
        answers: Any = _Answers()
        secure, state = self._socket is None, ConnectionState({})
        protocol = _Http(
            app, self._config, self._context, answers, state, secure, *self._addresses, self._take
        )
        turn: Any = _Turn(self._read_ahead)
        protocol.can_read = turn
        protocol.connection = _Parser(self._limits.all_bodies_bytes)
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(self._write)
            async with anyio.create_task_group() as answers.tasks:
                await self._read(protocol)
            while self._unsent:
                await self._taken.wait()
            if not self._gone and protocol.unread:
                await self._linger()
            helpers.cancel_scope.cancel("the connection is over")

    def close_if_idle(self) -> None:
        """Close it if nothing is being answered; else the protocol does, behind the answer."""
        if self._idle:
            self._reading.cancel("the server is stopping")

    async def _read(self, protocol: H11Protocol) -> None:
        with self._reading:
            try:
                while not self._gone:
                    data, self._ahead = self._ahead, b""
                    await protocol.handle(RawData(data or await self._stream.receive(READ_BYTES)))
            except _LOST:
                self._lose()
        await protocol.handle(Closed())

    async def _read_ahead(self) -> None:
        """Read on while a request waits for its turn: else nobody would notice that the client leaves."""
        try:
            while len(self._ahead) < READ_BYTES:
                self._ahead += await self._stream.receive(READ_BYTES)
        except _LOST:
            self._lose()
        await anyio.sleep_forever()

    async def _take(self, event: Event) -> None:
        """Do what the protocol wants."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self._reading.cancel("the protocol closes the connection")
        elif isinstance(event, Updated):
            self._idle = event.idle
            self._reading.deadline = (
                anyio.current_time() + self._limits.head_seconds if event.idle else math.inf
            )

    async def _send(self, data: bytes) -> None:
        """Take something to be sent, whole even if this is cancelled; wait while there is too much of it."""
        if self._gone:
            return
        if not self._unsent and self._socket is not None:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._lose()
                return
        if data:
            self._unsent += data
            self._news.set()
            while len(self._unsent) > UNSENT_BYTES:
                await self._taken.wait()

    async def _write(self) -> None:
        """Send what the kernel did not take at once."""
        while True:
            while not self._unsent:
                await self._news.wait()
                self._news = anyio.Event()
            piece = bytes(self._unsent[:WRITE_BYTES])
            sent = False
            with suppress(*_LOST), anyio.move_on_after(self._limits.unread_seconds) as scope:
                await self._stream.send(piece)
                sent = True
            if sent:
                del self._unsent[: len(piece)]
                self._say_taken()
            else:
                if scope.cancelled_caught:
                    forget_unsent(self._raw)
                self._lose()

    def _lose(self) -> None:
        """Note that nobody is there any more; the app is told by whoever reads."""
        self._gone = True
        self._unsent.clear()
        self._say_taken()
        self._reading.cancel("the client is gone")

    def _say_taken(self) -> None:
        self._taken.set()
        self._taken = anyio.Event()

    async def _linger(self) -> None:
        """Read on what nobody wants: left there, it would cut the client off before it has its answer."""
        with suppress(*_LOST), anyio.move_on_after(LINGER_SECONDS):
            if self._socket is not None:
                await self._stream.send_eof()
            while True:
                await self._stream.receive(READ_BYTES)


class _Turn:
    """What the protocol waits for with a request that was sent ahead: the end of the answer before it.

    Args:
        meanwhile: what is done until then; it never ends by itself.
    """

    def __init__(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._meanwhile = meanwhile
        self._waiting = anyio.CancelScope()

    async def clear(self) -> None:
        """Begin anew."""
        self._waiting = anyio.CancelScope()

    async def wait(self) -> None:
        """Wait for it."""
        with self._waiting:
            await self._meanwhile()

    async def set(self) -> None:
        """Say that it is there."""
        self._waiting.cancel("it is the turn of the next request")


class _Parser(h11.Connection):
    """HTTP/1.1 of h11's, which does not wait for a chunk that is longer than all bodies together may be.

    What is less absurd goes to the app, which says how long a body may be. Nor does it choose, of two lengths
    of a body, the one that a proxy may not have gone by. What comes behind a last request is not looked at.

    Args:
        longest: bytes of a chunk.
    """

    def __init__(self, longest: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._longest = longest

    def receive_data(self, data: bytes) -> None:
        """Take what has come."""
        if not data or self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """Return what comes next, unless it is the beginning of such a chunk or body."""
        if self.their_state is h11.MUST_CLOSE and self.trailing_data[0]:
            return h11.NEED_DATA
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _LENGTHS:
            raise h11.RemoteProtocolError("a body has two lengths", error_status_hint=400)
        # Told nowhere else; readers of what is not in chunks have no such thing.
        if getattr(self._reader, "_bytes_in_chunk", 0) > self._longest:
            raise h11.RemoteProtocolError("a chunk is too long", error_status_hint=413)
        return event


class _Http(H11Protocol):
    """HTTP/1.1, and nothing that a client would like to speak instead."""

    @property
    def unread(self) -> bool:
        """Whether the client has not said all it wanted to; then this was its last request."""
        return self.connection.their_state in {h11.SEND_BODY, h11.ERROR}

    async def stream_send(self, event: Spoken) -> None:
        """Send a part of an answer, which says so if it is the last one on this connection."""
        if isinstance(event, Response) and self.unread and CLOSE not in event.headers:
            headers = [*event.headers, CLOSE]
            event = Response(event.stream_id, headers, event.status_code)
        await super().stream_send(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Stay with HTTP/1.1: an offer to change may be ignored."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Pass a request on: without an offer to change, and with the path where it names the whole URL."""
        headers, target = list(request.headers), request.target
        if any(name == b"upgrade" for name, _ in headers):
            headers = [header for header in headers if header[0] not in (b"connection", b"upgrade")]
        if found := _AUTHORITY.match(target):
            rest = target[found.end() :]
            target = rest if rest.startswith(b"/") else b"/" + rest
        if target is not request.target or len(headers) != len(request.headers):
            request = h11.Request(
                method=request.method, target=target, headers=headers, http_version=request.http_version
            )
        await super()._create_stream(request)


class _Answers:
    """The task group of one connection, as the protocol wants it."""

    tasks: anyio.abc.TaskGroup

    async def spawn_app(self, app: ASGIApp, _: Config, scope: Any, send: _Send) -> _Put:
        """Have the app answer a request; return what takes messages for it."""
        inbox = _Inbox()
        self.tasks.start_soon(_answer, app, scope, inbox, send)
        return inbox.put


async def _answer(app: ASGIApp, scope: Any, inbox: _Inbox, send: _Send) -> None:
    try:
        await app(scope, inbox.receive, send)
    except Exception:
        logger.exception("the app failed")
    await send(None)


class _Inbox:
    """What the app is told about a request: pieces of its body, and at last that its client is gone."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._held = 0
        self._gone = False
        self._news = anyio.Event()
        self._room = anyio.Event()

    async def put(self, message: Any) -> None:
        """Take a message; waits while the app has enough before it."""
        if message["type"] == "http.disconnect":
            self._gone = True
            self._messages.clear()
            self._make_room(self._held)
        else:
            self._messages.append(message)
            self._held += len(message["body"])
        self._news.set()
        while self._held > AHEAD_BYTES:
            await self._room.wait()

    async def receive(self) -> Any:
        """Return the next message, as ASGI has it."""
        while not self._messages:
            if self._gone:
                return {"type": "http.disconnect"}
            await self._news.wait()
            self._news = anyio.Event()
        message = self._messages.popleft()
        self._make_room(len(message["body"]))
        return message

    def _make_room(self, count: int) -> None:
        self._held -= count
        self._room.set()
        self._room = anyio.Event()


def _config() -> Config:
    config = Config()
    config.accesslog = None  # it would tell who asked what
    config.errorlog = None
    config.include_server_header = False
    config.keep_alive_max_requests = sys.maxsize
    return config
