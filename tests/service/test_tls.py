"""HTTPS on both servers, with a certificate of the test's own; `openssl` makes it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import pytest
from starlette.types import Receive, Scope, Send

import vidette
from tests.service.driver import SECONDS, SERVERS, request_of
from vidette.service import Gate, ServiceLimits, build_app
from vidette.service.crowds import SPARE_CONNECTIONS
from vidette.service.servers import serving
from vidette.service.sockets import bind, tls_context, url_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 8000,
    "ignore_eos": True,
}
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


class Files(NamedTuple):
    certificate: Path
    key: Path
    encrypted: Path


@pytest.fixture(scope="module", params=SERVERS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on both servers."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    found = Files(*(folder / name for name in ("cert.pem", "key.pem", "encrypted.pem")))
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(found.key)]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    _openssl("req", "-x509", "-days", "2", *new, *name, "-out", str(found.certificate))
    _openssl("ec", "-in", str(found.key), "-aes256", "-passout", "pass:x", "-out", str(found.encrypted))
    return found


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=SECONDS)


async def test_a_client_is_served_over_tls_and_another_is_not(engine: vidette.Engine, files: Files) -> None:
    trusting = ssl.create_default_context(cafile=files.certificate)
    gate = Gate()
    with bind("127.0.0.1", 0) as sock:
        url = url_of(sock, tls=True)
        assert url.startswith("https://127.0.0.1:")
        tls = tls_context(files.certificate, files.key)
        async with (
            serving(build_app(engine, gate=gate), sock, gate=gate, tls=tls),
            httpx.AsyncClient(base_url=url, verify=trusting, trust_env=False, timeout=SECONDS) as client,
        ):
            address = sock.getsockname()
            answer = await client.post(CHAT, json={**LONG, "stream": False, "max_tokens": 5})
            assert answer.json()["usage"]["completion_tokens"] == 5
            whole = await client.post(CHAT, json={**LONG, "max_tokens": 500})
            assert whole.text.endswith("data: [DONE]\n\n")
            # Who speaks no TLS, or knows nothing of this certificate, harms nobody.
            async with await anyio.connect_tcp(*address) as plain:
                await plain.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                with anyio.fail_after(SECONDS):
                    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                        while True:
                            assert not (await plain.receive()).startswith(b"HTTP")
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SECONDS) as suspicious:
                with pytest.raises(httpx.ConnectError):
                    await suspicious.get("/health")
            await check_a_client_that_leaves(engine, address, trusting)
            assert (await client.get("/health")).status_code == 200


async def check_a_client_that_leaves(
    engine: vidette.Engine, address: tuple[str, int], trusting: ssl.SSLContext
) -> None:
    aborted = engine.statistics().totals.aborted
    async with await anyio.connect_tcp(
        *address, tls=True, ssl_context=trusting, tls_standard_compatible=False
    ) as stream:
        await stream.send(request_of("/generate", {"text": "x", "sampling_params": ENDLESS}))
        with anyio.fail_after(SECONDS):
            while not (await engine.heartbeat()).ledgers.blocks:
                pass
    await check_all_free(engine)
    assert engine.statistics().totals.aborted == aborted + 1


async def check_all_free(engine: vidette.Engine) -> None:
    with anyio.fail_after(SECONDS):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


async def test_a_stop_waits_for_no_client_that_does_not_read(engine: vidette.Engine, files: Files) -> None:
    trusting = ssl.create_default_context(cafile=files.certificate)
    gate = Gate()
    tls = tls_context(files.certificate, files.key)
    async with AsyncExitStack() as clients:
        with bind("127.0.0.1", 0) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
            async with serving(
                build_app(engine, gate=gate), sock, gate=gate, drain_seconds=0.0, closing_seconds=0.1, tls=tls
            ):
                mute = await clients.enter_async_context(
                    await anyio.connect_tcp(
                        *sock.getsockname(), tls=True, ssl_context=trusting, tls_standard_compatible=False
                    )
                )
                await mute.send(request_of(CHAT, {**LONG, "logprobs": True, "top_logprobs": 20}))
                with anyio.fail_after(SECONDS):
                    steps = engine.statistics().steps
                    while (await engine.heartbeat()).steps < steps + 150:  # 2 KB each
                        pass
    await check_all_free(engine)


async def test_clients_that_say_nothing_are_counted_as_well(files: Files) -> None:
    """So many may be silent as may be connected; what comes beyond is closed, while they have time."""
    trusting = ssl.create_default_context(cafile=files.certificate)
    tls = tls_context(files.certificate, files.key)
    limits = ServiceLimits(connections=3, head_seconds=0.5)
    async with AsyncExitStack() as clients:
        with bind("127.0.0.1", 0) as sock:
            url, address = url_of(sock, tls=True) + "/x", sock.getsockname()
            async with serving(say_nothing, sock, gate=Gate(), tls=tls, limits=limits):
                with anyio.fail_after(SECONDS):
                    silent = [
                        await clients.enter_async_context(await anyio.connect_tcp(*address))
                        for _ in range(3 + SPARE_CONNECTIONS)
                    ]
                    for _ in range(8):
                        began = anyio.current_time()
                        async with await anyio.connect_tcp(*address) as refused:
                            await wait_closed(refused)
                        assert anyio.current_time() - began < limits.head_seconds / 2
                    for stream in silent:
                        await wait_closed(stream)
                    async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=SECONDS) as client:
                        assert (await client.get(url)).status_code == 204


async def test_an_idle_client_that_takes_no_leave_is_gone_as_well(files: Files) -> None:
    trusting = ssl.create_default_context(cafile=files.certificate)
    tls = tls_context(files.certificate, files.key)
    limits = ServiceLimits(connections=1, head_seconds=0.2)
    async with AsyncExitStack() as clients:
        with bind("127.0.0.1", 0) as sock:
            url, address = url_of(sock, tls=True) + "/x", sock.getsockname()
            async with serving(say_nothing, sock, gate=Gate(), tls=tls, limits=limits):
                with anyio.fail_after(SECONDS):
                    idle = await clients.enter_async_context(
                        await anyio.connect_tcp(
                            *address, tls=True, ssl_context=trusting, tls_standard_compatible=False
                        )
                    )
                    await idle.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                    assert (await idle.receive()).startswith(b"HTTP/1.1 204 ")
                    async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=SECONDS) as client:
                        while (await client.get(url)).status_code != 204:
                            pass


async def say_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def wait_closed(stream: anyio.abc.ByteReceiveStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await stream.receive()


def test_what_cannot_be_used_is_said(files: Files, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    for arguments, message in (
        ((nothing,), "tls-cert .*nothing.pem': No such file"),
        ((files.certificate, nothing), "tls-key .*nothing.pem': No such file"),
        ((files.certificate, files.encrypted), "the private key is encrypted"),
        ((files.certificate, files.certificate), "cannot be used"),
        ((files.certificate,), "cannot be used"),
    ):
        with pytest.raises(vidette.UsageError, match=message):
            tls_context(*arguments)
