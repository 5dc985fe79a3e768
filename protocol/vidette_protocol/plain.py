"""`msgspec_to_builtins`: messages and what lies in them as values that JSON has.

What is made is for people, for logs and for JSON, and is not read back:

    struct, dataclass             dict by the names of its fields, also where the wire has an array
    vids (fields in VID_FIELDS)   text, since numbers above 2**53 do not survive JavaScript
    memoryview (fields)           list of numbers: int64 if it is named so: `..vids`, float32 if it is
                                  named `.._val`, else int32, as all packed columns are
    list, tuple, array.array      list
    set, frozenset                list, sorted where its values have an order
    mapping                       dict; its keys become text
    enum                          its value
    class                         its qualified name
    bytes                         text in base64
    NumPy's and torch's           arrays and tensors nested lists, scalars numbers, dtypes and devices text
    pointers, extensions          dict of what they state

NaN and infinity stay floats: `msgspec.json` writes null for them.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.msgpack import Ext

from vidette_protocol.ext import CudaIpcHandle, ShmPointer
from vidette_protocol.ext.either import is_of
from vidette_protocol.messages.columns import view_f32, view_i32, view_i64

MAX_DEPTH: Final = 64
"""How deep values may lie in each other."""

MAX_VALUES: Final = 1 << 20
"""How many values there may be; of bytes, 64 count as one."""

VID_FIELDS: Final = frozenset({"vid", "vids", "packed_vids", "floor"})
"""Names of fields that hold vids; every field of this package that does is named so."""

INT64_FIELDS: Final = frozenset({"packed_places"})
"""Names of other fields of packed int64."""

_AS_TEXT: Final = frozenset({"datetime", "decimal", "uuid"})
"""Modules whose values msgspec writes as text."""


def msgspec_to_builtins(value: object, *, enc_hook: Callable[[object], object] | None = None) -> Any:
    """Return a value in terms of dict, list, str, int, float, bool and None.

    Args:
        value: anything; see the head of this module.
        enc_hook: called for what has no such form; what it returns is converted in turn.

    Raises:
        TypeError: something in it has no such form, or no form as the name of an entry.
        ValueError: it is nested deeper than MAX_DEPTH, as a value that holds itself is, or has more than
            MAX_VALUES values; or two keys of a mapping become the same text.
    """
    return _Walk(enc_hook).convert(value, MAX_DEPTH)


class _Walk:
    """One conversion: what is left to spend."""

    __slots__ = ("_enc_hook", "_left")

    def __init__(self, enc_hook: Callable[[object], object] | None) -> None:
        self._enc_hook = enc_hook
        self._left = MAX_VALUES

    def convert(self, value: object, depth: int) -> object:
        """Return a value in plain terms; `depth` more may lie in it."""
        self._spend(1)
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is float or kind is str:
            return value
        if not depth:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
        match value:
            case Enum():
                return self.convert(value.value, depth - 1)
            case type():
                return f"{value.__module__}.{value.__qualname__}"
            case Struct():
                return self._convert_struct(value, depth - 1)
            case list() | tuple():
                return self._convert_items(value, depth - 1)
            case Mapping():
                return self._convert_entries(value, depth - 1)
            case set() | frozenset():
                return _in_order(self._convert_items(value, depth - 1))
            case bytes() | bytearray():
                return self._convert_bytes(value)
            case memoryview() if value.format == "B":
                return self._convert_bytes(value)
            case memoryview() | array():
                self._check_room(len(value))
                return self._convert_items(value.tolist(), depth - 1)
            case int():
                return int.__int__(value)
            case float():
                return float.__float__(value)
            case str():
                return str.__str__(value)
            case Ext():
                return {"ext": value.code, "data": self._convert_bytes(bytes(value.data))}
            case ShmPointer():
                named: dict[str, object] = {
                    "shm_name": value.shm_name,
                    "shape": value.shape,
                    "dtype": value.dtype,
                    "precomputed_hash": value.precomputed_hash,
                }
                return self._convert_entries(named, depth - 1)
            case CudaIpcHandle():
                named = {"proxy_state": value.proxy_state, "sync_data_meta": value.sync_data_meta}
                return self._convert_entries(named, depth - 1)
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self._convert_fields(fields, depth - 1)
        return self._convert_rare(value, depth - 1)

    def _convert_rare(self, value: object, depth: int) -> object:
        kind = type(value)
        if is_of(kind, "numpy") or is_of(kind, "torch"):
            if hasattr(value, "tolist"):
                return self.convert(self._list(value), depth)
            if kind.__name__ in ("dtype", "device") or kind.__module__ == "numpy.dtypes":
                return str(value)
        if kind.__module__ in _AS_TEXT:
            return msgspec.to_builtins(value)
        if self._enc_hook is not None:
            return self.convert(self._enc_hook(value), depth)
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} has no plain form")

    def _list(self, value: Any) -> object:
        """Return an array, tensor or scalar as nested lists of numbers."""
        self._check_room(value.numel() if hasattr(value, "numel") else value.size)
        try:
            return value.tolist()
        except RuntimeError as error:  # such as a tensor without data
            raise TypeError(f"a {type(value).__name__} has no plain form: {error}") from error

    def _convert_struct(self, value: Struct, depth: int) -> object:
        named = msgspec.structs.asdict(value)
        return self._convert_fields(
            {name: _unpack(name, inner) for name, inner in named.items() if inner is not UNSET}, depth
        )

    def _convert_fields(self, named: Mapping[str, object], depth: int) -> dict[str, object]:
        return {
            name: self._convert_vids(value, depth) if name in VID_FIELDS else self.convert(value, depth)
            for name, value in named.items()
        }

    def _convert_vids(self, value: object, depth: int) -> object:
        plain = self.convert(value, depth)
        if isinstance(plain, list):
            return [str(vid) if type(vid) is int else vid for vid in plain]
        return str(plain) if type(plain) is int else plain

    def _convert_items(self, values: Iterable[object], depth: int) -> list[object]:
        return [self.convert(value, depth) for value in values]

    def _convert_entries(self, values: Mapping[Any, object], depth: int) -> dict[str, object]:
        plain = {self._convert_key(key, depth): self.convert(value, depth) for key, value in values.items()}
        if len(plain) != len(values):
            raise ValueError("two keys of a mapping become the same text")
        return plain

    def _convert_key(self, key: object, depth: int) -> str:
        plain = self.convert(key, depth)
        if isinstance(plain, str):
            return plain
        if isinstance(plain, bool):
            return "true" if plain else "false"
        if isinstance(plain, int | float):
            return str(plain)
        raise TypeError(f"a {type(key).__qualname__} has no form as the name of an entry")

    def _convert_bytes(self, value: bytes | bytearray | memoryview) -> object:
        data = bytes(value)
        self._spend(len(data) // 64)
        return msgspec.to_builtins(data)

    def _spend(self, values: int) -> None:
        self._left -= values
        self._check_room(0)

    def _check_room(self, values: int) -> None:
        if values > self._left:
            raise ValueError(f"more than {MAX_VALUES} values; of bytes, 64 count as one")


def _unpack(name: str, value: object) -> object:
    """Return the numbers of a packed column, or of a list of such; anything else as it is."""
    if isinstance(value, memoryview) and value.format == "B":
        if name.endswith("vids") or name in INT64_FIELDS:
            return view_i64(value)
        return view_f32(value) if name.endswith("_val") else view_i32(value)
    if isinstance(value, list) and any(isinstance(item, memoryview) for item in value):
        return [_unpack(name, item) for item in value]
    return value


def _in_order(values: list[object]) -> list[object]:
    """Return values sorted, or, where they have no order, sorted by what they look like."""
    try:
        return sorted(values)  # type: ignore[type-var]
    except TypeError:
        return sorted(values, key=repr)
