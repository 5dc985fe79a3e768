from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_fuzz.strategies import str_rows, structs, token_rows
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    SchedulerLedger,
    StrRow,
    TokenRow,
    pack_i32,
    pack_i64,
)

STOP = FinishReason("stop", matched=2)


@given(st.lists(token_rows()), structs(SchedulerLedger))
def test_rows_of_tokens_can_be_unpacked_again(rows: list[TokenRow], ledger: SchedulerLedger) -> None:
    """rows() is the inverse of from_rows(), and the columns agree."""
    message = BatchTokenIDOutput.from_rows(rows, ledger)
    assert message.check_columns() is None
    assert rows == message.rows()
    assert ledger == message.ledger
    assert len(rows) == len(message)


@given(st.lists(str_rows()))
def test_rows_of_text_can_be_unpacked_again(rows: list[StrRow]) -> None:
    """rows() is the inverse of from_rows(), and the columns agree."""
    message = BatchStrOutput.from_rows(rows, SchedulerLedger(), 0)
    assert message.check_columns() is None
    assert rows == message.rows()


@given(st.lists(token_rows()))
def test_the_views_are_the_columns_of_the_rows(rows: list[TokenRow]) -> None:
    """Each documented field is the column of that name."""
    message = BatchTokenIDOutput.from_rows(rows, SchedulerLedger())
    assert [row.vid for row in rows] == message.vids
    assert [row.offset for row in rows] == message.decoded_offsets
    assert [row.token_ids for row in rows] == [tuple(ids) for ids in message.output_ids]
    assert [row.reason is not None for row in rows] == message.finished
    assert [row.reason for row in rows] == message.finished_reasons


def test_counts_travel_only_if_some_row_has_not_just_one_token() -> None:
    assert BatchTokenIDOutput.from_rows([TokenRow(1, 0, (5,))], SchedulerLedger()).packed_counts is None
    assert BatchTokenIDOutput.from_rows([TokenRow(1, 0)], SchedulerLedger()).packed_counts == pack_i32([0])


def test_output_ids_are_views_into_the_column() -> None:
    message = BatchTokenIDOutput.from_rows([TokenRow(1, 0, (5, 6)), TokenRow(2, 0, (7,))], SchedulerLedger())
    assert [ids.obj is message.packed_ids.obj for ids in message.output_ids] == [True, True]


AGREEING: dict[str, Any] = {
    "packed_vids": pack_i64([5, 6]),
    "packed_offsets": pack_i32([0, 3]),
    "packed_counts": pack_i32([1, 2]),
    "packed_ids": pack_i32([7, 8, 9]),
    "sparse_reasons": [(1, STOP)],
}

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"packed_vids": memoryview(bytes(9))}, "a packed column has 9 bytes, not a multiple of 8"),
    ({"packed_offsets": memoryview(bytes(7))}, "a packed column has 7 bytes, not a multiple of 4"),
    ({"packed_counts": memoryview(bytes(5))}, "a packed column has 5 bytes, not a multiple of 4"),
    ({"packed_ids": memoryview(bytes(2))}, "a packed column has 2 bytes, not a multiple of 4"),
    ({"packed_vids": pack_i64([5])}, "1 vids, 2 offsets, 2 counts"),
    ({"packed_offsets": pack_i32([0])}, "2 vids, 1 offsets, 2 counts"),
    ({"packed_counts": pack_i32([1, 1, 1])}, "2 vids, 2 offsets, 3 counts"),
    ({"packed_vids": pack_i64([5, -6])}, "vid -6 is negative"),
    ({"packed_offsets": pack_i32([-1, 3])}, "offset -1 is negative"),
    ({"packed_counts": pack_i32([4, -1])}, "count -1 is negative"),
    ({"packed_counts": pack_i32([1, 1])}, "counts sum to 2, 3 token ids"),
    ({"packed_counts": pack_i32([(1 << 31) - 1] * 2)}, "counts sum to 4294967294, 3 token ids"),
    ({"packed_counts": None}, "counts sum to 2, 3 token ids"),
    ({"sparse_reasons": [(2, STOP)]}, "finish reason for row 2 of 2, after row -1"),
    ({"sparse_reasons": [(-1, STOP)]}, "finish reason for row -1 of 2, after row -1"),
    ({"sparse_reasons": [(1 << 64, STOP)]}, f"finish reason for row {1 << 64} of 2, after row -1"),
    ({"sparse_reasons": [(1, STOP), (0, STOP)]}, "finish reason for row 0 of 2, after row 1"),
    ({"sparse_reasons": [(0, STOP), (0, STOP)]}, "finish reason for row 0 of 2, after row 0"),
]


def test_columns_that_agree_have_no_fault() -> None:
    assert BatchTokenIDOutput(**AGREEING).check_columns() is None
    assert BatchStrOutput(**AGREEING, output_strs=["", "x"]).check_columns() is None


@pytest.mark.parametrize(("columns", "fault"), CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_told(columns: dict[str, Any], fault: str) -> None:
    assert fault == BatchTokenIDOutput(**AGREEING | columns).check_columns()


def test_texts_are_as_many_as_rows() -> None:
    assert BatchStrOutput(**AGREEING, output_strs=["x"]).check_columns() == "2 vids, 1 texts"
    assert BatchStrOutput(output_strs=["x"]).check_columns() == "0 vids, 1 texts"


@pytest.mark.parametrize("columns", [columns for columns, _ in CONTRADICTIONS])
def test_texts_do_not_hide_a_contradiction(columns: dict[str, Any]) -> None:
    assert BatchStrOutput(**AGREEING | columns, output_strs=["", "x"]).check_columns() is not None
