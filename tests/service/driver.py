"""The server's side of ASGI, by hand: what it receives, when it blocks, and when the client goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import anyio
import msgspec
import pytest
from starlette.types import ASGIApp

from vidette.service.responses import ON_GONE

SERVERS = [
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvicorn"),
    pytest.param(("trio", {}), id="hypercorn"),
]
"""Backends, each with the server that `vidette serve` has there."""
SECONDS = 20.0
"""How long anything in these tests may take; all of it takes milliseconds."""


class Silence:
    """A client that has not sent all, and sends no more."""


class Call:
    """One request to an app.

    Args:
        app: what is called.
        path: where.
        body: the request's body: bytes, or a value that becomes JSON.
        pieces: the body in pieces instead; at a Silence it sends no more, at a None it goes.
        tells: whether the server says by itself that the client is gone, and is never asked behind the body.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: object = b"",
        *,
        method: str = "POST",
        headers: Iterable[tuple[bytes, bytes]] = (),
        pieces: Iterable[bytes | Silence | None] | None = None,
        tells: bool = False,
    ) -> None:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self._app = app
        self._pieces = list(pieces) if pieces is not None else [raw]
        self._gone = anyio.Event()
        self._news = anyio.Event()
        self._readable = anyio.Event()
        self._readable.set()
        self.raises: Exception | None = None
        """What the next send() raises."""
        self.reads = -1
        """After how many messages it stops to read."""
        self.sent: list[MutableMapping[str, Any]] = []
        self.asked = 0
        """How many pieces of the body were asked for."""
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self._tells = tells
        self._on_gone: list[Callable[[], None]] = []
        if tells:
            self.scope[ON_GONE] = self._on_gone.append

    # --- what the client does ---------------------------------------------------

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()
        self._readable.set()
        for leave in self._on_gone:
            leave()

    def stop_reading(self) -> None:
        """Read no more: the next send() waits."""
        self._readable = anyio.Event()

    def read_on(self) -> None:
        """Read again."""
        self._readable.set()

    # --- what the server does ----------------------------------------------------

    async def run(self) -> Call:
        """Run the app to its end."""
        with anyio.fail_after(SECONDS):
            await self._app(self.scope, self._receive, self._send)
        return self

    async def _receive(self) -> dict[str, Any]:
        if self.asked < len(self._pieces):
            piece = self._pieces[self.asked]
            self.asked += 1
            if piece is None:
                return {"type": "http.disconnect"}
            if isinstance(piece, Silence):
                await self._gone.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece, "more_body": self.asked < len(self._pieces)}
        assert not self._tells
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()
        await self._readable.wait()
        if self.raises is not None:
            raise self.raises
        if self._gone.is_set():  # as servers do
            return
        self.sent.append(message)
        if len(self.sent) == self.reads:
            self.stop_reading()
        self._news.set()
        self._news = anyio.Event()

    async def wait_sent(self, count: int) -> None:
        """Wait until so many messages were sent, the start included."""
        with anyio.fail_after(SECONDS):
            while len(self.sent) < count:
                await self._news.wait()

    # --- what came of it ----------------------------------------------------------

    @property
    def status(self) -> int:
        """Status of the answer."""
        assert self.sent[0]["type"] == "http.response.start"
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """Body of the answer."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        """Whether the answer came to its end."""
        return bool(self.sent) and not self.sent[-1].get("more_body", False) and len(self.sent) > 1

    def json(self) -> Any:
        """The answer, as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> Any:
        """The error in the answer; checks its shape."""
        (name, detail), *others = self.json().items()
        assert (name, others) == ("error", [])
        assert set(detail) == {"message", "type", "param", "code"}
        assert len(detail["message"].split()) > 3
        return detail

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the last is "[DONE]" if it is complete."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") for frame in frames)
        texts = [frame.removeprefix("data: ") for frame in frames]
        return [text if text == "[DONE]" else msgspec.json.decode(text) for text in texts]

    @property
    def named_events(self) -> list[Any]:
        """The events of a stream in which each has its type as its name; checks that it has."""
        frames = [frame.split("\n") for frame in self.body.decode().split("\n\n") if frame]
        assert all(len(lines) == 2 for lines in frames)
        names = [name.removeprefix("event: ") for name, _ in frames]
        events = [msgspec.json.decode(data.removeprefix("data: ")) for _, data in frames]
        assert [event["type"] for event in events] == names
        return events


def request_of(path: str, body: object, more: bytes = b"") -> bytes:
    """Return a request as it goes over the wire, with more lines in its head."""
    raw = msgspec.json.encode(body)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path.encode(), more, len(raw)) + raw


async def call(app: ASGIApp, path: str, body: object = b"", **options: Any) -> Call:
    """Call an app to its end."""
    return await Call(app, path, body, **options).run()
