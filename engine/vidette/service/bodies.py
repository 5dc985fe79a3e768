"""Reading the body of a request, within bounds that hold while it is read.

The content type is not looked at: `curl -d` says that JSON is a form, and a body that is not JSON is refused
anyway. There is one exception. A page in a browser may send a form or plain text anywhere without asking,
also to a server on this machine, but has to ask before it sends `application/json`; so a `POST` with an
`Origin` must say that it is JSON, unless the origin is one that the operator let in. What a page can send by
other methods has no body, or has to be asked for. The body of a `GET`, which means nothing, is not read: it
needs no key where health is asked for.
"""

from __future__ import annotations

from typing import Final

import anyio
from starlette.types import Receive, Scope

from vidette.errors import Overloaded
from vidette.service.errors import BodyTooLarge, BodyTooSlow, WrongMediaType
from vidette.service.limits import ServiceLimits
from vidette.service.shares import ANYONE, CALLER, Shares

NAMED_ORIGIN: Final = "vidette.named_origin"
"""Where the scope of a request says that it comes from a page that may use the service."""


class ClientGone(Exception):  # noqa: N818  an event, not an error
    """The client has closed the connection."""


class BodyReader:
    """Reads the bodies of all requests of an app.

    Args:
        limits: how long and how slow one may be, and how much of all may be here at once.
        shares: of the keys that they come with.
    """

    def __init__(self, limits: ServiceLimits, shares: Shares) -> None:
        self._limits = limits
        self._shares = shares
        self._held = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole body of a request.

        Raises:
            BodyTooLarge: it says so, or it is; nothing of the excess is kept.
            BodyTooSlow: it did not arrive in time.
            Overloaded: too much of other bodies is being read, of its key or of all; whoever runs the server
                is not told so.
            WrongMediaType: see above.
            ClientGone: the client left before its end.
        """
        if scope["method"] in ("GET", "HEAD"):
            return b""
        headers = dict(scope["headers"])
        said = headers.get(b"content-length", b"")
        # Before the first receive(), at which uvicorn says "100 Continue"; hypercorn has said it already.
        if said.isdigit() and int(said[:20]) > self._limits.body_bytes:
            raise self._too_large()
        unasked = scope["method"] == "POST" and b"origin" in headers and not scope.get(NAMED_ORIGIN, False)
        if unasked and not _says_json(headers.get(b"content-type", b"")):
            raise WrongMediaType("a request from a web page must have the content type application/json")
        with anyio.move_on_after(self._limits.body_seconds):
            return await self._read(receive, scope.get(CALLER, ANYONE))
        raise BodyTooSlow(f"the body did not arrive within {self._limits.body_seconds:g} s")

    async def _read(self, receive: Receive, caller: str | None) -> bytes:
        share = self._shares.of(caller)
        body = bytearray()
        more = True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece: bytes = message.get("body", b"")
                if len(body) + len(piece) > self._limits.body_bytes:
                    raise self._too_large()
                body += piece
                self._held += len(piece)
                share.read(len(piece))
                if self._held > self._limits.all_bodies_bytes and caller is not None:
                    raise Overloaded("too many bodies of other requests are being read; try again soon")
                more = message.get("more_body", False)
            return bytes(body)
        finally:
            self._held -= len(body)
            share.forget(len(body))

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is too large: at most {self._limits.body_bytes} bytes are accepted")


def _says_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
