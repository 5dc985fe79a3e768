"""The app behind uvicorn and behind hypercorn, on a port of this machine, as `vidette serve` runs it."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import httpx
import msgspec
import pytest

import vidette
from tests.service.driver import SECONDS, SERVERS, request_of
from vidette.service import Gate, build_app
from vidette.service.servers import serving
from vidette.service.sockets import HEAD_BYTES, bind, url_of

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 8000,
    "ignore_eos": True,
}


@pytest.fixture(scope="module", params=SERVERS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on both servers."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class Server(NamedTuple):
    engine: vidette.Engine
    client: httpx.AsyncClient
    address: tuple[str, int]


@pytest.fixture(scope="module", params=[pytest.param("inline", marks=pytest.mark.long), "processes"])
async def server(request: pytest.FixtureRequest, anyio_backend: object) -> AsyncGenerator[Server]:
    with bind("127.0.0.1", 0) as sock:
        # So that a slow reader is felt after kilobytes, where it would be megabytes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        async with vidette.open_engine("toy", topology=request.param) as engine:
            gate = Gate()
            async with (
                serving(build_app(engine, gate=gate), sock, gate=gate),
                httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client,
            ):
                yield Server(engine, client, sock.getsockname())


async def read_events(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line:
            text = line.removeprefix("data: ")
            yield text if text == "[DONE]" else msgspec.json.decode(text)


async def read_until(stream: anyio.abc.ByteReceiveStream, end: bytes) -> bytes:
    received = b""
    with anyio.fail_after(SECONDS):
        while end not in received:
            received += await stream.receive()
    return received


async def check_all_free(engine: vidette.Engine) -> None:
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


async def test_a_stream_is_the_whole_answer_in_pieces(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "seed": 1}
    whole = (await server.client.post(CHAT, json=body)).json()["choices"][0]
    assert whole["message"]["content"]
    async with server.client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        *chunks, end, last = [event async for event in read_events(response)]
    assert last == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert (text, end["choices"][0]["finish_reason"]) == (whole["message"]["content"], whole["finish_reason"])


async def test_many_at_once_are_served_as_each_alone(server: Server) -> None:
    answers: dict[int, list[str]] = {}

    async def ask(place: int) -> None:
        body = {"text": "hello", "sampling_params": {"sampling_seed": place % 4, "max_new_tokens": 50}}
        answers.setdefault(place % 4, []).append(
            (await server.client.post("/generate", json=body)).json()["text"]
        )

    async with anyio.create_task_group() as tasks:
        for place in range(24):
            tasks.start_soon(ask, place)
    assert [len(texts) for texts in answers.values()] == [6] * 4
    assert [len(set(texts)) for texts in answers.values()] == [1] * 4
    await check_all_free(server.engine)


async def test_a_client_that_leaves_a_stream_ends_its_request(server: Server) -> None:
    aborted = server.engine.statistics().totals.aborted
    async with await anyio.connect_tcp(*server.address) as stream:
        await stream.send(request_of(CHAT, LONG))
        await read_until(stream, b"data: ")
    await check_all_free(server.engine)
    assert server.engine.statistics().totals.aborted == aborted + 1


async def test_a_client_that_leaves_before_any_answer_ends_its_request(server: Server) -> None:
    aborted = server.engine.statistics().totals.aborted
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: server.client.post(CHAT, json={**LONG, "stream": False}))
        with anyio.fail_after(SECONDS):
            while not (await server.engine.heartbeat()).ledgers.blocks:
                pass
        tasks.cancel_scope.cancel()
    await check_all_free(server.engine)
    assert server.engine.statistics().totals.aborted == aborted + 1


async def test_a_client_that_does_not_read_holds_little(server: Server) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(server.address)
        sock.sendall(request_of(CHAT, {**LONG, "max_tokens": 3000}))
        sock.setblocking(False)
        while not server.engine.statistics().ledgers.front:
            await anyio.lowlevel.checkpoint()
        await check_all_free(server.engine)  # the request itself ends, though nobody reads
        received = bytearray()
        with anyio.fail_after(SECONDS):
            while b"data: [DONE]" not in received[-100:]:
                await anyio.wait_readable(sock)
                received += sock.recv(1 << 16)
    texts = [
        msgspec.json.decode(line.removeprefix(b"data: "))["choices"][0]["delta"].get("content", "")
        for line in received.split(b"\n")
        if line.startswith(b"data: {")
    ]
    # What the buffers between did not take was merged into few large chunks.
    assert max(map(len, texts)) > 100
    assert len("".join(texts)) > 2000


async def test_a_connection_serves_one_request_after_the_other(server: Server) -> None:
    body = {"text": "x", "sampling_params": {"max_new_tokens": 2}}
    limits = httpx.Limits(max_connections=1)
    base = str(server.client.base_url)
    async with httpx.AsyncClient(base_url=base, limits=limits, trust_env=False, timeout=SECONDS) as client:
        async with client.stream("POST", CHAT, json={**LONG, "max_tokens": 3}) as response:
            first = response.extensions["network_stream"].get_extra_info("client_addr")
            await response.aread()
        for faulty in ({"text": ""}, body):
            response = await client.post("/generate", json=faulty)
            assert response.extensions["network_stream"].get_extra_info("client_addr") == first


async def test_a_body_that_is_too_large_is_refused_and_the_client_goes_on(server: Server) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * (1 << 20)

    for content in (b" " * (9 << 20), pieces()):
        response = await server.client.post("/generate", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert (await server.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/1.1\r\nx: " + b"x" * (4 * HEAD_BYTES), b"431"),
        (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * HEAD_BYTES, b"431"),
        (b"GET /" + b"x" * (4 * HEAD_BYTES), b"431"),
        (b"GET /health HTTP/1.1\r\n" * 2 + b"\r\n", b"400"),
    ],
    ids=["long header", "many headers", "long path", "no HTTP"],
)
async def test_a_head_that_is_too_long_or_wrong_is_refused(
    server: Server, sent: bytes, status: bytes
) -> None:
    received = bytearray()
    with anyio.fail_after(SECONDS):
        async with await anyio.connect_tcp(*server.address) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(_send, stream, sent)
            with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                while b"\r\n\r\n" not in received:
                    received += await stream.receive()
            tasks.cancel_scope.cancel()
    assert received.startswith(b"HTTP/1.1 " + status)
    assert (await server.client.get("/health")).status_code == 200


async def _send(stream: anyio.abc.ByteSendStream, data: bytes) -> None:
    with suppress(anyio.BrokenResourceError):  # the server may close before it has taken all of it
        await stream.send(data)


async def test_head_asks_for_no_body(server: Server) -> None:
    response = await server.client.head("/health")
    assert (response.status_code, response.content) == (200, b"")


# --- start and stop ---------------------------------------------------------------------


async def test_a_stop_waits_for_running_requests(engine: vidette.Engine) -> None:
    gate = Gate()
    sock = bind("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client:
        async with serving(build_app(engine, gate=gate), sock, gate=gate):
            request = client.build_request("POST", CHAT, json={**LONG, "max_tokens": 200})
            response = await client.send(request, stream=True)
            assert response.status_code == 200
        events = [event async for event in read_events(response)]
        assert events[-1] == "[DONE]"
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    assert sock.fileno() == -1


async def test_a_stop_waits_no_longer_than_it_was_told(engine: vidette.Engine) -> None:
    gate = Gate()
    sock = bind("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client:
        async with serving(build_app(engine, gate=gate), sock, gate=gate, drain_seconds=0.01):
            response = await client.send(client.build_request("POST", CHAT, json=LONG), stream=True)
        events = [event async for event in read_events(response)]
        assert events[-1]["error"]["type"] == "service_unavailable"
    await check_all_free(engine)


async def test_a_stop_is_cut_short_when_all_around_it_is_cancelled(engine: vidette.Engine) -> None:
    gate = Gate()
    sock = bind("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client:
        with anyio.CancelScope() as scope:
            async with serving(build_app(engine, gate=gate), sock, gate=gate, drain_seconds=SECONDS):
                response = await client.send(client.build_request("POST", CHAT, json=LONG), stream=True)
                scope.cancel()
        events = [event async for event in read_events(response)]
        assert events[-1]["error"]["type"] == "service_unavailable"
    await check_all_free(engine)


async def test_a_server_that_is_cancelled_before_it_listens_ends(engine: vidette.Engine) -> None:
    gate = Gate()
    sock = bind("127.0.0.1", 0)
    with anyio.fail_after(SECONDS), anyio.CancelScope() as scope:
        scope.cancel()
        async with serving(build_app(engine, gate=gate), sock, gate=gate):
            pytest.fail("it serves")
    assert sock.fileno() == -1


async def test_a_port_that_is_taken_is_said_to_be(engine: vidette.Engine) -> None:
    gate = Gate()
    with bind("127.0.0.1", 0) as sock, bind("127.0.0.1", sock.getsockname()[1]) as second:
        async with serving(build_app(engine, gate=gate), sock, gate=gate):
            with pytest.raises(vidette.UsageError, match=r"cannot serve on 127\.0\.0\.1 port"):
                bind(*sock.getsockname())
            # Bound before the first one listened: found when it wants to listen itself.
            with pytest.raises(vidette.UsageError, match=r"cannot serve on 127\.0\.0\.1 port"):
                async with serving(build_app(engine), second, gate=gate):
                    pytest.fail("two servers listen on one port")


def test_only_this_machine_is_served_unless_it_is_said() -> None:
    with pytest.raises(vidette.UsageError, match="--allow-remote"):
        bind("0.0.0.0", 0)
    with bind("0.0.0.0", 0, allow_remote=True) as sock:
        assert url_of(sock).startswith("http://0.0.0.0:")
    with pytest.raises(vidette.UsageError, match="has no address"):
        bind("name.invalid", 0)
