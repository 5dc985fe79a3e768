"""`Crowd`: how many connections a server holds, and what becomes of one more.

Whoever asks whether the server lives should be told so also when it is full, or it is taken for dead. So a
few connections more are taken on which health is answered, and all else is refused; what comes beyond those
is closed.
"""

from __future__ import annotations

import resource
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vidette.errors import Error
from vidette.service.keys import HEALTH
from vidette.service.refusals import refuse
from vidette.service.request_ids import RequestIds

RESERVED_DESCRIPTORS: Final = 128
"""Descriptors of the process that are not for connections: links, files, what is being opened."""
SPARE_CONNECTIONS: Final = 32
"""Connections beyond the bound on which health is answered."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
"""What is said on a connection that is not taken."""
CLOSE: Final = (b"connection", b"close")


class TooManyConnections(Error):  # noqa: N818  named like the engine's errors
    """So many connections are open that no other request is answered on this one."""

    status = 503
    kind = "service_unavailable"


class Crowd:
    """What answers on how many connections.

    Args:
        app: on those that there is room for.
        connections: most of these; fewer if the process may not open as many.
    """

    def __init__(self, app: ASGIApp, connections: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = connections if soft == resource.RLIM_INFINITY else soft - RESERVED_DESCRIPTORS
        self.most = max(1, min(connections, room))
        """Connections that there is room for."""
        self._app = app
        self._health = _OnlyHealth(app, self.most)

    def app_for(self, connections: int) -> ASGIApp | None:
        """Return what answers on a connection.

        Args:
            connections: how many are open, with it.

        Returns:
            None: nothing does; it is closed.
        """
        if connections <= self.most:
            return self._app
        return self._health if connections <= self.most + SPARE_CONNECTIONS else None


class _OnlyHealth:
    """Answers health, refuses all else, and has the connection closed behind either."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._refuse = RequestIds(self._refuse_named)
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), CLOSE]
            await send(message)

        await (self._app if scope["path"] in HEALTH else self._refuse)(scope, receive, send_last)

    async def _refuse_named(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = TooManyConnections(
            f"{self._most} connections are open, and no more are taken; on this one health alone is answered"
        )
        await refuse(error, scope, receive, send, {"retry-after": "1"})
