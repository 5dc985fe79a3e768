"""`vidette bench overhead`: what all that is not the model costs, with real processes and over HTTP.

The model is the toy, whose steps are so short that whatever else there is shows. `vidette serve` is a process
with its two others, and this one is its clients, whose CPU time does not count.

- a step, as streams see it: from the first piece to the last of as many streams as are computed together,
  by the number of pieces, less what the model's `forward()` takes alone
- CPU time of the front's process for each piece of a chat, all that its request takes besides included,
  against that of a bare Starlette `StreamingResponse` on the same uvicorn, whose pieces are as long, as many,
  and come as fast. Both serve at the same time, so that what else runs on the machine, caches and clock
  included, is the same for both. Once more with prompts that nearly fill the context: over these a step takes
  ten times as long, and both find their caches cold at each
- CPU time of all its processes while nobody asks for anything
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean
from typing import Final, NamedTuple

import anyio
import msgspec
import numpy as np

from vidette.bench.client import BenchFailed
from vidette.bench.idle import SETTLE_SECONDS, cpu_seconds, measure_idle
from vidette.bench.looped import LoopSteps, LoopTimes, TimedModel
from vidette.bench.results import Finding, Results
from vidette.bench.served import Served, served
from vidette.bench.steps import Workload
from vidette.models.interface import BLOCK_SIZE
from vidette.models.load import load_token_table
from vidette.models.store import resolve
from vidette.models.toy import ToyModel

READ_BYTES: Final = 256 * 1024
SECONDS: Final = 120.0
"""How long the streams of one run may take."""
PROMPT: Final = [65] * BLOCK_SIZE
"""Token ids: a block, so that the loop alone has the same before it."""
STORY: Final = 1000 * "x"
"""As many tokens."""
LONG_STORY: Final = 7500 * "x"
KV_TOKENS: Final = 1 << 19
BATCH: Final = 32
SERVERS: Final = {"uvicorn": "asyncio", "hypercorn": "trio"}
CHAT: Final = "/v1/chat/completions"
EVENT: Final = b"data: {"


class Load(NamedTuple):
    """What came of streams that ran at once.

    Args:
        pieces: of all streams together.
        bytes: likewise, heads and frames included.
        seconds: from the first byte of an answer to the last, on average over the streams.
        cpu: seconds of the server's process.
    """

    pieces: int
    bytes: int
    seconds: float
    cpu: float

    @property
    def cpu_us_per_piece(self) -> float:
        """Microseconds of the server for each piece."""
        return 1e6 * self.cpu / self.pieces


class Pair(NamedTuple):
    """What came of our streams, and of those of the bare server meanwhile."""

    ours: Load
    bare: Load

    @property
    def ratio(self) -> float:
        """CPU time of ours for each piece against theirs."""
        return self.ours.cpu_us_per_piece / self.bare.cpu_us_per_piece


async def bench_overhead(
    *, runs: int, streams: int, chunks: int, seconds: float, say: Callable[[str], None]
) -> Results:
    """Measure.

    Args:
        runs: of each.
        streams: at once, for CPU time.
        chunks: of each stream.
        seconds: of idleness in each run.
        say: told what is measured.
    """
    chat, long_chat = _chat(STORY, chunks), _chat(LONG_STORY, chunks)
    pairs: list[Pair] = []
    long_pairs: list[Pair] = []
    hypercorn: list[Load] = []
    idle: dict[str, list[float]] = {}
    steps: list[float] = []
    for server, backend in SERVERS.items():
        quiet = idle.setdefault(server, [])
        arguments = ("--model", "toy", "--port", "0", "--backend", backend, "--kv-tokens", str(KV_TOKENS))
        async with (
            served("vidette.cli", "serve", *arguments) as front,
            served("vidette.bench._bare") as bare,
        ):
            await _ask(front, CHAT, chat, streams)
            await _ask(bare, "/", _pieces(chunks, 200, 1000), streams)
            for run in range(runs):
                say(f"{server}: {streams} streams of {chunks} chunks, run {run + 1} of {runs}")
                if server == "uvicorn":
                    pairs.append(await _ask_both(front, bare, chat, streams))
                    long_pairs.append(await _ask_both(front, bare, long_chat, streams))
                    batch = await _ask(front, "/generate", _tokens(4 * chunks), BATCH)
                    steps.append(batch.seconds / (4 * chunks - 1))
                else:
                    hypercorn.append(await _ask(front, CHAT, chat, streams))
                await anyio.sleep(SETTLE_SECONDS)
                quiet.append(await measure_idle(seconds, front.pid))
    alone = [await anyio.to_thread.run_sync(_time_loop, 4 * chunks) for _ in range(runs)]
    return _to_results(pairs, long_pairs, hypercorn, steps=steps, alone=alone, idle=idle)


def _to_results(
    pairs: list[Pair],
    long_pairs: list[Pair],
    hypercorn: list[Load],
    *,
    steps: list[float],
    alone: list[LoopTimes],
    idle: dict[str, list[float]],
) -> Results:
    forward = mean(times.forward / times.steps for times in alone)
    loop = mean(times.seconds / times.steps for times in alone)
    findings = [
        Finding("added_per_step_us_b32", "us", [1e6 * (step - forward) for step in steps]),
        Finding("http_cpu_us_per_chunk", "us", [pair.ours.cpu_us_per_piece for pair in pairs]),
        Finding("http_cpu_vs_bare_starlette", "x", [pair.ratio for pair in pairs]),
        Finding("idle_cpu_percent", "%", idle["uvicorn"]),
        Finding("bare_cpu_us_per_chunk", "us", [pair.bare.cpu_us_per_piece for pair in pairs]),
        Finding("http_cpu_vs_bare_long_prompts", "x", [pair.ratio for pair in long_pairs]),
        Finding("http_cpu_us_per_chunk_hypercorn", "us", [load.cpu_us_per_piece for load in hypercorn]),
        Finding("idle_cpu_percent_hypercorn", "%", idle["hypercorn"]),
    ]
    load = pairs[0].ours
    us = {
        "as streams see it": mean(steps),
        "in the scheduler's loop alone": loop,
        "in the toy model": forward,
    }
    step = ", ".join(f"{1e6 * seconds:.0f} {where}" for where, seconds in us.items())
    size = load.bytes / load.pieces
    return Results(
        findings,
        [
            f"microseconds of a step of {BATCH}: {step}",
            f"{load.pieces} chunks in a run, {size:.0f} bytes each with frames; merged ones are one",
            "http_cpu_vs_bare_* are ours against theirs, at the same time: lower is better",
        ],
    )


async def _ask_both(front: Served, bare: Served, body: bytes, streams: int) -> Pair:
    """Have chats come, and then once more beside as many pieces, as long and as fast, of the bare server."""
    before = await _ask(front, CHAT, body, streams)
    each = before.pieces // streams
    like = _pieces(each, before.bytes // before.pieces, int(1e6 * before.seconds / each))
    loads: dict[Served, Load] = {}

    async def ask(server: Served, path: str, what: bytes) -> None:
        loads[server] = await _ask(server, path, what, streams)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, front, CHAT, body)
        tasks.start_soon(ask, bare, "/", like)
    return Pair(loads[front], loads[bare])


async def _ask(server: Served, path: str, body: bytes, streams: int) -> Load:
    """Have so many clients ask the same at once; return what came."""
    headers = f"host: localhost\r\nconnection: close\r\ncontent-length: {len(body)}"
    request = f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body
    pieces = size = 0
    seconds: list[float] = []

    async def ask() -> None:
        nonlocal pieces, size
        received = bytearray()
        async with await anyio.connect_tcp(*server.address) as stream:
            await stream.send(request)
            received += await stream.receive(READ_BYTES)
            began = last = time.perf_counter()
            try:
                while True:
                    received += await stream.receive(READ_BYTES)
                    last = time.perf_counter()
            except anyio.EndOfStream:
                seconds.append(last - began)
        if not received.startswith(b"HTTP/1.1 200 "):
            raise BenchFailed(f"the server answered: {bytes(received[:200])!r}")
        pieces += received.count(EVENT)
        size += len(received)

    before = cpu_seconds(server.pid)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(streams):
                tasks.start_soon(ask)
    return Load(pieces, size, mean(seconds), cpu_seconds(server.pid) - before)


def _chat(story: str, count: int) -> bytes:
    messages = [{"role": "user", "content": story}]
    body = {"messages": messages, "stream": True, "max_tokens": count, "ignore_eos": True, "temperature": 0}
    return msgspec.json.encode(body)


def _tokens(count: int) -> bytes:
    params = {"max_new_tokens": count, "ignore_eos": True, "temperature": 0}
    return msgspec.json.encode({"input_ids": PROMPT, "stream": True, "sampling_params": params})


def _pieces(count: int, size: int, period: int) -> bytes:
    return b"%d %d %d" % (count, size, period)


def _time_loop(steps: int) -> LoopTimes:
    """Take the same steps in the scheduler's loop alone, in this process."""
    workload = Workload("overhead", BATCH, len(PROMPT), 1, steps, 1)
    model = TimedModel(ToyModel())
    loop = LoopSteps(model, load_token_table(resolve("toy")), [workload], rng=np.random.default_rng(0))
    return loop.time(workload)
