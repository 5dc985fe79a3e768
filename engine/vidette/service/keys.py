"""Keys: what a client has to know, compared in constant time and shown nowhere.

Whatever is not listed as open needs a key, if there is one. What only whoever runs the server may do needs
the admin key, or the one key of clients where there is no admin key. Of several clients none may do it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from vidette.errors import UsageError
from vidette.service.refusals import refuse
from vidette.service.shares import CALLER
from vidette.service.site import FILES

HEALTH: Final = frozenset(
    {"/health", "/health/live", "/health/progress", "/health/ready", "/health_generate"}
)
"""Paths that load balancers ask. They match exactly."""
OPEN: Final = HEALTH | FILES.keys()
"""Paths that need no key: health, and the page, which shows nothing without one."""
SHOWN: Final = "***"
"""What is shown of a key, whatever it is."""
ADMIN: Final = "vidette.admin"
"""Key of an ASGI scope: whether the client may do what only whoever runs the server may."""
NAME: Final = re.compile(r"(?!sk-)[A-Za-z0-9._-]{1,20}")
"""What a key may be called; what may be a key itself, put in the wrong place, is no name."""


class Secret:
    """A key. It cannot be read back: only a digest of it is kept.

    Attributes:
        name: what it is called wherever its use is told.

    Args:
        key: 1 to 1024 printable ASCII characters without spaces.
        name: 1 to 20 letters, digits and "._-", which do not begin with "sk-".

    Raises:
        UsageError: one of them is not that. Neither is in the message.
    """

    __slots__ = ("_digest", "name")

    def __init__(self, key: str, name: str = "key1") -> None:
        if not 1 <= len(key) <= 1024 or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(
                f"a key has {len(key)} characters; it must be 1 to 1024 printable ASCII ones without spaces"
            )
        if not NAME.fullmatch(name):
            raise UsageError(
                f"the name of a key has {len(name)} characters; it must be 1 to 20 letters, digits and '._-' "
                "that do not begin with 'sk-', and stand before the key"
            )
        self.name = name
        self._digest = _digest(key.encode())

    def is_same(self, other: Secret) -> bool:
        """Return whether another one is the same key, by whatever name."""
        return hmac.compare_digest(self._digest, other._digest)

    def matches(self, given: bytes) -> bool:
        """Return whether it is this key, in a time that says nothing of it, its length included."""
        return hmac.compare_digest(self._digest, _digest(given))

    def __repr__(self) -> str:
        return SHOWN


class Keys(Struct, frozen=True):
    """The keys of a server.

    Args:
        api: what clients need, one of these; none: nothing.
        admin: what whoever runs it needs; None: that of clients, or if they have several, nobody may do that.

    Raises:
        UsageError: `api` is no tuple of keys.
    """

    api: tuple[Secret, ...] = ()
    admin: Secret | None = None

    def __post_init__(self) -> None:
        """Refuse a key by itself, which was taken once."""
        api: object = self.api
        if not isinstance(api, tuple) or not all(isinstance(key, Secret) for key in api):
            raise UsageError(
                f"api is a {type(api).__name__}; it must be a tuple of keys, such as (Secret(...),)"
            )

    @property
    def lacks_admin(self) -> bool:
        """Return whether nobody may do what only whoever runs the server may."""
        return self.admin is None and len(self.api) > 1

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.api) or self.admin is not None


def read_keys(lines: Iterable[str]) -> tuple[Secret, ...]:
    """Return the keys of clients, one a line: `KEY`, which is called key1, key2 and so on, or `NAME KEY`.

    Raises:
        UsageError: a line is none, or two have the same name or key. It is told by its number: no key is in
            the message, and no name, which may be one.
    """
    keys: list[Secret] = []
    for place, line in enumerate(lines, 1):
        *names, key = line.split() or [""]
        if len(names) > 1:
            raise UsageError(f"key {place} has {len(names) + 1} words; it must be KEY or NAME KEY")
        try:
            secret = Secret(key, names[0] if names else f"key{place}")
        except UsageError as error:
            raise UsageError(f"key {place}: {error}") from error
        for before, other in enumerate(keys, 1):
            if other.name == secret.name:
                raise UsageError(f"keys {before} and {place} have one name; each needs its own")
            if other.is_same(secret):
                raise UsageError(f"keys {before} and {place} are the same")
        keys.append(secret)
    return tuple(keys)


class KeyMissing(UsageError):  # noqa: N818  named like the engine's errors
    """The request has no key, or a wrong one."""

    status = 401
    kind = "authentication_error"


class KeyTooLow(UsageError):  # noqa: N818
    """The request has a key, but needs the admin key."""

    status = 403
    kind = "permission_error"


class KeyCheck:
    """Middleware that refuses requests without the key they need, before anything of their bodies is read.

    Args:
        app: what answers the others.
        keys: those of the server.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on; whatever is no HTTP is closed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        given = given_key(scope)
        api, admin = self._keys.api, self._keys.admin
        is_admin = admin is not None and given is not None and admin.matches(given)
        # All are compared, so that the time says nothing of which it is.
        clients = [key.name for key in api if given is not None and key.matches(given)]
        is_client = not api or bool(clients)
        scope[ADMIN] = is_admin or (admin is None and is_client and not self._keys.lacks_admin)
        if is_admin:
            scope[CALLER] = None
        elif clients:
            scope[CALLER] = clients[0]
        if is_admin or is_client or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        what = "there is no key in the request" if given is None else "the key of the request is wrong"
        error = KeyMissing(
            f"{what}; give it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'", code="invalid_api_key"
        )
        await refuse(error, scope, receive, send, {"www-authenticate": "Bearer"})


def given_key(scope: Scope) -> bytes | None:
    """Return the key of a request: `Authorization: Bearer KEY`, or `x-api-key: KEY`, given once."""
    found = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = value.strip().partition(b" ")
            found.append(key.strip() if kind.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            found.append(value.strip())
    return found[0] if len(set(found)) == 1 else None


class AdminOnly:
    """An endpoint that only whoever runs the server may use; where there are no keys, everybody may.

    Attributes:
        app: the endpoint.

    Args:
        app: the endpoint.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope.get(ADMIN, True):
            await self.app(scope, receive, send)
            return
        error = KeyTooLow("this needs the admin key of the server", code="admin_key_required")
        await refuse(error, scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
