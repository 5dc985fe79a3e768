"""What connections do to a server, and how it parts with them; the same on uvicorn and on hypercorn."""

from __future__ import annotations

import resource
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import h11
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import vidette
from tests.service.driver import SECONDS, SERVERS, request_of
from vidette.service import Gate, ServiceLimits, build_app
from vidette.service.crowds import RESERVED_DESCRIPTORS, SPARE_CONNECTIONS, Crowd
from vidette.service.servers import serving
from vidette.service.sockets import bind

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 8000,
    "ignore_eos": True,
}
WORDY = {**LONG, "logprobs": True, "top_logprobs": 20}
"""2 KB a token: the buffers between are soon full."""
PROMPT = ServiceLimits().head_seconds / 2
"""What is closed because it is idle takes longer."""
SHORT = {"text": "x", "sampling_params": {"max_new_tokens": 2}}
FEW = ServiceLimits(connections=3)
SIZE = 1 << 20
TCP_CLOSE = 7
"""State of a socket in Linux, after a reset."""
WEBSOCKET = b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module", params=SERVERS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on both servers."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@asynccontextmanager
async def served(app: ASGIApp, gate: Gate | None = None, **options: Any) -> AsyncGenerator[tuple[str, int]]:
    with bind("127.0.0.1", 0) as sock:
        # So that a slow reader is felt after kilobytes, where it would be megabytes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        address: tuple[str, int] = sock.getsockname()
        async with serving(app, sock, gate=Gate() if gate is None else gate, **options):
            with anyio.fail_after(SECONDS):
                yield address


@pytest.fixture
async def address(engine: vidette.Engine) -> AsyncGenerator[tuple[str, int]]:
    async with served(build_app(engine)) as address:
        yield address


async def talk(address: tuple[str, int], *sent: bytes) -> bytes:
    """Say something, and return all that comes until the server closes the connection."""
    async with await anyio.connect_tcp(*address) as stream:
        for piece in sent:
            await stream.send(piece)
        return await read(stream)


async def read(stream: anyio.abc.ByteReceiveStream, until: bytes | None = None) -> bytes:
    received = b""
    with anyio.fail_after(SECONDS):
        while until is None or until not in received:
            try:
                received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                break
    return received


async def wait_closed(sock: socket.socket) -> None:
    """Wait until the other side has closed a connection whatever was in it, without reading."""
    with anyio.fail_after(SECONDS):
        while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != bytes([TCP_CLOSE]):
            await anyio.lowlevel.checkpoint()


async def check_all_free(engine: vidette.Engine) -> None:
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


async def test_no_offer_to_speak_something_else_is_taken(address: tuple[str, int]) -> None:
    for offer in (
        b"connection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n\r\n",
        b"connection: upgrade, close\r\nupgrade: websocket\r\n" + WEBSOCKET,
        b"connection: close\r\n\r\n",
    ):
        answer = await talk(address, HEALTH + offer)
        assert answer.startswith(b"HTTP/1.1 200 ")
    answer = await talk(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("last", [False, True])
async def test_the_body_of_a_request_with_an_offer_is_no_request(
    method: bytes, chunked: bool, late: bool, last: bool
) -> None:
    """Whether or not it comes with its head, and it is what is read of that request."""
    seen: list[tuple[str, bytes]] = []
    begun = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        assert b"upgrade" not in dict(scope["headers"])
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        seen.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    inner = b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner) if chunked else inner
    head = b"%b /outer HTTP/1.1\r\nhost: x\r\n" % method
    head += b"connection: upgrade%b\r\nupgrade: %b\r\n" % (
        b", close" if last else b"",
        b"websocket" if late else b"h2c",
    )
    head += b"transfer-encoding: chunked\r\n\r\n" if chunked else b"content-length: %d\r\n\r\n" % len(inner)
    behind = b"GET /behind HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with served(app) as address, await anyio.connect_tcp(*address) as stream:
        if late:
            await stream.send(head)
            await begun.wait()
            await stream.send(body + behind)
        else:
            await stream.send(head + body + behind)
        answers = await read(stream)
    assert seen == [("/outer", inner), ("/behind", b"")][: 1 if last else 2]
    assert answers.count(b"HTTP/1.1 204 ") == answers.count(b"HTTP/") == len(seen)


async def test_a_target_may_be_a_whole_url(address: tuple[str, int]) -> None:
    for target, status in (
        (b"http://x/health", b"200"),
        (b"HTTP://x:80/health?a=b", b"200"),
        (b"http://x/", b"200"),
    ):
        answer = await talk(address, b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % target)
        assert answer.startswith(b"HTTP/1.1 " + status), target


async def test_what_is_sent_ahead_is_answered_in_order(address: tuple[str, int]) -> None:
    last = HEALTH + b"connection: close\r\n\r\n"
    requests = [request_of("/generate", body) for body in (SHORT, {"text": ""})]
    answers = await talk(address, b"".join(requests) + last)
    statuses = [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"400", b"200"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "ahead", [b"\r\n", b"GE", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 3, b"all of it"]
)
async def test_what_was_sent_ahead_does_not_hide_that_a_client_has_left(
    engine: vidette.Engine, address: tuple[str, int], stream: bool, ahead: bytes
) -> None:
    """The request that is being answered ends, and those behind it never begin."""
    before = engine.statistics().totals
    request = request_of(CHAT, {**LONG, "stream": stream})
    async with await anyio.connect_tcp(*address) as connection:
        await connection.send(request + (request if ahead == b"all of it" else ahead))
        while not (await engine.heartbeat()).ledgers.blocks:
            pass
    await check_all_free(engine)
    totals = engine.statistics().totals
    assert (totals.aborted - before.aborted, totals.finished - before.finished) == (1, 0)
    assert totals.submitted - before.submitted == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_has_said_that_it_says_no_more_is_gone(
    engine: vidette.Engine, address: tuple[str, int], stream: bool
) -> None:
    aborted = engine.statistics().totals.aborted
    async with await anyio.connect_tcp(*address) as connection:
        await connection.send(request_of(CHAT, {**LONG, "stream": stream}))
        while not (await engine.heartbeat()).ledgers.blocks:
            pass
        await connection.send_eof()
        await check_all_free(engine)
        assert engine.statistics().totals.aborted == aborted + 1


async def test_a_body_that_nobody_wants_is_in_nobodys_way(address: tuple[str, int]) -> None:
    """More of it than is kept; the answer comes all the same, and its client is not cut off meanwhile."""
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (4 << 20)
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(head + b" " * (1 << 20))
        assert (await read(stream, b"not_found")).startswith(b"HTTP/1.1 404 ")
        await stream.send(b" " * (3 << 20))
    assert (await talk(address, HEALTH + b"connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_asks_whether_it_may_send_is_answered(address: tuple[str, int]) -> None:
    async with await anyio.connect_tcp(*address) as stream:
        head, body = request_of("/generate", SHORT).split(b"\r\n\r\n")
        await stream.send(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert (await read(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await stream.send(body)
        assert (await read(stream, b"}")).startswith(b"HTTP/1.1 200 ")


async def test_an_app_that_fails_fails_its_request_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/long":
            length = [(b"content-length", b"1")]
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": b"too long"})
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        if scope["path"] != "/well":
            raise ValueError("a bug")
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    head = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with served(app) as address:
        assert (await talk(address, head % b"/early")).startswith(b"HTTP/1.1 500 ")
        for path in (b"/late", b"/long"):
            torn = await talk(address, head % path)
            assert torn.startswith(b"HTTP/1.1 200 ")
            assert not torn.endswith((b"0\r\n\r\n", b"too long"))
        assert (await talk(address, head % b"/well")).startswith(b"HTTP/1.1 204 ")


async def test_a_stop_closes_what_is_idle_at_once(engine: vidette.Engine) -> None:
    async with AsyncExitStack() as clients:
        with anyio.CancelScope() as prompt:
            async with served(build_app(engine), closing_seconds=SECONDS) as address:
                streams = [
                    await clients.enter_async_context(await anyio.connect_tcp(*address)) for _ in range(9)
                ]
                for stream in streams[:6]:  # some never say anything
                    await stream.send(HEALTH + b"\r\n")
                    await read(stream, b"}")
                await streams[0].send(b"GET /he")
                prompt.deadline = anyio.current_time() + PROMPT
        assert anyio.current_time() < prompt.deadline
        for stream in streams:
            assert await read(stream) == b""


async def test_a_stop_waits_for_no_client_that_does_not_read(engine: vidette.Engine) -> None:
    gate = Gate()
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        app = build_app(engine, gate=gate)
        async with served(app, gate, drain_seconds=0.0, closing_seconds=0.1) as address:
            mute.connect(address)
            mute.sendall(request_of(CHAT, WORDY))
            steps = engine.statistics().steps
            while (await engine.heartbeat()).steps < steps + 150:
                pass
    await check_all_free(engine)


async def test_a_client_that_never_reads_is_gone_after_a_while(engine: vidette.Engine) -> None:
    aborted = engine.statistics().totals.aborted
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with served(build_app(engine), limits=ServiceLimits(unread_seconds=0.1)) as address:
            mute.connect(address)
            mute.sendall(request_of(CHAT, WORDY))
            while not (await engine.heartbeat()).ledgers.blocks:
                pass
            await check_all_free(engine)
    assert engine.statistics().totals.aborted == aborted + 1


async def test_a_client_that_does_not_read_the_end_of_an_answer_is_gone_as_well() -> None:
    """Whether or not the connection would go on behind it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % SIZE)]}
        )
        await send({"type": "http.response.body", "body": b"x" * SIZE})

    async with served(app, limits=ServiceLimits(unread_seconds=0.1, head_seconds=0.1)) as address:
        for more in (b"", b"connection: close\r\n"):
            with socket.socket() as mute:
                mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                mute.connect(address)
                mute.sendall(HEALTH + more + b"\r\n")
                await wait_closed(mute)


async def test_who_reads_slowly_is_not_cut_off(engine: vidette.Engine) -> None:
    """Each piece comes long before the time is up, all of it long after."""
    async with served(build_app(engine), limits=ServiceLimits(unread_seconds=0.4)) as address:
        mute = socket.socket()
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.connect(address)
        async with await anyio.abc.SocketStream.from_socket(mute) as stream:
            await stream.send(request_of(CHAT, {**WORDY, "max_tokens": 240}))
            began = anyio.current_time()
            received = b""
            while b"data: [DONE]" not in received[-100:]:
                received += await stream.receive(8192)
                await anyio.sleep(0.01)
            assert anyio.current_time() - began > 0.8


async def test_what_a_client_reads_late_is_whole(engine: vidette.Engine) -> None:
    """It was ended while nobody read; no frame is torn, and the last one says so."""
    gate = Gate()
    app = build_app(engine, gate=gate)
    received: list[bytes] = []

    async def read_late(mute: socket.socket) -> None:
        while gate.retry_after is None or len(gate):  # before, it was waited for
            await anyio.lowlevel.checkpoint()
        async with await anyio.abc.SocketStream.from_socket(mute) as stream:
            with anyio.fail_after(PROMPT):
                received.append(await read(stream))

    mute = socket.socket()
    mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    async with anyio.create_task_group() as tasks:
        async with served(app, gate, drain_seconds=0.0, closing_seconds=SECONDS) as address:
            mute.connect(address)
            mute.sendall(request_of(CHAT, WORDY))
            steps = engine.statistics().steps
            while (await engine.heartbeat()).steps < steps + 150:
                pass
            tasks.start_soon(read_late, mute)
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target=CHAT, headers=[("host", "x")]))
    http.send(h11.EndOfMessage())
    http.receive_data(received[0])
    assert isinstance(http.next_event(), h11.Response)
    text = b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        text += event.data
    last = text.split(b"\n\n")[-2]
    assert b"cannot wait for this request" in last
    await check_all_free(engine)


QUICK = ServiceLimits(head_seconds=0.1)


@pytest.mark.parametrize("said", [b"", b"GET /health HTT", HEALTH])
async def test_a_head_that_does_not_become_complete_is_not_waited_for(
    engine: vidette.Engine, said: bytes
) -> None:
    async with served(build_app(engine), limits=QUICK) as address:
        began = anyio.current_time()
        assert await talk(address, said) == b""
        assert anyio.current_time() - began > 0.09


async def test_a_head_that_comes_byte_by_byte_has_no_longer(engine: vidette.Engine) -> None:
    async def drip(stream: anyio.abc.ByteSendStream) -> None:
        with suppress(anyio.BrokenResourceError):
            while True:
                await stream.send(b"x: y\r\n")
                await anyio.sleep(0.01)

    async with (
        served(build_app(engine), limits=QUICK) as address,
        await anyio.connect_tcp(*address) as stream,
    ):
        async with anyio.create_task_group() as tasks:
            await stream.send(HEALTH)
            tasks.start_soon(drip, stream)
            assert await read(stream) == b""
            tasks.cancel_scope.cancel()


async def test_a_connection_that_is_idle_behind_an_answer_is_closed(engine: vidette.Engine) -> None:
    async with (
        served(build_app(engine), limits=QUICK) as address,
        await anyio.connect_tcp(*address) as stream,
    ):
        for _ in range(3):  # it goes on for as long as something is asked for
            await stream.send(HEALTH + b"\r\n")
            assert (await read(stream, b"}")).startswith(b"HTTP/1.1 200 ")
        assert await read(stream) == b""


@pytest.mark.parametrize("path", ["/generate", "/nowhere"])
@pytest.mark.parametrize("sent", [b"", b" ", b" " * 100])
async def test_a_body_that_does_not_come_is_not_waited_for(
    engine: vidette.Engine, path: str, sent: bytes
) -> None:
    """Whether it is wanted or was refused; if all of it has come, the connection is as idle as another."""
    limits = ServiceLimits(head_seconds=0.1, body_seconds=0.1)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n" % path.encode()
    async with served(build_app(engine, limits=limits), limits=limits) as address:
        async with await anyio.connect_tcp(*address) as stream:
            await stream.send(head)
            if path == "/nowhere":
                received = await read(stream, b"}")
                with suppress(anyio.BrokenResourceError):
                    await stream.send(sent)
            else:
                await stream.send(sent)
                received = b""
            received += await read(stream)
        status = b"404" if path == "/nowhere" else b"400" if len(sent) == 100 else b"408"
        assert received.startswith(b"HTTP/1.1 " + status)
        assert received.lower().count(b"connection: close") <= 1


# --- how many ------------------------------------------------------------------------------------


async def test_beyond_the_bound_health_alone_is_answered_and_then_nothing(engine: vidette.Engine) -> None:
    bearer = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    async with AsyncExitStack() as clients, served(build_app(engine), limits=FEW) as address:
        taken = [await clients.enter_async_context(await anyio.connect_tcp(*address)) for _ in range(3)]
        for stream in taken:
            await stream.send(HEALTH + b"\r\n")
            assert (await read(stream, b"}")).startswith(b"HTTP/1.1 200 ")
        for path in ("/health", "/health/live"):
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
            answer = await talk(address, head)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer.lower()
        answer = await talk(address, request_of("/generate", SHORT))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"3 connections are open" in answer
        assert b"retry-after: 1\r\n" in answer.lower()
        assert b"x-request-id: " in answer.lower()
        for path in ("/", "/page/page.js"):  # the page can wait
            answer = await talk(address, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 503 ")
        answer = await talk(address, bearer)
        assert answer.startswith(b"HTTP/1.1 529 ")
        assert b"overloaded_error" in answer
        for _ in range(SPARE_CONNECTIONS):
            await clients.enter_async_context(await anyio.connect_tcp(*address))
        answer = await talk(address)
        assert answer.startswith(b"HTTP/1.1 503 ")
        await taken[0].send(request_of("/generate", SHORT))  # those that were there first go on
        assert (await read(taken[0], b"}}")).startswith(b"HTTP/1.1 200 ")
        await clients.aclose()
        answer = b""
        while not answer.startswith(b"HTTP/1.1 200 "):  # until the server has seen them go
            answer = await talk(address, request_of("/generate", SHORT, b"connection: close\r\n"))
    await check_all_free(engine)


def test_a_process_that_may_open_little_takes_few(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    for soft, most in ((1024, 1024 - RESERVED_DESCRIPTORS), (1 << 20, 4096), (16, 1), (-1, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert Crowd(app, ServiceLimits().connections).most == most


# --- what comes behind -------------------------------------------------------------------------------


async def test_what_comes_behind_a_body_in_chunks_is_no_header(address: tuple[str, int]) -> None:
    """A proxy that looks at headers has not seen it; with the body in the same piece, or later."""
    body = b'{"text":"x","sampling_params":{"max_new_tokens":1}}'
    head = b"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    behind = b"host: evil\r\norigin: http://evil\r\nx-request-id: evil\r\n\r\n"
    for pieces in ([head + chunks + behind], [head, chunks + behind]):
        answer = await talk(address, *pieces)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"x-request-id: evil" not in answer


@pytest.mark.parametrize(
    "behind",
    [
        b"\0garbage\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * (1 << 17),
    ],
)
async def test_an_error_behind_a_stream_is_not_put_into_it(address: tuple[str, int], behind: bytes) -> None:
    """What is sent of the stream may be torn, but is of the stream alone."""
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(request_of(CHAT, {**LONG, "max_tokens": 2000}))
        received = await read(stream, b"data: ")
        with suppress(anyio.BrokenResourceError):
            await stream.send(behind)
        received += await read(stream)
    of_the_stream, _, others = received.partition(b"0\r\n\r\n")
    assert of_the_stream.count(b"HTTP/1.1") == 1
    assert others.count(b"HTTP/1.1") <= 1  # its refusal, behind the whole


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("behind", [b"\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
@pytest.mark.parametrize("late", [False, True])
async def test_what_comes_behind_a_last_request_is_ignored(
    address: tuple[str, int], version: bytes, behind: bytes, late: bool
) -> None:
    """Old clients end a body with a line of their own."""
    body = b'{"text":"x","sampling_params":{"max_new_tokens":200,"ignore_eos":true}}'
    head = b"POST /generate HTTP/%b\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    request = head % (version, len(body)) + body
    answer = await talk(address, *([request, behind] if late else [request + behind]))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
