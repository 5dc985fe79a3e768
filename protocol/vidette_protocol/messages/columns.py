"""Packed columns: how many numbers of one kind travel, and how they are read without copying.

A column is a read-only view of bytes, little-endian. When built here it views an array; when decoded it
views the frame, which lives as long as the view does. Neither is copied to be read.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

if sys.byteorder != "little":  # pragma: no cover  (no such machine to test on)
    raise ImportError("vidette_protocol packs native little-endian columns; this machine is big-endian")

EMPTY = memoryview(b"")


def pack_i32(values: Iterable[int]) -> memoryview:
    """Pack integers of 32 bits, as token ids, counts and offsets are.

    Raises:
        OverflowError: one does not fit.
    """
    return memoryview(array("i", values)).cast("B").toreadonly()


def pack_i64(values: Iterable[int]) -> memoryview:
    """Pack integers of 64 bits, as vids are.

    Raises:
        OverflowError: one does not fit.
    """
    return memoryview(array("q", values)).cast("B").toreadonly()


def view_i32(column: memoryview) -> memoryview:
    """View a column as integers of 32 bits, without copying.

    Raises:
        ValueError: its length is not a multiple of 4 bytes.
    """
    _check_width(column, 4)
    return column.cast("i")


def view_i64(column: memoryview) -> memoryview:
    """View a column as integers of 64 bits, without copying.

    Raises:
        ValueError: its length is not a multiple of 8 bytes.
    """
    _check_width(column, 8)
    return column.cast("q")


def _check_width(column: memoryview, width: int) -> None:
    if column.nbytes % width:
        raise ValueError(f"a packed column has {column.nbytes} bytes, not a multiple of {width}")
