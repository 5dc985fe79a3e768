from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, LocalProtocolError
from vidette_protocol.messages import Message, PickleWrapper
from vidette_protocol.messages.catalogue import CATALOGUE
from vidette_protocol.messages.pickled import PickledBytes
from vidette_protocol.plain import msgspec_to_builtins

BOMB = b"cbuiltins\neval\n(S'1/0'\ntR."
"""A pickle that raises ZeroDivisionError in whoever unpickles it."""


class Old(Message, tag=900, kw_only=True, frozen=True):
    """As a half-moved user might have it."""

    time_stats: PickleWrapper | None = None
    many: list[PickleWrapper] = []  # noqa: RUF012
    anything: object = None


CLASSES: list[type[Message]] = [Old, PickleWrapper]
STRICT = Codec(sends=CLASSES, receives=CLASSES)
LAX = Codec(sends=CLASSES, receives=CLASSES, allow_pickle=True)

MESSAGES = [
    PickleWrapper(data=BOMB),
    Old(time_stats=PickleWrapper(data=BOMB)),
    Old(many=[PickleWrapper(data=BOMB)]),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_it_is_not_sent(message: Message) -> None:
    with pytest.raises(
        LocalProtocolError, match="a PickleWrapper is not sent; a codec with allow_pickle=True"
    ):
        STRICT.encode(message)


@pytest.mark.parametrize("hidden", [PickleWrapper(data=BOMB), [{"a": (PickleWrapper(data=BOMB),)}]])
def test_it_is_not_sent_where_anything_may_be(hidden: object) -> None:
    with pytest.raises(LocalProtocolError, match="a PickleWrapper is not sent"):
        STRICT.encode(Old(anything=hidden))


@pytest.mark.parametrize("message", MESSAGES)
def test_it_is_not_taken(message: Message) -> None:
    with pytest.raises(
        DecodeError, match="a PickleWrapper came; only a codec with allow_pickle=True takes one"
    ):
        STRICT.decode(LAX.encode(message))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_codec_that_allows_it_hands_the_bytes_over_and_unpickles_nothing(message: Message) -> None:
    taken = LAX.decode(LAX.encode(message))
    assert taken == message


def test_the_bytes_are_bytes() -> None:
    taken = LAX.decode(LAX.encode(MESSAGES[0]))
    assert isinstance(taken, PickleWrapper)
    assert taken.data == BOMB
    assert isinstance(taken.data, bytes)


def test_where_anything_may_be_it_comes_as_a_list_of_its_tag_and_its_bytes() -> None:
    taken = LAX.decode(LAX.encode(Old(anything=PickleWrapper(data=BOMB))))
    assert isinstance(taken, Old)
    assert taken.anything == [15, BOMB]


def test_what_is_no_bytes_in_it_is_no_message() -> None:
    frame = msgspec.msgpack.encode([15, "text"])
    with pytest.raises(DecodeError, match=r"Expected `bytes`, got `str` - at `\$\[1\]`"):
        LAX.decode(frame)


def test_a_codec_that_was_not_given_it_does_not_know_it() -> None:
    codec = Codec(sends=CATALOGUE, receives=CATALOGUE, allow_pickle=True)
    with pytest.raises(LocalProtocolError, match="PickleWrapper does not travel this way"):
        codec.encode(MESSAGES[0])
    with pytest.raises(DecodeError, match="Invalid value 15"):
        codec.decode(LAX.encode(MESSAGES[0]))


def test_no_link_of_the_engine_has_it() -> None:
    assert PickleWrapper not in CATALOGUE
    names: set[str] = set().union(*(Codec(sends=[cls], receives=[cls]).schema for cls in CATALOGUE))
    assert "PickleWrapper" not in names


def test_without_a_codec_nothing_encodes_it() -> None:
    with pytest.raises(TypeError, match="PickledBytes"):
        msgspec.msgpack.encode(MESSAGES[0])


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"ab"), PickledBytes(b"ab")])
def test_any_bytes_are_kept(data: Any) -> None:
    wrapper = PickleWrapper(data=data)
    assert wrapper.data == b"ab"
    assert type(wrapper.data) is PickledBytes


@pytest.mark.parametrize("data", [5, "text", None, [1]])
def test_what_is_no_bytes_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=f"a {type(data).__name__} is not bytes"):
        PickleWrapper(data=data)


def test_a_log_shows_it_as_base64() -> None:
    assert msgspec_to_builtins(PickleWrapper(data=b"hi")) == {"data": "aGk="}
