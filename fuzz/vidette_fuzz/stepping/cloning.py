"""`clone`: an independent copy of what an engine holds, as `copy.deepcopy` makes it, but faster."""

from __future__ import annotations

import types
from collections import deque
from enum import Enum
from functools import cache
from itertools import count
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct

_T = TypeVar("_T")


def clone(value: _T, shared: dict[int, Any]) -> _T:
    """Return an independent copy.

    Args:
        value: of any kind that an engine holds. Messages are never changed, so they are kept; and so are
            counters that only make names.
        shared: copies by the `id` of what they are copies of; what is to be kept is its own copy.
    """
    twin: _T = _clone(value, shared)
    return twin


def _clone(value: Any, known: dict[int, Any]) -> Any:
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    twin = known.get(id(value))
    if twin is not None:
        return twin
    if kind is dict:
        known[id(value)] = twin = {}
        for key, item in value.items():
            twin[_clone(key, known)] = _clone(item, known)
        return twin
    if kind is list:
        known[id(value)] = twin = []
        twin += [_clone(item, known) for item in value]
        return twin
    if isinstance(value, tuple):
        items = [_clone(item, known) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple.__new__(kind, items)
    members = _members(kind)
    if members is None:
        return value
    if kind in _COPIED:
        known[id(value)] = twin = value.copy()
        return twin
    if kind is types.MethodType:
        return types.MethodType(value.__func__, _clone(value.__self__, known))
    known[id(value)] = twin = kind.__new__(kind)
    slots, has_dict = members
    for slot in slots:
        try:
            item = slot.__get__(value, kind)
        except AttributeError:  # it has no value yet
            continue
        slot.__set__(twin, _clone(item, known))
    if has_dict:
        inner = twin.__dict__
        for name, item in value.__dict__.items():
            inner[name] = _clone(item, known)
    return twin


@cache
def _members(kind: Any) -> tuple[list[types.MemberDescriptorType], bool] | None:
    """Return the slots of a kind of object, and whether it has a dict; None: it is never changed."""
    if issubclass(kind, _KEPT):
        return None
    members = [member for each in kind.__mro__ for member in each.__dict__.values()]
    slots = [member for member in members if isinstance(member, types.MemberDescriptorType)]
    return slots, kind.__dictoffset__ != 0


_ATOMS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_COPIED: Final = frozenset({np.ndarray, bytearray, set, deque})
_KEPT: Final = (
    Struct,
    Enum,
    frozenset,
    count,
    memoryview,
    type,
    types.FunctionType,
    types.ModuleType,
    np.generic,
)
