"""`Traces`: a span for each HTTP request that makes something, in the trace that its client names.

W3C Trace Context: a `traceparent` that is malformed, or given twice, is as none, and `traceresponse` tells
the client which span its request became. That span is current while the request is answered, so those of the
engine are below it; so is `send`, from the first to the last of the answer. The parent of a request that
names none is the span, if any, that is current around the app.

Needs `opentelemetry-api`: `pip install vidette[otel]`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vidette.service.keys import OPEN
from vidette.service.log_lines import note_trace

PARENT: Final = b"traceparent"
STATE: Final = b"tracestate"
RESPONSE: Final = b"traceresponse"
LONGEST_HEADER: Final = 512
"""Bytes of each of the headers; one that is longer is as none."""
MEMBER: Final = re.compile(
    r"[ \t]*(?:(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})="
    r"[ -+\--<>-~]{0,255}[!-+\--<>-~])?[ \t]*"
)
"""A member of `tracestate`, which may be empty."""
MOST_MEMBERS: Final = 32
"""Of `tracestate`; one that has more is as none."""
METHOD: Final = "POST"
"""Only what makes something is traced, and not who looks, such as a probe of health; so no path that needs no
key is, by any method: whoever has none fills no queue of spans."""


class Traces:
    """Middleware that makes the spans.

    Args:
        app: what answers.
        tracer: makes them; as a rule that of the engine.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, within its span."""
        if scope["type"] != "http" or scope["method"] != METHOD or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        parent = parent_of(scope["headers"])
        span = self._tracer.start_span(
            METHOD,
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": METHOD, "url.scheme": scope.get("scheme", "http")},
        )
        answer = _Answer(span, send)
        token = attach(set_span_in_context(span, parent))
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            answer.failed = type(error).__qualname__
            raise
        finally:
            detach(token)
            answer.end(self._tracer, scope)


class _Answer:
    """Passes an answer on, and sees how long that takes.

    Args:
        span: of the request.
        send: of the server.

    Attributes:
        failed: the class of what the app raised, which is a bug; None: it raised nothing.
    """

    def __init__(self, span: Span, send: Send) -> None:
        self.failed: str | None = None
        context = span.get_span_context()
        self._span = span
        self._send = send
        self._on = span.is_recording()
        self._header: bytes | None = None
        self._status = 0
        self._whole = False
        self._began_ns = self._ended_ns = self._blocked_ns = 0
        if context.is_valid:
            trace_id = format_trace_id(context.trace_id)
            note_trace(trace_id)
            if not context.is_remote:  # the tracer is one that makes none, and this is its client's own
                span_id = format_span_id(context.span_id)
                self._header = f"00-{trace_id}-{span_id}-{context.trace_flags:02x}".encode()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass a message of the answer on."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._began_ns = time.time_ns()
            if self._header is not None:
                message["headers"] = [*message.get("headers", ()), (RESPONSE, self._header)]
        if not self._on:
            await self._send(message)
            return
        before = time.monotonic_ns()
        await self._send(message)
        self._blocked_ns += time.monotonic_ns() - before
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._whole = True
            self._ended_ns = time.time_ns()

    def end(self, tracer: Tracer, scope: Scope) -> None:
        """End the span; once, and whatever ended the request."""
        span = self._span
        if not self._on:
            span.end()
            return
        now = time.time_ns()
        if self._began_ns:
            sent = tracer.start_span(
                "send",
                context=set_span_in_context(span),
                start_time=self._began_ns,
                attributes={"vidette.send.blocked_s": self._blocked_ns / 1e9},
            )
            sent.end(max(self._began_ns, self._ended_ns or now))
            span.set_attribute("http.response.status_code", self._status)
        route = scope.get("route")
        if isinstance(route, Route):
            span.update_name(f"{METHOD} {route.path_format}")
            span.set_attribute("http.route", route.path_format)
        if self.failed is not None:
            span.set_attribute("error.type", self.failed)
            span.set_status(StatusCode.ERROR)
        elif self._status >= 500:
            span.set_attribute("error.type", str(self._status))
            span.set_status(StatusCode.ERROR)
        elif not self._whole:
            span.set_attribute("error.type", "incomplete")
            span.set_status(StatusCode.ERROR, "the answer did not come to its end")
        span.end()


def parent_of(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Return what is around a request: the span that its client names, or else the one that is current.

    Args:
        headers: of the request, names in small letters.
    """
    around = get_current()
    parents, states = ([value for name, value in headers if name == wanted] for wanted in (PARENT, STATE))
    if len(parents) != 1 or len(parents[0]) > LONGEST_HEADER:
        return around
    carrier = {"traceparent": [parents[0].decode("latin-1")]}
    state = b",".join(states).decode("latin-1")
    if len(state) <= LONGEST_HEADER and _is_state(state.split(",")):
        carrier["tracestate"] = [state]
    named = TraceContextTextMapPropagator().extract(carrier, Context(around))
    inside = get_current_span(around).get_span_context()
    if inside.trace_id == get_current_span(named).get_span_context().trace_id:
        return around  # whoever is around has read the headers
    return named


def _is_state(members: Sequence[str]) -> bool:
    """Return whether members are a `tracestate`; one that is none would be logged, whenever it comes."""
    return all(map(MEMBER.fullmatch, members)) and sum(bool(each.strip()) for each in members) <= MOST_MEMBERS
