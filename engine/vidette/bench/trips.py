"""Messages to another process and back, and as many as possible one way.

Of a small message the trip is all there is, so bytes are compared with bytes: our channel with `zmq.asyncio`.
In `small_message_rtt_vs_zmq_asyncio` ours are messages, with all that a link does for them, and theirs bytes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Final

import anyio
import torch

from vidette.bench.interleave import Effort, time_trips
from vidette.bench.messages import Load, Task
from vidette.bench.peer import BYTES, FRAMES, LINK, PREPARED, Peer
from vidette.bench.results import OURS, Finding, Results, compare

Turn = Callable[[], Awaitable[float]]

SMALL_BYTES: Final = 100
SMALL_TRIPS: Final = 50
"""Round trips in one turn, of which the median counts."""
SIZES: Final = {"100kb": 100_000, "1mb": 1_000_000, "10mb": 10_000_000}
LARGE_TRIPS: Final = 3
LARGE_SHARE: Final = 8
"""One turn for so many of the others: each takes that much longer."""
FLOOD: Final = 3200
"""Messages in one turn of a flood."""
BATCH: Final = 32
"""Messages that wait when the queue is drained: those of one step, were they sent one by one."""


async def bench_small(peer: Peer, effort: Effort) -> Results:
    """Time a ping-pong of 100 bytes against zmq.asyncio."""
    body = effort.rng.randbytes(SMALL_BYTES)

    async def ours() -> None:
        peer.channel.post(body)
        await peer.channel.receive()

    async def message() -> None:
        peer.link.post(Load(body=body))
        await peer.link.receive()

    async def zmq() -> None:
        await peer.sockets.ping.send(body)
        await peer.sockets.pong.recv()

    candidates = {
        OURS: _trips(peer, BYTES, ours, SMALL_TRIPS),
        "message": _trips(peer, LINK, message, SMALL_TRIPS),
        "zmq_asyncio": _trips(peer, "zmq", zmq, SMALL_TRIPS),
    }
    seconds = await time_trips(candidates, effort)
    with_codec = {OURS: seconds.pop("message"), "zmq_asyncio": seconds["zmq_asyncio"]}
    return compare("small_rtt", seconds) + compare("small_message_rtt", with_codec)


async def bench_sizes(peer: Peer, effort: Effort) -> Results:
    """Time messages with a tensor in them over our link: there, and there and back."""
    there, both = {}, {}
    for name, nbytes in SIZES.items():
        load = Load(body=torch.frombuffer(bytearray(effort.rng.randbytes(nbytes)), dtype=torch.uint8))
        both[f"rtt_{name}_us"] = _round_trip(peer, load)
        there[f"oneway_{name}_us"] = _one_way(peer, load)
    few = effort.share(LARGE_SHARE)
    seconds = await time_trips(both, few)
    async with peer.reading():
        seconds |= await time_trips(there, few)
    findings = [Finding(name, "us", [value * 1e6 for value in values]) for name, values in seconds.items()]
    return Results(findings, [])


async def bench_flood(peer: Peer, effort: Effort) -> Results:
    """Time many messages one way: a queue that is drained into one send, against one send per message."""
    frame = effort.rng.randbytes(SMALL_BYTES)

    def flood(batch: int) -> Turn:
        async def turn() -> float:
            await peer.tell(Task(kind="count", way=FRAMES, count=FLOOD))
            started = time.monotonic_ns()
            for _ in range(FLOOD // batch):
                for _ in range(batch):
                    peer.sink.put(frame)
                while not peer.sink.flush():
                    await anyio.wait_writable(peer.sink.fileno())
            return ((await peer.done()).at - started) * 1e-9

        return turn

    candidates = {OURS: flood(BATCH), "single": flood(1)}
    return compare(f"flood_{FLOOD}", await time_trips(candidates, effort), name="coalesced_vs_single")


def _trips(peer: Peer, way: str, trip: Callable[[], Awaitable[None]], count: int) -> Turn:
    async def turn() -> float:
        await peer.tell(Task(kind="echo", way=way, count=count))
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            await trip()
            seconds.append(time.perf_counter() - started)
        await peer.done()
        return median(seconds)

    return turn


def _round_trip(peer: Peer, load: Load) -> Turn:
    async def trip() -> None:
        async with peer.link.prepare(load) as prepared:
            peer.link.post(prepared)
        await peer.link.receive()

    return _trips(peer, PREPARED, trip, LARGE_TRIPS)


def _one_way(peer: Peer, load: Load) -> Turn:
    async def turn() -> float:
        await peer.tell(Task(kind="take", way=LINK))
        started = time.monotonic_ns()
        async with peer.link.prepare(load) as prepared:
            peer.link.post(prepared)
        return ((await peer.done()).at - started) * 1e-9

    return turn
