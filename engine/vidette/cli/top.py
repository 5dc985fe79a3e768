"""`vidette top`: what a running service does, live in the terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from vidette import Activity
from vidette.cli._client import (
    CONNECT_SECONDS,
    KEY,
    REFUSAL_BYTES,
    client_options,
    key_in,
    refusal,
    unreachable,
)
from vidette.cli._front_door import ADMIN_API_KEY
from vidette.cli._options import add_backend_option
from vidette.cli._parser import explain
from vidette.cli._run import Stop, leave_at_once, run
from vidette.cli._screen import Screen
from vidette.cli._top_view import view
from vidette.errors import RequestError, UsageError

if TYPE_CHECKING:
    import httpx

URL: Final = "http://127.0.0.1:8000"
ONCE_SIZE: Final = (120, 200)
"""Width and height of a view that is no terminal's."""
MOST_ASKED: Final = 500
"""Requests that are asked for; a terminal has fewer lines."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette top`."""
    parser.add_argument("--url", default=URL, metavar="URL", help=f"where the service is (default: {URL})")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"its admin key, or the one key of its clients; better given by {ADMIN_API_KEY} or {KEY} in the "
        "environment, which are the default",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two views, 0.1 to 60 (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="print one view after an interval, and end")
    parser.add_argument("--json", action="store_true", help="print one picture as a JSON object, and end")
    add_backend_option(parser)
    explain(
        parser,
        "vidette top",
        "vidette top --url http://127.0.0.1:8080 --interval 0.5",
        "vidette top --json",
        note="q or Ctrl-C leaves. NO_COLOR in the environment leaves colours away.",
    )


def top(options: argparse.Namespace) -> int:
    """Show what a service does, until somebody has seen enough; return 0."""
    shown = options.once or options.json or (sys.stdin.isatty() and sys.stdout.isatty())
    if not shown:
        raise UsageError("stdin and stdout are no terminal; give --once or --json")
    screen = None if options.once or options.json else Screen(os.environ)

    def leave(status: int) -> None:
        if screen is not None:
            screen.leave()
        leave_at_once(status)

    return run(lambda stop: _top(options, screen, stop), backend=options.backend, leave=leave)


def key_of(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return what a service is told: the option, or else the environment."""
    key: str = options.api_key or environ.get(ADMIN_API_KEY) or key_in(environ)
    return key


async def _top(options: argparse.Namespace, screen: Screen | None, stop: Stop) -> int:
    async with _open_feed(options) as feed:
        if options.json:
            print(await feed.read_raw())
        elif screen is None:
            before = await feed.read()
            for line in view(await feed.read(), before, *ONCE_SIZE, title=options.url):
                print(line.text)
        else:
            now = await feed.read()  # before the screen is taken: what is wrong so far is said as ever
            try:
                screen.enter()
                await _show(feed, now, screen, options.url, stop)
            finally:
                screen.leave()
    return 0


async def _show(feed: Feed, now: Activity, screen: Screen, title: str, stop: Stop) -> None:
    """Draw each picture as it comes, and again when the size changes, until a key or a signal ends it."""
    before: Activity | None = None
    stop.defer()
    async with anyio.create_task_group() as tasks:

        def draw() -> None:
            screen.draw(view(now, before, *screen.size(), title=title))

        async def wait_resized() -> None:
            with anyio.open_signal_receiver(signal.SIGWINCH) as resized:
                async for _ in resized:
                    draw()

        async def wait_asked() -> None:
            await stop.asked.wait()
            tasks.cancel_scope.cancel("asked to stop")

        async def wait_key() -> None:
            keys = b" "
            while keys and b"q" not in keys:
                await anyio.wait_readable(sys.stdin.fileno())
                keys = screen.read_keys()
            tasks.cancel_scope.cancel("asked to stop")

        for task in (wait_resized, wait_asked, wait_key):
            tasks.start_soon(task)
        while True:
            draw()
            now, before = await feed.read(), now


class Feed:
    """The events of `GET /v1/activity`.

    Args:
        response: whose body they are.
        url: of the service.
    """

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._lines = response.aiter_lines()
        self._url = url

    async def read(self) -> Activity:
        """Wait for the next picture.

        Raises:
            RequestError: there is none: the service has stopped, went away, or sends something else.
        """
        raw = await self.read_raw()
        try:
            return msgspec.json.decode(raw, type=Activity)
        except msgspec.DecodeError as error:
            raise RequestError(f"{self._url} sends what is no picture of an engine: {error}") from error

    async def read_raw(self) -> str:
        """Wait for the next picture; return it as it was sent.

        Raises:
            RequestError: as `read()`, but for what is sent.
        """
        import httpx  # noqa: PLC0415

        try:
            async for line in self._lines:
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    raise RequestError(f"the service at {self._url} has stopped")
                if data and line.startswith("data:"):
                    return data
        except httpx.HTTPError as error:
            what = str(error) or type(error).__name__
            raise RequestError(f"the service at {self._url} went away: {what}") from error
        raise RequestError(f"the service at {self._url} went away")


@asynccontextmanager
async def _open_feed(options: argparse.Namespace) -> AsyncGenerator[Feed]:
    """Read what a service does while the block runs."""
    import httpx  # noqa: PLC0415  the other commands need no HTTP client

    url: str = options.url
    silent = options.interval + CONNECT_SECONDS
    made = client_options(url, key_of(options, os.environ), silent_seconds=silent)
    query = {"interval": f"{options.interval:g}", "limit": str(MOST_ASKED)}
    try:
        async with (
            httpx.AsyncClient(**made) as client,
            client.stream("GET", "activity", params=query) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise await _refusal(response)
            yield Feed(response, url)
    except httpx.HTTPError as error:
        raise unreachable(made["base_url"], error) from error


async def _refusal(response: httpx.Response) -> UsageError | RequestError:
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= REFUSAL_BYTES:
            break
    if response.status_code == 404:
        return RequestError(f"{response.url.host} has no /v1/activity: it is no service of this version")
    return refusal(response.status_code, body, f"{ADMIN_API_KEY} or {KEY}")
