"""Sides of different versions: fields are only appended, so each reads what the other wrote.

What a class may not do is found out with Hello, before anything else is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import FieldInfo
from tests.protocol.conftest import ANY, parts_of, same

from vidette_fuzz.samples import EVERY, SAMPLES
from vidette_fuzz.strategies import messages, values
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.ext import ExtHooks
from vidette_protocol.messages import PROTOCOL_VERSION, AbortReq, Hello, Message, ShutdownReq, Tag

BY_NAME = st.sampled_from(sorted(SAMPLES))
HOOKS = ExtHooks()


def elements(frame: bytes) -> list[msgspec.Raw]:
    """Return a message as the elements of its array."""
    return msgspec.msgpack.decode(frame, type=list[msgspec.Raw])


def optional_tail(cls: type[msgspec.Struct]) -> list[FieldInfo]:
    """Return the fields behind the last one that has no default."""
    fields = msgspec.structs.fields(cls)
    required = max((at for at, field in enumerate(fields) if field.required), default=-1)
    return list(fields[required + 1 :])


def default_of(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def shortened(name: str) -> Iterator[tuple[bytes, Message]]:
    """Yield a sample without its last field, the last two, ...; and what it should be read as."""
    message = SAMPLES[name]
    parts = elements(ANY.encode(message))
    tail = optional_tail(type(message))
    for cut in range(1, len(tail) + 1):
        missing = {field.name: default_of(field) for field in tail[-cut:]}
        yield msgspec.msgpack.encode(parts[:-cut]), msgspec.structs.replace(message, **missing)


# --- what an older side sends ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_trailing_fields_that_did_not_come_have_their_defaults(name: str) -> None:
    for frame, expected in shortened(name):
        fault = expected.check_columns()
        if fault is None:
            assert same(ANY.decode(frame), expected)
        else:  # what the sample said, it needed this field for
            with pytest.raises(DecodeError) as raised:
                ANY.decode(frame)
            assert str(raised.value) == f"{type(expected).__name__}: {fault}"


def test_most_samples_can_do_without_their_trailing_fields() -> None:
    faults = [expected.check_columns() for name in SAMPLES for _, expected in shortened(name)]
    assert len(faults) > 300
    assert sum(fault is not None for fault in faults) < len(faults) // 4


@pytest.mark.parametrize("cls", EVERY)
def test_a_message_without_a_required_field_is_refused(cls: type[Message]) -> None:
    required = len(cls.__struct_fields__) - len(optional_tail(cls))
    sample = next(message for message in SAMPLES.values() if type(message) is cls)
    parts = elements(ANY.encode(sample))
    for length in range(1 + required):
        with pytest.raises(DecodeError, match=r"is no message of this link: .*(array|required)"):
            ANY.decode(msgspec.msgpack.encode(parts[:length]))


def test_an_older_message_is_read_with_defaults() -> None:
    """As it was in the golden messages before anything was appended."""
    frame = msgspec.msgpack.encode([Tag.HELLO, 1, "feed", "front", 7])
    assert ANY.decode(frame) == Hello(version=1, fingerprint="feed", role="front", pid=7)


# --- what a newer side sends ----------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
"""Whatever MessagePack has; the payloads of extensions are nonsense."""


@pytest.mark.parametrize("name", SAMPLES)
def test_appended_fields_are_skipped_for_every_sample(name: str) -> None:
    frame = ANY.encode(SAMPLES[name])
    more: list[object] = [
        None,
        [[{}]],
        msgspec.msgpack.Ext(2, b"torn"),
        b"",
        1.5,
        {"x": msgspec.msgpack.Ext(4, b"")},
    ]
    assert same(ANY.decode(msgspec.msgpack.encode([*elements(frame), *more])), SAMPLES[name])


@given(BY_NAME, st.lists(ANYTHING, max_size=3))
def test_whatever_was_appended_is_skipped(name: str, more: list[object]) -> None:
    """A message with more elements than its class has fields is the message without them."""
    frame = msgspec.msgpack.encode([*elements(ANY.encode(SAMPLES[name])), *more])
    assert same(ANY.decode(frame), SAMPLES[name])


PARTS = sorted(
    (part for part in parts_of(EVERY) if part.__struct_config__.array_like and part not in EVERY),
    key=lambda part: part.__name__,
)


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_messages_can_be_appended_to_as_well(part: type[msgspec.Struct]) -> None:
    """What a newer side appends is skipped, and what an older one does not send has its default."""
    encode = msgspec.msgpack.Encoder(enc_hook=HOOKS.enc_hook).encode
    decode = msgspec.msgpack.Decoder(part, ext_hook=HOOKS.ext_hook, dec_hook=HOOKS.dec_hook).decode

    @given(values(part), ANYTHING)
    def check(value: msgspec.Struct, more: object) -> None:
        whole = encode(value)
        assert encode(decode(encode([*elements(whole), more]))) == whole
        tail = optional_tail(part)
        for cut in range(1, len(tail) + 1):
            missing = {field.name: default_of(field) for field in tail[-cut:]}
            short = decode(encode(elements(whole)[:-cut]))
            assert encode(short) == encode(msgspec.structs.replace(value, **missing))

    check()


def test_a_sampling_parameter_this_side_does_not_know_is_refused() -> None:
    """Unlike an appended field, it cannot be ignored: it would silently not be honoured."""
    frame = msgspec.msgpack.encode([Tag.TOKENIZED_GENERATE, 1, 0, "r", bytes(4), {"dry_multiplier": 0.1}])
    with pytest.raises(DecodeError, match="unknown field `dry_multiplier`"):
        ANY.decode(frame)


# --- with Hello -----------------------------------------------------------------------------------


def codec_of(*classes: type[Message]) -> Codec:
    return Codec(sends=classes, receives=classes)


def meet(one: Codec, other: Codec) -> None:
    """Let one side hear the Hello of another, as it comes off the wire."""
    hello = Hello(
        version=PROTOCOL_VERSION, fingerprint=other.fingerprint, role="front", pid=7, schema=other.schema
    )
    assert one.check_hello(ANY.decode(ANY.encode(hello)), role="front") == hello


def refusal(one: Codec, other: Codec) -> str:
    """Return why one side does not take the Hello of another."""
    with pytest.raises(RemoteProtocolError) as raised:
        meet(one, other)
    text = str(raised.value)
    assert text.startswith(f"the front (pid 7) speaks protocol {PROTOCOL_VERSION}/{other.fingerprint}, ")
    assert text.endswith("): install the same version of vidette on both sides")
    return text.partition("(pid 7)")[2].partition("(")[2].partition("): install")[0]


def remade(cls: type[Message], fields: list[tuple[Any, ...]], **options: Any) -> type[Message]:
    """Return a class of the same name as another version might have it."""
    settings: dict[str, Any] = {"tag": cls.__struct_config__.tag, "kw_only": True, "frozen": True, **options}
    return cast("type[Message]", msgspec.defstruct(cls.__name__, fields, bases=(Message,), **settings))


def fields_of(cls: type[Message]) -> list[tuple[Any, ...]]:
    """Return the fields of a class as `defstruct` takes them."""
    return [
        (field.name, field.type) if field.required else (field.name, field.type, default_of(field))
        for field in msgspec.structs.fields(cls)
    ]


def extended(cls: type[Message]) -> type[Message]:
    """Return a class as a later version might have it: with fields appended."""
    more = [("appended", int, 3), ("more", dict[str, list[bytes]], msgspec.field(default_factory=dict))]
    settings: dict[str, Any] = {"tag": cls.__struct_config__.tag, "kw_only": True, "frozen": True}
    return cast("type[Message]", msgspec.defstruct(cls.__name__, more, bases=(cls,), **settings))


@pytest.mark.parametrize("cls", EVERY)
def test_a_side_that_appended_fields_and_one_that_did_not_understand_each_other(cls: type[Message]) -> None:
    newer = extended(cls)
    old, new = codec_of(cls), codec_of(newer)
    assert old.fingerprint != new.fingerprint
    meet(old, new)
    meet(new, old)
    for message in SAMPLES.values():
        if type(message) is cls:
            fields = values_of(message)
            assert same(old.decode(new.encode(newer(**fields, appended=9, more={"x": [b"y"]}))), message)
            assert same(new.decode(old.encode(message)), newer(**fields), new)


def values_of(message: Message) -> dict[str, Any]:
    return msgspec.structs.asdict(message)


@given(st.sampled_from(EVERY).flatmap(messages))
def test_whatever_is_sent_between_them_is_read(message: Message) -> None:
    """A message of either version is, for the other, the same message but for what was appended."""
    newer = extended(type(message))
    old, new = codec_of(type(message)), codec_of(newer)
    fields = values_of(message)
    assert same(old.decode(new.encode(newer(**fields, appended=9))), message)
    assert same(new.decode(old.encode(message)), newer(**fields), new)


class Part(msgspec.Struct, array_like=True, frozen=True):
    """What an appended field brings along."""

    word: str = ""


def test_an_appended_field_may_hold_a_struct_that_the_other_side_lacks() -> None:
    newer = remade(
        AbortReq, [*fields_of(AbortReq), ("parts", list[Part], msgspec.field(default_factory=list))]
    )
    old, new = codec_of(AbortReq), codec_of(newer)
    meet(old, new)
    meet(new, old)
    frame = new.encode(newer(vid=5, parts=[Part("x")]))
    assert old.decode(frame) == AbortReq(vid=5)


def test_parts_are_compared_like_messages() -> None:
    def holding(fields: list[tuple[Any, ...]]) -> Codec:
        part = msgspec.defstruct("Part", fields, array_like=True)
        holder = msgspec.defstruct("Holder", [("part", part)], bases=(Message,), tag=255, frozen=True)
        return codec_of(cast("type[Message]", holder))

    one = holding([("word", str, "")])
    appended = holding([("word", str, ""), ("number", int, 0)])
    meet(one, appended)
    meet(appended, one)
    assert refusal(one, holding([("word", int, 0)])) == "Part.word is another field there"
    told = "Part.number has no default, and is not known there"
    assert refusal(holding([("word", str), ("number", int)]), holding([("word", str)])) == told


def test_a_whole_catalogue_that_was_appended_to_is_taken() -> None:
    # Those that hold other messages would bring the older ones along.
    plain = [cls for cls in EVERY if not parts_of([cls]) & set(EVERY)]
    inside = set().union(*(parts_of([cls]) & set(EVERY) for cls in EVERY))
    classes = [cls for cls in plain if cls not in inside]
    assert len(classes) > 50
    old, new = codec_of(*classes), codec_of(*map(extended, classes))
    meet(old, new)
    meet(new, old)


WITH_FIELDS = [cls for cls in EVERY if cls.__struct_fields__]


@pytest.mark.parametrize("cls", WITH_FIELDS)
def test_a_field_that_was_renamed_retyped_or_moved_is_refused(cls: type[Message]) -> None:
    fields = fields_of(cls)
    first, last = fields[0], fields[-1]
    renamed = remade(cls, [*fields[:-1], ("renamed", *last[1:])])
    retyped = remade(cls, [*fields[:-1], (last[0], complex, None)])
    inserted = remade(cls, [("inserted", int, 0), *fields])
    gone = remade(cls, [*fields[1:], ("appended", int, 0)])
    for other, field in ((renamed, last), (retyped, last), (inserted, first), (gone, first)):
        told = f"{cls.__name__}.{field[0]} is another field there"
        assert refusal(codec_of(cls), codec_of(other)) == told
        assert refusal(codec_of(other), codec_of(cls)).startswith(f"{cls.__name__}.")


@pytest.mark.parametrize("cls", [cls for cls in EVERY if len(cls.__struct_fields__) > 1])
def test_fields_in_another_order_are_refused(cls: type[Message]) -> None:
    fields = fields_of(cls)
    moved = remade(cls, [*fields[:-2], fields[-1], fields[-2]])
    told = f"{cls.__name__}.{fields[-2][0]} is another field there"
    assert refusal(codec_of(cls), codec_of(moved)) == told


@pytest.mark.parametrize("cls", EVERY)
def test_another_tag_or_another_form_is_refused(cls: type[Message]) -> None:
    told = f"{cls.__name__} has another tag or another form there"
    for options in ({"tag": 255}, {"array_like": False}):
        other = remade(cls, fields_of(cls), **options)
        assert refusal(codec_of(cls), codec_of(other)) == told
        assert refusal(codec_of(other), codec_of(cls)) == told


@pytest.mark.parametrize("cls", EVERY)
def test_an_appended_field_without_a_default_is_refused_by_whoever_appended_it(cls: type[Message]) -> None:
    other = remade(cls, [*fields_of(cls), ("appended", int)])
    told = f"{cls.__name__}.appended has no default, and is not known there"
    assert refusal(codec_of(other), codec_of(cls)) == told


@pytest.mark.parametrize("cls", [cls for cls in EVERY if cls is not AbortReq])
def test_a_class_that_one_side_lacks_is_refused(cls: type[Message]) -> None:
    one, other = codec_of(AbortReq, cls), codec_of(AbortReq)
    assert refusal(one, other) == f"{cls.__name__} is not known there"
    assert refusal(other, one) == f"{cls.__name__} is not known here"


def test_what_is_lacking_is_named_but_not_all_of_it() -> None:
    two = codec_of(AbortReq, Hello, ShutdownReq)
    assert refusal(two, codec_of(AbortReq)) == "Hello, ShutdownReq are not known there"
    assert refusal(codec_of(AbortReq), codec_of(AbortReq, Hello)) == "Hello is not known here"
    told = refusal(codec_of(AbortReq), ANY)
    listed = "AddExternalCorpusReqInput, AddExternalCorpusReqOutput, ArenaCredit"
    assert told == f"{listed} and {len(EVERY) - 4} more are not known here"


# --- Hello itself ---------------------------------------------------------------------------------


def hello(**fields: object) -> Hello:
    ours = Hello(version=PROTOCOL_VERSION, fingerprint=ANY.fingerprint, role="scheduler", pid=77)
    return msgspec.structs.replace(ours, **fields)


def test_the_right_hello_is_returned() -> None:
    assert ANY.check_hello(hello(), role="scheduler") == hello()


@pytest.mark.parametrize(
    ("fields", "theirs", "why"),
    [
        ({"version": 2}, f"2/{ANY.fingerprint}", f"{ANY.fingerprint}: install"),
        ({"version": 2, "fingerprint": "feed", "schema": ANY.schema}, "2/feed", f"{ANY.fingerprint}: "),
        ({"fingerprint": "feed"}, f"{PROTOCOL_VERSION}/feed", "(it does not describe its messages): "),
        (
            {"fingerprint": "feed", "schema": {**ANY.schema, "AbortReq": b""}},
            f"{PROTOCOL_VERSION}/feed",
            "(AbortReq is not described there): ",
        ),
        (
            {"fingerprint": "feed", "schema": {**ANY.schema, "AbortReq": ANY.schema["AbortReq"] + b"x"}},
            f"{PROTOCOL_VERSION}/feed",
            "(AbortReq is not described there): ",
        ),
    ],
)
def test_another_version_is_refused_and_both_are_named(
    fields: dict[str, object], theirs: str, why: str
) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        ANY.check_hello(hello(**fields), role="scheduler")
    text = str(raised.value)
    assert f"the scheduler (pid 77) speaks protocol {theirs}, " in text
    assert f"this side {PROTOCOL_VERSION}/{ANY.fingerprint}" in text
    assert why in text
    assert "install the same version" in text


def test_another_role_is_refused() -> None:
    with pytest.raises(
        RemoteProtocolError, match=r"^the detokenizer should be at this link, but 'scheduler' is$"
    ):
        ANY.check_hello(hello(), role="detokenizer")


def test_a_link_opens_with_hello() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^a link opens with Hello, not with ShutdownReq$"):
        ANY.check_hello(ShutdownReq(), role="scheduler")


@given(st.dictionaries(st.sampled_from(sorted(ANY.schema)) | st.text(), st.binary(max_size=40)))
def test_any_description_is_taken_or_refused(schema: dict[str, bytes]) -> None:
    """Whatever another side says of its messages, it is a RemoteProtocolError or fits."""
    for described in (schema, {**ANY.schema, **schema}):
        with contextlib.suppress(RemoteProtocolError):
            ANY.check_hello(hello(fingerprint="feed", schema=described), role="scheduler")
