"""`LocalHosts`: a server on loopback answers to the names of loopback alone.

A web page can have its own name resolve to 127.0.0.1. To a browser that page and this server are then one
site, and no rule about origins keeps them apart; what gives it away is the name in `Host`.
"""

from __future__ import annotations

import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from vidette.errors import UsageError
from vidette.service.errors import shown
from vidette.service.refusals import refuse


class NotThisHost(UsageError):  # noqa: N818  named like the engine's errors
    """The request names a host that is not this machine."""

    status = 421


class LocalHosts:
    """Middleware that refuses requests whose `Host` is not a name of this machine's loopback.

    Args:
        app: what answers the others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on; whatever is no HTTP is closed."""
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_loopback(host):
                error = NotThisHost(
                    f"this server answers to localhost and loopback addresses, not to {shown(host)}; "
                    "--allow-remote lifts that",
                    code="wrong_host",
                )
                await refuse(error, scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            await WebSocketClose()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Return whether a `Host` header, with or without a port, names loopback; none at all does."""
    if host.lower().partition(":")[0] in ("", "localhost"):
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") and "]" in host else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
