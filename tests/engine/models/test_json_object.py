"""Values out of JSON files: of the kind that is expected, or refused with their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vidette.errors import ModelError
from vidette.models import json_object
from vidette.models.json_object import MAX_SIZE, JSONObject, parse_json, read_json

PATH = Path("some/config.json")
OBJECT = JSONObject(
    PATH,
    {
        "int": 3,
        "float": 2.5,
        "true": True,
        "text": "x",
        "null": None,
        "texts": ["a", "b"],
        "ints": [1, 2],
        "child": {"int": 4, "inner": {"text": "y"}},
    },
)


def test_values_of_the_expected_kind() -> None:
    assert OBJECT.integer("int") == OBJECT.size("int") == 3
    assert (OBJECT.number("float"), OBJECT.number("int")) == (2.5, 3.0)
    assert OBJECT.boolean("true") is True
    assert OBJECT.string("text") == "x"
    assert OBJECT.strings("texts") == ["a", "b"]
    assert OBJECT.integers("ints") == [1, 2]
    assert OBJECT.child("child").child("inner").string("text") == "y"


@pytest.mark.parametrize("key", ["null", "absent"])
def test_null_is_absent(key: str) -> None:
    assert not OBJECT.has(key)
    assert OBJECT.integer(key, 0) == 0
    assert OBJECT.number(key, 0.0) == 0.0
    assert OBJECT.boolean(key, default=False) is False
    assert OBJECT.string(key, "") == ""
    assert not OBJECT.child(key).values
    with pytest.raises(ModelError, match=f"some/config.json: there is no child.{key}"):
        OBJECT.child("child").integer(key)


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (lambda o: o.string("int"), "int is 3, not a string"),
        (lambda o: o.boolean("int"), "int is 3, not true or false"),
        (lambda o: o.integer("float"), "float is 2.5, not an integer"),
        (lambda o: o.integer("true"), "true is true, not an integer"),
        (lambda o: o.number("true"), "true is true, not a number"),
        (lambda o: o.number("text"), 'text is "x", not a number'),
        (lambda o: o.strings("text"), 'text is "x", not a list'),
        (lambda o: o.strings("ints"), "ints is 1, not a list of strings"),
        (lambda o: o.integers("texts"), 'texts is "a", not an integer'),
        (lambda o: o.integers("int"), "int is 3, not a list"),
        (lambda o: o.child("ints"), "ints is list, not an object"),
        (lambda o: o.child("child").string("inner"), "child.inner is dict, not a string"),
        (lambda o: o.child("child").child("inner").size("text"), 'child.inner.text is "y", not an integer'),
    ],
)
def test_values_of_another_kind_are_refused(read: Callable[[JSONObject], object], fault: str) -> None:
    with pytest.raises(ModelError, match=f"^some/config.json: {fault}$"):
        read(OBJECT)


@pytest.mark.parametrize("value", [0, -1, MAX_SIZE + 1, 10**4000])
def test_sizes_have_bounds(value: int) -> None:
    with pytest.raises(ModelError, match=f"x is .*, not from 1 to {MAX_SIZE}") as caught:
        JSONObject(PATH, {"x": value}).size("x")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, -(10**4000)])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(ModelError, match=r"x is .*, not a finite number") as caught:
        JSONObject(PATH, {"x": value}).number("x")
    assert len(str(caught.value)) < 200


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": {"b": 1}}))
    assert read_json(path).child("a").integer("b") == 1
    monkeypatch.setattr(json_object, "_MAX_BYTES", 10)
    with pytest.raises(ModelError, match="has more than 10 bytes"):
        read_json(path)
    with pytest.raises(ModelError, match=f"cannot read {tmp_path}"):
        read_json(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'"x"', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"^some/config.json holds "):
        parse_json(PATH, data)
