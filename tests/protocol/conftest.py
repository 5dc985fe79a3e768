"""What the tests of all messages share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from vidette_fuzz.samples import EVERY
from vidette_protocol.codec import Codec
from vidette_protocol.messages import Message

ANY = Codec(sends=EVERY, receives=EVERY)
"""Takes every message, both ways."""


def same(one: Message, other: Message, codec: Codec = ANY) -> bool:
    """Return whether two messages are the same on the wire; arrays have no plain equality, nor has NaN."""
    return type(one) is type(other) and codec.encode(one) == codec.encode(other)


def parts_of(classes: Iterable[type[Struct]]) -> set[type[Struct]]:
    """Return the structs that fields of these hold, at any depth."""
    found: set[type[Struct]] = set()
    todo: list[type[Struct]] = list(classes)
    while todo:
        hints = get_type_hints(todo.pop(), include_extras=True)
        new = {part for hint in hints.values() for part in _structs_in(hint)} - found
        found |= new
        todo += new
    return found


def _structs_in(hint: Any) -> Iterable[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs_in(inner)
