"""Requests that ended other servers, each in a file of `hostile/`: refused at once, and nothing is harmed.

A file has the fault, whose it was, what went wrong there, and requests. Each of them is `json`, or a `body`
or a whole request `raw` in pieces, of which one may be repeated, each with its `NUMBER`; with the statuses
that may answer it (0: the connection is closed), on each server if they differ, what the answer `says`, and
texts that it is `without`. What is `late` of a raw one is sent as soon as it is being answered. There are at
`most` so many answers, and then the connection ends: if a body were taken for a request, there would be more.
`KEY` in `raw` is the line with the key, and `DECOY` an address to which nobody may connect.

How long the slowest request of each file took is printed at the end, and how much memory there was after each
round of all; `make hostile` shows it.
"""

from __future__ import annotations

import gc
import re
import resource
import socket
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from msgspec import Struct

import vidette
from tests.service.driver import SECONDS, SERVERS
from vidette.service import FrontDoor, Gate, Keys, Secret, ServiceLimits, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind, url_of

HERE = Path(__file__).parent / "hostile"
PAGE = Path(__file__).parents[2] / "docs/reference/hostile.md"
ANSWER_SECONDS = 5.0
"""How long one may take to be answered: a second, and four more for a machine that does other things."""
KEY, ADMIN_KEY = "sk-hostile", "sk-admin"
GOOD = {"text": "hello", "sampling_params": {"sampling_seed": 7, "max_new_tokens": 8, "ignore_eos": True}}
ROUNDS = 3
MOST_KIB = 32 * 1024
"""What `ROUNDS` of all requests may leave behind, of more than 100 MiB that each has; Python's allocator may
keep some of what it had at once."""
MOST_BLOCKS = 5000
"""Likewise of blocks of memory, of some 800 requests: none may keep so much as six objects."""


class Repeated(Struct, forbid_unknown_fields=True):
    """A text so many times."""

    repeat: str
    times: int


class Hostile(Struct, forbid_unknown_fields=True):
    """One request, and what may become of it."""

    status: list[int] | dict[str, list[int]]
    method: str = "POST"
    path: str = ""
    json: msgspec.Raw = msgspec.Raw()
    body: list[str | Repeated] = []
    raw: list[str | Repeated] = []
    late: list[str | Repeated] = []
    most: int = 1
    headers: dict[str, str] = {}
    key: str = KEY
    says: str = ""
    without: list[str] = []

    def sent(self, decoy: str) -> Iterator[bytes]:
        """Yield what goes over the wire."""
        pieces = list(map(text_of, self.raw or self.body)) or [bytes(self.json)]
        if not self.raw:
            key = ADMIN_KEY if self.key == "admin" else self.key
            names = {"host": "x", "connection": "close", "x-api-key": key, **self.headers}
            body = b"".join(pieces).replace(b"DECOY", decoy.encode())
            head = "".join(f"{name}: {value}\r\n" for name, value in names.items() if value)
            yield f"{self.method} {self.path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode()
            yield body
        else:
            yield from map(with_key, pieces)

    def may_be(self, server: str) -> list[int]:
        """Return the statuses that may answer it."""
        return self.status[server] if isinstance(self.status, dict) else self.status


class Fault(Struct, forbid_unknown_fields=True):
    """What is in a file."""

    fault: str
    source: str
    what: str
    requests: list[Hostile]


class Took(NamedTuple):
    """How long one request took to be answered, and which that was."""

    seconds: float
    request: str


class Running(NamedTuple):
    """A server, and a socket that nobody may connect to."""

    engine: vidette.Engine
    server: str
    address: tuple[str, int]
    decoy: socket.socket
    good: bytes
    slowest: dict[str, Took]
    """By file."""


def text_of(piece: str | Repeated) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if "NUMBER" not in piece.repeat:
        return piece.repeat.encode() * piece.times
    return "".join(piece.repeat.replace("NUMBER", str(number)) for number in range(piece.times)).encode()


def with_key(piece: bytes) -> bytes:
    return piece.replace(b"KEY\r\n", f"x-api-key: {KEY}\r\n".encode())


def read(name: str) -> Fault:
    return msgspec.json.decode((HERE / f"{name}.json").read_bytes(), type=Fault)


NAMES = sorted(path.stem for path in HERE.iterdir())


@pytest.fixture(scope="module", params=SERVERS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every test on both servers."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="module")
async def running(
    engine: vidette.Engine, anyio_backend: tuple[str, dict[str, Any]]
) -> AsyncGenerator[Running]:
    slowest: dict[str, Took] = {}
    server = str(next(param.id for param in SERVERS if param.values == (anyio_backend,)))
    gate = Gate()
    door = FrontDoor(keys=Keys((Secret(KEY), Secret("sk-other", "neighbour")), Secret(ADMIN_KEY)))
    app = build_app(engine, gate=gate, door=door, limits=ServiceLimits(body_seconds=1.0))
    with bind("127.0.0.1", 0) as sock, bind("127.0.0.1", 0) as decoy:
        decoy.listen()
        decoy.setblocking(False)
        async with serving(app, sock, gate=gate):
            good = await ask(sock.getsockname(), GOOD_REQUEST, "")
            assert good.startswith(b"HTTP/1.1 200 ")
            yield Running(engine, server, sock.getsockname(), decoy, text_in(good), slowest)
    print(f"\nThe slowest request of each file, on {server}:")
    for name, (seconds, request) in slowest.items():
        print(f"  {name:<20} {seconds * 1000:6.1f} ms  {request:.60}")


GOOD_REQUEST = Hostile([200], path="/generate", json=msgspec.Raw(msgspec.json.encode(GOOD)))


async def ask(address: tuple[str, int], request: Hostile, decoy: str) -> bytes:
    """Return all that comes for a request until the connection ends."""
    received = b""
    answered = anyio.Event()

    async def send(stream: anyio.abc.ByteSendStream) -> None:
        with suppress(anyio.BrokenResourceError):  # the server need not take all of it
            for piece in request.sent(decoy):
                await stream.send(piece)
            await answered.wait()
            for piece in map(text_of, request.late):
                await stream.send(with_key(piece))

    with anyio.fail_after(ANSWER_SECONDS):
        async with await anyio.connect_tcp(*address) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(send, stream)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    received += await stream.receive()
                    answered.set()
            tasks.cancel_scope.cancel("it was answered")
    return received


def status_in(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def text_in(answer: bytes) -> bytes:
    """Return the text that was generated."""
    found = re.search(rb'"text":"((?:[^"\\]|\\.)*)"', answer)
    assert found, answer
    return found[1]


async def check_unharmed(running: Running) -> None:
    """Check that nothing is held, nobody was connected to, and a good request has the same answer."""
    with anyio.fail_after(SECONDS):
        await running.engine.wait_quiet()
    assert running.engine.statistics().ledgers.total() == 0
    with pytest.raises(BlockingIOError):
        running.decoy.accept()
    assert text_in(await ask(running.address, GOOD_REQUEST, "")) == running.good


async def ask_all(running: Running, name: str) -> None:
    for place, request in enumerate(read(name).requests):
        begun = time.perf_counter()
        answer = await ask(running.address, request, url_of(running.decoy))
        took = Took(time.perf_counter() - begun, f"requests[{place}] {request.path or 'raw'}")
        running.slowest[name] = max(running.slowest.get(name, took), took)
        assert status_in(answer) in request.may_be(running.server), (place, request.path, answer[:500])
        assert answer.count(b"HTTP/1.1 ") <= request.most, (place, request.path, answer[:500])
        assert request.says.encode() in answer, (place, request.path, answer[:500])
        for text in request.without:
            assert text.encode() not in answer, (place, request.path)


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_refused_and_the_engine_is_unharmed(running: Running, name: str) -> None:
    await ask_all(running, name)
    await check_unharmed(running)


def used() -> tuple[int, int]:
    """Return the resident KiB of this process, which the engine is in as well, and its blocks in use."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024, sys.getallocatedblocks()


@pytest.mark.long
async def test_memory_is_flat_however_often_they_come(running: Running) -> None:
    levels = []
    for _ in range(2 + ROUNDS):  # two for what is imported and allocated once
        for name in NAMES:
            await ask_all(running, name)
        levels.append(used())
    print("\nresident KiB and blocks in use after each round:", *levels)
    await check_unharmed(running)
    assert levels[-1][0] - levels[1][0] < MOST_KIB
    assert levels[-1][1] - levels[1][1] < MOST_BLOCKS


def test_the_page_names_every_file() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| \[`([\w-]+)\.json`\]\(([^)]+)\) \|$", text, re.MULTILINE)
    assert {name for _, name, _ in rows} == set(NAMES)
    for fault, name, link in rows:
        assert fault == read(name).fault
        assert (PAGE.parent / link).resolve() == HERE / f"{name}.json"


def test_no_request_is_longer_than_what_is_read() -> None:
    """So that it is its content that is refused; those about length are `raw`."""
    for name in NAMES:
        for request in read(name).requests:
            assert request.raw or sum(map(len, request.sent(""))) < ServiceLimits().body_bytes
