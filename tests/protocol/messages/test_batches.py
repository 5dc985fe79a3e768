"""Batch messages taken apart and put together: every row keeps all it has, whatever the columns are."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta
from tests.protocol.conftest import same

from vidette_fuzz.samples import SAMPLES
from vidette_fuzz.strategies import messages
from vidette_protocol.ext import ExtHooks
from vidette_protocol.ids import Vid, front_of, make_vid
from vidette_protocol.messages import (
    BaseBatchReq,
    BatchEmbeddingOutput,
    BatchLayout,
    BatchStrOutput,
    BatchTokenIDOutput,
    BatchTokenizedGenerateReqInput,
    SchedulerLedger,
    StrRow,
    TokenizedGenerateReqInput,
    TokenRow,
    pack_i32,
    pack_i64,
    view_i32,
    view_i64,
)
from vidette_protocol.messages.catalogue import CATALOGUE
from vidette_protocol.messages.columns import EMPTY, Column, Listed, RowsI32, RowsI64, Sparse, Whole

BATCHES: list[type[BaseBatchReq]] = [cls for cls in CATALOGUE if issubclass(cls, BaseBatchReq)]
LAYOUTS: dict[type[BaseBatchReq], BatchLayout[Any]] = {cls: BatchLayout(cls) for cls in BATCHES}
SOME = settings(max_examples=30)
ENCODE = msgspec.msgpack.Encoder(enc_hook=ExtHooks().enc_hook).encode


class Read(NamedTuple):
    """A batch message as its documentation describes it: what each row has in each column, and the rest."""

    rows: list[bytes]
    whole: bytes


def read(message: BaseBatchReq) -> Read:
    """Read every field of a message row by row, without the code that is tested."""
    rows: list[dict[str, object]] = [{} for _ in range(len(message))]
    whole: dict[str, object] = {}
    start = 0
    for name, kind in LAYOUTS[type(message)].columns.items():
        column = msgspec.structs.asdict(message)[name]
        for i, row in enumerate(rows):
            match kind:
                case Column.I32:
                    row[name] = 0 if column is None else view_i32(column)[i]
                case Column.I64:
                    row[name] = view_i64(column)[i]
                case Column.COUNTS:
                    row[name] = 1 if column is None else view_i32(column)[i]
                case Column.LISTED:
                    row[name] = column[i]
                case Column.SPARSE:
                    row[name] = [value for at, value in column if at == i]
        if kind is Column.WHOLE:
            whole[name] = column
    for name, kind in LAYOUTS[type(message)].columns.items():
        if kind is Column.TOKENS:
            for row in rows:
                count = row["packed_counts"]
                assert isinstance(count, int)
                row[name] = view_i32(msgspec.structs.asdict(message)[name])[start : start + count].tolist()
                start += count
    return Read([ENCODE(row) for row in rows], ENCODE(whole))


def is_sound(message: BaseBatchReq) -> bool:
    return message.check_columns() is None


of_any_class = pytest.mark.parametrize("cls", BATCHES)


# --- classes --------------------------------------------------------------------------------------


def test_every_batch_is_tested() -> None:
    assert {cls.__name__ for cls in BATCHES} == {
        "BatchTokenIDOutput",
        "BatchStrOutput",
        "BatchEmbeddingOutput",
        "BatchTokenizedGenerateReqInput",
        "BatchTokenizedEmbeddingReqInput",
    }


@of_any_class
def test_every_field_says_which_kind_of_column_it_is(cls: type[BaseBatchReq]) -> None:
    assert tuple(LAYOUTS[cls].columns) == cls.__struct_fields__
    assert all(isinstance(kind, Column) for kind in LAYOUTS[cls].columns.values())


def test_every_kind_of_column_is_in_use() -> None:
    assert {kind for layout in LAYOUTS.values() for kind in layout.columns.values()} == set(Column)


@pytest.mark.parametrize(
    "hint", [int, memoryview, list[int] | None, Annotated[int, Meta(ge=0, extra={"x": 1})]]
)
@of_any_class
def test_a_field_that_does_not_say_is_refused_with_its_name(cls: type[BaseBatchReq], hint: Any) -> None:
    later = msgspec.defstruct("Later", [("silent", hint, None)], bases=(cls,), frozen=True, kw_only=True)
    with pytest.raises(TypeError, match=r"^Later\.silent does not say which kind of column it is$"):
        BatchLayout(later)  # type: ignore[type-var]


# --- whatever the message is ----------------------------------------------------------------------


@of_any_class
def test_messages_are_taken_apart_and_put_together_again(cls: type[BaseBatchReq]) -> None:
    """Each row, with all it has, is in the part of its key; put together, no row is lost or doubled."""
    layout = LAYOUTS[cls]

    @SOME
    @given(messages(cls), st.integers(1, 3))
    def check(message: Any, keys: int) -> None:
        parts = layout.split(message, lambda vid: vid % keys)
        whole = read(message)
        for key, part in parts.items():
            assert is_sound(part)
            assert len(part) > 0
            of_key = [row for row, vid in zip(whole.rows, message.vids, strict=True) if vid % keys == key]
            assert read(part) == (of_key, whole.whole)
        assert sum(map(len, parts.values())) == len(message)
        if parts:
            joined = layout.join(list(parts.values()))
            assert is_sound(joined) or len(set(joined.vids)) < len(joined)
            assert Counter(read(joined).rows) == Counter(whole.rows)
            assert read(joined).whole == whole.whole

    check()


@of_any_class
def test_rows_are_picked_in_the_order_asked_for(cls: type[BaseBatchReq]) -> None:
    """What is picked has just the rows that were asked for, each with all it had."""
    layout = LAYOUTS[cls]

    @SOME
    @given(st.data(), messages(cls))
    def check(data: st.DataObject, message: Any) -> None:
        rows = data.draw(st.permutations(range(len(message)))) if len(message) else []
        rows = rows[: data.draw(st.integers(0, len(rows)))]
        picked = layout.pick(message, rows)
        assert type(picked) is cls
        assert read(picked) == ([read(message).rows[row] for row in rows], read(message).whole)
        assert is_sound(picked) or not rows

    check()


@of_any_class
def test_messages_are_put_together_in_order(cls: type[BaseBatchReq]) -> None:
    """Put together, messages are their rows one after the other; what is not of a row is the last one's."""
    layout = LAYOUTS[cls]

    @SOME
    @given(st.lists(messages(cls), min_size=1, max_size=3))
    def check(several: list[Any]) -> None:
        joined = layout.join(several)
        assert read(joined) == ([row for each in several for row in read(each).rows], read(several[-1]).whole)
        assert is_sound(joined) or len(set(joined.vids)) < len(joined)

    check()


@pytest.mark.parametrize(
    "name", [name for name, message in SAMPLES.items() if isinstance(message, BaseBatchReq)]
)
def test_all_rows_of_a_sample_are_the_sample(name: str) -> None:
    message: Any = SAMPLES[name]
    layout = LAYOUTS[type(message)]
    assert same(layout.pick(message, range(len(message))), message)
    assert same(layout.join([message]), message)
    (parts,) = [layout.split(message, lambda _: "one")]
    assert not parts or same(parts["one"], message)


@of_any_class
@pytest.mark.parametrize("row", [-1, 1, 1 << 40])
def test_a_row_that_is_not_there_is_refused(cls: type[BaseBatchReq], row: int) -> None:
    message = next(m for m in SAMPLES.values() if type(m) is cls and len(m) > 0)
    one = LAYOUTS[cls].pick(message, [0])
    with pytest.raises(IndexError, match=f"^there is no row {row} among 1$"):
        LAYOUTS[cls].pick(one, [0, row])


@of_any_class
def test_no_message_at_all_cannot_be_put_together(cls: type[BaseBatchReq]) -> None:
    with pytest.raises(ValueError, match=r"^there is no message to put together$"):
        LAYOUTS[cls].join([])


# --- by hand --------------------------------------------------------------------------------------


def test_a_step_is_split_by_front() -> None:
    vids = [make_vid(1, 5), make_vid(2, 5), make_vid(1, 9)]
    message = BatchTokenIDOutput.from_rows(
        [TokenRow(vids[0], 0, (1, 2)), TokenRow(vids[1], 3), TokenRow(vids[2], 7, (3,))],
        SchedulerLedger(live=3),
    )
    parts = LAYOUTS[BatchTokenIDOutput].split(message, lambda vid: front_of(Vid(vid)))
    assert {front: part.rows() for front, part in parts.items()} == {
        1: [TokenRow(vids[0], 0, (1, 2)), TokenRow(vids[2], 7, (3,))],
        2: [TokenRow(vids[1], 3)],
    }
    assert all(part.ledger == SchedulerLedger(live=3) for part in parts.values())


def test_counts_that_did_not_travel_are_one_each() -> None:
    one_each = BatchStrOutput.from_rows([StrRow(1, 0, (7,)), StrRow(2, 0, (8,))], SchedulerLedger(), 2)
    mixed = BatchStrOutput.from_rows([StrRow(3, 0, (9, 10), text="x"), StrRow(4, 0)], SchedulerLedger(), 3)
    assert one_each.packed_counts is None
    layout = LAYOUTS[BatchStrOutput]
    joined = layout.join([one_each, mixed, one_each])
    assert joined.packed_counts == pack_i32([1, 1, 2, 0, 1, 1])
    assert joined.rows() == [*one_each.rows(), *mixed.rows(), *one_each.rows()]
    assert layout.join([one_each, one_each]).packed_counts is None
    assert layout.pick(one_each, [1]).packed_counts is None
    assert joined.detokenizer_open == 2


def test_a_column_that_did_not_travel_is_filled_in_with_zeros() -> None:
    cached = BatchEmbeddingOutput(
        packed_vids=pack_i64([1, 2]),
        embeddings=[0.5, None],
        packed_prompt_tokens=pack_i32([3, 4]),
        packed_cached_tokens=pack_i32([2, 1]),
    )
    fresh = BatchEmbeddingOutput(
        packed_vids=pack_i64([3]), embeddings=[0.25], packed_prompt_tokens=pack_i32([5])
    )
    layout = LAYOUTS[BatchEmbeddingOutput]
    assert layout.join([fresh, cached]).cached_tokens == [0, 2, 1]
    assert layout.join([cached, fresh]).cached_tokens == [2, 1, 0]
    assert layout.join([fresh, fresh]).packed_cached_tokens is None
    assert layout.pick(fresh, [0]).packed_cached_tokens is None


def test_nothing_is_changed_in_place() -> None:
    message = SAMPLES["tokens-with-logprobs"]
    assert isinstance(message, BatchTokenIDOutput)
    before = ENCODE(message)
    layout = LAYOUTS[BatchTokenIDOutput]
    layout.join([layout.pick(message, [1]), *layout.split(message, lambda vid: vid).values()])
    assert ENCODE(message) == before


def test_requests_of_several_batches_travel_as_one() -> None:
    batch = SAMPLES["requests"]
    assert isinstance(batch, BatchTokenizedGenerateReqInput)
    layout = LAYOUTS[BatchTokenizedGenerateReqInput]
    one, two = layout.pick(batch, [2]), layout.pick(batch, [0, 1])
    assert layout.join([one, two]).reqs == [batch[2], batch[0], batch[1]]
    assert all(isinstance(req, TokenizedGenerateReqInput) for req in layout.join([one, two]))


def test_how_many_rows_there_are_is_for_a_message_to_say() -> None:
    class Bare(BaseBatchReq, tag=300, frozen=True):
        pass

    for read_it in (lambda: len(Bare()), lambda: Bare().vids):
        with pytest.raises(NotImplementedError):
            read_it()


# --- columns that are added later -----------------------------------------------------------------


class Later(BatchTokenIDOutput, tag=300, kw_only=True, frozen=True):
    """A step message with one more column of each kind."""

    packed_ranks: RowsI32 | None = None
    packed_times: RowsI64 = EMPTY
    names: Listed[str] = []  # noqa: RUF012  msgspec makes a new one each time
    sparse_notes: Sparse[dict[str, int]] = []  # noqa: RUF012  as above
    version: Whole[str | None] = None


def test_columns_that_are_added_later_are_carried_along() -> None:
    def later(vid: int, **more: Any) -> Later:
        columns = msgspec.structs.asdict(BatchTokenIDOutput.from_rows([TokenRow(vid, 0)], SchedulerLedger()))
        columns["packed_times"] = pack_i64([vid << 40])
        return Later(**{**columns, "names": [f"of {vid}"], **more})

    layout = BatchLayout(Later)
    joined = layout.join(
        [later(1, version="one", packed_ranks=pack_i32([7])), later(2, sparse_notes=[(0, {"x": 1})])]
    )
    assert joined.packed_ranks == pack_i32([7, 0])
    assert joined.packed_times == pack_i64([1 << 40, 2 << 40])
    assert joined.names == ["of 1", "of 2"]
    assert joined.sparse_notes == [(1, {"x": 1})]
    assert joined.version is None
    picked = layout.pick(joined, [1])
    assert (picked.vids, picked.names, picked.sparse_notes) == ([2], ["of 2"], [(0, {"x": 1})])
