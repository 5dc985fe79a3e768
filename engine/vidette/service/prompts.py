"""Prompts in JSON: texts and token ids, one or a list, decoded within bounds."""

from __future__ import annotations

from typing import Any, Final

from vidette.errors import UsageError
from vidette.service.fields import Reader, reader_of
from vidette_protocol.limits import Limits

LIMITS: Final = Limits()
"""What the front bounds as well; here before anything is decoded."""


def read_ids_up_to(most: int) -> Reader:
    """Return a reader of token ids, or lists of them, that decodes no more than could be served."""
    read_flat, read_nested = reader_of(list[int] | None), reader_of(list[list[int]])

    def read_ids(raw: bytes, path: str) -> Any:
        nested = raw.startswith(b"[") and raw[1:].lstrip().startswith(b"[")
        prompts = raw.count(b"[") - 1 if nested else 1
        if prompts > LIMITS.answers:
            raise UsageError(
                f"{path} has {prompts} prompts; at most {LIMITS.answers} are accepted", param=path
            )
        if (count := raw.count(b",") + 1) > most * prompts:
            room = f"{most} of prompt and output together fit" + (", for each prompt" if nested else "")
            raise UsageError(
                f"{path} has {count} token ids; at most {room}", param=path, code="context_length_exceeded"
            )
        return (read_nested if nested else read_flat)(raw, path)

    return read_ids


def read_prompts_up_to(most: int) -> Reader:
    """Return a reader of a text, token ids, or a list of either: always a list of prompts, and of one kind.

    Args:
        most: token ids of one prompt that could be served.
    """
    read_text, read_texts, read_ids = reader_of(str), reader_of(list[str]), read_ids_up_to(most)

    def read_prompts(raw: bytes, path: str) -> list[str] | list[list[int]]:
        if not raw.startswith(b"["):
            return [read_text(raw, path)]
        first = raw[1:].lstrip()[:1]
        prompts: Any = read_texts(raw, path) if first == b'"' else read_ids(raw, path)
        if not prompts:
            raise UsageError(f"{path} is an empty list; give at least one prompt", param=path)
        return prompts if first in b'"[' else [prompts]

    return read_prompts
