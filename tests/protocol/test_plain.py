from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import math
import uuid
from array import array
from collections import OrderedDict, deque
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from vidette_protocol.ext import CudaIpcHandle, ModelData, ShmPointer
from vidette_protocol.messages import (
    BatchTokenIDOutput,
    FinishReason,
    HeartbeatReq,
    Hello,
    SamplingParams,
    SchedulerLedger,
    TokenizedGenerateReqInput,
    pack_f32,
    pack_i32,
)
from vidette_protocol.messages.base import WireVid
from vidette_protocol.messages.cache import AddExternalCorpusReqInput
from vidette_protocol.messages.catalogue import CATALOGUE
from vidette_protocol.messages.logprobs import TokenLogprobs
from vidette_protocol.messages.rows import TokenRow
from vidette_protocol.plain import MAX_DEPTH, MAX_VALUES, VID_FIELDS, msgspec_to_builtins

BIG = (1 << 62) + 1


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Inner(msgspec.Struct, array_like=True, tag="inner"):
    a: int
    b: object = None


class Optional(msgspec.Struct):
    given: int = 1
    left_out: int | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass
class Info:
    name: str
    parts: list[Inner]
    vid: int | None = None


@dataclasses.dataclass(slots=True)
class Slotted:
    kind: type


class Text(str):
    __slots__ = ()


class Count(int):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (1 << 80, 1 << 80),
        (0.5, 0.5),
        ("é", "é"),
        (Text("t"), "t"),
        (Count(5), 5),
        ((1, "a"), [1, "a"]),
        ([(1,), [2]], [[1], [2]]),
        (array("i", [1, 2]), [1, 2]),
        (array("d", [0.5]), [0.5]),
        (memoryview(array("q", [BIG])), [BIG]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({(2, "x"), (1, "y")}, [[1, "y"], [2, "x"]]),
        ({"a", 1}, ["a", 1]),  # no order among them: by what they look like
        ({7: 1, "b": 2, 0.5: 3, True: 4, False: 5}, {"7": 1, "b": 2, "0.5": 3, "true": 4, "false": 5}),
        ({Colour.RED: 1, b"hi": 2}, {"red": 1, "aGk=": 2}),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (ModelData({"grid": (1, 2)}), {"grid": [1, 2]}),
        (Colour.RED, "red"),
        (Colour.PAIR, [1, 2]),
        (Level.HIGH, 3),
        (Word.YES, "yes"),
        (int, "builtins.int"),
        (Inner, f"{__name__}.Inner"),
        (Colour, f"{__name__}.Colour"),
        (b"hi", "aGk="),
        (bytearray(b"hi"), "aGk="),
        (memoryview(b"hi"), "aGk="),
        (memoryview(b"haib")[::2], "aGk="),
        (Inner(1, (Inner(2),)), {"a": 1, "b": [{"a": 2, "b": None}]}),
        (Optional(), {"given": 1}),
        (Info("n", [Inner(1)], vid=BIG), {"name": "n", "parts": [{"a": 1, "b": None}], "vid": str(BIG)}),
        (Info("n", []), {"name": "n", "parts": [], "vid": None}),
        (Slotted(dict), {"kind": "builtins.dict"}),
        (Ext(9, b"hi"), {"ext": 9, "data": "aGk="}),
        (Ext(9, memoryview(b"hi")), {"ext": 9, "data": "aGk="}),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.5"), "1.5"),
        (
            ShmPointer("seg", (2, 3), "int16", 5),
            {"shm_name": "seg", "shape": [2, 3], "dtype": "int16", "precomputed_hash": 5},
        ),
        (
            CudaIpcHandle({"ipc_extra": {"handle": b"hi", "dtype": torch.float16}}, {"handle": "name"}),
            {
                "proxy_state": {"ipc_extra": {"handle": "aGk=", "dtype": "torch.float16"}},
                "sync_data_meta": {"handle": "name"},
            },
        ),
        (np.array([[1, 2], [3, 4]], "<i2"), [[1, 2], [3, 4]]),
        (np.array(5), 5),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("t"), "t"),
        (np.bytes_(b"hi"), "aGk="),
        (np.dtype("<f4"), "float32"),
        (torch.tensor([[1.5]], dtype=torch.bfloat16), [[1.5]]),
        (torch.tensor(3), 3),
        (torch.int8, "torch.int8"),
        (torch.device("cuda:1"), "cuda:1"),
        (torch.Size([2, 3]), [2, 3]),
    ],
    ids=repr,
)
def test_what_becomes_of_each_kind_of_value(value: object, plain: object) -> None:
    made = msgspec_to_builtins(value)
    assert made == plain
    assert type(made) is type(plain)


def test_subclasses_of_plain_types_become_plain_and_nan_stays() -> None:
    assert type(msgspec_to_builtins([Text("t"), np.float64(1.0), Level.HIGH])[0]) is str
    assert math.isnan(msgspec_to_builtins(float("nan")))


# --- messages ---------------------------------------------------------------------------------------


def test_a_request_is_an_object_by_the_names_of_its_fields() -> None:
    plain: Any = msgspec_to_builtins(
        TokenizedGenerateReqInput(
            vid=BIG,
            floor=3,
            rid="r",
            input_ids=pack_i32([5, 6]),
            sampling_params=SamplingParams(stop=["x"]),
            token_ids_logprob=pack_i32([7]),
        )
    )
    assert (plain["vid"], plain["floor"], plain["rid"]) == (str(BIG), "3", "r")
    assert (plain["input_ids"], plain["token_ids_logprob"]) == ([5, 6], [7])
    assert plain["sampling_params"]["stop"] == ["x"]
    assert plain["sampling_params"]["top_k"] == -1, "defaults are there as well"


def test_columns_of_a_step_are_lists_of_numbers_and_vids_text() -> None:
    rows = [TokenRow(BIG, 0, (1, 2)), TokenRow(4, 9, (3,), FinishReason("length", length=10))]
    plain: Any = msgspec_to_builtins(BatchTokenIDOutput.from_rows(rows, SchedulerLedger(live=1)))
    assert plain["packed_vids"] == [str(BIG), "4"]
    assert plain["packed_offsets"] == [0, 9]
    assert plain["packed_counts"] == [2, 1]
    assert plain["packed_ids"] == [1, 2, 3]
    assert plain["ledger"]["live"] == 1
    ((row, reason),) = plain["sparse_reasons"]
    assert (row, reason["type"], reason["length"]) == (1, "length", 10)


def test_log_probabilities_are_floats_and_their_ids_are_not() -> None:
    logprobs = TokenLogprobs(
        output_top_logprobs_val=pack_f32([-0.5, -1.5]), output_top_logprobs_idx=pack_i32([3, 4])
    )
    plain: Any = msgspec_to_builtins(logprobs)
    assert plain["output_top_logprobs_val"] == [-0.5, -1.5]
    assert plain["output_top_logprobs_idx"] == [3, 4]


def test_lists_of_columns_are_lists_of_lists() -> None:
    corpus = AddExternalCorpusReqInput(id=1, corpus_id="c", token_chunks=[pack_i32([1]), pack_i32([2, 3])])
    plain: Any = msgspec_to_builtins(corpus)
    assert plain["token_chunks"] == [[1], [2, 3]]


def test_a_view_that_is_typed_already_keeps_its_type() -> None:
    assert msgspec_to_builtins(Inner(1, memoryview(array("h", [1, 2])))) == {"a": 1, "b": [1, 2]}


def test_a_torn_column_is_said_to_be_torn() -> None:
    with pytest.raises(ValueError, match="a packed column has 3 bytes, not a multiple of 4"):
        msgspec_to_builtins(Inner(1, memoryview(b"abc")))


def holds_vids(hint: object) -> bool:
    return hint == WireVid or any(holds_vids(arg) for arg in get_args(hint) if arg is not int)


def test_each_field_that_holds_vids_is_shown_as_text() -> None:
    found = {
        field.name
        for cls in CATALOGUE
        for field in msgspec.structs.fields(cls)
        if holds_vids(field.type) or "vid" in field.name
    }
    assert found <= VID_FIELDS
    assert found == {"vid", "floor", "packed_vids"}


def test_the_plain_form_of_a_message_is_json() -> None:
    hello = Hello(version=1, fingerprint="f", role="front", pid=2)
    for message in (HeartbeatReq(id=1, scheduler=SchedulerLedger()), hello):
        assert json.loads(json.dumps(msgspec_to_builtins(message)))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.frozensets(SCALARS)
        | st.builds(Inner, st.integers(), inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_made_is_plain_all_the_way_down(value: object) -> None:
    """Whatever it is made of, the result has nothing in it but what JSON has, with text as keys."""
    left = [msgspec_to_builtins(value)]
    while left:
        part = left.pop()
        assert type(part) in (dict, list, str, int, float, bool, type(None))
        if isinstance(part, dict):
            assert all(type(key) is str for key in part)
            left += part.values()
        elif isinstance(part, list):
            left += part


# --- what has no plain form ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "a builtins.object has no plain form"),
        ([{"a": 1j}], "a builtins.complex has no plain form"),
        (np.array([1j]), "a builtins.complex has no plain form"),
        (np.random.default_rng(1), "Generator has no plain form"),
        (torch.empty(2, device="meta"), "a Tensor has no plain form: "),
        (deque([1]), "a collections.deque has no plain form"),
        ({(1, 2): 3}, "a tuple has no form as the name of an entry"),
        ({None: 3}, "a NoneType has no form as the name of an entry"),
    ],
    ids=repr,
)
def test_what_has_no_plain_form_is_refused(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        msgspec_to_builtins(value)


def test_a_hook_gives_a_form_to_what_has_none() -> None:
    def hook(value: object) -> object:
        assert isinstance(value, deque)
        return tuple(value)

    assert msgspec_to_builtins({"a": deque([1, (2,)])}, enc_hook=hook) == {"a": [1, [2]]}


def test_a_hook_that_returns_what_it_was_given_comes_to_an_end() -> None:
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH}"):
        msgspec_to_builtins(object(), enc_hook=lambda value: value)


def test_two_keys_that_become_the_same_text_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys of a mapping become the same text"):
        msgspec_to_builtins({1: "a", "1": "b"})


# --- bounds ---------------------------------------------------------------------------------------------


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    assert msgspec_to_builtins(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match=f"values are nested deeper than {MAX_DEPTH}"):
        msgspec_to_builtins(nested(MAX_DEPTH + 1))


def test_a_value_that_holds_itself_comes_to_an_end() -> None:
    value: dict[str, object] = {}
    value["self"] = value
    with pytest.raises(ValueError, match="nested deeper"):
        msgspec_to_builtins(value)


def test_a_few_values_that_are_many_when_written_out_are_refused() -> None:
    value: object = 1
    for _ in range(40):
        value = [value, value]
    with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
        msgspec_to_builtins(value)


@pytest.mark.parametrize(
    "value",
    [
        array("b", bytes(MAX_VALUES)),
        memoryview(bytes(4 * MAX_VALUES)).cast("i"),
        np.zeros(MAX_VALUES, "i1"),
        torch.zeros(MAX_VALUES, dtype=torch.int8),
        [bytes(32 * MAX_VALUES)] * 3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_size_is_bounded(value: object) -> None:
    with pytest.raises(ValueError, match="of bytes, 64 count as one"):
        msgspec_to_builtins(value)


def test_the_size_of_an_array_is_looked_at_before_it_is_written_out() -> None:
    class Huge:
        size = 1 << 60

        def tolist(self) -> list[int]:
            raise AssertionError("it was written out")

    Huge.__module__ = "numpy"
    with pytest.raises(ValueError, match=f"more than {MAX_VALUES} values"):
        msgspec_to_builtins(Huge())
