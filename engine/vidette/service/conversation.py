"""Conversations of every API, as a chat template takes them: a role and a text for each message."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from msgspec import Struct

from vidette.errors import UsageError
from vidette.service.errors import NotYet, shown
from vidette.service.fields import Fields, reader_of
from vidette.service.limits import ServiceLimits

Conversation = list[dict[str, str]]
"""Messages, each with "role" and "content"."""


class Part(Struct, frozen=True):
    """Honoured fields of a part of a message."""

    type: str
    text: str | None = None


ROLES: Final = MappingProxyType(
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
)
LATER_ROLES: Final = frozenset({"tool", "function"})

_read_text = reader_of(str)


class ContentReader:
    """Reads what the messages of one conversation hold.

    Args:
        limits: bounds of the service.
        parts: the fields of a part.
        types: the types of parts that are text.
    """

    def __init__(self, limits: ServiceLimits, parts: Fields[Part], types: frozenset[str]) -> None:
        self._left = limits.parts
        self._parts = parts
        self._types = types

    def read(self, raw: bytes, where: str) -> str:
        """Return the text of a message, whose parts are put together with nothing between them.

        Args:
            raw: JSON: a text, or a list of parts.
            where: its path.

        Raises:
            UsageError: it is neither, or not of text alone, or its parts and those before it are too many.
        """
        if not raw.startswith(b"["):
            text: str = _read_text(raw, where)
            return text
        parts = self._parts.decode_many(raw, where, self._left)
        self._left -= len(parts)
        return "".join(self._text_of(part, f"{where}[{place}]") for place, part in enumerate(parts))

    def _text_of(self, part: Part, where: str) -> str:
        if part.type not in self._types:
            raise UsageError(
                f"{where}: a part of type {shown(part.type)} is not supported yet; only text is",
                param=f"{where}.type",
            )
        if part.text is None:
            raise UsageError(f"{where} has no text", param=f"{where}.text")
        return part.text


def read_role(role: str, where: str) -> str:
    """Return a role as templates know it.

    Raises:
        UsageError: there is no such role, or it is that of a tool.
    """
    if role in LATER_ROLES:
        raise NotYet(f"{where} is {role!r}, which is not supported yet", param=where)
    if role not in ROLES:
        raise UsageError(f"{where} is {shown(role)}; it must be one of {', '.join(ROLES)}", param=where)
    return ROLES[role]
