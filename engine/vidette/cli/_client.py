"""A client of a service: where it is, how it is told the key, and what its refusals are here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vidette.errors import RequestError, UsageError

if TYPE_CHECKING:
    import httpx

KEY: Final = "VIDETTE_API_KEY"
"""In the environment: the key of the service, or the lines that it was given its keys by."""
CONNECT_SECONDS: Final = 10.0
"""A service that cannot be reached within this has failed."""
REFUSAL_BYTES: Final = 1 << 16
"""What is read of an answer that is none."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def key_in(environment: Mapping[str, str]) -> str:
    """Return the key of a service: of several the first, without its name; empty: there is none."""
    words = environment.get(KEY, "").strip().partition("\n")[0].split()
    return words[-1] if words else ""


class Problem(msgspec.Struct):
    """What an error body says."""

    message: str = ""
    code: str | int | None = None


class _Refusal(msgspec.Struct):
    error: Problem | str | None = None


def client_options(url: str, key: str, *, silent_seconds: float) -> dict[str, Any]:
    """Return what `httpx.Client` and `httpx.AsyncClient` are made with, for the `/v1` of a service.

    Args:
        url: of the service, with or without `/v1`.
        key: what it wants to be told; empty: nothing.
        silent_seconds: a service that says nothing for so long has failed.

    Raises:
        UsageError: the URL or the key cannot be one.
    """
    import httpx  # noqa: PLC0415  the other commands need no HTTP client

    try:
        base = httpx.URL(url.rstrip("/").removesuffix("/v1") + "/v1/")
    except httpx.InvalidURL as error:
        raise UsageError(f"--url is {url!r}: {error}") from error
    if base.scheme not in ("http", "https") or not base.host:
        raise UsageError(f"--url is {url!r}; it must be like http://127.0.0.1:8000")
    if not (key.isascii() and (key.isprintable() or not key)):
        raise UsageError(
            f"the key, such as {KEY} says it, holds what no header can: only printable ASCII is one"
        )
    return {
        "base_url": base,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx.Timeout(silent_seconds, connect=CONNECT_SECONDS),
        # Whatever proxy the environment names does not know the servers of this machine.
        "trust_env": base.host not in _LOOPBACK,
    }


def refusal(status: int, body: bytes, hint: str) -> UsageError | RequestError:
    """Return what to raise of an answer that is none.

    Args:
        status: of it.
        body: how it begins.
        hint: what to set if a key is missing.
    """
    said = body.decode(errors="replace").strip() or "nothing"
    code = None
    try:
        problem = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        problem = None
    if isinstance(problem, str):
        said = problem
    elif problem is not None:
        said, code = problem.message, problem.code
    message = f"the service answered {status}: {said}"
    if 400 <= status < 500:
        advice = f"; set {hint}" if status == 401 else ""
        return UsageError(f"{message}{advice}", code=None if code is None else str(code))
    return RequestError(message, status=status)


def unreachable(base: httpx.URL, error: httpx.HTTPError) -> RequestError:
    """Return what to raise of a service that cannot be asked."""
    return RequestError(f"{base} cannot be asked: {str(error) or type(error).__name__}")
