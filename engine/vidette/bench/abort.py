"""`vidette bench abort`: how soon after a client has left its request holds nothing any more.

Engine and server are the real ones, in processes of their own but for the front, which is this one: so it
can be asked what is held. The clock runs from the moment a client closes its connection until the front has
heard that nothing is left, the way back included.

A step that runs when the client leaves cannot be cut short, so one step is what it may take at best.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio
import msgspec
from sniffio import current_async_library

from vidette.api import Engine, open_engine
from vidette.bench.client import BenchFailed
from vidette.bench.results import Finding, Results
from vidette.service import Gate, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind

SERVERS: Final = {"asyncio": "uvicorn", "trio": "hypercorn"}
STEPS: Final = 8
"""Steps of each request, at least, before its client leaves: they say how long one takes."""
TOKENS: Final = 4096
"""Of each request, at most; none gets that far."""
SECONDS: Final = 60.0
"""How long a request may take to begin, and to be gone."""
READ_BYTES: Final = 64 * 1024


class Leaving(NamedTuple):
    """What became of a request whose client left.

    Args:
        steps: that the scheduler took between its last answer to us and the end; the client left in between.
        seconds: from the client's leaving to the end.
        step: seconds of one step, before.
    """

    steps: int
    seconds: float
    step: float

    @property
    def extra(self) -> float:
        """Seconds that it took longer than a step, at least none."""
        return max(0.0, self.seconds - self.step)


async def bench_abort(model: str, *, runs: int, say: Callable[[str], None]) -> dict[str, list[Leaving]]:
    """Have clients leave, in turns while their answer streams and before they have heard anything.

    It is done with the server that runs on the current event loop.

    Args:
        model: as with `vidette generate`.
        runs: how many leave, of each kind.
        say: told what is measured.

    Returns:
        What became of their requests, by the server's name.

    Raises:
        BenchFailed: something was still held.
    """
    server = SERVERS[current_async_library()]
    say(f"{server}: {2 * runs} clients leave")
    async with _served(model) as (engine, address):
        await _leave(engine, address, stream=True)  # what is done once
        leavings = [await _leave(engine, address, stream=bool(run % 2)) for run in range(2 * runs)]
    return {server: leavings}


def to_results(model: str, leavings: dict[str, list[Leaving]]) -> Results:
    """Return what was found, with all servers and with each."""

    def findings(suffix: str, of: Sequence[Leaving]) -> list[Finding]:
        return [
            Finding(f"disconnect_to_free_steps{suffix}", "", [float(each.steps) for each in of]),
            Finding(f"disconnect_to_free_extra_ms{suffix}", "ms", [1e3 * each.extra for each in of]),
        ]

    found = findings("", [each for of in leavings.values() for each in of])
    for server, of in leavings.items():
        found += findings(f"_{server}", of)
        found.append(Finding(f"disconnect_to_free_ms_{server}", "ms", [1e3 * each.seconds for each in of]))
        found.append(Finding(f"step_ms_{server}", "ms", [1e3 * each.step for each in of]))
    return Results(
        found,
        [
            f"model {model}; extra is what it took longer than one step, until the front had heard of it",
            "steps are counted from an answer just before the client left, so one of them may have been over",
        ],
    )


@asynccontextmanager
async def _served(model: str) -> AsyncGenerator[tuple[Engine, tuple[str, int]]]:
    gate = Gate()
    with bind("127.0.0.1", 0) as sock:
        address: tuple[str, int] = sock.getsockname()
        async with (
            open_engine(model, topology="processes") as engine,
            serving(build_app(engine, gate=gate), sock, gate=gate, drain_seconds=0.0),
        ):
            yield engine, address


async def _leave(engine: Engine, address: tuple[str, int], *, stream: bool) -> Leaving:
    with anyio.fail_after(SECONDS), socket.socket() as client:
        client.setblocking(False)
        if client.connect_ex(address):
            await anyio.wait_writable(client)
        client.sendall(_request(stream=stream))
        step = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, client)
            while not (await engine.heartbeat()).ledgers.blocks:
                pass
            began, before = time.perf_counter(), engine.statistics().steps
            while (await engine.heartbeat()).steps < before + STEPS:  # noqa: ASYNC110  it says when to ask
                await anyio.sleep(0.01)
            step = (time.perf_counter() - began) / (engine.statistics().steps - before)
            tasks.cancel_scope.cancel("the client leaves")
        after = (await engine.heartbeat()).steps
        left = time.perf_counter()
        client.close()
        await engine.wait_quiet()
        seconds = time.perf_counter() - left
    statistics = engine.statistics()
    if statistics.ledgers.total():
        raise BenchFailed(f"something is still held: {statistics.ledgers}")
    return Leaving(statistics.steps - after, seconds, step)


async def _read(client: socket.socket) -> None:
    while True:
        await anyio.wait_readable(client)
        client.recv(READ_BYTES)


def _request(*, stream: bool) -> bytes:
    params = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    body = msgspec.json.encode({"text": "Tell a story.", "stream": stream, "sampling_params": params})
    head = f"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
