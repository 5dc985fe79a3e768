"""`vidette demo`: pull a model, serve it, stream an answer, stop, and leave nothing behind.

It is a client of `vidette serve` like any other: it knows a process, the ready line on stderr, and HTTP.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import msgspec
from anyio.streams.text import TextReceiveStream

from vidette import EngineConfig, Error
from vidette.cli._options import add_model_option
from vidette.cli._parser import explain
from vidette.cli._run import run, say
from vidette.cli.pull import pull_with_progress
from vidette.models import KNOWN_MODELS

if TYPE_CHECKING:
    import httpx

QUESTION = "What does a sentry do? Answer in two sentences."
MAX_TOKENS = 96

READY_SECONDS = 120.0
ANSWER_SECONDS = 120.0
STOP_SECONDS = 15.0
READY_LINE = re.compile(r"^vidette serves \S+ on (http://\S+)$")


class DemoFailed(Error):  # noqa: N818  named like the engine's errors
    """A step did not go as it should; the message says which."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette demo`."""
    add_model_option(parser)
    parser.add_argument(
        "--question", default=QUESTION, metavar="TEXT", help=f"what to ask (default: {QUESTION})"
    )
    explain(parser, "vidette demo --model smollm2-135m-instruct")


def demo(options: argparse.Namespace) -> int:
    """Run the demo; return 0 if all of it went as it should."""
    model = options.model or EngineConfig().model
    if model in KNOWN_MODELS:
        pull_with_progress(model)
    return run(lambda _: _demo(model, options.question))


async def _demo(model: str, question: str) -> int:
    say(f"--- vidette serve --model {model} --port 0")
    async with _served(model) as (process, url):
        say(f"--- POST {url}/v1/chat/completions: {question}")
        with _within(ANSWER_SECONDS, "the answer was not complete"):
            await _ask(url, question)
        with _open_children(process.pid) as children:
            say(f"--- kill -INT {process.pid}, the server, to which {len(children)} other processes belong")
            process.send_signal(signal.SIGINT)
            with _within(STOP_SECONDS, "the server had not ended"):
                status = await process.wait()
                if status != 0:
                    raise DemoFailed(f"the server ended with exit status {status} instead of 0")
                for pidfd in children:
                    await anyio.wait_readable(pidfd)  # readable once it has ended
    say("--- all of them have ended, the server with exit status 0")
    return 0


@asynccontextmanager
async def _served(model: str) -> AsyncGenerator[tuple[anyio.abc.Process, str]]:
    """Run `vidette serve` while the block runs; yields its process and its address."""
    command = [sys.executable, "-m", "vidette.cli", "serve", "--port", "0", "--model", model]
    process = await anyio.open_process(command, stdin=None, stdout=None)
    try:
        async with anyio.create_task_group() as tasks:
            with _within(READY_SECONDS, "the server was not ready"):
                url = await tasks.start(_hear, process)
            if url is None:
                raise DemoFailed(
                    f"the server ended with exit status {await process.wait()} before it was ready"
                )
            yield process, url
    finally:
        if process.returncode is None:  # something went wrong; its own processes end with it
            process.kill()
        with anyio.CancelScope(shield=True):  # bounded: it is dead
            await process.aclose()


async def _hear(process: anyio.abc.Process, *, task_status: anyio.abc.TaskStatus[str | None]) -> None:
    """Pass on what the server says on stderr, until it ends; report the address that it serves on."""
    assert process.stderr is not None
    heard, started = "", False
    async for text in TextReceiveStream(process.stderr, errors="replace"):
        sys.stderr.write(text)
        sys.stderr.flush()
        *lines, heard = (heard + text).split("\n")
        for line in lines:
            if not started and (ready := READY_LINE.match(line)):
                started = True
                task_status.started(ready[1])
    if not started:
        task_status.started(None)


async def _ask(url: str, question: str) -> None:
    """Ask in a chat, print the answer as it comes, and then what it took."""
    import httpx  # noqa: PLC0415  the other commands need no HTTP client

    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    first = last = math.nan
    usage: dict[str, int] = {}
    began = time.monotonic()
    # Whatever proxy the environment names does not know the server of this machine.
    async with (
        httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise DemoFailed(
                f"the server answered {response.status_code}: {(await response.aread()).decode()}"
            )
        async for event in _events(response):
            if "error" in event:
                raise DemoFailed(f"the answer failed: {event['error']['message']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    last = time.monotonic()
                    first = last if math.isnan(first) else first
                    print(text, end="", flush=True)
    print(flush=True)
    if not usage.get("completion_tokens"):
        raise DemoFailed("the answer came without any tokens")
    made = usage["completion_tokens"]
    speed = f"{(made - 1) / (last - first):.0f} tokens/s after it" if last > first else "no more after it"
    say(
        f"--- {usage['prompt_tokens']} tokens of prompt, {made} of output: "
        f"the first after {first - began:.2f} s, {speed}"
    )


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """Yield the events of a stream, up to `[DONE]`."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield msgspec.json.decode(line.removeprefix("data: "))
    raise DemoFailed("the answer ended before it was complete")


@contextmanager
def _within(seconds: float, what: str) -> Generator[None]:
    """Bound a step of the demo."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise DemoFailed(f"{what} within {seconds:g} s") from None


@contextmanager
def _open_children(pid: int) -> Generator[list[int]]:
    """Yield a pidfd of every child of a process: a pid could be somebody else's by the time we look."""
    pidfds: list[int] = []
    try:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                # "pid (name) state ppid ...", and a name may hold anything
                if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                    pidfds.append(os.pidfd_open(int(stat.parent.name)))
        yield pidfds
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
