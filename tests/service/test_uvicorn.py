"""What a connection does on uvicorn, seen from its transport: what cannot be had from a kernel at will."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from vidette.service import ServiceLimits
from vidette.service._uvicorn import UNSENT_BYTES, UvicornServer, _Protocol
from vidette.service.responses import ON_GONE

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
        self.paused_reading = False
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

    def pause_reading(self) -> None:
        self.paused_reading = True

    def resume_reading(self) -> None:
        self.paused_reading = False

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


# --- who is told that a client is gone -------------------------------------------------------------


class Connection:
    """A connection to an app, from which the client may send what it wants, and go."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        server = UvicornServer(app, sock, None, 1.0, ServiceLimits())
        server.config.load()
        self.pipe = Pipe(sock)
        self.pipe.protocol = self.protocol = _Protocol(server.config, server.server_state, {})
        self.protocol.connection_made(cast("Any", self.pipe))

    def send(self, *heads: bytes, body: bytes = b"") -> None:
        for head in heads:
            self.protocol.data_received(head + b"\r\nhost: x\r\n\r\n" + body)

    def leave(self) -> None:
        self.pipe.abort()


class Told:
    """An app that has itself told when the client is gone, at a time the test says, and answers then."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.gone: list[str] = []
        self.ask = anyio.Event()
        self.answer = anyio.Event()
        self.answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self.scopes.append(scope)
        on_gone = scope[ON_GONE]  # as whoever copies a scope keeps it
        await self.ask.wait()
        on_gone(partial(self.gone.append, scope["path"]))
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        self.answered += 1


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not condition():
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("first", ["it asks", "the client goes"])
async def test_an_app_is_told_once_whether_it_asks_before_or_behind(sock: socket.socket, first: str) -> None:
    app = Told()
    connection = Connection(app, sock)
    connection.send(b"GET /a HTTP/1.1")
    await until(lambda: len(app.scopes) == 1)
    if first == "it asks":
        app.ask.set()
        await anyio.wait_all_tasks_blocked()
        assert app.gone == []
    connection.leave()
    app.ask.set()
    await until(lambda: app.gone == ["/a"])
    app.answer.set()
    await until(lambda: app.answered == 1)
    assert app.gone == ["/a"]


async def test_of_requests_sent_ahead_the_one_that_is_answered_is_told(sock: socket.socket) -> None:
    app = Told()
    app.ask.set()
    connection = Connection(app, sock)
    connection.send(b"GET /a HTTP/1.1", b"GET /b HTTP/1.1", b"GET /c HTTP/1.1")
    app.answer.set()
    await until(lambda: app.answered == 1)
    app.answer = anyio.Event()
    await until(lambda: len(app.scopes) == 2)
    await anyio.wait_all_tasks_blocked()
    connection.leave()
    assert app.gone == ["/b"]
    app.answer.set()
    await until(lambda: app.answered == 2)
    assert (app.gone, len(app.scopes)) == (["/b"], 2)


async def test_a_request_that_asks_when_it_is_over_takes_nothing_from_the_next(sock: socket.socket) -> None:
    app = Told()
    app.ask.set()
    app.answer.set()
    connection = Connection(app, sock)
    connection.send(b"GET /a HTTP/1.1")
    await until(lambda: app.answered == 1)
    assert ON_GONE not in app.scopes[0]
    kept: list[Callable[[Callable[[], None]], None]] = []
    app.ask, app.answer = anyio.Event(), anyio.Event()
    connection.send(b"GET /b HTTP/1.1")
    await until(lambda: len(app.scopes) == 2)
    kept.append(app.scopes[1][ON_GONE])
    app.ask.set()
    app.answer.set()
    await until(lambda: app.answered == 2)
    app.answer = anyio.Event()
    connection.send(b"GET /c HTTP/1.1")
    await anyio.wait_all_tasks_blocked()
    kept[0](partial(app.gone.append, "/b, late"))
    assert app.gone == ["/b, late"]
    connection.leave()
    assert app.gone == ["/b, late", "/c"]
    app.answer.set()
    await until(lambda: app.answered == 3)


async def test_a_body_that_nobody_reads_hides_no_end(sock: socket.socket) -> None:
    """However long it is: who stops reading a connection does not see it end."""
    app = Told()
    app.ask.set()
    connection = Connection(app, sock)
    connection.protocol.data_received(b"GET /a HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n\r\n")
    await anyio.wait_all_tasks_blocked()
    for _ in range(20):
        connection.protocol.data_received(b"x" * 60_000)
    assert not connection.pipe.paused_reading
    assert len(connection.protocol.cycle.body) == 0
    connection.leave()
    assert app.gone == ["/a"]
    app.answer.set()
    await until(lambda: app.answered == 1)


async def test_a_connection_that_is_over_is_held_by_nobody(sock: socket.socket) -> None:
    """Not even by itself: cycles stay until a collector comes, which may be frozen or off."""
    app = Told()
    app.ask.set()
    protocols: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        for complete in (True, False):
            connection = Connection(app, sock)
            connection.send(b"GET /a HTTP/1.1")
            await anyio.wait_all_tasks_blocked()
            if complete:
                app.answer.set()
                await until(lambda: app.answered == 1)
                app.answer = anyio.Event()
            connection.leave()
            protocols.append(weakref.ref(connection.protocol))
            connection.pipe.protocol = None
            del connection
        app.answer.set()
        app.scopes.clear()
        await until(lambda: app.answered == 2)
        await until(lambda: not any(protocol() for protocol in protocols))
    finally:
        gc.enable()
