from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from vidette_protocol.bodies import INTERNAL_FIELDS, SHOWN_CHARS, Base64Bytes, BodyError, BodyType, Fault
from vidette_protocol.ext import ModelData
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenizedGenerateReqInput,
    EmbeddingReqInput,
    GenerateReqInput,
    LoadLoRAAdapterReqInput,
    SamplingParams,
    TokenizedGenerateReqInput,
    UpdateWeightsFromTensorReqInput,
    pack_i32,
)
from vidette_protocol.messages.catalogue import CATALOGUE, CONTROL
from vidette_protocol.messages.operations import RpcReqInput, SaveRemoteModel

GENERATE = BodyType(GenerateReqInput)
WEIGHTS = BodyType(UpdateWeightsFromTensorReqInput)


class Leaf(Struct, array_like=True, kw_only=True):
    number: int
    data: Base64Bytes = b""


class Tree(Struct, array_like=True, kw_only=True, frozen=True):
    """A body of our own.

    Args:
        leaf: said for the wire.
    """

    leaf: Leaf
    leaves: list[Leaf] = []
    named: dict[str, Leaf] = {}
    pair: tuple[Leaf, int] | None = None
    some: Sequence[Annotated[int, Meta(ge=0)]] = ()
    kind: Literal["a", "b"] = "a"
    bias: Mapping[int, float] = {}
    anything: object = None
    below: Tree | None = None
    renamed: int = msgspec.field(default=0, name="re-named")

    def __post_init__(self) -> None:
        if self.leaf.number < 0:
            raise ValueError("the leaf's number is negative")


TREE = BodyType(Tree)


def faults(body: BodyType[Any], value: object) -> list[Fault]:
    with pytest.raises(BodyError) as caught:
        body.read(value)
    return list(caught.value.faults)


def only_fault(body: BodyType[Any], value: object) -> Fault:
    (fault,) = faults(body, value)
    return fault


# --- what is read ---------------------------------------------------------------------------------


def test_an_object_becomes_a_struct_with_defaults() -> None:
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 5, "logit_bias": {"3": 1}}}
    params = SamplingParams(max_new_tokens=5, logit_bias={3: 1.0})
    assert GENERATE.read(body) == GenerateReqInput(text="hi", sampling_params=params)
    assert GENERATE.read({}) == GenerateReqInput()


def test_a_list_of_objects_inside_becomes_a_list_of_structs() -> None:
    made = GENERATE.read({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]})
    assert made.sampling_params == [SamplingParams(n=2), SamplingParams()]


def test_what_is_an_array_on_the_wire_is_an_object_in_a_body() -> None:
    body = {
        "leaf": {"number": 1, "data": "aGk="},
        "leaves": [{"number": 2}],
        "named": {"x": {"number": 3}},
        "pair": [{"number": 4}, 5],
        "some": [1, 2],
        "kind": "b",
        "bias": {"7": 0.5},
        "anything": {"a": [None]},
        "re-named": 9,
    }
    assert TREE.read(body) == Tree(
        leaf=Leaf(number=1, data=b"hi"),
        leaves=[Leaf(number=2)],
        named={"x": Leaf(number=3)},
        pair=(Leaf(number=4), 5),
        some=[1, 2],
        kind="b",
        bias={7: 0.5},
        anything={"a": [None]},
        renamed=9,
    )
    assert faults(TREE, [[1]])[0].message == "Expected an object"


def test_a_class_that_holds_itself_is_itself_inside() -> None:
    made = TREE.read({"leaf": {"number": 1}, "below": [[2, b"x"]]})
    assert made.below == Tree(leaf=Leaf(number=2, data=b"x"))


def test_members_of_a_union_are_told_apart_by_their_tags() -> None:
    body = BodyType(RpcReqInput)
    assert body.read({"call": {"type": "SaveRemoteModel", "url": "u"}}) == RpcReqInput(
        id=0, call=SaveRemoteModel(url="u")
    )
    assert only_fault(body, {"call": {"type": "exec", "url": "u"}}).place == ("call", "type")


def test_a_struct_passes_as_it_is() -> None:
    struct = GenerateReqInput(text="x")
    assert GENERATE.read(struct) is struct


@pytest.mark.parametrize("kind", [GenerateReqInput, EmbeddingReqInput, BatchStrOutput, *CONTROL])
def test_every_body_of_ours_can_be_built_and_described(kind: type[Struct]) -> None:
    schema = BodyType(kind).json_schema()
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "$ref" not in json.dumps(schema)
    assert not {"vid", "floor", "id", "deadline_s", "lora_id"} & schema["properties"].keys()


# --- internal fields ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (GenerateReqInput, {"http_worker_ipc", "http_worker_ipcs"}),
        (TokenizedGenerateReqInput, {"vid", "floor", "http_worker_ipc"}),
        (UpdateWeightsFromTensorReqInput, {"id", "deadline_s", "http_worker_ipc"}),
        (LoadLoRAAdapterReqInput, {"id", "deadline_s", "lora_id"}),
    ],
)
def test_internal_fields_are_refused(kind: type[Struct], names: set[str]) -> None:
    found = faults(BodyType(kind), dict.fromkeys(names, 1))
    refused = [fault for fault in found if fault.kind == "internal_field"]
    assert {fault.place for fault in refused} == {(name,) for name in names}
    assert {fault.message for fault in refused} == {"is set by the engine, not from outside"}


def test_internal_fields_that_have_to_be_there_are_blank() -> None:
    made = BodyType(LoadLoRAAdapterReqInput).read({"lora_name": "n", "lora_path": "p"})
    assert made == LoadLoRAAdapterReqInput(id=0, lora_id="", lora_name="n", lora_path="p")


def test_internal_fields_are_refused_inside_as_well() -> None:
    batch = BodyType(BatchTokenizedGenerateReqInput)
    req = {"rid": "r", "input_ids": base64.b64encode(pack_i32([1])).decode(), "sampling_params": {}}
    fault = only_fault(batch, {"reqs": [req | {"vid": 5}]})
    assert (fault.place, fault.message) == (("reqs", 0), "Object contains unknown field `vid`")


def test_each_internal_field_is_one_of_its_class() -> None:
    for kind, fields in INTERNAL_FIELDS.items():
        if kind is not Struct:
            assert fields.keys() <= set(kind.__struct_fields__), kind


def test_no_class_of_ours_has_the_address_of_a_worker() -> None:
    kinds: tuple[type[Struct], ...] = (*CATALOGUE, GenerateReqInput, EmbeddingReqInput)
    for kind in kinds:
        assert not {"http_worker_ipc", "http_worker_ipcs"} & set(kind.__struct_fields__)


def test_more_fields_can_be_excluded() -> None:
    body = BodyType(GenerateReqInput, exclude=["routed_dp_rank"])
    assert only_fault(body, {"text": "x", "routed_dp_rank": 1}).kind == "internal_field"
    assert body.read({"text": "x"}).routed_dp_rank is None
    assert "routed_dp_rank" not in body.json_schema()["properties"]


@pytest.mark.parametrize(("kind", "name"), [(GenerateReqInput, "no_such"), (Tree, "leaf")])
def test_what_cannot_be_left_out_cannot_be_excluded(kind: type[Struct], name: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} has no field '{name}' that could be left out"):
        BodyType(kind, exclude=[name])


# --- what is refused ------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once() -> None:
    known = "leaf, leaves, named, pair, some, kind, bias, anything, below, re-named"
    body = {
        "leaves": [{"number": 1}, {"number": "x"}],
        "some": [1, -1],
        "kind": "c",
        "zz": 1,
        "re-named": None,
    }
    assert [(fault.place, fault.kind, fault.message) for fault in faults(TREE, body)] == [
        (("leaves", 1, "number"), "invalid", "Expected `int`, got `str`"),
        (("some", 1), "invalid", "Expected `int` >= 0"),
        (("kind",), "invalid", "Invalid enum value 'c'"),
        (("zz",), "unknown_field", f"there is no such field; the fields are {known}"),
        (("re-named",), "invalid", "Expected `int`, got `null`"),
        (("leaf",), "missing", "Field required"),
    ]


def test_the_error_is_a_sentence_for_each_fault() -> None:
    with pytest.raises(BodyError) as caught:
        TREE.read({"leaf": {"number": "x"}, "leaves": [{}]})
    assert str(caught.value) == (
        "leaf.number: Expected `int`, got `str`; leaves[0]: Object missing required field `number`"
    )
    assert isinstance(caught.value, ValueError)
    with pytest.raises(BodyError, match=r"^the body: Expected an object$"):
        TREE.read(None)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"bias": {"x": 1}}, ("bias",)),  # a key: the decoder does not say which
        ({"bias": {"1": "x"}}, ("bias",)),  # nor of which entry a value is
        ({"named": {"a": {"number": "x"}}}, ("named",)),
        ({"pair": [{"number": 1}, "x"]}, ("pair", 1)),
        ({"pair": [{"number": "x"}, 1]}, ("pair", 0, "number")),
        ({"leaf": 7}, ("leaf",)),
    ],
)
def test_places_lead_to_the_fault_as_far_as_is_known(body: dict[str, Any], place: tuple[object, ...]) -> None:
    assert faults(TREE, body)[0].place == place


def test_what_a_class_checks_itself_is_a_fault_of_the_body() -> None:
    fault = only_fault(TREE, {"leaf": {"number": -1}})
    assert (fault.place, fault.message) == ((), "the leaf's number is negative")
    fault = only_fault(WEIGHTS, {})
    assert fault.message == "just one of named_tensors and serialized_named_tensors is needed"


def test_nesting_too_deep_is_a_fault() -> None:
    value: object = None
    for _ in range(100_000):
        value = [[1], [], {}, None, [], "a", {}, None, value]
    fault = only_fault(TREE, {"leaf": {"number": 1}, "below": value})
    assert (fault.place, fault.message) == (("below",), "values are nested too deeply")


def test_what_may_be_anything_is_not_looked_into() -> None:
    value: object = None
    for _ in range(100_000):
        value = [value]
    made = TREE.read({"leaf": {"number": 1}, "anything": value})
    assert made.anything is value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (1.5, 1.5),
        (True, True),
        ("x" * SHOWN_CHARS, "x" * SHOWN_CHARS),
        ("x" * 1000, "x" * SHOWN_CHARS + "..."),
        ([1], "<list>"),
        ({"a": "b" * 1000}, "<dict>"),
        (1 << 200, "<int>"),
        (b"x" * 1000, "<bytes>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_never_repeats_much_of_a_body(value: object, shown: object) -> None:
    fault = only_fault(TREE, {"leaf": {"number": 1}, "kind": value})
    assert fault.value == shown


def test_nor_much_of_a_name() -> None:
    fault = only_fault(TREE, {"leaf": {"number": 1}, "x" * 10_000: 1})
    assert fault.place == ("x" * SHOWN_CHARS + "...",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted(field.encode_name for field in msgspec.structs.fields(Tree))


@given(st.dictionaries(st.sampled_from([*NAMES, "id"]) | st.text(max_size=4), JSON) | JSON)
def test_whatever_a_body_is_it_is_a_struct_or_a_body_error(value: object) -> None:
    """A body of any shape gives a struct or a BodyError with at least one fault, never anything else."""
    made: Tree | BodyError
    try:
        made = TREE.read(value)
    except BodyError as error:
        made = error
    assert isinstance(made, Tree) or made.faults


@given(st.lists(st.integers() | st.text(max_size=3), max_size=4))
def test_what_is_found_at_once_is_what_is_found_at_all(value: list[object]) -> None:
    """A list of numbers is refused if and only if one of them is no number of that kind."""
    bad = any(type(item) is not int or item < 0 for item in value)
    try:
        TREE.read({"leaf": {"number": 1}, "some": value})
    except BodyError:
        assert bad
    else:
        assert not bad


# --- base64 ---------------------------------------------------------------------------------------


STRICT = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""As RFC 4648 has it. The standard library of Python 3.11 also takes "0000=", which this does not."""


def strict(text: str) -> bytes | None:
    return base64.b64decode(text, validate=True) if STRICT.fullmatch(text) else None


ALMOST = st.text("Aa0+/=-_ \n\té", max_size=12)


@given(ALMOST | st.binary().map(lambda data: base64.b64encode(data).decode()))
@pytest.mark.parametrize("hint", [bytes, Base64Bytes, memoryview])
def test_msgspec_is_strict(hint: Any, text: str) -> None:
    """Plain msgspec takes a text as bytes, from JSON and from values, if and only if it is strict base64."""
    expected = strict(text)
    try:
        assert (
            msgspec.convert(text, hint)
            == msgspec.json.decode(msgspec.json.encode(text), type=hint)
            == expected
        )
    except msgspec.ValidationError:
        assert expected is None
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(text), type=hint)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("aGk", "3 characters, with their padding, are no multiple of 4"),
        ("aGk=aGk=", "'a' at position 4 is out of place in the standard alphabet"),
        ("aG=k", "'k' at position 3 is out of place in the standard alphabet"),
        ("aG-_", "'-' at position 2 is out of place in the standard alphabet"),
        (" aGk=", "' ' at position 0 is out of place in the standard alphabet"),
        ("aGk=\n", r"'\n' at position 4 is out of place in the standard alphabet"),
        ("aé==", "'é' at position 1 is out of place in the standard alphabet"),
        ("====", "'=' at position 2 is out of place in the standard alphabet"),
        ("a===", "'=' at position 3 is out of place in the standard alphabet"),
    ],
)
def test_what_is_wrong_with_base64_is_said(text: str, why: str) -> None:
    assert strict(text) is None
    fault = only_fault(WEIGHTS, {"serialized_named_tensors": ["aGk=", text]})
    assert (fault.place, fault.kind) == (("serialized_named_tensors", 1), "base64")
    assert fault.message == f"Expected base64-encoded bytes; {why}"


def test_in_a_mapping_it_is_not_known_of_which_entry() -> None:
    class Named(Struct):
        parts: dict[str, bytes]

    fault = only_fault(BodyType(Named), {"parts": {"a": "aGk=", "b": "?"}})
    assert (fault.place, fault.kind, fault.message) == (("parts",), "base64", "Expected base64-encoded bytes")


@pytest.mark.parametrize("whole", [list, tuple])
def test_lists_are_decoded_item_by_item_and_bytes_are_left_alone(whole: type) -> None:
    made = WEIGHTS.read({"serialized_named_tensors": whole(["aGk=", b"aGk=", "", b"\xff"])})
    assert made.serialized_named_tensors == [b"hi", b"aGk=", b"", b"\xff"]


def test_a_schema_says_that_it_is_base64() -> None:
    parts = TREE.json_schema()["properties"]["leaf"]["properties"]
    assert parts["data"]["contentEncoding"] == "base64"
    assert parts["data"]["description"].startswith("base64")


# --- schemas --------------------------------------------------------------------------------------


def test_a_schema_is_in_one_piece_and_says_what_is_needed() -> None:
    schema = TREE.json_schema()
    assert (schema["title"], schema["description"]) == ("Tree", "A body of our own.")
    assert schema["required"] == ["leaf"]
    assert schema["properties"]["leaves"]["items"]["title"] == "Leaf"
    assert schema["properties"]["anything"] == {"default": None}
    call = BodyType(RpcReqInput).json_schema()["properties"]["call"]
    assert [part["title"] for part in call["anyOf"]] == ["SaveShardedModel", "SaveRemoteModel"]
    assert "discriminator" not in call


def test_a_schema_of_what_holds_itself_ends() -> None:
    within = TREE.json_schema()["properties"]["below"]["anyOf"][0]
    assert within["title"] == "Tree"
    assert {"title": "Tree"} in within["prefixItems"][8]["anyOf"]


def test_a_type_that_json_does_not_know_is_named_in_a_schema() -> None:
    class Held(Struct):
        data: ModelData | None = None

    assert "ModelData" in json.dumps(BodyType(Held).json_schema())
