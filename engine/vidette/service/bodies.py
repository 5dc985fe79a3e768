"""Reading the body of a request, within bounds that hold while it is read.

The content type is not looked at: `curl -d` says that JSON is a form, and a body that is not JSON is refused
anyway. There is one exception. A page in a browser may send a form or plain text anywhere without asking,
also to a server on this machine, but has to ask before it sends `application/json`; so a request with an
`Origin` must say that it is JSON.
"""

from __future__ import annotations

import anyio
from starlette.types import Receive, Scope

from vidette.service.errors import BodyTooLarge, BodyTooSlow, WrongMediaType
from vidette.service.limits import ServiceLimits


class ClientGone(Exception):  # noqa: N818  an event, not an error
    """The client has closed the connection."""


async def read_body(scope: Scope, receive: Receive, limits: ServiceLimits) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLarge: it says so, or it is; nothing of the excess is kept.
        BodyTooSlow: it did not arrive in time.
        WrongMediaType: see above.
        ClientGone: the client left before its end.
    """
    headers = dict(scope["headers"])
    said = headers.get(b"content-length", b"")
    # Before the first receive(): a client that expects "100 Continue" then never sends it.
    if said.isdigit() and int(said[:20]) > limits.body_bytes:
        raise _too_large(limits)
    if b"origin" in headers and not _says_json(headers.get(b"content-type", b"")):
        raise WrongMediaType("a request from a web page must have the content type application/json")
    with anyio.move_on_after(limits.body_seconds):
        return await _read(receive, limits)
    raise BodyTooSlow(f"the body did not arrive within {limits.body_seconds:g} s")


async def _read(receive: Receive, limits: ServiceLimits) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
        more = message.get("more_body", False)
    return bytes(body)


def _too_large(limits: ServiceLimits) -> BodyTooLarge:
    return BodyTooLarge(f"the body is too large: at most {limits.body_bytes} bytes are accepted")


def _says_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
