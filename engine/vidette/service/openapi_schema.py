"""JSON Schema of bodies and answers, made of the types and tables that they are read and written with.

The schema of a body says of each field what becomes of it: one that is honoured has its type, one that is not
supported yet has the values that ask for nothing, and there are no others.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from vidette.service.fields import Fields

Schema = dict[str, Any]
REFS: Final = "#/components/schemas/"
_NULL: Final = MappingProxyType({"type": "null"})


class Form(Struct, frozen=True, eq=False):  # each is itself
    """What JSON objects of one kind are read with."""

    fields: Fields[Any]
    """Which fields there are, and what becomes of each."""
    inner: Mapping[str, tuple[Shape, ...]] = MappingProxyType({})
    """What a field may hold, where its type does not say it all: one of these."""
    name: str | None = None
    """Of the schema; None: that of the struct."""


class Many(NamedTuple):
    """A list of such objects."""

    of: Form


Shape = type[Any] | Form | Many
"""A type, an object, or a list of objects."""


class Schemas:
    """The schemas of one document.

    Args:
        types: of answers.
        forms: of bodies; those within them are found.
    """

    def __init__(self, types: Iterable[Any], forms: Iterable[Form]) -> None:
        found = {form: None for outer in forms for form in _within(outer)}
        told = [
            *types,
            *(form.fields.honoured for form in found),
            *(shape for form in found for shape in _plain(form)),
        ]
        # All at once, so that two structs of one name are told apart.
        schemas, self._components = msgspec.json.schema_components(told, ref_template=REFS + "{name}")
        self._of = dict(zip(told, schemas, strict=True))
        bases = dict(self._components)
        for form in found:
            base = self._of[form.fields.honoured]["$ref"].removeprefix(REFS)
            self._components[form.name or base] = self._object(form, bases[base])

    def of(self, shape: Any) -> Schema:
        """Return the schema of a type or a form that was told of at the beginning."""
        if isinstance(shape, Many):
            return {"type": "array", "items": self.of(shape.of)}
        if isinstance(shape, Form) and shape.name is not None:
            return {"$ref": REFS + shape.name}
        return dict(self._of[shape.fields.honoured if isinstance(shape, Form) else shape])

    def components(self, document: object) -> dict[str, Schema]:
        """Return the schemas that a document refers to, and those that they do, by name."""
        needed: dict[str, Schema] = {}
        left = list(_refs(document))
        while left:
            name = left.pop()
            if name not in needed:
                needed[name] = self._components[name]
                left += _refs(needed[name])
        return dict(sorted(needed.items()))

    def _object(self, form: Form, base: Schema) -> Schema:
        """Return the schema of a form, from that of its struct."""
        honoured, refused, later = form.fields.honoured, form.fields.refused, form.fields.later
        hints = typing.get_type_hints(honoured)
        properties: Schema = {}
        required = []
        for field in msgspec.structs.fields(honoured):
            if field.name in refused:
                continue
            nullable = type(None) in typing.get_args(hints[field.name])
            inner = [self.of(shape) for shape in form.inner.get(field.name, ())]
            given = base["properties"][field.name]
            properties[field.name] = _property(given, inner, nullable=nullable or not field.required)
            if field.required:
                required.append(field.name)
        for name, neutral in refused.items():
            status = 501 if name in later else 400
            properties[name] = {
                "description": f"Not supported yet: any other value is answered with {status}.",
                "enum": [None, *(each for each in neutral if each is not None)],
            }
        schema = {**base, "title": form.name or base["title"], "properties": properties}
        schema |= {"required": required, "additionalProperties": False}
        return schema


def _property(given: Schema, inner: list[Schema], *, nullable: bool) -> Schema:
    """Return the schema of a field that is honoured; null means its default."""
    default = {"default": given["default"]} if "default" in given else {}
    plain = {name: value for name, value in given.items() if name != "default"}
    choices = inner or plain.get("anyOf") or [plain]
    if not plain and not inner:
        return given  # anything
    if nullable and _NULL not in choices:
        choices = [*choices, dict(_NULL)]
    return {**choices[0], **default} if len(choices) == 1 else {"anyOf": choices, **default}


def _within(form: Form) -> Iterator[Form]:
    """Yield a form, and those within it."""
    yield form
    for shapes in form.inner.values():
        for shape in shapes:
            if isinstance(shape, Form | Many):
                yield from _within(shape.of if isinstance(shape, Many) else shape)


def _plain(form: Form) -> Iterator[Any]:
    """Yield the types that the fields of a form may hold."""
    for shapes in form.inner.values():
        yield from (shape for shape in shapes if not isinstance(shape, Form | Many))


def _refs(value: object) -> Iterator[str]:
    """Yield the names of the schemas that are referred to."""
    if isinstance(value, dict):
        for name, inside in value.items():
            if name == "$ref" and isinstance(inside, str):
                yield inside.removeprefix(REFS)
            else:
                yield from _refs(inside)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from _refs(inside)
