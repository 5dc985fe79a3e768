from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.errors import DecodeError
from vidette_protocol.ext import ModelData
from vidette_protocol.ext.markers import MARKERS, MAX_NESTING, mark_values, unmark_values


class Pair(NamedTuple):
    left: int
    right: int


def over_the_wire(values: dict[str, object], devices: tuple[str, ...] = ()) -> dict[str, object]:
    wire = msgspec.msgpack.encode(mark_values(values, devices))
    return unmark_values(msgspec.msgpack.decode(wire), devices)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.builds(torch.Size, st.lists(st.integers(0, 9), max_size=3)),
    st.sampled_from([torch.float16, torch.bool, torch.device("cpu"), np.dtype("<f4"), np.dtype(">i2")]),
)
KEYS = st.sampled_from([*sorted(MARKERS), "a", "b"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=2)
        | st.dictionaries(st.integers(0, 3), inner, max_size=2)
    ),
    max_leaves=12,
)


def types(value: object) -> object:
    """Return the types in a value: tuples and lists of equal elements are told apart, and 1 from True."""
    if isinstance(value, dict):
        return {key: types(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [types(inner) for inner in value]
    return type(value)


@given(values=st.dictionaries(KEYS, VALUES, max_size=3))
def test_values_come_back_with_their_types(values: dict[str, object]) -> None:
    """Dicts whose keys are those of markers among them."""
    back = over_the_wire(values)
    assert back == values
    assert types(back) == types(values)


@pytest.mark.parametrize(
    ("value", "marked"),
    [
        ((1, [2]), {"__tuple__": [1, [2]]}),
        (torch.Size([2, 3]), {"__torch_size__": [2, 3]}),
        (torch.float16, {"__torch_dtype__": "float16"}),
        (torch.device("cpu"), {"__torch_device__": "cpu"}),
        (np.dtype(">f4"), {"__np_dtype__": ">f4"}),
        ({"__tuple__": 5}, {"__escaped_dict__": {"__tuple__": 5}}),
        ({"__escaped_dict__": {}}, {"__escaped_dict__": {"__escaped_dict__": {}}}),
        ({"__tuple__": (1,)}, {"__escaped_dict__": {"__tuple__": {"__tuple__": [1]}}}),
        ({"__tuple__": 5, "other": 6}, {"__tuple__": 5, "other": 6}),
    ],
)
def test_what_is_written(value: object, marked: object) -> None:
    assert mark_values({"x": value}, ()) == {"x": marked}
    assert over_the_wire({"x": value}) == {"x": value}


def test_the_outermost_mapping_is_never_a_marker() -> None:
    assert mark_values({"__tuple__": [1]}, ()) == {"__tuple__": [1]}
    assert unmark_values({"__tuple__": [1]}, ()) == {"__tuple__": [1]}


def test_a_named_tuple_comes_back_as_a_tuple() -> None:
    assert types(over_the_wire({"x": Pair(1, 2)})["x"]) == (tuple, [int, int])


def test_what_the_encoder_knows_is_left_to_it() -> None:
    tensor = torch.ones(2)
    assert mark_values({"x": [tensor]}, ())["x"] == [tensor]


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [(value,), [value], {"__tuple__": value}][level % 3]
    return value


def test_what_may_be_sent_can_be_read_and_nothing_lies_deeper() -> None:
    assert over_the_wire({"x": nested(MAX_NESTING)}) == {"x": nested(MAX_NESTING)}
    with pytest.raises(ValueError, match="deeper than 32"):
        mark_values({"x": nested(MAX_NESTING + 1)}, ())


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: {"__tuple__": [x]}])
def test_what_is_nested_too_deep_is_refused(wrap) -> None:  # type: ignore[no-untyped-def]
    value: object = 1
    for _ in range(MAX_NESTING + 1):
        value = wrap(value)
    with pytest.raises(DecodeError, match="deeper than 32"):
        unmark_values({"x": value}, ())


def test_what_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError, match="deeper than 32"):
        mark_values({"x": value}, ())


@pytest.mark.parametrize(
    "value", [torch.device("cuda:0"), torch.device("meta"), torch.qint8, np.dtype("O"), np.dtype("M8[s]")]
)
def test_what_would_be_refused_is_not_sent(value: object) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        mark_values({"x": value}, ())


def test_a_device_is_named_where_it_may() -> None:
    device = torch.device("cuda:0")
    assert over_the_wire({"x": device}, ("cuda:0",)) == {"x": device}
    with pytest.raises(DecodeError, match="'cuda:0' is not allowed"):
        unmark_values({"x": {"__torch_device__": "cuda:0"}}, ())


def test_names_are_text() -> None:
    with pytest.raises(TypeError, match="1 is no name"):
        mark_values({1: 2}, ())  # type: ignore[dict-item]
    with pytest.raises(DecodeError, match="no mapping of names"):
        unmark_values({1: 2}, ())
    with pytest.raises(DecodeError, match="a list is no mapping"):
        unmark_values([], ())


@pytest.mark.parametrize(
    "marker",
    [
        {"__tuple__": 5},
        {"__tuple__": "ab"},
        {"__tuple__": {"a": 1}},
        {"__torch_size__": ["a"]},
        {"__torch_size__": [-1]},
        {"__torch_size__": [True]},
        {"__torch_size__": [1 << 63]},
        {"__torch_size__": 3},
        {"__torch_dtype__": "load"},
        {"__torch_dtype__": ["float32"]},
        {"__torch_device__": 0},
        {"__np_dtype__": "|O"},
        {"__np_dtype__": None},
        {"__escaped_dict__": [1]},
    ],
)
def test_a_malformed_marker_is_refused(marker: object) -> None:
    with pytest.raises(DecodeError, match=r"malformed|not allowed"):
        unmark_values({"x": [marker]}, ())


# --- ModelData ------------------------------------------------------------------------------------


def test_model_data_is_a_mapping_of_its_own() -> None:
    given_values: dict[str, object] = {"a": 1}
    data = ModelData(given_values)
    data["b"] = 2
    del data["a"]
    assert given_values == {"a": 1}
    assert data == {"b": 2}
    assert data == ModelData({"b": 2})
    assert (list(data), len(data), data["b"]) == (["b"], 1, 2)
    assert repr(data) == "ModelData({'b': 2})"
    assert ModelData() == {}
