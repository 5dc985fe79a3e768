"""`BatchLayout`: batch messages taken apart and put together, whatever their fields are.

Each field says by its type which kind of column it is (`columns.Column`), and only that is looked at here: a
field that is added later is carried along, and a class with one that does not say is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from vidette_protocol.messages.base import BaseBatchReq
from vidette_protocol.messages.columns import COLUMN, Column, pack_i32, pack_i64, view_i32, view_i64

B = TypeVar("B", bound=BaseBatchReq)
K = TypeVar("K", bound=Hashable)


class BatchLayout(Generic[B]):
    """Takes messages of one class apart and puts them together; built once.

    Args:
        cls: a batch message.

    Raises:
        TypeError: a field does not say which kind of column it is.
    """

    def __init__(self, cls: type[B]) -> None:
        self._cls = cls
        self.columns = {field.name: _kind(cls, field) for field in msgspec.structs.fields(cls)}
        """The kind of every field."""

    def pick(self, message: B, rows: Sequence[int]) -> B:
        """Return a message with some of the rows, in the given order.

        Args:
            message: which to take them from.
            rows: their positions, none twice.

        Raises:
            IndexError: there is no such row.
        """
        for row in rows:
            if not 0 <= row < len(message):
                raise IndexError(f"there is no row {row} among {len(message)}")
        columns = msgspec.structs.asdict(message)
        spans = self._spans(columns, len(message))
        picked = {
            name: None if columns[name] is None else _pick(kind, columns[name], rows, spans)
            for name, kind in self.columns.items()
        }
        return self._cls(**picked)

    def split(self, message: B, key: Callable[[int], K]) -> dict[K, B]:
        """Take a message apart by the vids of its rows; rows keep their order.

        Args:
            message: what to take apart.
            key: says for a vid to which part its row belongs, such as `ids.front_of`.
        """
        parts: dict[K, list[int]] = {}
        for row, vid in enumerate(message.vids):
            parts.setdefault(key(vid), []).append(row)
        return {part: self.pick(message, rows) for part, rows in parts.items()}

    def join(self, messages: Sequence[B]) -> B:
        """Put messages together, row after row; they are of one sender, and in order.

        Raises:
            ValueError: there is none.
        """
        if not messages:
            raise ValueError("there is no message to put together")
        all_columns = [msgspec.structs.asdict(message) for message in messages]
        lengths = [len(message) for message in messages]
        return self._cls(
            **{
                name: _join(kind, [columns[name] for columns in all_columns], lengths)
                for name, kind in self.columns.items()
            }
        )

    def _spans(self, columns: dict[str, Any], rows: int) -> list[slice]:
        """Return where the tokens of each row lie."""
        counts = [1] * rows
        for name, kind in self.columns.items():
            if kind is Column.COUNTS and columns[name] is not None:
                counts = view_i32(columns[name]).tolist()
        spans, start = [], 0
        for count in counts:
            spans.append(slice(start, start + count))
            start += count
        return spans


def _pick(kind: Column, column: Any, rows: Sequence[int], spans: Sequence[slice]) -> Any:
    match kind:
        case Column.I32 | Column.COUNTS:
            return pack_i32(map(view_i32(column).__getitem__, rows))
        case Column.I64:
            return pack_i64(map(view_i64(column).__getitem__, rows))
        case Column.TOKENS:
            ids = view_i32(column)
            return pack_i32(token for row in rows for token in ids[spans[row]])
        case Column.LISTED:
            return [column[row] for row in rows]
        case Column.SPARSE:
            values = dict(column)
            return [(new, values[old]) for new, old in enumerate(rows) if old in values]
        case Column.WHOLE:  # pragma: no branch  (there are no others, says mypy)
            return column


def _join(kind: Column, columns: Sequence[Any], lengths: Sequence[int]) -> Any:
    if all(column is None for column in columns):
        return None
    match kind:
        case Column.I32 | Column.COUNTS:
            absent = pack_i32([1 if kind is Column.COUNTS else 0])
            return _concatenate(columns, lengths, absent)
        case Column.I64:
            return _concatenate(columns, lengths, pack_i64([0]))
        case Column.TOKENS:
            return memoryview(b"".join(columns))
        case Column.LISTED:
            return [item for column in columns for item in column]
        case Column.SPARSE:
            starts = [sum(lengths[:i]) for i in range(len(lengths))]
            return [
                (start + row, value)
                for start, column in zip(starts, columns, strict=True)
                for row, value in column
            ]
        case Column.WHOLE:  # pragma: no branch  (there are no others, says mypy)
            return columns[-1]


def _concatenate(columns: Sequence[Any], lengths: Sequence[int], absent: memoryview) -> memoryview:
    """Put packed numbers one after the other; a message that has none has as many of what `absent` holds."""
    return memoryview(
        b"".join(
            bytes(absent) * length if column is None else column
            for column, length in zip(columns, lengths, strict=True)
        )
    )


def _kind(cls: type, field: msgspec.structs.FieldInfo) -> Column:
    described = inspect.type_info(field.type)
    kinds = described.types if isinstance(described, inspect.UnionType) else (described,)
    for part in kinds:
        if isinstance(part, inspect.Metadata) and isinstance(kind := (part.extra or {}).get(COLUMN), Column):
            return kind
    raise TypeError(f"{cls.__name__}.{field.name} does not say which kind of column it is")
