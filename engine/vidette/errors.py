"""What the engine raises, sorted by whose fault it is. Cancellation is never turned into one of these.

```
Error                         base; str() shows the offending value and says what would be right
 +- UsageError                the caller's fault, found before anything was sent (also a ValueError)
 |   +- ChatTemplateError     the conversation does not fit the model's chat template
 |   +- DuplicateRequest      the rid is in use by a request that still lives
 +- Overloaded                too much is waiting already; try again after `retry_after` seconds
 +- RequestError              this one request failed inside the engine; others are not touched
 |   +- RequestReplaced       another request took its rid, as it was told to
 |   +- PromptTimeout         its prompt took too long to tokenise or to render
 |   +- RequestAborted        it was ended from outside, alone or with all others
 +- ModelError                a model file is missing, damaged or not supported
 +- KernelError               native kernels cannot be compiled or loaded
 +- EngineClosed              you closed the engine
 |   +- EngineDraining        it is being closed: what lives may end, and nothing new begins
 +- EngineBroken              a process of the engine ended, or a link to it broke
```
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import msgspec

_KINDS: Final = MappingProxyType(
    {429: "rate_limit_error", 503: "service_unavailable", 504: "timeout_error"},
)
"""What `Error.kind` is with a status that does not just say whose fault it was."""


class Error(Exception):
    """Base of everything the engine raises on purpose."""

    status: int = 500
    """HTTP status that the service answers with."""
    kind: str = "internal_error"
    """`type` in the OpenAI error body."""


class UsageError(Error, ValueError):
    """The caller's fault, found before anything was sent.

    Args:
        message: what is wrong, with the value, and what would be right.
        param: name of the field at fault, as the caller wrote it.
        code: short machine-readable reason, such as "context_length_exceeded".
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def unsupported_field(path: str, neutral: Sequence[object]) -> UsageError:
    """Return what to raise about a field that is not supported yet.

    Args:
        path: of the field.
        neutral: its values that ask for nothing, and are accepted.
    """
    values = " or ".join(msgspec.json.encode(value).decode() for value in neutral)
    only = f"; only {values} is accepted" if neutral else ""
    return UsageError(f"{path} is not supported yet{only}", param=path, code="unsupported_field")


class ChatTemplateError(UsageError):
    """The conversation does not fit the model's chat template, or the model has none."""


class DuplicateRequest(UsageError):  # noqa: N818  named like its siblings: the state, not "Error"
    """The rid belongs to a request that still lives; another rid, or its end, would be right."""

    status = 409

    def __init__(self, rid: str) -> None:
        super().__init__(
            f"request id {rid!r} is in use by a request that still lives: end it first or choose another id",
            param="rid",
            code="duplicate_request",
        )
        self.rid = rid


class Overloaded(Error):  # noqa: N818
    """Too many requests live already.

    Args:
        message: what is full.
        retry_after: seconds after which another try is sensible.
    """

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestError(Error):
    """One request failed inside the engine, such as on logits that are not finite.

    Args:
        message: what happened to it.
        status: the HTTP status that says the same, from 400 to 599; else it is that of the class.
        code: short machine-readable reason, such as "waiting_timeout".
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        if status is not None and 400 <= status <= 599:
            self.status = status
            self.kind = _KINDS.get(status, "invalid_request_error" if status < 500 else Error.kind)


class RequestReplaced(RequestError):  # noqa: N818  what happened to it
    """Another request with the same rid was told to take this one's place.

    Args:
        rid: of both.
    """

    status = 409
    kind = "invalid_request_error"

    def __init__(self, rid: str) -> None:
        super().__init__(f"request {rid!r} was replaced by another one of that id")
        self.rid = rid


class PromptTimeout(RequestError):  # noqa: N818  the state, as its siblings
    """The prompt of one request took too long to tokenise, or its conversation to render."""

    status = 504
    kind = "timeout_error"


class RequestAborted(RequestError):  # noqa: N818  what happened to it
    """The request was ended by somebody else than its caller: alone, or with all requests of the engine.

    Args:
        rid: of the request.
        why: why it was, if that was said.
        alone: whether it was named. Its status is 499 then, after which clients do not try again.
    """

    status = 503
    kind = "service_unavailable"

    def __init__(self, rid: str, why: str | None = None, *, alone: bool = False) -> None:
        because = "" if why is None else f": {why}"
        how = "by its name" if alone else "as all requests were"
        super().__init__(
            f"request {rid!r} was ended, {how}{because}", status=499 if alone else None, code="aborted"
        )
        self.rid = rid


class ModelError(Error):
    """A model file is missing, damaged or not supported."""


class KernelError(Error):
    """Native kernels cannot be compiled or loaded; an engine then computes with torch alone."""


class EngineClosed(Error):  # noqa: N818
    """The engine was closed by its owner; open another one."""

    status = 503
    kind = "service_unavailable"


class EngineDraining(EngineClosed):
    """The engine is being closed by its owner: what lives may end, and nothing new begins.

    Args:
        message: what is refused.
        retry_after: seconds after which another engine may have taken its place.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineBroken(Error):  # noqa: N818
    """A process of the engine ended, or a link to it broke; every waiter gets this, with the cause.

    Args:
        message: which process, how it ended, and its last words.
        role: "scheduler" or "detokenizer", of several "detokenizer-0" and so on; None if it cannot be told.
        exit_status: what `wait` said of it: >= 0 an exit code, < 0 minus the signal; None if it
            has not ended by now.
        last_words: the end of what it said on stderr, with where it was if it crashed.
    """

    status = 503
    kind = "service_unavailable"

    def __init__(
        self,
        message: str,
        *,
        role: str | None = None,
        exit_status: int | None = None,
        last_words: str = "",
    ) -> None:
        super().__init__(message)
        self.role = role
        self.exit_status = exit_status
        self.last_words = last_words
