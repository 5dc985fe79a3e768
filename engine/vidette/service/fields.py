"""JSON objects of which every field is honoured, refused, or unknown; none is ignored.

A field that other servers know and this one does not yet is *refused*: unless it has a value that asks for
nothing, the answer says that it is not supported yet. So a request that is answered was honoured as a whole.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from vidette.errors import UsageError, unsupported_field
from vidette.service.errors import NotYet, shown

T = TypeVar("T", bound=Struct)
V = TypeVar("V")

NULL = b"null"
ABSENT = Raw()
LONGEST_NEUTRAL = 64
"""Bytes of JSON above which a value is not decoded only to see whether it asks for nothing."""

FIELD_BYTES: Final = 1024 * 1024
"""Longest JSON of a value that is no prompt, where that is bounded."""
LISTED: Final = 4096
"""Of a list that may be longer, so many items are made; there is no more of another."""
_MANY: Final = msgspec.json.Decoder(list[Raw])
_FIRST: Final = msgspec.json.Decoder[Struct](
    msgspec.defstruct(
        "First", [(f"item{place}", Raw, ABSENT) for place in range(LISTED + 1)], array_like=True
    )
)
"""The first of the items: an array that is a struct may have more than that has fields."""

Neutral = tuple[object, ...]
"""Values of a refused field that ask for nothing; null is always one."""
Reader = Callable[[bytes, str], Any]
"""Returns the value that JSON at a path stands for, or raises UsageError."""


class Fields(Generic[T]):
    """Decodes JSON objects of one kind.

    Args:
        honoured: a struct of the fields that are honoured; null means the default where it has no None.
        refused: fields that are not supported yet, with their neutral values; they may be of the struct too.
        readers: what reads the value of a field where its type does not say it all.
        later: fields that are refused with 501, for a whole part of an API is not supported yet.
        field_bytes: longest JSON of a value; those that stay Raw are bounded by whoever reads them.
    """

    def __init__(
        self,
        honoured: type[T],
        refused: Mapping[str, Neutral],
        readers: Mapping[str, Reader] | None = None,
        *,
        later: Mapping[str, Neutral] = MappingProxyType({}),
        field_bytes: int | None = None,
    ) -> None:
        self._honoured = honoured
        self._refused = refused = {**refused, **later}
        self._later = later
        hints = typing.get_type_hints(honoured)
        given = readers or {}
        self._readers = {
            name: given[name] if name in given else reader_of(hints[name])
            for name in honoured.__struct_fields__
            if name not in refused
        }
        self._most = field_bytes
        self._bounded = {name for name in self._readers if name not in given and hints[name] is not Raw}
        fields = msgspec.structs.fields(honoured)
        self._required = [field.name for field in fields if field.required]
        self._nullable = {name for name, hint in hints.items() if type(None) in typing.get_args(hint)}
        # Values stay raw until their field's turn, so that nothing is built of what is refused or unknown.
        names = msgspec.defstruct(
            "Names",
            [(name, Raw) for name in self._required]
            + [(name, Raw, ABSENT) for name in (*self._readers, *refused) if name not in self._required],
            kw_only=True,
            forbid_unknown_fields=True,
        )
        self._names: msgspec.json.Decoder[Any] = msgspec.json.Decoder(names)

    @property
    def honoured(self) -> type[T]:
        """The struct of the fields that are honoured."""
        return self._honoured

    @property
    def refused(self) -> Mapping[str, Neutral]:
        """The fields that are not supported yet, those that are refused with 501 included."""
        return self._refused

    @property
    def later(self) -> Mapping[str, Neutral]:
        """The fields that are refused with 501."""
        return self._later

    def decode(self, data: bytes, where: str = "") -> T:
        """Return an object of honoured fields.

        Args:
            data: JSON.
            where: path of the object in the body, such as "messages[3]"; "" is the body itself.

        Raises:
            UsageError: it is not JSON, or not such an object; with the field at fault.
        """
        return self._settle(self._decode_names(self._names, data, where), where)

    def decode_many(self, data: bytes, where: str, most: int) -> list[T]:
        """Return the objects of a list of at most so many.

        Raises:
            UsageError: as `decode`, or they are more.
        """
        # Counted before anything is made of them; even bytes are not, of more than could be accepted.
        items: list[Raw]
        if data.count(b",") < LISTED or most > LISTED:
            items = self._decode_names(_MANY, data, where)
        else:
            first = msgspec.structs.astuple(self._decode_names(_FIRST, data, where))
            items = [item for item in first if item is not ABSENT]
        if len(items) > most:
            count = f"more than {LISTED}" if len(items) > LISTED >= most else len(items)
            raise UsageError(f"{where} has {count} items; at most {most} are accepted", param=where)
        return [self.decode(bytes(item), f"{where}[{place}]") for place, item in enumerate(items)]

    def _settle(self, names: Any, where: str) -> T:
        given = {name: bytes(raw) for name, raw in msgspec.structs.asdict(names).items() if raw is not ABSENT}
        for name, neutral in self._refused.items():
            if name in given and not asks_for_nothing(given[name], neutral):
                error = unsupported_field(join(where, name), neutral)
                raise NotYet(str(error), param=error.param, code=error.code) if name in self._later else error
        values = {}
        for name, read in self._readers.items():
            if name not in given:
                continue
            if self._most is not None and name in self._bounded and len(given[name]) > self._most:
                path = join(where, name)
                raise UsageError(
                    f"{path} is {len(given[name])} bytes of JSON; at most {self._most} are read", param=path
                )
            if given[name] != NULL:
                values[name] = read(given[name], join(where, name))
            elif name in self._nullable:
                values[name] = None
            elif name in self._required:
                raise UsageError(f"{join(where, name)} is null; it must be given", param=join(where, name))
        return self._honoured(**values)

    def _decode_names(self, decoder: msgspec.json.Decoder[V], data: bytes, where: str) -> V:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            problem, _, inside = str(error).partition(" - at `$")
            raise self._explain(problem, where + inside.removesuffix("`")) from None
        except msgspec.DecodeError as error:
            raise UsageError(f"the body is not valid JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise UsageError(
                "the body is nested too deeply: some hundred values may lie inside each other",
                code="invalid_json",
            ) from None

    def _explain(self, problem: str, where: str) -> UsageError:
        what = where or "the body"
        before, tick, rest = problem.partition("`")
        name = rest.rpartition("`")[0]
        if tick and before == "Object contains unknown field ":
            known = ", ".join(self._readers)
            place = f" in {where}" if where else ""
            return UsageError(
                f"there is no field {shown(name)}{place}; the fields are {known}",
                param=join(where, name)[:LONGEST_NEUTRAL],
                code="unknown_field",
            )
        if tick and before == "Object missing required field ":
            return UsageError(f"{what} has no field {name!r}, which is required", param=join(where, name))
        return UsageError(f"{what} is not valid: {problem[:1].lower()}{problem[1:]}", param=where or None)


def asks_for_nothing(raw: bytes, neutral: Neutral) -> bool:
    """Return whether the value of a field is one that asks for nothing."""
    if raw == NULL:
        return True
    if len(raw) <= LONGEST_NEUTRAL:
        with suppress(msgspec.DecodeError):  # such as a number too large for any type
            value = msgspec.json.decode(raw)
            # By type as well: true is no 1.
            return any(
                value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
            )
    return False


def reader_of(type_: Any) -> Reader:
    """Return a reader of values of a type, which says where a value is not what it should be."""
    if Raw in typing.get_args(type_):
        type_ = Raw  # null was read before
    decoder = msgspec.json.Decoder(type_)

    def read(raw: bytes, path: str) -> Any:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `")
            key, _, inside = place.partition("$")
            place = ("a key of " if key else "") + path + inside.removesuffix("`")
            raise UsageError(
                f"{place} is not valid: {problem[:1].lower()}{problem[1:]}", param=path
            ) from None
        except msgspec.DecodeError as error:  # bytes that are not UTF-8: a raw value may hold them
            raise UsageError(f"{path} is not valid JSON: {error}", param=path, code="invalid_json") from None

    return read


def join(where: str, name: str) -> str:
    """Return the path of a field."""
    return f"{where}.{name}" if where else name
