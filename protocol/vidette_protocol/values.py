"""What one value may be, and how a message about it is worded: the smallest parts of every check.

A `Kind` returns a value that it accepts, in the form in which it is kept, or raises InvalidInput with the
path of the value. A *fault* is the rest of such a sentence, behind the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Never

import msgspec

from vidette_protocol.errors import InvalidInput
from vidette_protocol.limits import Limits

Kind = Callable[[object, str, Limits], Any]
"""Takes a value, its path and the limits."""

MAX_INT32: Final = (1 << 31) - 1
MAX_INT64: Final = (1 << 63) - 1

_MOST_SHOWN: Final = 60
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_MOST_HEX: Final = 128


def shown(value: object) -> str:
    """Return a value as a message shows it: not too long, and without running code of its class."""
    if isinstance(value, str):
        start = str.__str__(value)[:_MOST_SHOWN]
        return repr(start) if len(value) <= _MOST_SHOWN else f"{start!r}... ({len(value)} characters)"
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        return repr(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"of type {type(value).__name__[:_MOST_SHOWN]}"


def refuse(path: str, fault: str, code: str | None = None) -> Never:
    """Raise InvalidInput about a value."""
    raise InvalidInput(f"{path} {fault}", param=path, code=code)


def surrogate_fault(value: str) -> str | None:
    """Return what is wrong with a text that cannot be written in UTF-8."""
    if value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"has {value[error.start]!r} at {error.start}, half a surrogate pair"
    return None


def text_fault(value: str, most: int) -> str | None:
    """Return what is wrong with a text that has to have some characters, but not more than so many."""
    if not 0 < len(value) <= most:
        return f"has {len(value)} characters; it must have 1 to {most}"
    return surrogate_fault(value)


# --- kinds -------------------------------------------------------------------------


def flag(value: object, path: str, limits: Limits) -> bool:
    """True or False."""
    del limits
    if type(value) is not bool:
        refuse(path, f"is {shown(value)}; it must be true or false")
    return value


def whole(low: int, high: int) -> Kind:
    """Return the kind of integers within a range."""

    def kind(value: object, path: str, limits: Limits) -> int:
        del limits
        if type(value) is not int or not low <= value <= high:
            refuse(path, f"is {shown(value)}; it must be an integer from {low} to {high}")
        return value

    return kind


def text(most: Callable[[Limits], int]) -> Kind:
    """Return the kind of texts that are not empty and not longer than a limit."""

    def kind(value: object, path: str, limits: Limits) -> str:
        plain = _plain(value, path)
        if fault := text_fault(plain, most(limits)):
            refuse(path, fault)
        return plain

    return kind


name: Final = text(lambda limits: limits.name_chars)
"""A name or key."""


def key(value: object, path: str, limits: Limits) -> str | None:
    """A namespace, of which "" is none."""
    return None if isinstance(value, str) and not value else _plain(name(value, path, limits), path)


def prompt(value: object, path: str, limits: Limits) -> str:
    """A prompt as text."""
    plain = _plain(value, path)
    if not plain:
        refuse(path, "is empty; a prompt has at least one token")
    if len(plain) > limits.text_chars:
        refuse(
            path,
            f"has {len(plain)} characters; at most {limits.text_chars} are accepted",
            "context_length_exceeded",
        )
    if fault := surrogate_fault(plain):
        refuse(path, fault)
    return plain


def pair(value: object, path: str, limits: Limits) -> tuple[str, str]:
    """Two texts whose relation is to be scored."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(path, f"is {shown(value)}; for a cross-encoder it must be a pair of texts")
    return prompt(value[0], f"{path}[0]", limits), prompt(value[1], f"{path}[1]", limits)


def prompt_ids(value: object, path: str, limits: Limits) -> tuple[int, ...]:
    """A prompt as token ids; whether they are within the vocabulary is known elsewhere."""
    ids = _sized(value, path, "token ids", limits.prompt_tokens)
    return integers(ids, path)


def prompt_embeds(value: object, path: str, limits: Limits) -> tuple[tuple[float, ...], ...]:
    """A prompt as rows of numbers, all of one length."""
    rows = _sized(value, path, "rows", limits.prompt_tokens)
    width = len(rows[0]) if isinstance(rows[0], list | tuple) else 0
    for place, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not row or len(row) != width:
            refuse(f"{path}[{place}]", f"is {shown(row)}; all rows must be lists of numbers, of one length")
    try:
        return msgspec.convert(rows, tuple[tuple[float, ...], ...])
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        problem, where = explain(error)
        refuse(path + where, f"is not valid: {problem}")


def optional(kind: Kind) -> Kind:
    """Return a kind that accepts None besides."""

    def either(value: object, path: str, limits: Limits) -> object:
        return None if value is None else kind(value, path, limits)

    return either


def medium(value: object, path: str, limits: Limits) -> object:
    """One image, video or stretch of audio: opaque, and passed on as it is."""
    del limits
    empty = isinstance(value, str | bytes) and not value
    if value is None or empty or isinstance(value, bool | int | float | list | tuple):
        refuse(path, f"is {shown(value)}; it must be an address, base64 text, bytes, or what a loader takes")
    return value


def media(value: object, path: str, limits: Limits) -> tuple[object, ...] | None:
    """The media of one prompt: one, several in a list, or none."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        return (medium(value, path, limits),)
    if fault := count_fault(len(value), limits.media):
        refuse(path, fault)
    return tuple(medium(each, f"{path}[{place}]", limits) for place, each in enumerate(value)) or None


def hex_hash(value: object, path: str, limits: Limits) -> str:
    """A hash in hexadecimal digits."""
    del limits
    plain = _plain(value, path)
    if not 0 < len(plain) <= _MOST_HEX or not _HEX.issuperset(plain):
        refuse(path, f"is {shown(plain)}; it must be 1 to {_MOST_HEX} hexadecimal digits")
    return plain


def one_of(*words: str) -> Kind:
    """Return the kind of texts that are one of a few."""

    def kind(value: object, path: str, limits: Limits) -> str:
        del limits
        if not isinstance(value, str) or value not in words:
            refuse(path, f"is {shown(value)}; it must be one of {', '.join(words)}")
        return str.__str__(value)

    return kind


# --- parts of kinds ------------------------------------------------------------------


def count_fault(count: int, most: int) -> str | None:
    """Return what is wrong with a list that is too long."""
    return f"has {count} items; at most {most} are accepted" if count > most else None


def ids_fault(ids: Iterable[int], vocab_size: int | None) -> str | None:
    """Return what is wrong with the first token id that is none, and its place."""
    most = MAX_INT32 if vocab_size is None else vocab_size - 1
    for place, each in enumerate(ids):
        if not 0 <= each <= most:
            return f"[{place}] is {shown(each)}; token ids are 0 to {most}"
    return None


def integers(value: list[object] | tuple[object, ...], path: str) -> tuple[int, ...]:
    """Return a list of token ids whose types have been made sure of."""
    try:
        return msgspec.convert(value, tuple[int, ...])
    except (msgspec.ValidationError, UnicodeEncodeError):
        place = next(place for place, each in enumerate(value) if type(each) is not int)
        refuse(f"{path}[{place}]", f"is {shown(value[place])}; a token id is an integer")


def explain(error: msgspec.ValidationError | UnicodeEncodeError) -> tuple[str, str]:
    """Return what msgspec found wrong, beginning in lower case, and where, such as "[3]" or ".top_k"."""
    if isinstance(error, UnicodeEncodeError):
        return "a text with half a surrogate pair", ""
    problem, _, where = str(error).partition(" - at `")
    if where.startswith("key"):
        problem += " as a key"
    return problem[:1].lower() + problem[1:], where.rpartition("$")[2].removesuffix("`")


def _plain(value: object, path: str) -> str:
    if type(value) is str:
        return value
    if not isinstance(value, str):
        refuse(path, f"is {shown(value)}; it must be a text")
    return str.__str__(value)  # such as NumPy's: a plain one


def _sized(value: object, path: str, what: str, most: int) -> list[object] | tuple[object, ...]:
    """Return a list that is neither empty nor too long; nothing in it is looked at."""
    if not isinstance(value, list | tuple):
        refuse(path, f"is {shown(value)}; it must be a list of {what}")
    if not value:
        refuse(path, "is empty; a prompt has at least one token")
    if len(value) > most:
        raise InvalidInput(
            f"the prompt is too long: it has {len(value)} tokens; at most {most} fit",
            param=path,
            code="context_length_exceeded",
        )
    return value
