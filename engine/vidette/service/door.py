"""`FrontDoor`: who may come in, what is remembered of it, and the middleware that sees to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from vidette.errors import UsageError
from vidette.service.access_log import AccessLog, LogSettings
from vidette.service.bodies import NAMED_ORIGIN
from vidette.service.keys import KeyCheck, Keys
from vidette.service.request_ids import RequestIds

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

PREFLIGHT_SECONDS: Final = 600
"""How long a browser may remember what it is allowed."""
FROM_PAGES: Final = ("*",)
"""Headers that a page of an allowed origin may send: all, since clients add their own, and the key is one."""
TO_PAGES: Final = ("x-request-id", "retry-after", "traceresponse")
"""Headers of an answer that such a page may read."""


class NamedOrigins:
    """Middleware that notes of a request that it comes from a page that may use the service.

    Args:
        app: what answers.
        origins: of such pages; "*": all.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, with the note."""
        if scope["type"] == "http":
            origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
            scope[NAMED_ORIGIN] = "*" in self._origins or origin in self._origins
        await self._app(scope, receive, send)


class FrontDoor(Struct, frozen=True):
    """Who may use the service from where, and what is logged of it.

    Args:
        keys: what clients have to know; without any, all may do everything.
        cors_origins: pages that browsers let use the service, such as "https://chat.example"; "*": all.
        logs: what is logged of requests.
    """

    keys: Keys = Keys()
    cors_origins: tuple[str, ...] = ()
    logs: LogSettings = msgspec.field(default_factory=LogSettings)

    def middleware(self, tracer: Tracer | None = None) -> list[Middleware]:
        """Return what stands before the routes, the outermost first; all of it is pure ASGI.

        Args:
            tracer: makes a span for each request; None: nothing does.
        """
        layers = [Middleware(RequestIds), Middleware(AccessLog, settings=self.logs)]
        if self.cors_origins:
            layers.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=list(self.cors_origins),
                    allow_methods=["GET", "POST", "DELETE"],
                    allow_headers=list(FROM_PAGES),
                    expose_headers=list(TO_PAGES),
                    max_age=PREFLIGHT_SECONDS,
                )
            )
            layers.append(Middleware(NamedOrigins, origins=self.cors_origins))
        if self.keys:
            layers.append(Middleware(KeyCheck, keys=self.keys))
        if tracer is not None:  # behind the keys: whoever has none makes no span
            from vidette.service.traces import Traces  # noqa: PLC0415  only whoever traces has what it needs

            layers.append(Middleware(Traces, tracer=tracer))
        return layers


def check_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins of pages, as browsers write them.

    Raises:
        UsageError: one is none: a scheme and a host, perhaps a port, and nothing behind it.
    """
    for origin in origins:
        scheme, mark, host = origin.partition("://")
        fine = scheme in ("http", "https") and mark and host and not set(host) & set("/?#@ ")
        if origin != "*" and not fine:
            raise UsageError(
                f"cors-origin is {origin!r}; it must be '*' or such as https://chat.example:8443, "
                "without a path",
                param="cors-origin",
            )
    return tuple(origins)
