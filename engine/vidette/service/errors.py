"""The one shape of every error: OpenAI's `{"error": {"message", "type", "param", "code"}}`.

Status and `type` are those of the exception; nothing else decides them.
"""

from __future__ import annotations

import math
from http import HTTPStatus

from msgspec import Struct

from vidette.errors import EngineDraining, Error, Overloaded, RequestError, UsageError

RETRY_AFTER = b"retry-after"
GENERIC = "the server failed on this request because of a bug, which its log tells about"
"""What a client is told of a bug: its details are in the log, and nobody else's business."""


class ErrorDetail(Struct, frozen=True):
    """What went wrong.

    Args:
        message: a sentence for people.
        type: whose fault it is, in OpenAI's words.
        param: the field at fault, if it is one.
        code: a short reason for programs, if there is one.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is an error, and the last event of a stream that fails."""

    error: ErrorDetail


class IndexedErrorBody(Struct, frozen=True):
    """The event of a stream of several answers of which one fails.

    Args:
        error: what went wrong.
        index: which answer.
    """

    error: ErrorDetail
    index: int


class BodyTooLarge(UsageError):  # noqa: N818  named like the engine's errors: the state, not "Error"
    """The body is longer than `ServiceLimits.body_bytes`."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class BodyTooSlow(UsageError):  # noqa: N818
    """The body took longer than `ServiceLimits.body_seconds`."""

    status = HTTPStatus.REQUEST_TIMEOUT


class WrongMediaType(UsageError):  # noqa: N818
    """A page in a browser sent something that is not JSON."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class NotYet(UsageError):  # noqa: N818
    """A whole part of an API is not supported yet: trying again, or otherwise, does not help."""

    status = HTTPStatus.NOT_IMPLEMENTED
    kind = "not_implemented_error"


class NothingThere(UsageError):  # noqa: N818
    """There is no such path."""

    status = HTTPStatus.NOT_FOUND


class WrongMethod(UsageError):  # noqa: N818
    """The path takes other methods."""

    status = HTTPStatus.METHOD_NOT_ALLOWED


class ModelNotFound(UsageError):  # noqa: N818
    """Another model is served than the one that was named."""

    status = HTTPStatus.NOT_FOUND


class ResponseNotFound(UsageError):  # noqa: N818
    """There is no such response, or it was forgotten."""

    status = HTTPStatus.NOT_FOUND


def body_of(error: Exception) -> ErrorBody:
    """Return what a client is told of an error."""
    if not isinstance(error, Error):
        return ErrorBody(ErrorDetail(GENERIC, "internal_error"))
    # What a caller wrote may be in the message, half a surrogate pair included, which JSON cannot hold.
    message = str(error).encode(errors="replace").decode()
    if isinstance(error, UsageError):
        return ErrorBody(ErrorDetail(message, error.kind, error.param, error.code))
    code = error.code if isinstance(error, RequestError) else None
    return ErrorBody(ErrorDetail(message, error.kind, code=code))


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return error.status if isinstance(error, Error) else HTTPStatus.INTERNAL_SERVER_ERROR


def headers_of(error: Exception) -> list[tuple[bytes, bytes]]:
    """Return the headers that an error adds to its answer."""
    if isinstance(error, Overloaded | EngineDraining):
        return [retry_after(error.retry_after)]
    if isinstance(error, BodyTooSlow):  # the rest of it may come yet, or not
        return [(b"connection", b"close")]
    if isinstance(error, NotYet):  # clients try again on any 5xx but with this
        return [(b"x-should-retry", b"false")]
    return []


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Return the header that says after how many seconds another try is sensible."""
    return (RETRY_AFTER, b"%d" % max(1, math.ceil(seconds)))


def shown(value: object, most: int = 80) -> str:
    """Return a value as an error message shows it: no longer than is useful."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
