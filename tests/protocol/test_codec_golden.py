"""Bytes and layouts that are checked in: what was sent once can be read for ever.

Nothing in the files may change, but for lines that are appended, and fields that are appended, with defaults,
to a line of the schema.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct
from tests.protocol.conftest import ANY, parts_of, same

from vidette_fuzz.samples import EVERY, SAMPLES
from vidette_protocol.messages import Message
from vidette_protocol.messages.pickled import PickleWrapper
from vidette_protocol.schema import PART, describe

GOLDEN = Path(__file__).parent / "golden"
MESSAGES: list[type[Message]] = sorted(
    [*EVERY, PickleWrapper], key=lambda cls: int(str(cls.__struct_config__.tag))
)
PARTS = sorted(parts_of(MESSAGES) - set(MESSAGES), key=lambda cls: cls.__name__)
CLASSES: list[type[Struct]] = [*MESSAGES, *PARTS]


# --- golden bytes ---------------------------------------------------------------------------------


def golden_messages() -> dict[str, bytes]:
    """Return what is checked in: a line `name hex` for each sample."""
    lines = (GOLDEN / "messages.txt").read_text().splitlines()
    return {name: bytes.fromhex(frame) for name, frame in map(str.split, lines)}


def test_each_sample_is_checked_in() -> None:
    golden = golden_messages()
    missing = [f"{name} {ANY.encode(SAMPLES[name]).hex()}" for name in SAMPLES if name not in golden]
    assert not missing, "append to golden/messages.txt:\n" + "\n".join(missing)
    assert golden.keys() == SAMPLES.keys()


def test_each_class_has_a_sample() -> None:
    assert set(EVERY) == {type(message) for message in SAMPLES.values()}


@pytest.mark.parametrize("name", SAMPLES)
def test_encoding_gives_the_golden_bytes(name: str) -> None:
    assert golden_messages()[name].hex() == ANY.encode(SAMPLES[name]).hex()


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_decode_to_the_message(name: str) -> None:
    assert same(SAMPLES[name], ANY.decode(golden_messages()[name]))


# --- golden layouts -------------------------------------------------------------------------------


def line_of(cls: type[Struct]) -> str:
    """Return the line of a class: its tag, or what it is on the wire, then its name and its fields."""
    config = cls.__struct_config__
    kind = config.tag if config.tag is not None else "array" if config.array_like else "map"
    return " ".join((str(kind), cls.__name__, *cls.__struct_encode_fields__))


def misfit_of(line: str, golden: dict[str, str]) -> str | None:
    """Return what is wrong with the line of a class, and what is to be done about it."""
    _, name, *_ = line.split()
    if name not in golden:
        return f"append to golden/schema.txt:\n{line}"
    if line == golden[name]:
        return None
    if line.startswith(golden[name] + " "):
        return f"fields were appended: put into golden/schema.txt, in place of its line,\n{line}"
    return f"{name} was laid out as\n{golden[name]}\nand has to stay so for those who know it; it is\n{line}"


def golden_schema() -> dict[str, str]:
    """Return what is checked in, by the name of the class."""
    return {line.split()[1]: line for line in (GOLDEN / "schema.txt").read_text().splitlines()}


@pytest.mark.parametrize("cls", CLASSES)
def test_tags_and_the_order_of_fields_are_frozen(cls: type[Struct]) -> None:
    misfit = misfit_of(line_of(cls), golden_schema())
    assert misfit is None, misfit


def test_no_class_is_gone() -> None:
    assert golden_schema().keys() == {cls.__name__ for cls in CLASSES}


def test_the_golden_schema_has_what_a_hello_describes() -> None:
    """The classes that the sides compare are found in another way than here."""
    described = {name.removeprefix(PART) for name in describe(MESSAGES)}
    assert golden_schema().keys() == described


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("16 AbortReq vid floor", None),
        ("16 AbortReq vid floor why", "fields were appended"),
        ("17 NewReq vid", "append to golden/schema.txt:\n17 NewReq vid"),
        ("17 AbortReq vid floor", "was laid out as\n16 AbortReq vid floor\n"),
        ("16 AbortReq floor vid", "was laid out as"),
        ("16 AbortReq vid", "was laid out as"),
        ("16 AbortReq vid floors", "was laid out as"),
    ],
)
def test_what_is_to_be_done_is_said(line: str, what: str | None) -> None:
    misfit = misfit_of(line, {"AbortReq": "16 AbortReq vid floor"})
    assert misfit is what if what is None else what in str(misfit)
