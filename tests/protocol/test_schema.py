"""Descriptions of classes: what changes them, and what does not. How sides use them: test_codec_evolution."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
from msgspec import Meta, Struct, inspect

from vidette_fuzz.samples import EVERY
from vidette_protocol.ids import Vid
from vidette_protocol.messages import AbortReq, FinishReason, Message
from vidette_protocol.schema import DIGEST_BYTES, PART, describe, fingerprint_of, misfit, reach, spell


def made(fields: list[tuple[Any, ...]], *, name: str = "One", **options: Any) -> type[Struct]:
    settings: dict[str, Any] = {"tag": 300, "array_like": True, **options}
    return msgspec.defstruct(name, fields, **settings)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:4]


def test_a_class_is_described_by_its_tag_and_by_each_of_its_fields() -> None:
    """Written down here, since sides of different versions have to come to the same."""
    parts = ["16 array", "vid: int", "floor: int", "abort_all: bool", "abort_message: nil or text"]
    assert describe([AbortReq]) == {"AbortReq": b"".join(map(digest, parts))}
    assert DIGEST_BYTES == 4


def test_what_lies_in_a_message_is_described_with_it() -> None:
    inner: Any = made([("text", str)], name="Inner", tag=None, array_like=False)
    deep: Any = made([("inner", dict[str, tuple[inner | None, ...]])], name="Deep", tag="deep")
    outer = made(
        [("deep", list[Annotated[deep, Meta()]]), ("pair", tuple[int, FinishReason]), ("colour", Colour)]
    )
    described = describe([outer])
    assert described.keys() == {"One", f"{PART}Inner", f"{PART}Deep", f"{PART}FinishReason"}
    assert described[f"{PART}Inner"] == digest("None map") + digest("text: text")
    assert described[f"{PART}Deep"] == digest("'deep' array") + digest("inner: {text: [Inner or nil, ...]}")
    assert [cls.__name__ for cls in reach([outer])] == ["Deep", "FinishReason", "Inner", "One"]


def test_what_is_a_message_of_its_own_is_described_as_one() -> None:
    inner = made([], name="Inner", tag=301)
    outer = made([("inner", inner)])
    assert describe([outer]).keys() == {"One", f"{PART}Inner"}
    assert describe([outer, inner]).keys() == {"One", "Inner"}


class Tree(Struct, array_like=True):
    """What holds itself."""

    branches: list[Tree] = []


def test_a_struct_that_holds_itself_is_described_once() -> None:
    assert describe([Tree]).keys() == {"Tree"}


def test_the_order_in_which_classes_are_given_does_not_matter() -> None:
    assert describe(EVERY) == describe(reversed(EVERY))
    assert list(describe(EVERY)) == list(describe(reversed(EVERY)))


@pytest.mark.parametrize("where", ["beside", "inside"])
def test_two_classes_of_one_name_are_refused(where: str) -> None:
    one = made([("a", int)])
    other = made([("b", int)], tag=301) if where == "beside" else made([("one", one)], tag=301)
    with pytest.raises(ValueError, match=r"^two classes of messages have the name One$"):
        describe([one, other])


ONE = [("a", int), ("b", str, "x")]


class Colour(Enum):
    """A choice."""

    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "other",
    [
        made([("a", int), ("c", str, "x")]),
        made([("a", int), ("b", bytes, b"x")]),
        made([("a", int), ("b", str | None, "x")]),
        made([("a", int), ("b", list[str], "x")]),
        made([("a", int), ("b", Literal["x", "y"], "x")]),
        made([("a", int), ("b", Literal["x", "z"], "x")]),
        made([("a", int), ("b", Colour, Colour.RED)]),
        made([("b", str, "x"), ("a", int, 0)]),
        made([("a", int)]),
        made([*ONE, ("c", int, 0)]),
        made(ONE, tag=301),
        made(ONE, tag="300"),
        made(ONE, array_like=False),
        made(ONE, rename="upper"),
        made(ONE, name="Other"),
    ],
)
def test_names_tags_forms_and_types_and_the_order_of_fields_are_in_the_fingerprint(
    other: type[Struct],
) -> None:
    assert fingerprint_of(describe([made(ONE)])) != fingerprint_of(describe([other]))


@pytest.mark.parametrize(
    "other",
    [
        made(ONE),
        made([("a", Annotated[int, Meta(ge=0)]), ("b", str, "another default")]),
        made([("a", Vid), ("b", str)]),
        made(ONE, frozen=True, kw_only=True),
    ],
)
def test_what_does_not_change_the_bytes_does_not_change_the_fingerprint(other: type[Struct]) -> None:
    assert fingerprint_of(describe([made(ONE)])) == fingerprint_of(describe([other]))


def test_a_fingerprint_does_not_depend_on_the_order_of_names() -> None:
    described = describe(EVERY)
    assert fingerprint_of(described) == fingerprint_of(dict(reversed(described.items())))


# --- two descriptions -----------------------------------------------------------------------------


def fault_of(ours: type[Struct], theirs: Mapping[str, bytes]) -> str | None:
    return misfit(describe([ours]), theirs, [ours])


def test_what_fits_has_no_fault() -> None:
    assert fault_of(made(ONE), describe([made(ONE)])) is None
    assert fault_of(made(ONE), describe([made([*ONE, ("c", int, 0)])])) is None
    assert fault_of(made([*ONE, ("c", int, 0)]), describe([made(ONE)])) is None


@pytest.mark.parametrize(
    ("theirs", "fault"),
    [
        ({}, "One is not known there"),
        ({"One": b""}, "One is not described there"),
        ({"One": b"abc"}, "One is not described there"),
        ({"One": digest("300 array") + b"abc"}, "One is not described there"),
        ({"One": digest("300 array")}, "One.a has no default, and is not known there"),
        ({"One": digest("300 map")}, "One has another tag or another form there"),
        ({"One": digest("300 array") + digest("a: text")}, "One.a is another field there"),
        ({"One": digest("300 array") + digest("a: int") + bytes(4)}, "One.b is another field there"),
        ({"One": digest("300 array") + digest("a: int")}, None),
        ({"One": digest("300 array") + digest("a: int"), "More": b""}, "More is not known here"),
        ({"One": digest("300 array") + digest("a: int"), "part More": b""}, None),
    ],
)
def test_what_does_not_fit_is_told(theirs: dict[str, bytes], fault: str | None) -> None:
    assert fault_of(made(ONE), theirs) == fault


def test_the_other_side_may_know_ever_so_many_others() -> None:
    theirs = {**describe([made(ONE)]), **{f"X{number}": b"" for number in range(9)}}
    assert fault_of(made(ONE), theirs) == "X0, X1, X2 and 6 more are not known here"


# --- types in words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "bool"),
        (float, "float"),
        (bytes, "bytes"),
        (memoryview, "bytes"),
        (int | None, "int or nil"),
        (None | int, "int or nil"),
        (list[str], "[text, ...]"),
        (tuple[int, ...], "[int, ...]"),
        (tuple[int, str], "[int, text]"),
        (dict[str, float], "{text: float}"),
        (Literal["stop", "length"], "'length' or 'stop'"),
        (Annotated[int, Meta(ge=0)], "int"),
        (FinishReason, "FinishReason"),
        (Any, "anything"),
        (object, "anything"),
        (Colour, "1 or 2"),
    ],
)
def test_types_are_spelled_alike_everywhere(hint: Any, words: str) -> None:
    assert spell(inspect.type_info(cast("Any", hint))) == words


def test_a_message_is_spelled_by_its_name() -> None:
    assert spell(inspect.type_info(Message)) == "Message"
