"""Log probabilities and speculation: the documented names, each with its value, over packed columns."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_fuzz.strategies import logprobs
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    SchedulerLedger,
    SpeculativeDecodingMetricsMixin,
    SpeculativeMetrics,
    StrRow,
    TokenLogprobs,
    TokenRow,
    pack_f32,
    pack_i32,
    view_f32,
    view_i32,
)
from vidette_protocol.messages.logprobs import LogprobsMixin

NAN = math.nan

FIRST = TokenLogprobs(
    output_token_logprobs_val=pack_f32([-0.5, -1.25]),
    output_top_logprobs_val=pack_f32([-0.5, -2.0, -0.25, -1.25]),
    output_top_logprobs_idx=pack_i32([15, 3, 9, 8]),
    output_token_ids_logprobs_val=pack_f32([-3.0, -4.0, -5.0, -6.0, -7.0, -8.0]),
    input_token_logprobs_val=pack_f32([NAN, -0.75]),
    input_top_logprobs_val=pack_f32([NAN, NAN, -0.75, -1.5]),
    input_top_logprobs_idx=pack_i32([0, 0, 6, 7]),
    input_token_ids_logprobs_val=pack_f32([NAN, NAN, NAN, -8.0, -9.0, -10.0]),
    input_token_logprobs_idx=pack_i32([1, 6]),
    token_ids_logprob=pack_i32([2, 3, 4]),
    top_logprobs_num=2,
)
"""Of a row of two tokens behind a prompt of two."""

ROWS = (
    TokenRow(5, 0, (15, 8), None, FIRST, SpeculativeMetrics(5, 7, (1, 1, 3))),
    TokenRow(6, 3, (4,)),
    TokenRow(
        7, 1, (9,), None, TokenLogprobs(output_token_logprobs_val=pack_f32([0.0])), SpeculativeMetrics()
    ),
    TokenRow(8, 1, (), None, TokenLogprobs()),
)

VIEWS: dict[str, list[Any]] = {
    "output_token_logprobs_val": [[-0.5, -1.25], None, [0.0], None],
    "output_token_logprobs_idx": [[15, 8], None, [9], None],
    "output_top_logprobs_val": [[[-0.5, -2.0], [-0.25, -1.25]], None, None, None],
    "output_top_logprobs_idx": [[[15, 3], [9, 8]], None, None, None],
    "output_token_ids_logprobs_val": [[[-3.0, -4.0, -5.0], [-6.0, -7.0, -8.0]], None, None, None],
    "output_token_ids_logprobs_idx": [[[2, 3, 4], [2, 3, 4]], None, None, None],
    "input_token_logprobs_val": [[NAN, -0.75], None, None, None],
    "input_token_logprobs_idx": [[1, 6], None, None, None],
    "input_top_logprobs_val": [[[NAN, NAN], [-0.75, -1.5]], None, None, None],
    "input_top_logprobs_idx": [[[0, 0], [6, 7]], None, None, None],
    "input_token_ids_logprobs_val": [[[NAN, NAN, NAN], [-8.0, -9.0, -10.0]], None, None, None],
    "input_token_ids_logprobs_idx": [[[2, 3, 4], [2, 3, 4]], None, None, None],
    "spec_verify_ct": [5, 0, 0, 0],
    "spec_num_correct_drafts": [7, 0, 0, 0],
    "spec_accepted_tokens": [7, 0, 0, 0],
    "spec_correct_drafts_histogram": [[1, 1, 3], [], [], []],
    "spec_acceptance_histogram": [[1, 1, 3], [], [], []],
}


def step_messages() -> list[BatchTokenIDOutput | BatchStrOutput]:
    texts = [StrRow(row.vid, row.offset, row.token_ids, None, "", row.logprobs, row.spec) for row in ROWS]
    return [
        BatchTokenIDOutput.from_rows(ROWS, SchedulerLedger()),
        BatchStrOutput.from_rows(texts, SchedulerLedger(), 0),
    ]


@pytest.mark.parametrize("name", VIEWS)
def test_the_documented_views_have_an_item_for_each_row(name: str) -> None:
    for message in step_messages():
        assert message.check_columns() is None
        (view,) = (cls.__dict__[name] for cls in type(message).__mro__ if name in cls.__dict__)
        # In words, since NaN is not itself.
        assert repr(view.fget(message)) == repr(VIEWS[name])


def test_every_view_is_tested() -> None:
    views = {
        name
        for mixin in (LogprobsMixin, SpeculativeDecodingMetricsMixin)
        for name, part in vars(mixin).items()
        if isinstance(part, property)
    }
    assert views - {"logprobs", "spec", "output_ids"} == VIEWS.keys()


def test_views_need_columns_that_a_message_has() -> None:
    """The mixins say what is said; where it lies is for a message to say."""

    class Bare(LogprobsMixin, SpeculativeDecodingMetricsMixin, tag=300, frozen=True):
        pass

    bare = Bare()
    for read in (lambda: bare.logprobs, lambda: bare.output_ids, lambda: bare.spec):
        with pytest.raises(NotImplementedError):
            read()


def test_nothing_was_asked_for_of_no_tokens() -> None:
    row = TokenLogprobs(
        output_token_ids_logprobs_val=pack_f32([]), output_top_logprobs_val=pack_f32([]), top_logprobs_num=0
    )
    message = BatchTokenIDOutput.from_rows([TokenRow(1, 0, (5,), None, row)], SchedulerLedger())
    assert message.check_columns() is None
    assert message.output_token_ids_logprobs_val == [[]]
    assert message.output_token_ids_logprobs_idx == [[]]
    assert message.output_top_logprobs_val == [[]]


# --- what contradicts itself ----------------------------------------------------------------------


def test_columns_that_agree_have_no_fault() -> None:
    assert FIRST.check(2) is None
    assert TokenLogprobs().check(3) is None


COLUMNS = [field for field in TokenLogprobs.__struct_fields__ if field != "top_logprobs_num"]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("nbytes", [2, 28, 4096])
def test_a_column_of_another_length_is_told(name: str, nbytes: int) -> None:
    row = msgspec.structs.replace(FIRST, **{name: memoryview(bytes(nbytes))})
    # Of these two, the length of others depends on: it is them that are too short then.
    telling = name not in {"token_ids_logprob", "input_token_logprobs_val"}
    assert str(row.check(2)).startswith(f"{name} has {nbytes} bytes, not " if telling else "")
    assert row.check(2) is not None


@pytest.mark.parametrize("name", COLUMNS)
def test_a_torn_column_is_told(name: str) -> None:
    row = msgspec.structs.replace(TokenLogprobs(), **{name: memoryview(bytes(2))})
    assert str(row.check(0)).startswith(f"{name} has 2 bytes, not ")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_message_with_such_a_row_is_refused(name: str) -> None:
    torn = msgspec.structs.replace(FIRST, **{name: memoryview(bytes(6))})
    rows = [TokenRow(4, 0, (1,)), TokenRow(5, 0, (15, 8), None, torn)]
    assert BatchTokenIDOutput.from_rows(rows, SchedulerLedger()).check_columns() == torn.check(2)
    assert torn.check(2) is not None


def test_other_columns_than_those_of_the_row_are_told() -> None:
    assert FIRST.check(1) == "output_token_logprobs_val has 8 bytes, not 1 numbers of 4"
    none = msgspec.structs.replace(FIRST, input_token_logprobs_val=None)
    assert none.check(2) == "input_token_logprobs_idx has 8 bytes, not 0 numbers of 4"
    fewer = msgspec.structs.replace(FIRST, token_ids_logprob=pack_i32([2]))
    assert fewer.check(2) == "output_token_ids_logprobs_val has 24 bytes, not 2 numbers of 4"
    narrow = msgspec.structs.replace(FIRST, top_logprobs_num=1)
    assert narrow.check(2) == "output_top_logprobs_val has 16 bytes, not 2 numbers of 4"
    assert msgspec.structs.replace(FIRST, top_logprobs_num=-1).check(2) == "top_logprobs_num is -1"


# --- whatever was asked for -----------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.integers(0, 9), max_size=3).flatmap(
            lambda ids: st.tuples(st.just(ids), logprobs(len(ids)))
        ),
        max_size=3,
    )
)
def test_the_views_are_the_columns_cut_into_rows_and_positions(
    rows: list[tuple[list[int], TokenLogprobs]],
) -> None:
    """Put together again, each view of a row is its column, and has a list for each position."""
    message = BatchTokenIDOutput.from_rows(
        [TokenRow(vid, 0, tuple(ids), None, row) for vid, (ids, row) in enumerate(rows)], SchedulerLedger()
    )
    assert message.check_columns() is None
    for at, (ids, row) in enumerate(rows):
        assert flat(message.output_token_logprobs_val[at]) == floats(row.output_token_logprobs_val)
        assert flat(message.input_token_logprobs_val[at]) == floats(row.input_token_logprobs_val)
        assert message.input_token_logprobs_idx[at] == ints(row.input_token_logprobs_idx)
        for tops, column in (
            (message.output_top_logprobs_val[at], row.output_top_logprobs_val),
            (message.input_top_logprobs_val[at], row.input_top_logprobs_val),
            (message.output_token_ids_logprobs_val[at], row.output_token_ids_logprobs_val),
            (message.input_token_ids_logprobs_val[at], row.input_token_ids_logprobs_val),
        ):
            assert flat(None if tops is None else [*chain.from_iterable(tops)]) == floats(column)
        if row.output_top_logprobs_idx is not None:
            top_ids = message.output_top_logprobs_idx[at]
            assert top_ids is not None
            assert [*chain.from_iterable(top_ids)] == ints(row.output_top_logprobs_idx)
            assert len(top_ids) == (len(ids) if row.top_logprobs_num else 0)
        asked = message.output_token_ids_logprobs_idx[at]
        assert asked is None or set(map(tuple, asked)) <= {tuple(ints(row.token_ids_logprob) or ())}


def floats(column: memoryview | None) -> list[str] | None:
    return None if column is None else list(map(str, view_f32(column).tolist()))


def ints(column: memoryview | None) -> list[int] | None:
    return None if column is None else view_i32(column).tolist()


def flat(values: list[float] | None) -> list[str] | None:
    return None if values is None else list(map(str, values))
