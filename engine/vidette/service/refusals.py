"""`refuse()`: the answer to a request that reaches no endpoint, in the words of the API of its path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vidette.service.anthropic import ANTHROPIC
from vidette.service.errors import headers_of
from vidette.service.responses import OPENAI, Dialect

ANTHROPICS: Final = "/v1/messages"
"""Where the paths of Anthropic's API begin."""
NO_HEADERS: Final = MappingProxyType[str, str]({})


def dialect_of(path: str) -> Dialect:
    """Return the words of the API that a path is of, whether or not anything is there."""
    return ANTHROPIC if path == ANTHROPICS or path.startswith(ANTHROPICS + "/") else OPENAI


def refusal(error: Exception, path: str, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """Return the answer.

    Args:
        error: why.
        path: of the request.
        headers: of the answer, besides those of the error.
    """
    dialect = dialect_of(path)
    more = {name.decode(): value.decode() for name, value in headers_of(error)}
    return Response(
        msgspec.json.encode(dialect.error(error)),
        dialect.status(error),
        headers={**more, **headers},
        media_type="application/json",
    )


async def refuse(
    error: Exception, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str] = NO_HEADERS
) -> None:
    """Answer a request; nothing of its body is read."""
    await refusal(error, scope["path"], headers)(scope, receive, send)
