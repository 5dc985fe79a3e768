"""Which pointers a message holds: each has to be acknowledged, whatever becomes of the message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import astuple

from vidette_protocol.ext.descriptors import CudaIpcHandle, ShmPointer


def pointers_in(value: object) -> Iterator[ShmPointer | CudaIpcHandle]:
    """Yield each pointer in a value, once: in fields, lists, tuples and mappings, however deep."""
    seen: set[int] = set()
    left = [value]
    while left:
        part = left.pop()
        if not isinstance(part, Struct | Mapping | list | tuple | ShmPointer | CudaIpcHandle):
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        match part:
            case ShmPointer() | CudaIpcHandle():
                yield part
            case Struct():
                left += astuple(part)
            case Mapping():
                left += part.values()
            case _:
                left += part
