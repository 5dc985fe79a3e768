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

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from vidette.errors import EngineClosed, Error
from vidette.service.bodies import ClientGone, read_body
from vidette.service.errors import body_of, headers_of, status_of
from vidette.service.gate import Gate
from vidette.service.limits import ServiceLimits

logger = logging.getLogger(__name__)

JSON = (b"content-type", b"application/json")
EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family would otherwise hold events back.
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
"""The last event of an answer that is complete, and of no other."""


class Exchange:
    """An answer being sent.

    Args:
        scope: of the request.
        send: of the server.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.path_params: dict[str, str] = scope.get("path_params", {})
        self._send_message = send
        self._started = False
        self._ended = False

    async def send_json(
        self, value: object, *, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Answer with one JSON value."""
        body = msgspec.json.encode(value)
        await self._start(status, [JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body})
        self._ended = True

    async def start_events(self) -> None:
        """Begin an answer of server-sent events; from here on its status is 200."""
        await self._start(200, EVENTS)

    async def send_events(self, values: Iterable[object]) -> None:
        """Send events, all in one piece; waits while the client is slow."""
        body = b"".join(b"data: %b\n\n" % msgspec.json.encode(value) for value in values)
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end_events(self) -> None:
        """Say that the answer is complete."""
        await self._send({"type": "http.response.body", "body": DONE})
        self._ended = True

    async def fail(self, error: Exception) -> None:
        """End with an error, in whatever way is still open.

        Before the first byte it is an answer of its own. In a stream it is the last event: no `[DONE]`
        follows, so that nobody takes a torn answer for a whole one. Behind a complete answer there is
        nothing to say.
        """
        body = body_of(error)
        if not self._started:
            await self.send_json(body, status=status_of(error), headers=headers_of(error))
        elif not self._ended:
            event = b"data: %b\n\n" % msgspec.json.encode(body)
            await self._send({"type": "http.response.body", "body": event})
            self._ended = True

    async def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def _send(self, message: dict[str, object]) -> None:
        try:
            await self._send_message(message)
        except OSError as error:  # what ASGI servers raise if they raise at all
            raise ClientGone from error


Answer = Callable[[Exchange, bytes], Awaitable[None]]
"""Answers a request, given its body."""


class Endpoint:
    """An ASGI app that answers the requests of one route.

    Args:
        answer: what answers; raises what goes wrong.
        gate: counts the requests inside.
        limits: bounds of the service.
    """

    def __init__(self, answer: Answer, *, gate: Gate, limits: ServiceLimits) -> None:
        self._answer = answer
        self._gate = gate
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing but a cancellation from outside gets out."""
        exchange = Exchange(scope, send)
        try:
            with self._gate.enter() as stop:
                await self._answer_watched(exchange, scope, receive)
        except EngineClosed as refusal:
            await _part(exchange, refusal)
            return
        if stop.cancelled_caught:
            with anyio.move_on_after(self._limits.parting_seconds):
                await _part(exchange, EngineClosed("the server is stopping and cannot wait for this request"))

    async def _answer_watched(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        """Answer in a scope that ends with the client; raises nothing that is not a cancellation."""
        try:
            body = await read_body(scope, receive, self._limits)
        except ClientGone:
            return
        except Error as error:
            await _part(exchange, error)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            try:
                await self._answer(exchange, body)
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
