"""Step messages: columns, not rows, since a step of many requests is one message.

Row `i` of every column belongs to the same request. Numbers are packed; finish reasons are sparse, as
most rows of most steps have none. The properties give the documented row view.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, starmap
from typing import Any, Self

from vidette_protocol.messages.base import BaseBatchReq
from vidette_protocol.messages.columns import (
    EMPTY,
    Counts,
    Listed,
    RowsI32,
    RowsI64,
    Sparse,
    Tokens,
    Whole,
    all_natural,
    check_sparse,
    pack_i32,
    pack_i64,
    spread,
    view_i32,
    view_i64,
)
from vidette_protocol.messages.control import SchedulerLedger
from vidette_protocol.messages.logprobs import (
    LogprobsMixin,
    SpeculativeDecodingMetricsMixin,
    SpeculativeMetrics,
    TokenLogprobs,
)
from vidette_protocol.messages.rows import FinishReason, Served, StrRow, TokenRow
from vidette_protocol.messages.sampling import ALL_MODES
from vidette_protocol.messages.tags import Tag


class StepColumns(LogprobsMixin, SpeculativeDecodingMetricsMixin, kw_only=True, frozen=True):
    """Columns that both step messages have.

    This class is complete: a field added here would shift those of its subclasses on the wire. New columns
    are appended to each of them.

    Args:
        packed_vids: int64, one a row.
        packed_offsets: int32, position of each row's first token in its output.
        packed_counts: int32, tokens of each row; None if each row has just one.
        packed_ids: int32, output tokens of all rows, row after row.
        sparse_reasons: (row, reason) of the rows that end here.
        sparse_logprobs: log probabilities of the rows that asked for some.
        sparse_spec: metrics of the rows that speculate.
        sparse_rids: rids of rows, for people who watch a link; usually left out.
    """

    packed_vids: RowsI64 = EMPTY
    packed_offsets: RowsI32 = EMPTY
    packed_counts: Counts = None
    packed_ids: Tokens = EMPTY
    sparse_reasons: Sparse[FinishReason] = []  # noqa: RUF012  msgspec makes a new one each time
    sparse_logprobs: Sparse[TokenLogprobs] = []  # noqa: RUF012  as above
    sparse_spec: Sparse[SpeculativeMetrics] = []  # noqa: RUF012  as above
    sparse_rids: Sparse[str] = []  # noqa: RUF012  as above

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.packed_vids.nbytes // 8

    @property
    def vids(self) -> list[int]:
        """The vid of each row."""
        return view_i64(self.packed_vids).tolist()

    @property
    def rids(self) -> list[str | None]:
        """The rid of each row, if it travels; nothing is looked up by it."""
        return spread(self.sparse_rids, len(self))

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
        return spread(self.sparse_reasons, len(self))

    @property
    def logprobs(self) -> list[TokenLogprobs | None]:
        """Log probabilities of each row, or None."""
        return spread(self.sparse_logprobs, len(self))

    @property
    def spec(self) -> list[SpeculativeMetrics | None]:
        """How speculation went for each row, or None."""
        return spread(self.sparse_spec, len(self))

    @property
    def output_ids(self) -> list[memoryview]:
        """New output tokens of each row, as views of int32."""
        ids = view_i32(self.packed_ids)
        start, parts = 0, []
        for count in self.counts:
            parts.append(ids[start : start + count])
            start += count
        return parts

    def _token_ids(self) -> list[tuple[int, ...]]:
        """Return the new output tokens of each row; quicker than many small views of them."""
        ids = view_i32(self.packed_ids).tolist()
        if self.packed_counts is None:
            return list(zip(ids, strict=True))
        ends = list(accumulate(self.counts))
        return [tuple(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def counts(self) -> list[int]:
        """How many new output tokens each row has."""
        if self.packed_counts is None:
            return [1] * len(self)
        return view_i32(self.packed_counts).tolist()

    def check_columns(self) -> str | None:
        """Return in a sentence where the columns contradict each other, or None if they agree."""
        if not self._packed_agree():
            return self._packed_fault()
        fault = None
        if self.sparse_reasons:
            fault = check_sparse("finish reason", self.sparse_reasons, len(self))
        if self.sparse_rids or self.sparse_spec or self.sparse_logprobs:
            fault = fault or self._sparse_fault()
        return fault

    def _packed_agree(self) -> bool:
        """Return whether the packed columns fit together; asked of every message, so without a loop."""
        counts, tokens = self.packed_counts, self.packed_ids.nbytes
        rows = self.packed_vids.nbytes // 8
        if self.packed_vids.nbytes != 8 * rows or self.packed_offsets.nbytes != 4 * rows:
            return False
        if counts is None:
            if tokens != 4 * rows:
                return False
        elif counts.nbytes != 4 * rows or not all_natural(counts, 4) or tokens != 4 * sum(view_i32(counts)):
            return False
        return all_natural(self.packed_vids, 8) and all_natural(self.packed_offsets, 4)

    def _packed_fault(self) -> str:
        """Return in a sentence why the packed columns do not fit together."""
        try:
            vids = view_i64(self.packed_vids)
            offsets = view_i32(self.packed_offsets)
            counts = self.counts
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
        return f"counts sum to {sum(counts)}, {len(ids)} token ids"

    def _sparse_fault(self) -> str | None:
        """Return in a sentence what is wrong with the columns that few messages have, or None."""
        rows, counts = len(self), self.counts
        return (
            check_sparse("rid", self.sparse_rids, rows)
            or check_sparse("speculation", self.sparse_spec, rows)
            or check_sparse("log probabilities", self.sparse_logprobs, rows)
            or next(filter(None, (row.check(counts[i]) for i, row in self.sparse_logprobs)), None)
        )


class BatchTokenIDOutput(StepColumns, tag=Tag.BATCH_TOKEN_ID_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to detokenizer: what one step made, one row for each request that has something to say.

    Args:
        ledger: what the scheduler holds after this step.
        sparse_texts: text that the scheduler decided on before a row's tokens.
        sparse_held: bytes at the end of a row's text that are not shown, as in TokenRow; absent: none.
        sparse_modes: how a request's tokens become text, as in TokenRow; absent: in the usual way.
        sparse_served: how requests were served, of the rows that say so.
    """

    ledger: Whole[SchedulerLedger] = SchedulerLedger()
    sparse_texts: Sparse[str] = []  # noqa: RUF012  as above
    sparse_held: Sparse[int] = []  # noqa: RUF012  as above
    sparse_modes: Sparse[int] = []  # noqa: RUF012  as above
    sparse_served: Sparse[Served] = []  # noqa: RUF012  as above

    @property
    def decoded_texts(self) -> list[str]:
        """Text that the scheduler decided on before each row's tokens."""
        if not self.sparse_texts:
            return [""] * len(self)
        return [text or "" for text in spread(self.sparse_texts, len(self))]

    @property
    def held(self) -> list[int]:
        """Bytes at the end of each row's text that are not shown."""
        return _spread_ints(self.sparse_held, len(self))

    @property
    def modes(self) -> list[int]:
        """How each row's tokens become text, a TextMode; of rows at offset 0."""
        return _spread_ints(self.sparse_modes, len(self))

    @property
    def served(self) -> list[Served | None]:
        """How each row's request was served, or None."""
        return spread(self.sparse_served, len(self))

    @classmethod
    def from_rows(cls, rows: Sequence[TokenRow], ledger: SchedulerLedger) -> Self:
        """Pack rows into columns."""
        return cls(
            **_columns(rows),
            ledger=ledger,
            sparse_texts=[(i, row.decoded_text) for i, row in enumerate(rows) if row.decoded_text],
            sparse_held=[(i, row.held) for i, row in enumerate(rows) if row.held],
            sparse_modes=[(i, row.mode) for i, row in enumerate(rows) if row.mode],
            sparse_served=_served(rows),
        )

    def rows(self) -> list[TokenRow]:
        """Unpack into rows."""
        return [
            TokenRow(*row)
            for row in zip(
                self.vids,
                self.decoded_offsets,
                self._token_ids(),
                self.finished_reasons,
                self.logprobs,
                self.spec,
                self.decoded_texts,
                self.held,
                self.modes,
                self.served,
                strict=True,
            )
        ]

    def check_columns(self) -> str | None:
        """As in the base, for what is said of texts as well."""
        fault = super().check_columns()
        if self.sparse_texts or self.sparse_held or self.sparse_modes:
            fault = fault or self._fault_of_texts()
        if self.sparse_served:
            fault = fault or check_sparse("service", self.sparse_served, len(self))
        return fault

    def _fault_of_texts(self) -> str | None:
        rows = len(self)
        if fault := (
            check_sparse("text", self.sparse_texts, rows)
            or check_sparse("bytes held back", self.sparse_held, rows)
            or check_sparse("mode", self.sparse_modes, rows)
        ):
            return fault
        for row, held in self.sparse_held:
            if held < 0:
                return f"row {row} holds {held} bytes back"
        for row, mode in self.sparse_modes:
            if not 0 <= mode <= ALL_MODES:
                return f"the mode of row {row} is {mode}"
        return None


class BatchStrOutput(StepColumns, tag=Tag.BATCH_STR_OUTPUT, kw_only=True, frozen=True):
    """Detokenizer to front: the text that a step added, row by row as in BatchTokenIDOutput.

    Args:
        output_strs: text that each row adds; the pieces of a vid, put together, are its whole text.
        ledger: as in BatchTokenIDOutput.
        detokenizer_open: requests the detokenizer holds after this message.
        sparse_served: as in BatchTokenIDOutput.
    """

    output_strs: Listed[str] = []  # noqa: RUF012  as above
    ledger: Whole[SchedulerLedger] = SchedulerLedger()
    detokenizer_open: Whole[int] = 0
    sparse_served: Sparse[Served] = []  # noqa: RUF012  as above

    @property
    def served(self) -> list[Served | None]:
        """How each row's request was served, or None."""
        return spread(self.sparse_served, len(self))

    @classmethod
    def from_rows(cls, rows: Sequence[StrRow], ledger: SchedulerLedger, detokenizer_open: int) -> Self:
        """Pack rows into columns."""
        return cls(
            **_columns(rows),
            output_strs=[row.text for row in rows],
            ledger=ledger,
            detokenizer_open=detokenizer_open,
            sparse_served=_served(rows),
        )

    def rows(self) -> list[StrRow]:
        """Unpack into rows."""
        columns = zip(
            self.vids,
            self.decoded_offsets,
            self._token_ids(),
            self.finished_reasons,
            self.output_strs,
            self.logprobs,
            self.spec,
            self.served,
            strict=True,
        )
        return list(starmap(StrRow, columns))

    def check_columns(self) -> str | None:
        """As in the base, for the texts as well."""
        if len(self.output_strs) != len(self):
            return f"{len(self)} vids, {len(self.output_strs)} texts"
        fault = super().check_columns()
        if self.sparse_served:
            fault = fault or check_sparse("service", self.sparse_served, len(self))
        return fault


class BatchEmbeddingOutput(BaseBatchReq, tag=Tag.BATCH_EMBEDDING_OUTPUT, kw_only=True, frozen=True):
    """Scheduler to front: embeddings or scores, each row the only one of its vid.

    Args:
        packed_vids: int64, one a row.
        embeddings: of each row: an array of float32, several of them as one array of two dimensions, a map
            of the dimensions that are not 0, or a score; None of a row that failed.
        sparse_reasons: (row, reason) of the rows that were aborted or failed.
        packed_prompt_tokens: int32, length of each prompt.
        packed_cached_tokens: int32, how much of it was in the prefix cache; None: nothing.
        sparse_hidden_states: pooled hidden states of the rows that asked for them, an array each.
        sparse_rids: as in StepColumns.
        ledger: what the scheduler holds now.
    """

    packed_vids: RowsI64 = EMPTY
    embeddings: Listed[object] = []  # noqa: RUF012  as above
    sparse_reasons: Sparse[FinishReason] = []  # noqa: RUF012  as above
    packed_prompt_tokens: RowsI32 = EMPTY
    packed_cached_tokens: RowsI32 | None = None
    sparse_hidden_states: Sparse[object] = []  # noqa: RUF012  as above
    sparse_rids: Sparse[str] = []  # noqa: RUF012  as above
    ledger: Whole[SchedulerLedger] = SchedulerLedger()

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.packed_vids.nbytes // 8

    @property
    def vids(self) -> list[int]:
        """The vid of each row."""
        return view_i64(self.packed_vids).tolist()

    @property
    def rids(self) -> list[str | None]:
        """The rid of each row, if it travels."""
        return spread(self.sparse_rids, len(self))

    @property
    def finished_reasons(self) -> list[FinishReason | None]:
        """How each row ended, or None if it was made."""
        return spread(self.sparse_reasons, len(self))

    @property
    def pooled_hidden_states(self) -> list[object | None]:
        """What each row asked for of them, or None."""
        return spread(self.sparse_hidden_states, len(self))

    @property
    def prompt_tokens(self) -> list[int]:
        """Length of each prompt."""
        return view_i32(self.packed_prompt_tokens).tolist()

    @property
    def cached_tokens(self) -> list[int]:
        """How much of each prompt was in the prefix cache."""
        if self.packed_cached_tokens is None:
            return [0] * len(self)
        return view_i32(self.packed_cached_tokens).tolist()

    def check_columns(self) -> str | None:
        """Return in a sentence where the columns contradict each other, or None if they agree."""
        try:
            rows = len(view_i64(self.packed_vids))
            lengths = {
                "prompt lengths": len(view_i32(self.packed_prompt_tokens)),
                "cached lengths": len(self.cached_tokens),
            }
        except ValueError as error:
            return str(error)
        lengths["embeddings"] = len(self.embeddings)
        for name, length in lengths.items():
            if length != rows:
                return f"{rows} vids, {length} {name}"
        if min(self.vids, default=0) < 0:
            return f"vid {min(self.vids)} is negative"
        return (
            check_sparse("finish reason", self.sparse_reasons, rows)
            or check_sparse("hidden state", self.sparse_hidden_states, rows)
            or check_sparse("rid", self.sparse_rids, rows)
        )


def _spread_ints(sparse: Sequence[tuple[int, int]], rows: int) -> list[int]:
    """Return a sparse column with an item for each row, 0 where it has none."""
    values = [0] * rows
    for row, value in sparse:
        values[row] = value
    return values


def _served(rows: Sequence[TokenRow | StrRow]) -> list[tuple[int, Served]]:
    return [(i, row.served) for i, row in enumerate(rows) if row.served is not None]


def _columns(rows: Sequence[TokenRow | StrRow]) -> dict[str, Any]:
    """Return the columns that both step messages share."""
    # Of lists, not of generators: an array is then made twice as fast, and this is made at every step.
    token_ids = [row.token_ids for row in rows]
    counts = list(map(len, token_ids))
    return {
        "packed_vids": pack_i64([row.vid for row in rows]),
        "packed_offsets": pack_i32([row.offset for row in rows]),
        "packed_counts": None if counts.count(1) == len(counts) else pack_i32(counts),
        "packed_ids": pack_i32(list(chain.from_iterable(token_ids))),
        "sparse_reasons": [(i, row.reason) for i, row in enumerate(rows) if row.reason is not None],
        "sparse_logprobs": [(i, row.logprobs) for i, row in enumerate(rows) if row.logprobs is not None],
        "sparse_spec": [(i, row.spec) for i, row in enumerate(rows) if row.spec is not None],
    }
