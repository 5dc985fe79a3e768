"""What two sides must have in common to understand each other: classes, tags, and fields in their order.

A side describes each of its classes by a few bytes a field, and sends the description with its Hello. Two
descriptions fit if both have the same messages, and if of every class that both have, one is the beginning of
the other: then one side only appended fields, which the other ignores, or fills in with their defaults. What
lies in such a field, only one side has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, inspect

DIGEST_BYTES: Final = 4
"""Of each field; by chance, one change in four billion goes unseen."""

PART: Final = "part "
"""Before the name of a class that is no message but lies in some."""

Schema = Mapping[str, bytes]
"""Name of a class to the digest of its tag and then of each of its fields."""


def describe(classes: Iterable[type[Struct]]) -> dict[str, bytes]:
    """Return the description of classes and of all the structs that lie in them.

    Raises:
        ValueError: two of them have the same name.
    """
    schema: dict[str, bytes] = {}
    for name, cls, fields in _named(classes):
        config = cls.__struct_config__
        parts = [f"{config.tag!r} {'array' if config.array_like else 'map'}"]
        parts += (f"{field.encode_name}: {spell(field.type)}" for field in fields)
        schema[name] = b"".join(map(_digest, parts))
    return schema


def reach(classes: Iterable[type[Struct]]) -> list[type[Struct]]:
    """Return classes and all the structs that lie in them, each once, by name."""
    return [info.cls for info in _reach(classes)]


def _reach(classes: Iterable[type[Struct]]) -> list[inspect.StructType]:
    # One question for all of them: asked field by field, it takes three times as long.
    reached: dict[type[Struct], inspect.StructType] = {}
    todo = [info for info in inspect.multi_type_info(set(classes)) if isinstance(info, inspect.StructType)]
    while todo:
        info = todo.pop()
        if info.cls not in reached:
            reached[info.cls] = info
            for field in info.fields:
                todo.extend(_structs_in(field.type))
    return sorted(reached.values(), key=lambda info: info.cls.__name__)


def _named(
    classes: Iterable[type[Struct]],
) -> list[tuple[str, type[Struct], tuple[inspect.Field, ...]]]:
    """Return what these classes reach: the name it is described under, and its fields."""
    messages = set(classes)
    named, names = [], set()
    for info in _reach(messages):
        name = info.cls.__name__
        if name in names:
            raise ValueError(f"two classes of messages have the name {name}")
        names.add(name)
        named.append((name if info.cls in messages else PART + name, info.cls, info.fields))
    return named


def fingerprint_of(schema: Schema) -> str:
    """Return one short text that is equal for equal descriptions."""
    lines = (f"{name} {digests.hex()}" for name, digests in sorted(schema.items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def misfit(ours: Schema, theirs: Schema, classes: Iterable[type[Struct]]) -> str | None:
    """Return in a few words where two descriptions do not fit, or None if they do.

    Args:
        ours: of this side.
        theirs: of the other side.
        classes: this side's, to tell fields by name.
    """
    for some, others, where in ((ours, theirs, "there"), (theirs, ours, "here")):
        lacking = sorted(name for name in some.keys() - others.keys() if not name.startswith(PART))
        if lacking:
            return f"{_few(lacking)} not known {where}"
    for key, cls, fields in _named(classes):
        if key not in ours or key not in theirs:
            continue
        name, mine, other = cls.__name__, _cut(ours[key]), _cut(theirs[key])
        if not other or len(other[-1]) < DIGEST_BYTES:
            return f"{name} is not described there"
        if mine[0] != other[0]:
            return f"{name} has another tag or another form there"
        for field, digest, its in zip(fields, mine[1:], other[1:], strict=False):
            if digest != its:
                return f"{name}.{field.name} is another field there"
        for field in fields[len(other) - 1 :]:
            if field.required:
                return f"{name}.{field.name} has no default, and is not known there"
    return None


def unknown_there(theirs: Schema, part: type[Struct]) -> frozenset[str]:
    """Return the fields of a struct inside of messages that the other side does not know.

    An array may have them all the same, and they are ignored there. A map that refuses what it does not know
    must not.

    Args:
        theirs: the other side's description, which fits.
        part: of this side.
    """
    described = theirs.get(PART + part.__name__)
    known = 0 if described is None else len(_cut(described)) - 1
    return frozenset(part.__struct_fields__[known:])


def _cut(digests: bytes) -> list[bytes]:
    """Return the digest of the tag and that of each field."""
    return [digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)]


def _few(names: list[str]) -> str:
    """Return the first of some names and how many more there are; the other side may have sent any number."""
    listed, more = ", ".join(names[:3]), len(names) - 3
    return f"{listed} and {more} more are" if more > 0 else f"{listed} {'is' if len(names) == 1 else 'are'}"


def _structs_in(info: inspect.Type) -> Iterator[inspect.StructType]:
    if isinstance(info, inspect.StructType):
        yield info
        return
    for part in _parts(info):
        yield from _structs_in(part)


def spell(info: inspect.Type) -> str:
    """Return a type in words, as a reader of MessagePack sees it."""
    match info:
        case inspect.Metadata(type=inner):
            return spell(inner)
        case inspect.UnionType(types=types):
            return " or ".join(sorted(map(spell, types)))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"[{spell(item)}, ...]"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(map(spell, items))}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{spell(key)}: {spell(value)}}}"
        case inspect.StructType(cls=struct):
            return struct.__name__
        case inspect.EnumType(cls=enum):
            return " or ".join(str(member.value) for member in enum)
        case inspect.LiteralType(values=values):
            return " or ".join(map(repr, values))
    return _WORDS.get(type(info), "anything")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES]


def _parts(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types that a type is made of."""
    match info:
        case inspect.Metadata(type=inner):
            return (inner,)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            return tuple(types)
        case inspect.DictType(key_type=key, value_type=value):
            return (key, value)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return (item,)
    return ()


_WORDS: Final[Mapping[type[inspect.Type], str]] = MappingProxyType(
    {
        inspect.BoolType: "bool",
        inspect.BytesType: "bytes",
        inspect.FloatType: "float",
        inspect.IntType: "int",
        inspect.MemoryViewType: "bytes",
        inspect.NoneType: "nil",
        inspect.StrType: "text",
    }
)
