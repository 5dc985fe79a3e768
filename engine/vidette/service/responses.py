"""One exchange of request and answer, and the scope that ends with its client.

What makes an answer runs in a scope that is cancelled when the client goes, and with it whatever the answer
was waiting for, be it a place in the queue, a long prefill or a slow reader. A server that knows `ON_GONE`
says so itself; on any other one a task beside the answer owns `receive()`. (A plain handler notices only when
it next sends, if ever, and a generator behind Starlette's `StreamingResponse` is cleaned up when the garbage
collector comes by.)

The status is decided before the first byte: whatever is raised until then becomes an error with its own
status. What is raised later can only become the stream's last event.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
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
ON_GONE: Final = "vidette.on_gone"
"""Key of an ASGI scope: called with a function, it has that called once, when the client goes before the
answer is complete. It stands for `receive()` behind the body, and spares each request a task."""
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
        client_gone: whether the client went before the answer was complete.

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
        self.client_gone = False
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
        """Send events, all in one piece; waits while the client is slow. One of bytes is framed already."""
        body = self._frame(values)
        if not body:
            return
        try:
            await self._send_message({"type": "http.response.body", "body": body, "more_body": True})
        except OSError as error:
            raise ClientGone from error

    async def end_events(self, values: Iterable[object] = (), *, whole: bool = True) -> None:
        """Send the last events, and with them that no more comes, and whether the answer is complete."""
        body = self._frame(values) + (self._dialect.done if whole else b"")
        await self._send({"type": "http.response.body", "body": body})
        self._in_events = False

    def _frame(self, values: Iterable[object]) -> bytes:
        frame = self._dialect.frame
        return b"".join([value if type(value) is bytes else frame(value) for value in values])

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
                await self._answer_inside(exchange, scope, receive, stop)
            if exchange.client_gone or not stop.cancelled_caught:
                return
            refusal = EngineClosed("the server is stopping and cannot wait for this request")
        except EngineClosed as error:  # of the gate: nothing else gets out
            refusal = error
        with anyio.move_on_after(self._limits.parting_seconds):
            await _part(exchange, refusal)

    async def _answer_inside(
        self, exchange: Exchange, scope: Scope, receive: Receive, stop: anyio.CancelScope
    ) -> None:
        """Answer, if only with an error, until the client goes; raises nothing that is not a cancellation.

        All that is awaited around an answer is resumed with each of its events, so it is little.
        """

        def leave() -> None:
            exchange.client_gone = True
            stop.cancel("the client is gone")

        try:
            with self._count(exchange, scope):  # before the body: of a request too many nothing is read
                exchange.body = await self._bodies.read(scope, receive)
                on_gone = scope.get(ON_GONE)
                if on_gone is None:
                    await self._answer_watched(exchange, receive, leave)
                else:
                    on_gone(leave)
                    await self.answer(exchange)
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001  the edge of the server: it answers, and lives on
            await _part(exchange, error)

    def _count(self, exchange: Exchange, scope: Scope) -> AbstractContextManager[object]:
        """Return what counts the request for its key while it is answered; raise if its share is used up."""
        if self._shares is None:
            return nullcontext()
        exchange.place = self._shares.of(scope.get(CALLER, ANYONE)).enter()
        return exchange.place

    async def _answer_watched(self, exchange: Exchange, receive: Receive, leave: Callable[[], None]) -> None:
        """Answer beside a task that waits for the client to go."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wait_gone, receive, leave)
            try:
                await self.answer(exchange)
            except ClientGone:
                pass
            except Exception as error:  # noqa: BLE001  as above
                await _part(exchange, error)
            tasks.cancel_scope.cancel("the request is over")


async def _wait_gone(receive: Receive, leave: Callable[[], None]) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception:
        logger.exception("receive() of the server failed; the request it belongs to ends")
    leave()


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
