"""One exchange of request and answer, and the scope that ends with its client.

What makes an answer runs in a scope of its own. Beside it one task owns `receive()`: when the client goes,
it cancels that scope, and with it whatever the answer was waiting for, be it a place in the queue, a long
prefill or a slow reader. (A plain handler notices only when it next sends, if ever, and a generator behind
Starlette's `StreamingResponse` is cleaned up when the garbage collector comes by.)

The status is decided before the first byte: whatever is raised until then becomes an error with its own
status. What is raised later can only become the stream's last event.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from vidette.errors import EngineClosed, Error
from vidette.service.bodies import BodyReader, ClientGone
from vidette.service.errors import RETRY_AFTER, body_of, headers_of, retry_after, status_of
from vidette.service.gate import Gate
from vidette.service.limits import ServiceLimits
from vidette.service.shares import ANYONE, CALLER, Place, Shares

logger = logging.getLogger(__name__)
_encode: Final = msgspec.json.Encoder().encode

JSON = (b"content-type", b"application/json")
EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family would otherwise hold events back.
    (b"x-accel-buffering", b"no"),
)
STOPPING = (HTTPStatus.SERVICE_UNAVAILABLE, 529)
"""What is answered when the server stops; Anthropic has a status of its own for it."""
DONE = b"data: [DONE]\n\n"
"""The last event of an answer that is complete, and of no other."""


def plain_event(value: Any) -> bytes:
    """Return an event as OpenAI's older APIs frame it."""
    return b"data: %b\n\n" % _encode(value)


def named_event(value: Any) -> bytes:
    """Return an event, a dict, with its `type` as its name besides."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), _encode(value))


class Dialect(NamedTuple):
    """How an API says what all of them have to say."""

    frame: Callable[[Any], bytes] = plain_event
    """Returns an event as it is sent."""
    done: bytes = DONE
    """What ends a stream that is complete."""
    error: Callable[[Exception], Any] = body_of
    """Returns the body of an error."""
    status: Callable[[Exception], int] = status_of
    """Returns the HTTP status of an error."""


OPENAI: Final = Dialect()
NAMED_EVENTS: Final = Dialect(frame=named_event, done=b"")
"""OpenAI's newer API: the last event of a stream says that it is complete."""


class Exchange:
    """A request, and its answer being sent.

    Attributes:
        scope: of the request, as ASGI has it.
        path_params: what the route found in the path.
        query: the query string.
        body: of the request.
        error_event: returns what an error is in the midst of a stream; an API may have an event for it.
        place: what it has of the share of its key; only of a route whose requests are counted.

    Args:
        scope: of the request.
        send: of the server.
        gate: closed when the server stops; a 503 says then when to try again.
        dialect: of the API.
    """

    place: Place

    def __init__(self, scope: Scope, send: Send, gate: Gate, dialect: Dialect = OPENAI) -> None:
        self.scope = scope
        self.path_params: dict[str, str] = scope.get("path_params", {})
        self.query: bytes = scope.get("query_string", b"")
        self.body = b""
        self.error_event = dialect.error
        self._dialect = dialect
        self._send_message = send
        self._gate = gate
        self._started = False
        self._in_events = False

    def take_body(self) -> bytes:
        """Return the body of the request and forget it: an answer may take long, and needs it only once."""
        body, self.body = self.body, b""
        return body

    async def send_json(
        self, value: object, *, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Answer with one JSON value."""
        body = msgspec.json.encode(value)
        await self._start(status, [JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def send_bytes(self, body: bytes, content_type: bytes) -> None:
        """Answer with something that is no JSON."""
        await self._start(200, [(b"content-type", content_type), (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def start_events(self) -> None:
        """Begin an answer of server-sent events; from here on its status is 200."""
        await self._start(200, EVENTS)
        self._in_events = True

    async def send_events(self, values: Iterable[object]) -> None:
        """Send events, all in one piece; waits while the client is slow."""
        body = b"".join(map(self._dialect.frame, values))
        if not body:
            return
        try:
            await self._send_message({"type": "http.response.body", "body": body, "more_body": True})
        except OSError as error:
            raise ClientGone from error

    async def end_events(self, *, whole: bool = True) -> None:
        """Say that no more comes, and whether the answer is complete."""
        await self._send({"type": "http.response.body", "body": self._dialect.done if whole else b""})
        self._in_events = False

    async def fail(self, error: Exception) -> None:
        """End with an error, in whatever way is still open.

        Before the first byte it is an answer of its own. In a stream it is the last event: no `[DONE]`
        follows, so that nobody takes a torn answer for a whole one. In or behind another answer there is
        no place for it.
        """
        if not self._started:
            body, status = self._dialect.error(error), self._dialect.status(error)
            await self.send_json(body, status=status, headers=headers_of(error))
        elif self._in_events:
            event = self._dialect.frame(self.error_event(error))
            await self._send({"type": "http.response.body", "body": event})
            self._in_events = False

    async def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        headers = list(headers)
        seconds = self._gate.retry_after if status in STOPPING else None
        if seconds is not None and all(name != RETRY_AFTER for name, _ in headers):
            headers.append(retry_after(seconds))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self._started = True

    async def _send(self, message: dict[str, object]) -> None:
        try:
            await self._send_message(message)
        except OSError as error:  # what ASGI servers raise if they raise at all
            raise ClientGone from error


Answer = Callable[[Exchange], Awaitable[None]]
"""Answers a request, or raises what goes wrong."""


class Endpoint:
    """An ASGI app that answers the requests of one route.

    Attributes:
        answer: what answers.
        dialect: of the API.

    Args:
        answer: what answers.
        gate: counts the requests inside.
        bodies: reads the bodies.
        limits: bounds of the service.
        stopping: closed when the server stops; None: that is `gate`.
        dialect: of the API.
        shares: of which the requests take places; None: they cost the engine too little to be counted.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        gate: Gate,
        bodies: BodyReader,
        limits: ServiceLimits,
        stopping: Gate | None = None,
        dialect: Dialect = OPENAI,
        shares: Shares | None = None,
    ) -> None:
        self.answer = answer
        self.dialect = dialect
        self._gate = gate
        self._bodies = bodies
        self._limits = limits
        self._stopping = gate if stopping is None else stopping
        self._shares = shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing but a cancellation from outside gets out."""
        exchange = Exchange(scope, send, self._stopping, self.dialect)
        try:
            with self._gate.enter() as stop:
                await self._answer_counted(exchange, scope, receive)
            if not stop.cancelled_caught:
                return
            refusal = EngineClosed("the server is stopping and cannot wait for this request")
        except EngineClosed as error:  # of the gate: nothing else gets out
            refusal = error
        with anyio.move_on_after(self._limits.parting_seconds):
            await _part(exchange, refusal)

    async def _answer_counted(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        """Answer while the request counts for its key."""
        if self._shares is None:
            await self._answer_watched(exchange, scope, receive)
            return
        try:
            exchange.place = self._shares.of(scope.get(CALLER, ANYONE)).enter()
        except Error as error:  # nothing of the body is read
            await _part(exchange, error)
            return
        with exchange.place:
            await self._answer_watched(exchange, scope, receive)

    async def _answer_watched(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        """Answer in a scope that ends with the client; raises nothing that is not a cancellation."""
        try:
            exchange.body = await self._bodies.read(scope, receive)
        except ClientGone:
            return
        except Error as error:
            await _part(exchange, error)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            try:
                await self.answer(exchange)
            except ClientGone:
                pass
            except Exception as error:  # noqa: BLE001  the edge of the server: it answers, and lives on
                await _part(exchange, error)
            tasks.cancel_scope.cancel("the request is over")


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:
        logger.exception("receive() of the server failed; the request it belongs to ends")
    scope.cancel("the client is gone")


async def _part(exchange: Exchange, error: Exception) -> None:
    """Tell the client what went wrong, and the log if it is a bug."""
    if not isinstance(error, Error):
        logger.error("a request failed in a way that is a bug", exc_info=error)
    try:
        await exchange.fail(error)
    except ClientGone:
        pass
    except Exception:
        logger.exception("send() of the server failed")
