"""`RequestIds`: every answer has an `x-request-id`, the client's own if that is fit to be logged."""

from __future__ import annotations

import re
from collections.abc import Awaitable, MutableMapping
from typing import Any, Final
from uuid import uuid4

from starlette.types import ASGIApp, Receive, Scope, Send

from vidette.service.log_lines import ANSWERED, Names

REQUEST_ID: Final = "vidette.request_id"
"""Key of an ASGI scope: the id of the request."""
HEADER: Final = b"x-request-id"
FIT: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
"""An id of a client's that is taken; another one is replaced."""


class RequestIds:
    """Middleware that gives each request an id, and says it in the answer and in what is logged meanwhile.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == HEADER]
        fits = len(given) == 1 and FIT.fullmatch(given[0]) is not None
        name = given[0] if fits else uuid4().hex.encode()
        scope[REQUEST_ID] = name.decode()

        def send_named(message: MutableMapping[str, Any]) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            return send(message)

        token = ANSWERED.set(Names(name.decode()))
        try:
            await self._app(scope, receive, send_named)
        finally:
            ANSWERED.reset(token)
