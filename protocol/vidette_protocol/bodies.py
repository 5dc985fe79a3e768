"""`BodyType`: a JSON object from outside, taken for one of our structs by the names of its fields.

On the wire most structs are arrays; in a body all of them are objects. A field that does not exist is
refused, and so is one of `INTERNAL_FIELDS`, which the engine sets and nobody else does. What is wrong is said
of each field at once, and never repeats more than a few characters of the body.

`vidette_protocol.pydantic` hands this to FastAPI; it can be used without either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from vidette_protocol.messages.base import BaseReq, ControlReq, Message
from vidette_protocol.messages.lora import (
    LoadLoRAAdapterFromTensorsReqInput,
    LoadLoRAAdapterReqInput,
    UnloadLoRAAdapterReqInput,
)

S = TypeVar("S", bound=Struct)

Base64Bytes = Annotated[bytes, Meta(description="base64: the standard alphabet, padded")]
"""Bytes that are base64 in JSON, decoded strictly by msgspec and by `BodyType`; bytes themselves pass as they
are. It is what `bytes` does as well, and says so in a schema."""

INTERNAL_FIELDS: Final[Mapping[type[Struct], Mapping[str, object]]] = MappingProxyType(
    {
        Struct: {"http_worker_ipc": None, "http_worker_ipcs": None},
        BaseReq: {"vid": 0, "floor": 0},
        ControlReq: {"id": 0, "deadline_s": None},
        LoadLoRAAdapterReqInput: {"lora_id": ""},
        LoadLoRAAdapterFromTensorsReqInput: {"lora_id": ""},
        UnloadLoRAAdapterReqInput: {"lora_id": ""},
    }
)
"""Fields that no body sets, of a class and its subclasses, and what they are until the engine sets them. The
first two are SGLang's and no fields of ours: the front is part of the vid."""

SHOWN_CHARS: Final = 64
LONGEST_PROBLEM: Final = 256
"""Most characters of a value that are repeated in an answer that refuses it."""

_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_QUARTETS: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class Fault(NamedTuple):
    """One thing that is wrong with a body.

    Args:
        place: where: names of fields and positions in lists; () is the body itself.
        kind: "missing", "unknown_field", "internal_field", "base64", or "invalid".
        message: what, in a sentence without its full stop.
        value: what was there: a number, the beginning of a text, or what kind of value it was.
    """

    place: tuple[str | int, ...]
    kind: str
    message: str
    value: object


class BodyError(ValueError):
    """A body is not what it should be.

    Args:
        faults: what is wrong, at least one.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{_shown_place(fault.place)}: {fault.message}" for fault in self.faults))


class BodyType(Generic[S]):
    """Takes JSON objects for structs of one class. Build it once: that is the slow part.

    Args:
        kind: the class, of the wire or not.
        exclude: more fields that a body does not set; they keep their defaults.

    Raises:
        ValueError: a field to be excluded does not exist, or has no default.
    """

    def __init__(self, kind: type[S], *, exclude: Iterable[str] = ()) -> None:
        self.kind: Final = kind
        excluded = frozenset(exclude)
        optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}
        for name in excluded - optional:
            raise ValueError(f"{kind.__name__} has no field {name!r} that could be left out")
        self._refused = _internal_of(kind).keys() | excluded
        self._twins = _Twins()
        self._twin = self._twins.make(kind, without=excluded, tagged=False)
        self._fields = {field.encode_name: field for field in msgspec.structs.fields(self._twin)}

    def read(self, value: object) -> S:
        """Return the struct that a body stands for; one that is a struct of the class already, as it is.

        Args:
            value: what a JSON parser made of the body.

        Raises:
            BodyError: it is not such an object.
        """
        if isinstance(value, self.kind):
            return value
        if not isinstance(value, Mapping):
            raise BodyError([Fault((), "invalid", "Expected an object", _shown(value))])
        try:
            twin = msgspec.convert(value, self._twin, str_keys=True)
        except (msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
            raise BodyError(list(self._faults(value)) or [_fault((), error, value)]) from None
        return self._settle(twin, value)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body, in one piece, without references."""
        (schema,), parts = msgspec.json.schema_components([self._twin], schema_hook=_any_schema)
        whole: dict[str, Any] = _inline(schema, parts, ())
        return whole

    def _settle(self, twin: Struct, value: Mapping[Any, object]) -> S:
        try:
            made: Any = self._twins.restore(twin)
        except (ValueError, TypeError) as error:  # what the class itself checks
            raise BodyError([Fault((), "invalid", str(error), _shown(value))]) from None
        struct: S = made
        fault = struct.check_columns() if isinstance(struct, Message) else None
        if fault is not None:
            raise BodyError([Fault((), "invalid", fault, _shown(value))])
        return struct

    def _faults(self, value: Mapping[Any, object]) -> Iterator[Fault]:
        """Say what is wrong with each field, which the decoder does for the first one only."""
        for name, inner in value.items():
            if name in self._refused:
                yield Fault(
                    (name,), "internal_field", "is set by the engine, not from outside", _shown(inner)
                )
            elif name not in self._fields:
                message = f"there is no such field; the fields are {', '.join(self._fields)}"
                yield Fault((_shown_name(name),), "unknown_field", message, _shown(inner))
            else:
                try:
                    msgspec.convert(inner, self._fields[name].type, str_keys=True)
                except (msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
                    yield _fault((name,), error, inner)
        for name, field in self._fields.items():
            if field.required and name not in value:
                yield Fault((name,), "missing", "Field required", None)


class _Twins:
    """For each struct class a twin that is an object in JSON, whatever the class itself is on the wire."""

    def __init__(self) -> None:
        self._of: dict[type[Struct], type[Struct]] = {}
        self._originals: dict[type[Struct], type[Struct]] = {}
        self._blanks: dict[type[Struct], dict[str, object]] = {}
        self._held: dict[type[Struct], frozenset[str]] = {}
        self._making: list[type[Struct]] = []

    def make(self, kind: type[Struct], *, without: Iterable[str] = (), tagged: bool = True) -> type[Struct]:
        """Return the twin of a class.

        Args:
            kind: the class.
            without: names of fields that the twin does not have, besides internal ones.
            tagged: whether the object says in a field of its own of which class it is, if that has a tag.
        """
        if kind in self._of or kind in self._making:  # one that holds itself stays what it is inside
            return self._of.get(kind, kind)
        self._making.append(kind)
        config, internal = kind.__struct_config__, _internal_of(kind)
        given = msgspec.structs.fields(kind)
        fields = [
            (field.name, self.translate(field.type), _default(field))
            for field in given
            if field.name not in internal and field.name not in without
        ]
        twin = msgspec.defstruct(
            kind.__name__,
            fields,
            kw_only=True,
            forbid_unknown_fields=True,
            tag=config.tag if tagged else None,
            tag_field=config.tag_field if tagged else None,
            namespace={"__doc__": (kind.__doc__ or "").partition("Args:")[0]},  # internal fields are in there
        )
        self._making.pop()
        self._of[kind] = twin
        self._originals[twin] = kind
        self._held[twin] = frozenset(name for name, hint, _ in fields if self._holds_twin(hint))
        self._blanks[twin] = {f.name: internal[f.name] for f in given if f.required and f.name in internal}
        return twin

    def translate(self, hint: Any) -> Any:
        """Return a type with the twin of each struct class in it."""
        if isinstance(hint, type) and issubclass(hint, Struct):
            return self.make(hint)
        if hint is object:
            return Any  # the same in JSON, and has a schema
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return Annotated[(self.translate(args[0]), *args[1:])]
        if origin is None or origin is Literal:
            return hint
        inner = tuple(arg if arg is Ellipsis else self.translate(arg) for arg in args)
        if origin is Union or origin is UnionType:
            return reduce(or_, inner)
        return origin[inner]

    def _holds_twin(self, hint: Any) -> bool:
        if isinstance(hint, type) and hint in self._originals:
            return True
        return any(map(self._holds_twin, get_args(hint)))

    def restore(self, value: object) -> object:
        """Return a value with what each twin in it stands for.

        Raises:
            ValueError, TypeError: a class refuses what it is made of.
        """
        match value:
            case Struct() if type(value) in self._originals:
                twin, named = type(value), msgspec.structs.asdict(value)
                for name in self._held[twin]:
                    named[name] = self.restore(named[name])
                return self._originals[twin](**named, **self._blanks[twin])
            case list():
                return [self.restore(inner) for inner in value]
            case tuple():
                return tuple(self.restore(inner) for inner in value)
            case dict():
                return {key: self.restore(inner) for key, inner in value.items()}
        return value


def _internal_of(kind: type[Struct]) -> dict[str, object]:
    """Return the internal fields of a class, whether it has them or not, and what they are at first."""
    found: dict[str, object] = {}
    for base, fields in INTERNAL_FIELDS.items():
        if issubclass(kind, base):
            found.update(fields)
    return found


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        return msgspec.field(default_factory=field.default_factory, name=field.encode_name)
    if field.default is not NODEFAULT:
        return msgspec.field(default=field.default, name=field.encode_name)
    return msgspec.field(name=field.encode_name)


def _fault(place: tuple[str | int, ...], error: Exception, value: Any) -> Fault:
    """Return what a decoder says of a value as a fault."""
    if isinstance(error, RecursionError):
        return Fault(place, "invalid", "values are nested too deeply", _shown(value))
    # The path comes last; what is before it may hold a key of the body, which may look like one.
    problem, _, path = str(error).rpartition(" - at `")
    if not problem:
        problem, path = path, ""
    path, _, rest = path.partition("`")
    if path == "key":
        path = rest.removeprefix(" in `").removesuffix("`")
    for step in _STEP.finditer(path):
        name, index = step.groups()
        try:
            if name is not None:
                place, value = (*place, name), value[name]
            else:
                place, value = (*place, int(index)), value[int(index)]
        except (KeyError, IndexError, TypeError):
            # An entry of a mapping, of which the decoder does not say which.
            value = None
            break
    problem = problem if len(problem) <= LONGEST_PROBLEM else f"{problem[:LONGEST_PROBLEM]}..."
    if problem == "Invalid base64 encoded string":
        return Fault(place, "base64", _explain_base64(value), _shown(value))
    return Fault(place, "invalid", problem, _shown(value))


def _explain_base64(value: object) -> str:
    expected = "Expected base64-encoded bytes"
    if not isinstance(value, str):
        return expected
    good = _QUARTETS.match(value)
    end = 0 if good is None else good.end()
    if end < len(value):
        return f"{expected}; {value[end]!r} at position {end} is out of place in the standard alphabet"
    return f"{expected}; {len(value)} characters, with their padding, are no multiple of 4"


def _shown(value: object) -> object:
    """Return what an answer may repeat of a value."""
    match value:
        case None | bool() | float():
            return value
        case int() if value.bit_length() <= SHOWN_CHARS:
            return value
        case str():
            return value if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]}..."
    return f"<{type(value).__name__}>"


def _shown_name(name: object) -> str:
    return str(_shown(name))


def _shown_place(place: tuple[str | int, ...]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return path.removeprefix(".") or "the body"


def _any_schema(kind: type) -> dict[str, Any]:
    """Return the schema of a type that JSON does not know."""
    return {"title": kind.__name__}


def _inline(schema: Any, parts: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Return a schema with each part in the place of the reference to it."""
    if isinstance(schema, list):
        return [_inline(inner, parts, inside) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in inside:  # it holds itself
        return {"title": name.rpartition(".")[2]}
    if name in parts:
        return _inline(parts[name], parts, (*inside, name))
    # What tells members of a union apart points at parts as well; their own fields say it too.
    left = {key: inner for key, inner in schema.items() if key != "discriminator"}
    return {key: _inline(inner, parts, inside) for key, inner in left.items()}
