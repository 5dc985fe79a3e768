"""What the protocol raises: loud, and sided.

`LocalProtocolError` says that we broke the protocol, `RemoteProtocolError` that the other side did,
`DecodeError` that bytes are no message, `InvalidInput` that what a caller asks for makes no sense. Any other
exception out of this package is a bug in it.
"""

from __future__ import annotations

from typing import ClassVar


class ProtocolError(Exception):
    """Base: something happened that the protocol does not allow."""

    error_status_hint: ClassVar[int] = 500
    """HTTP status a service would answer with, were it asked just now."""


class LocalProtocolError(ProtocolError):
    """This side did what the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The other side did what the protocol forbids."""

    error_status_hint = 502


class DecodeError(RemoteProtocolError):
    """Bytes from the other side are no message of this link."""


class DuplicateRid(LocalProtocolError):  # noqa: N818  it names the fact, as `Overloaded` does
    """A rid was submitted whose slot is taken by a live request."""

    error_status_hint = 409

    def __init__(self, rid: str) -> None:
        super().__init__(f"rid {rid!r} is live")
        self.rid = rid


class InvalidInput(ValueError):  # noqa: N818  it names the fact
    """What a caller asks for cannot be honoured, whoever is asked; nothing was sent.

    Args:
        message: what is wrong, with the value, and what would be right.
        param: path of the field at fault, such as "text[3]".
        code: short reason for programs, such as "context_length_exceeded".
    """

    error_status_hint: ClassVar[int] = 400

    def __init__(self, message: str, *, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
