"""Clients that ask for a stream and never read it: what is kept for each is small, and then nothing."""

from __future__ import annotations

import gc
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import pytest

import vidette
from tests.service.driver import SERVERS
from vidette.service import Gate, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind, url_of

SECONDS = 300.0
"""Only to end a hang."""
TOKENS = 200
MOST_KIB = 128
"""For each client, in all processes together: docs/reference/limits.md says the same."""
ORDINARY = {"text": "x", "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}}
CHAT = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": TOKENS,
    "ignore_eos": True,
}
NATIVE = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True}}


@pytest.fixture(params=SERVERS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on both servers."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Allow this process so many more descriptors while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"a process may open only {hard} descriptors here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(engine: vidette.Engine) -> int:
    """Return the resident KiB of this process and those of the engine."""
    gc.collect()
    pids = ["self", *(str(process.pid) for process in engine.statistics().processes)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize() // 1024


async def send_request(sock: socket.socket, address: tuple[str, int], path: str, body: object) -> None:
    """Send a request over a socket that nothing will be read from."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    if sock.connect_ex(address):
        await anyio.wait_writable(sock)
    raw = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    assert sock.send(head + raw) == len(head + raw)


@pytest.mark.parametrize(
    ("clients", "path", "body"),
    [
        (50, "/v1/chat/completions", CHAT),
        pytest.param(1000, "/v1/chat/completions", CHAT, marks=pytest.mark.long),
        pytest.param(1000, "/generate", NATIVE, marks=pytest.mark.long),
    ],
)
async def test_clients_that_never_read_keep_memory_flat(clients: int, path: str, body: object) -> None:
    with descriptors(2 * clients), bind("127.0.0.1", 0) as sock, ExitStack() as sockets:
        # So that the buffers of the kernel hide less of it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        async with vidette.open_engine("toy", topology="processes", kv_tokens=1 << 16) as engine:
            gate = Gate()
            async with (
                serving(build_app(engine, gate=gate), sock, gate=gate),
                httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client,
            ):
                with anyio.fail_after(SECONDS):
                    for _ in range(10):  # what is imported and allocated once
                        assert (await client.post("/generate", json=ORDINARY)).status_code == 200
                    submitted = engine.statistics().totals.submitted
                    before = resident(engine)
                    for _ in range(clients):
                        mute = sockets.enter_context(socket.socket())
                        await send_request(mute, sock.getsockname(), path, body)
                    while engine.statistics().totals.submitted < submitted + clients:
                        await anyio.lowlevel.checkpoint()
                    await engine.wait_quiet()  # all of it was generated
                    assert engine.statistics().ledgers.total() == 0
                    assert resident(engine) - before < clients * MOST_KIB
                    answer = await client.post("/generate", json=ORDINARY)
                    assert answer.json()["meta_info"]["completion_tokens"] == 50
                    sockets.close()
                    await gate.wait_empty()
                    statistics = engine.statistics()
                    assert statistics.ledgers.total() == 0
                    assert statistics.totals.finished == submitted + clients + 1
