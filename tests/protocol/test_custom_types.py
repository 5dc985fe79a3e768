"""A user's own messages in a codec: `hook_custom_types`, `front_codec` and `Codec.mirrored`."""

from __future__ import annotations

from typing import ClassVar

import pytest

from vidette_protocol.codec import Codec, front_codec, hook_custom_types
from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import ExtHooks
from vidette_protocol.messages import ControlOutput, ControlReq, HeartbeatReq, Hello, Message, PickleWrapper
from vidette_protocol.messages.base import PROTOCOL_VERSION
from vidette_protocol.messages.bulk import LINK_MESSAGES
from vidette_protocol.messages.catalogue import FRONT_TO_SCHEDULER, SCHEDULER_TO_FRONT


class Note(Message, tag=256, kw_only=True, frozen=True):
    """A message of a user's own."""

    text: str = ""


class CountReqOutput(ControlOutput, tag=301, kw_only=True, frozen=True):
    """The answer to the next."""

    count: int = 0


class CountReq(ControlReq, tag=300, kw_only=True, frozen=True):
    """A question of a user's own."""

    output: ClassVar = CountReqOutput


def test_the_front_has_the_messages_of_its_link() -> None:
    codec = front_codec()
    assert codec.sends == {*FRONT_TO_SCHEDULER, *LINK_MESSAGES}
    assert codec.receives == {*SCHEDULER_TO_FRONT, *LINK_MESSAGES}


def test_they_travel_both_ways_beside_what_travelled_before() -> None:
    front = hook_custom_types(front_codec(), Note)
    scheduler = front.mirrored()
    assert scheduler.decode(front.encode(Note(text="down"))) == Note(text="down")
    assert front.decode(scheduler.encode(Note(text="up"))) == Note(text="up")
    assert scheduler.decode(front.encode(HeartbeatReq(id=1))) == HeartbeatReq(id=1)


def test_a_codec_and_its_mirror_suit_each_other() -> None:
    front = hook_custom_types(front_codec(), Note)
    assert (front.mirrored().sends, front.mirrored().receives) == (front.receives, front.sends)
    assert front.mirrored().fingerprint == front.fingerprint


def test_the_codec_that_was_given_stays_as_it_was() -> None:
    codec = front_codec()
    before = codec.fingerprint
    more = hook_custom_types(codec, Note)
    assert (codec.fingerprint, codec.sends) == (before, frozenset({*FRONT_TO_SCHEDULER, *LINK_MESSAGES}))
    assert more.fingerprint != before
    with pytest.raises(LocalProtocolError, match="Note does not travel this way"):
        codec.encode(Note())
    with pytest.raises(DecodeError, match="Invalid value 256"):
        codec.mirrored().decode(more.encode(Note()))


def test_one_that_knows_them_and_one_that_does_not_refuse_each_other() -> None:
    plain, more = front_codec(), hook_custom_types(front_codec(), Note)

    def hello(codec: Codec) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            fingerprint=codec.fingerprint,
            role="front",
            pid=1,
            schema=dict(codec.schema),
        )

    assert more.check_hello(hello(more), role="front") == hello(more)
    with pytest.raises(RemoteProtocolError, match="Note is not known there"):
        more.check_hello(hello(plain), role="front")
    with pytest.raises(RemoteProtocolError, match="Note is not known here"):
        plain.check_hello(hello(more), role="front")


def test_a_direction_can_be_left_out() -> None:
    down = hook_custom_types(front_codec(), Note, receives=False)
    assert Note in down.sends
    assert Note not in down.receives
    up = hook_custom_types(front_codec(), Note, sends=False)
    assert Note not in up.sends
    assert Note in up.receives


def test_a_question_brings_its_answer() -> None:
    front = hook_custom_types(front_codec(), CountReq)
    scheduler = front.mirrored()
    assert scheduler.decode(front.encode(CountReq(id=3))) == CountReq(id=3)
    assert front.decode(scheduler.encode(CountReqOutput(id=3, count=4))) == CountReqOutput(id=3, count=4)


def test_a_class_may_be_given_again() -> None:
    once = hook_custom_types(front_codec(), CountReq)
    again = hook_custom_types(once, CountReq, CountReqOutput, Note, Note)
    assert again.sends == once.sends | {Note}


def test_what_the_codec_was_made_with_is_kept() -> None:
    hooks = ExtHooks(devices=["cuda:0"], copy=False)
    codec = Codec(sends=[PickleWrapper], receives=[Hello], hooks=hooks, bulk=True, allow_pickle=True)
    more = hook_custom_types(codec, Note)
    assert (more.hooks.devices, more.hooks.copy) == (hooks.devices, False)
    assert more.bulk
    assert more.allow_pickle
    assert more.mirrored().decode(more.encode(PickleWrapper(data=b"x"))) == PickleWrapper(data=b"x")


# --- what is refused ----------------------------------------------------------------------------------


class Low(Message, tag=255, kw_only=True, frozen=True):
    """Its tag is one of ours."""


class Named(Message, tag="named", kw_only=True, frozen=True):
    """Its tag is a text."""


class Untagged(Message, kw_only=True, frozen=True):
    """It has no tag."""


class AsMap(Message, tag=260, array_like=False, kw_only=True, frozen=True):
    """It is no array."""


class Mutable(Message, tag=261, kw_only=True, frozen=False):  # type: ignore[misc]
    """It can be changed."""


class Mute(ControlReq, tag=262, kw_only=True, frozen=True):
    """It does not say what answers it."""


class Odd(Message, tag=263, kw_only=True, frozen=True):
    """It has a field that nothing decodes."""

    field: list[str] | tuple[int, int] = []  # noqa: RUF012


class SameTag(Message, tag=256, kw_only=True, frozen=True):
    """Its tag is that of Note."""


class LowOutput(ControlOutput, tag=99, kw_only=True, frozen=True):
    """Its tag is one of ours."""


class LowAnswer(ControlReq, tag=267, kw_only=True, frozen=True):
    """Its answer has a tag of ours."""

    output: ClassVar = LowOutput


class Needy(ControlOutput, tag=268, kw_only=True, frozen=True):
    """An answer that says something, whatever happened."""

    count: int


class BadAnswer(ControlReq, tag=264, kw_only=True, frozen=True):
    """Its answer is none."""

    output: ClassVar = Low  # type: ignore[assignment]


HELLO = type("Hello", (Message,), {"__module__": "elsewhere"}, tag=265, kw_only=True, frozen=True)
HELLO_NOTE = type("Note", (Message,), {"__module__": "elsewhere"}, tag=266, kw_only=True, frozen=True)


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ([str], "builtins.str is no subclass of Message"),
        ([ExtHooks], "ExtHooks is no subclass of Message"),
        ([Low], r"Low has the tag 255; it must be an integer from 256 on"),
        ([Named], "Named has the tag 'named'; it must be"),
        ([Untagged], "Untagged has the tag None; it must be"),
        ([AsMap], "AsMap must be array_like and frozen, as Message is"),
        ([Mutable], "Mutable must be array_like and frozen, as Message is"),
        ([Mute], "Mute does not name the class of its answer: `output: ClassVar = ...`"),
        ([BadAnswer], "BadAnswer does not name the class of its answer: .*, a ControlOutput"),
        ([LowAnswer], "LowOutput has the tag 99; it must be"),
        ([Needy], "Needy.count needs a default: a failure is answered without it"),
        ([Note, SameTag], "SameTag has the tag of .*Note"),
        ([HELLO], r"elsewhere.Hello has the name of vidette_protocol.messages.control.Hello"),
        ([Note, HELLO_NOTE], "elsewhere.Note has the name of .*test_custom_types.Note"),
        ([Odd], "these messages cannot travel: "),
    ],
)
def test_what_cannot_travel_is_refused(types: list[type[Message]], said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said):
        hook_custom_types(front_codec(), *types)


def test_a_tag_that_an_earlier_one_took_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="SameTag has the tag of"):
        hook_custom_types(hook_custom_types(front_codec(), Note), SameTag)
