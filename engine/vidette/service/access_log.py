"""The access log: one line for each request, without anything of its prompt unless that is asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vidette._log_lines import printable
from vidette.service.log_lines import ACCESS, ANSWERED, FIELDS, Names, hide_ids, words_of
from vidette.service.request_ids import REQUEST_ID

logger = logging.getLogger(ACCESS)

SHOWN_BODY_BYTES: Final = 2048
"""How much of a body is logged at level 2."""
MOST_BODY_BYTES: Final = 256 * 1024
"""Likewise at level 3. The loop waits while a line is made: measured, at most 47 ms of so much."""
SHOWN_CHARS: Final = 256
"""How much of a path or a header is logged."""

Level = Literal[0, 1, 2, 3]
"""How much is logged: 0 what was asked for and what came of it; 1 also who asked; 2 also how the body begins,
and with it prompts; 3 far more of the body."""
Format = Literal["text", "json"]


class LogSettings(Struct):
    """What is logged of requests; it may change while the server runs.

    Args:
        requests: whether anything is.
        level: how much.
        format: how it is written.
    """

    requests: bool = False
    level: Level = 0
    format: Format = "text"


class Line(Struct, frozen=True, omit_defaults=True):
    """What is logged of one request.

    Args:
        request_id: its `x-request-id`.
        method: of HTTP.
        path: without the query, and without the ids of responses.
        status: of the answer; 0: there was none, the client had left.
        seconds: from its head to the end of its answer.
        received: bytes of its body.
        sent: bytes of the body of the answer.
        whole: whether the answer came to its end.
        rid: what the engine called it, if it came so far; of several answers the first.
        trace_id: of its trace, if it has one.
        client: address, at level 1.
        agent: what the client calls itself, at level 1.
        body: at level 2 and 3.
    """

    request_id: str
    method: str
    path: str
    status: int
    seconds: float
    received: int
    sent: int
    whole: bool
    rid: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET
    client: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    body: str | UnsetType = UNSET


class AccessLog:
    """Middleware that writes the log.

    Args:
        app: what answers.
        settings: read anew for each request.
        clock: seconds.
    """

    def __init__(
        self, app: ASGIApp, settings: LogSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass one request on, and log it when it is over."""
        if scope["type"] != "http" or not self._settings.requests:
            return self._app(scope, receive, send)
        return self._answer_logged(scope, receive, send)

    async def _answer_logged(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = _Seen(receive, send, {2: SHOWN_BODY_BYTES, 3: MOST_BODY_BYTES}.get(self._settings.level, 0))
        began = self._clock()
        try:
            await self._app(scope, seen.receive, seen.send)
        finally:
            line = _line(scope, seen, self._clock() - began, self._settings.level)
            if self._settings.format == "json":
                fields = {"message": f"{line.method} {line.path} {line.status}", **msgspec.to_builtins(line)}
                logger.info("%s", _Text(line, _in_json), extra={FIELDS: fields})
            else:
                logger.info("%s", _Text(line, words_of))


class _Text:
    """A line as text, which is made if somebody asks for it: one that has fields does not."""

    def __init__(self, line: Line, write: Callable[[Line], str]) -> None:
        self._line = line
        self._write = write

    def __str__(self) -> str:
        return printable(self._write(self._line))


def _in_json(line: Line) -> str:
    return msgspec.json.encode(line).decode()


class _Seen:
    """Counts what passes, and keeps so much of the body."""

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        self._receive = receive
        self._send = send
        self._most = most
        self.body = bytearray()
        self.received = self.sent = self.status = 0
        self.whole = False

    async def receive(self) -> Message:
        message = await self._receive()
        piece: bytes = message.get("body", b"")
        self.received += len(piece)
        self.body += piece[: max(0, self._most - len(self.body))]
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)


def _line(scope: Scope, seen: _Seen, seconds: float, level: Level) -> Line:
    client = scope.get("client")
    names = ANSWERED.get() or Names("")
    agent = dict(scope["headers"]).get(b"user-agent", b"").decode("latin-1")
    return Line(
        request_id=scope.get(REQUEST_ID, ""),
        method=scope["method"][:SHOWN_CHARS],
        path=_shown_path(scope["path"]),
        status=seen.status,
        seconds=round(seconds, 6),
        received=seen.received,
        sent=seen.sent,
        whole=seen.whole,
        rid=names.rid and names.rid[:SHOWN_CHARS],
        trace_id=names.trace_id,
        client=client[0] if level >= 1 and client else UNSET,
        agent=agent[:SHOWN_CHARS] if level >= 1 else UNSET,
        body=seen.body.decode(errors="replace") if level >= 2 else UNSET,
    )


def _shown_path(path: str) -> str:
    return hide_ids(path)[:SHOWN_CHARS].encode(errors="replace").decode()
