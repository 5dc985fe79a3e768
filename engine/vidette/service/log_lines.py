"""Lines of a log, `JsonLines` and `TextLines`: nothing that somebody sent can end one, or pose as one.

What is logged while a request is answered names it: by its `x-request-id`, by its rid once the engine has
taken it, and by the id of its trace if it has one. They are formatters of the standard library, for any
handler.
"""

from __future__ import annotations

import json
import logging
import re
from contextvars import ContextVar
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from vidette._log_lines import as_text, fields_of, printable, trace_of

ACCESS: Final = "vidette.access"
"""Name of the logger that has a line for each request."""
FIELDS: Final = "vidette_fields"
"""Attribute of a record: what a line has in JSON beside what all have, and in place of it."""


class Names(Struct, omit_defaults=True):
    """What a request is called.

    Args:
        request_id: its `x-request-id`.
        rid: what the engine calls it; of several answers the first.
        trace_id: of its trace.
    """

    request_id: str
    rid: str | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET


RESPONSE_ID: Final = re.compile(r"resp_[^/]+")
"""The id of a stored response: whoever knows it can read what was said."""
ANSWERED: Final[ContextVar[Names | None]] = ContextVar("vidette.answered", default=None)
"""The request that is being answered here."""


def note_rid(rid: str) -> None:
    """Note what the engine calls the request that is being answered."""
    names = ANSWERED.get()
    if names is not None:
        names.rid = hide_ids(rid)


def note_trace(trace_id: str) -> None:
    """Note the trace of the request that is being answered."""
    names = ANSWERED.get()
    if names is not None:
        names.trace_id = trace_id


class TextLines(logging.Formatter):
    """The message, and what request it is of; a traceback follows in lines that are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, or several."""
        message, names = record.getMessage(), ANSWERED.get()
        if names is not None and record.name != ACCESS:
            message += f" ({words_of(names)})"
        return as_text(message, trace_of(record))


class JsonLines(logging.Formatter):
    """One JSON object: time, level, logger, message, what request it is of, and what else is to be said.

    The access log goes through as it is while it is written as text, which may change while a server runs.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        fields: dict[str, Any] | None = record.__dict__.get(FIELDS)
        if record.name == ACCESS and fields is None:
            return printable(record.getMessage())
        names = ANSWERED.get()
        own = fields or {}
        said = {
            **fields_of(record, own["message"] if "message" in own else record.getMessage()),
            **({} if names is None else msgspec.to_builtins(names)),
            **own,
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return printable(json.dumps(said, ensure_ascii=False))


def hide_ids(text: str) -> str:
    """Return a text without the ids of stored responses."""
    return RESPONSE_ID.sub("resp_***", text)


def words_of(struct: Struct) -> str:
    """Return a struct as words `name=value`; texts are quoted, so that none can end what it stands in."""
    return " ".join(
        f"{name}={msgspec.json.encode(value).decode() if isinstance(value, str) else value}"
        for name, value in msgspec.to_builtins(struct).items()
    )
