"""`site_routes()`: the page at `/`, for people; its files, and what browsers are told about them.

The page is HTML, CSS and small modules of JavaScript, as they lie in the folder `page`. It asks this server
and nobody else: its policy keeps a browser from loading, sending or running anything that is not of it. It
holds no secret, so it needs no key; what it shows does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/": "index.html",
        "/page/page.css": "page.css",
        "/page/icon.svg": "icon.svg",
        **{
            f"/page/{name}.js": f"{name}.js"
            for name in ("page", "server", "elements", "graphs", "tree", "chat")
        },
    }
)
"""Names of the files, by path."""
TYPES: Final = MappingProxyType(
    {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
)
"""Media types, by the ends of names."""
HEADERS: Final = MappingProxyType(
    {
        "content-security-policy": (
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # Asked for again each time, and answered with 304: what is kept is never older than the server.
        "cache-control": "no-cache",
    }
)
"""What browsers are told of each file."""


class File:
    """An ASGI app that answers with a file, or says that it has not changed.

    Args:
        name: in the folder `page`.
    """

    def __init__(self, name: str) -> None:
        self._body = (files("vidette.service") / "page" / name).read_bytes()
        self._type = TYPES[name.rpartition(".")[2]]
        self._headers = {**HEADERS, "etag": f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        known = Request(scope).headers.get("if-none-match", "")
        if self._headers["etag"] in (tag.strip().removeprefix("W/") for tag in known[:1024].split(",")):
            answer = Response(status_code=304, headers=self._headers)
        else:
            answer = Response(self._body, media_type=self._type, headers=self._headers)
        await answer(scope, receive, send)


def site_routes() -> list[Route]:
    """Return the routes of the page."""
    return [Route(path, File(name), methods=["GET"]) for path, name in FILES.items()]
