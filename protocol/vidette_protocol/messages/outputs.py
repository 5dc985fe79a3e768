"""Step messages: columns, not rows, since a step of many requests is one message.

Row `i` of every column belongs to the same request. Numbers are packed; finish reasons are sparse, as
most rows of most steps have none. The properties give the documented row view.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, Self

from msgspec import Struct

from vidette_protocol.messages.base import Message, Tag
from vidette_protocol.messages.columns import EMPTY, pack_i32, pack_i64, view_i32, view_i64
from vidette_protocol.messages.control import SchedulerLedger


class FinishReason(Struct, array_like=True, frozen=True):
    """How a request ended.

    Args:
        type: "stop" (the model ended it), "length" (`max_new_tokens` reached), "abort" (its caller did, and
            this is the acknowledgement), "error" (this request failed alone).
        matched: the end-of-sequence token id, with "stop".
        length: the bound that was reached, with "length".
        message: a sentence, with "abort" and "error".
    """

    type: Literal["stop", "length", "abort", "error"]
    matched: int | None = None
    length: int | None = None
    message: str | None = None


class TokenRow(Struct, frozen=True):
    """One request's share of a step, before it is packed.

    Args:
        vid: whose.
        offset: position of the first of these tokens in the request's output.
        token_ids: new output tokens; may be empty on a finish.
        reason: set once, on the last row of a vid.
    """

    vid: int
    offset: int
    token_ids: tuple[int, ...] = ()
    reason: FinishReason | None = None


class StrRow(Struct, frozen=True):
    """One request's text out of a step, before it is packed: a TokenRow and what it adds to the text."""

    vid: int
    offset: int
    token_ids: tuple[int, ...] = ()
    reason: FinishReason | None = None
    text: str = ""


class _Columns:
    """Rows turned into the columns that both step messages share."""

    __slots__ = ("counts", "ids", "offsets", "reasons", "vids")

    def __init__(self, rows: Sequence[TokenRow | StrRow]) -> None:
        counts = [len(row.token_ids) for row in rows]
        self.vids = pack_i64(row.vid for row in rows)
        self.offsets = pack_i32(row.offset for row in rows)
        self.counts = None if all(count == 1 for count in counts) else pack_i32(counts)
        self.ids = pack_i32(chain.from_iterable(row.token_ids for row in rows))
        self.reasons = [(i, row.reason) for i, row in enumerate(rows) if row.reason is not None]


class _Rows(Message, kw_only=True, frozen=True):
    """Columns that both step messages have.

    This class is complete: a field added here would shift those of its subclasses on the wire. New columns
    are appended to each of them.

    Args:
        packed_vids: int64, one a row.
        packed_offsets: int32, position of each row's first token in its output.
        packed_counts: int32, tokens of each row; None if each row has just one.
        packed_ids: int32, output tokens of all rows, row after row.
        sparse_reasons: (row, reason) of the rows that end here.
    """

    packed_vids: memoryview = EMPTY
    packed_offsets: memoryview = EMPTY
    packed_counts: memoryview | None = None
    packed_ids: memoryview = EMPTY
    sparse_reasons: list[tuple[int, FinishReason]] = []  # noqa: RUF012  msgspec makes a new one each time

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.packed_vids.nbytes // 8

    @property
    def vids(self) -> list[int]:
        """The vid of each row."""
        return view_i64(self.packed_vids).tolist()

    @property
    def decoded_offsets(self) -> list[int]:
        """Position of each row's first token in the whole output."""
        return view_i32(self.packed_offsets).tolist()

    @property
    def finished(self) -> list[bool]:
        """Whether each row is the last of its vid."""
        ended = {row for row, _ in self.sparse_reasons}
        return [row in ended for row in range(len(self))]

    @property
    def finished_reasons(self) -> list[FinishReason | None]:
        """How each row ends, or None."""
        reasons = dict(self.sparse_reasons)
        return [reasons.get(row) for row in range(len(self))]

    @property
    def output_ids(self) -> list[memoryview]:
        """New output tokens of each row, as views of int32."""
        ids = view_i32(self.packed_ids)
        start, parts = 0, []
        for count in self._counts():
            parts.append(ids[start : start + count])
            start += count
        return parts

    def check_columns(self) -> str | None:
        """Return in a sentence where the columns contradict each other, or None if they agree."""
        try:
            vids = view_i64(self.packed_vids)
            offsets = view_i32(self.packed_offsets)
            counts = self._counts()
            ids = view_i32(self.packed_ids)
        except ValueError as error:
            return str(error)
        rows = len(vids)
        if len(offsets) != rows or len(counts) != rows:
            return f"{rows} vids, {len(offsets)} offsets, {len(counts)} counts"
        for name, column in (("vid", vids), ("offset", offsets), ("count", counts)):
            lowest = min(column, default=0)
            if lowest < 0:
                return f"{name} {lowest} is negative"
        if sum(counts) != len(ids):
            return f"counts sum to {sum(counts)}, {len(ids)} token ids"
        last = -1
        for row, _ in self.sparse_reasons:
            if not last < row < rows:
                return f"finish reason for row {row} of {rows}, after row {last}"
            last = row
        return None

    def _counts(self) -> list[int]:
        if self.packed_counts is None:
            return [1] * len(self)
        return view_i32(self.packed_counts).tolist()


class BatchTokenIDOutput(_Rows, tag=Tag.BATCH_TOKEN_ID_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to detokenizer: what one step made, one row for each request that has something to say.

    Args:
        ledger: what the scheduler holds after this step.
    """

    ledger: SchedulerLedger = SchedulerLedger()

    @classmethod
    def from_rows(cls, rows: list[TokenRow], ledger: SchedulerLedger) -> Self:
        """Pack rows into columns."""
        packed = _Columns(rows)
        return cls(
            packed_vids=packed.vids,
            packed_offsets=packed.offsets,
            packed_counts=packed.counts,
            packed_ids=packed.ids,
            sparse_reasons=packed.reasons,
            ledger=ledger,
        )

    def rows(self) -> list[TokenRow]:
        """Unpack into rows."""
        return [
            TokenRow(vid, offset, tuple(ids), reason)
            for vid, offset, ids, reason in zip(
                self.vids, self.decoded_offsets, self.output_ids, self.finished_reasons, strict=True
            )
        ]


class BatchStrOutput(_Rows, tag=Tag.BATCH_STR_OUTPUT, kw_only=True, frozen=True):
    """Detokenizer to front: the text that a step added, row by row as in BatchTokenIDOutput.

    Args:
        output_strs: text that each row adds; the pieces of a vid, put together, are its whole text.
        ledger: as in BatchTokenIDOutput.
        detokenizer_open: requests the detokenizer holds after this message.
    """

    output_strs: list[str] = []  # noqa: RUF012  as above
    ledger: SchedulerLedger = SchedulerLedger()
    detokenizer_open: int = 0

    @classmethod
    def from_rows(cls, rows: list[StrRow], ledger: SchedulerLedger, detokenizer_open: int) -> Self:
        """Pack rows into columns."""
        packed = _Columns(rows)
        return cls(
            packed_vids=packed.vids,
            packed_offsets=packed.offsets,
            packed_counts=packed.counts,
            packed_ids=packed.ids,
            sparse_reasons=packed.reasons,
            output_strs=[row.text for row in rows],
            ledger=ledger,
            detokenizer_open=detokenizer_open,
        )

    def rows(self) -> list[StrRow]:
        """Unpack into rows."""
        return [
            StrRow(vid, offset, tuple(ids), reason, text)
            for vid, offset, ids, reason, text in zip(
                self.vids,
                self.decoded_offsets,
                self.output_ids,
                self.finished_reasons,
                self.output_strs,
                strict=True,
            )
        ]

    def check_columns(self) -> str | None:
        """As in the base, for the texts as well."""
        if len(self.output_strs) != len(self):
            return f"{len(self)} vids, {len(self.output_strs)} texts"
        return super().check_columns()
