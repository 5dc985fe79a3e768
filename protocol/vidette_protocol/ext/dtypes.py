"""The element types that may travel, by name: a name off the wire is looked up here and nowhere else.

What is not here has no meaning outside its process (objects), differs between machines (long double), or
needs more than a name to be read (structures, strings, dates, quantised types).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TORCH_DTYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "bfloat16": 2,
        "float16": 2,
        "float32": 4,
        "float64": 8,
        "complex64": 8,
        "complex128": 16,
    }
)
"""Names without `torch.`, and bytes of an element. Where NumPy has the type, it has the name."""

UNKNOWN_TO_NUMPY: Final = frozenset(
    {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}
)
"""Those that NumPy has not."""

_WIDE: Final = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")

NUMPY_DTYPES: Final[Mapping[str, int]] = MappingProxyType(
    {"|b1": 1, "|i1": 1, "|u1": 1} | {order + code: int(code[1:]) for order in "<>" for code in _WIDE}
)
"""`dtype.str`, which states the byte order, and bytes of an element."""

ARRAY_TYPECODES: Final = frozenset("bBhHiIlLqQfd")
"""Typecodes of array.array but `u`: its elements are characters, and not every number is one."""
