from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_fuzz.strategies import str_rows, structs, token_rows
from vidette_protocol.codec import Codec
from vidette_protocol.messages import (
    BatchEmbeddingOutput,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    SchedulerLedger,
    Served,
    SpeculativeMetrics,
    StrRow,
    TokenLogprobs,
    TokenRow,
    pack_f32,
    pack_i32,
    pack_i64,
)

STOP = FinishReason("stop", matched=2)


@given(st.lists(token_rows(), max_size=4), structs(SchedulerLedger))
def test_rows_of_tokens_can_be_unpacked_again(rows: list[TokenRow], ledger: SchedulerLedger) -> None:
    """rows() is the inverse of from_rows(), and the columns agree."""
    message = BatchTokenIDOutput.from_rows(rows, ledger)
    assert message.check_columns() is None
    assert rows == message.rows()
    assert ledger == message.ledger
    assert len(rows) == len(message)


@given(st.lists(str_rows(), max_size=4))
def test_rows_of_text_can_be_unpacked_again(rows: list[StrRow]) -> None:
    """rows() is the inverse of from_rows(), and the columns agree."""
    message = BatchStrOutput.from_rows(rows, SchedulerLedger(), 0)
    assert message.check_columns() is None
    assert rows == message.rows()


@given(st.lists(str_rows(), max_size=4))
def test_the_views_are_the_columns_of_the_rows(rows: list[StrRow]) -> None:
    """Each documented field is the column of that name."""
    message = BatchStrOutput.from_rows(rows, SchedulerLedger(), 7)
    assert (message.ledger, message.detokenizer_open) == (SchedulerLedger(), 7)
    assert [row.text for row in rows] == message.output_strs
    assert [row.logprobs for row in rows] == message.logprobs
    assert [row.spec for row in rows] == message.spec
    assert [len(row.token_ids) for row in rows] == message.counts
    assert [row.vid for row in rows] == message.vids
    assert [row.offset for row in rows] == message.decoded_offsets
    assert [row.token_ids for row in rows] == [tuple(ids) for ids in message.output_ids]
    assert [row.reason is not None for row in rows] == message.finished
    assert [row.reason for row in rows] == message.finished_reasons


# Each field with a value that is not its default, so that one which is forgotten shows.
FIELDS: dict[str, Any] = {
    "vid": 5,
    "offset": 3,
    "token_ids": (7, 8),
    "reason": FinishReason("abort", message="left", status_code=499, err_type="gone"),
    "logprobs": TokenLogprobs(output_token_logprobs_val=pack_f32([-1.0, -2.0])),
    "spec": SpeculativeMetrics(2, 3, (1, 1)),
    "decoded_text": " so far",
    "held": 3,
    "mode": 5,
    "served": Served(32, 16, 2, 0.5),
    "text": "Hello",
}


@pytest.mark.parametrize("kind", [TokenRow, StrRow])
def test_no_field_of_a_row_is_forgotten(kind: type[TokenRow | StrRow]) -> None:
    fields = {name: FIELDS[name] for name in kind.__struct_fields__}
    for field in msgspec.structs.fields(kind):
        assert field.required or fields[field.name] != field.default
    row = kind(**fields)
    message: BatchTokenIDOutput | BatchStrOutput
    if isinstance(row, TokenRow):
        message = BatchTokenIDOutput.from_rows([row], SchedulerLedger())
    else:
        message = BatchStrOutput.from_rows([row], SchedulerLedger(), 0)
    codec = Codec(sends=[type(message)], receives=[type(message)])
    again = codec.decode(codec.encode(message))
    assert isinstance(again, BatchTokenIDOutput | BatchStrOutput)
    assert again.rows() == [row]


def test_the_documented_names_of_tokens() -> None:
    reason = FinishReason("length", length=3)
    message = BatchTokenIDOutput.from_rows(
        [
            TokenRow(5, 0, (1, 2), None, None, SpeculativeMetrics(1, 1, (0, 1)), "so far"),
            TokenRow(6, 2, (3,), reason, mode=1),
            TokenRow(7, 9, held=2),
        ],
        SchedulerLedger(live=2),
    )
    message = msgspec.structs.replace(message, sparse_rids=[(1, "chat-1")])
    assert len(message) == 3
    assert message.vids == [5, 6, 7]
    assert message.rids == [None, "chat-1", None]
    assert message.decoded_offsets == [0, 2, 9]
    assert [ids.tolist() for ids in message.output_ids] == [[1, 2], [3], []]
    assert message.counts == [2, 1, 0]
    assert message.finished == [False, True, False]
    assert message.finished_reasons == [None, reason, None]
    assert message.decoded_texts == ["so far", "", ""]
    assert message.held == [0, 0, 2]
    assert message.modes == [0, 1, 0]
    assert message.spec_verify_ct == [1, 0, 0]
    assert message.spec_accepted_tokens == [1, 0, 0]
    assert message.spec_acceptance_histogram == [[0, 1], [], []]
    assert message.ledger == SchedulerLedger(live=2)


def test_the_documented_names_of_embeddings() -> None:
    reason = FinishReason("error", message="too long", status_code=400, err_type="BadRequestError")
    message = BatchEmbeddingOutput(
        packed_vids=pack_i64([5, 6]),
        embeddings=[[0.5, 0.25], None],
        sparse_reasons=[(1, reason)],
        packed_prompt_tokens=pack_i32([3, 900]),
        packed_cached_tokens=pack_i32([2, 0]),
        sparse_hidden_states=[(0, [1.5])],
        sparse_rids=[(0, "embed")],
    )
    assert message.check_columns() is None
    assert len(message) == 2
    assert message.vids == [5, 6]
    assert message.rids == ["embed", None]
    assert message.embeddings == [[0.5, 0.25], None]
    assert message.finished_reasons == [None, reason]
    assert message.prompt_tokens == [3, 900]
    assert message.cached_tokens == [2, 0]
    assert message.pooled_hidden_states == [[1.5], None]
    assert msgspec.structs.replace(message, packed_cached_tokens=None).cached_tokens == [0, 0]


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
    ({"sparse_rids": [(2, "x")]}, "rid for row 2 of 2, after row -1"),
    (
        {"sparse_spec": [(1, SpeculativeMetrics()), (1, SpeculativeMetrics())]},
        "speculation for row 1 of 2, after row 1",
    ),
    ({"sparse_logprobs": [(2, TokenLogprobs())]}, "log probabilities for row 2 of 2, after row -1"),
    ({"sparse_logprobs": [(0, TokenLogprobs(top_logprobs_num=-1))]}, "top_logprobs_num is -1"),
    (
        {"sparse_logprobs": [(1, TokenLogprobs(output_token_logprobs_val=pack_f32([0.5])))]},
        "output_token_logprobs_val has 4 bytes, not 2 numbers of 4",
    ),
]


def test_columns_that_agree_have_no_fault() -> None:
    assert BatchTokenIDOutput(**AGREEING).check_columns() is None
    assert BatchStrOutput(**AGREEING, output_strs=["", "x"]).check_columns() is None


@pytest.mark.parametrize(("columns", "fault"), CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_told(columns: dict[str, Any], fault: str) -> None:
    assert fault == BatchTokenIDOutput(**AGREEING | columns).check_columns()


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"sparse_texts": [(2, "x")]}, "text for row 2 of 2, after row -1"),
        ({"sparse_held": [(1, 3)], "sparse_modes": [(0, 7)]}, None),
        ({"sparse_held": [(1, 3), (1, 3)]}, "bytes held back for row 1 of 2, after row 1"),
        ({"sparse_held": [(1, -1)]}, "row 1 holds -1 bytes back"),
        ({"sparse_modes": [(2, 1)]}, "mode for row 2 of 2, after row -1"),
        ({"sparse_modes": [(0, 8)]}, "the mode of row 0 is 8"),
        ({"sparse_modes": [(1, -1)]}, "the mode of row 1 is -1"),
    ],
)
def test_what_is_said_of_texts_is_of_rows(columns: dict[str, Any], fault: str | None) -> None:
    assert BatchTokenIDOutput(**AGREEING, **columns).check_columns() == fault


EMBEDDED: dict[str, Any] = {
    "packed_vids": pack_i64([5, 6]),
    "embeddings": [0.5, None],
    "packed_prompt_tokens": pack_i32([3, 4]),
}


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({}, None),
        ({"packed_cached_tokens": pack_i32([1, 2])}, None),
        ({"packed_vids": memoryview(bytes(9))}, "a packed column has 9 bytes, not a multiple of 8"),
        ({"packed_prompt_tokens": memoryview(bytes(7))}, "a packed column has 7 bytes, not a multiple of 4"),
        ({"packed_cached_tokens": memoryview(bytes(5))}, "a packed column has 5 bytes, not a multiple of 4"),
        ({"packed_vids": pack_i64([5])}, "1 vids, 2 prompt lengths"),
        ({"packed_cached_tokens": pack_i32([1])}, "2 vids, 1 cached lengths"),
        ({"embeddings": [0.5]}, "2 vids, 1 embeddings"),
        ({"packed_vids": pack_i64([5, -6])}, "vid -6 is negative"),
        ({"sparse_reasons": [(2, STOP)]}, "finish reason for row 2 of 2, after row -1"),
        ({"sparse_hidden_states": [(2, [0.5])]}, "hidden state for row 2 of 2, after row -1"),
        ({"sparse_rids": [(2, "x")]}, "rid for row 2 of 2, after row -1"),
    ],
)
def test_columns_of_embeddings_agree_or_are_told(columns: dict[str, Any], fault: str | None) -> None:
    assert BatchEmbeddingOutput(**EMBEDDED | columns).check_columns() == fault


def test_texts_are_as_many_as_rows() -> None:
    assert BatchStrOutput(**AGREEING, output_strs=["x"]).check_columns() == "2 vids, 1 texts"
    assert BatchStrOutput(output_strs=["x"]).check_columns() == "0 vids, 1 texts"


@pytest.mark.parametrize("columns", [columns for columns, _ in CONTRADICTIONS])
def test_texts_do_not_hide_a_contradiction(columns: dict[str, Any]) -> None:
    assert BatchStrOutput(**AGREEING | columns, output_strs=["", "x"]).check_columns() is not None
