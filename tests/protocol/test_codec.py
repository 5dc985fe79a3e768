from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vidette_fuzz.frames import check_frame, run_codec
from vidette_fuzz.samples import LINKS, SAMPLES
from vidette_fuzz.strategies import messages, mutated_frames, structs
from vidette_protocol.codec import Codec, fingerprint
from vidette_protocol.errors import DecodeError, LocalProtocolError, ProtocolError, RemoteProtocolError
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import DetokenizerMachine, FrontMachine, end_of
from vidette_protocol.messages import (
    PROTOCOL_VERSION,
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Hello,
    Message,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    Tag,
    TokenizedGenerateReqInput,
    pack_i32,
    pack_i64,
)

EVERY = tuple(sorted({cls for classes in LINKS.values() for cls in classes}, key=lambda cls: cls.__name__))
ANY = Codec(sends=EVERY, receives=EVERY)
GOLDEN = Path(__file__).parent / "golden" / "messages.txt"


# --- golden bytes ---------------------------------------------------------------------------------


def golden() -> dict[str, bytes]:
    """Return what is checked in: a line `name hex` for each sample."""
    lines = GOLDEN.read_text().splitlines()
    return {name: bytes.fromhex(frame) for name, frame in map(str.split, lines)}


def test_each_sample_is_checked_in() -> None:
    """A new sample fails here with the line to append."""
    missing = [f"{name} {ANY.encode(SAMPLES[name]).hex()}" for name in SAMPLES if name not in golden()]
    assert missing == []
    assert golden().keys() == SAMPLES.keys()


def test_each_class_has_a_sample() -> None:
    assert set(EVERY) == {type(message) for message in SAMPLES.values()}


@pytest.mark.parametrize("name", SAMPLES)
def test_encoding_gives_the_golden_bytes(name: str) -> None:
    assert golden()[name].hex() == ANY.encode(SAMPLES[name]).hex()


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_decode_to_the_message(name: str) -> None:
    assert SAMPLES[name] == ANY.decode(golden()[name])


# --- the schema is frozen -------------------------------------------------------------------------

# Append fields at the end, with defaults; give new classes new tags. Nothing else here may change.
SCHEMA = {
    1: ("Hello", ("version", "fingerprint", "role", "pid", "incarnation")),
    2: ("Ready", ("role", "max_total_tokens", "num_blocks", "step_tokens")),
    3: ("HeartbeatReq", ("id", "floor", "scheduler", "detokenizer_open")),
    4: ("ShutdownReq", ()),
    5: ("FreezeGCReq", ("id",)),
    6: ("Failed", ("role", "message")),
    16: ("AbortReq", ("vid", "floor")),
    17: ("TokenizedGenerateReqInput", ("vid", "floor", "rid", "input_ids", "sampling_params")),
    32: (
        "BatchTokenIDOutput",
        ("packed_vids", "packed_offsets", "packed_counts", "packed_ids", "sparse_reasons", "ledger"),
    ),
    33: (
        "BatchStrOutput",
        (
            "packed_vids",
            "packed_offsets",
            "packed_counts",
            "packed_ids",
            "sparse_reasons",
            "output_strs",
            "ledger",
            "detokenizer_open",
        ),
    ),
}


def test_tags_and_the_order_of_fields_are_frozen() -> None:
    found = {cls.__struct_config__.tag: (cls.__name__, cls.__struct_encode_fields__) for cls in EVERY}
    assert found == SCHEMA


def test_parts_keep_the_order_of_their_fields() -> None:
    assert FinishReason.__struct_encode_fields__ == ("type", "matched", "length", "message")
    assert SchedulerLedger.__struct_encode_fields__ == (
        "live",
        "waiting",
        "tombstones",
        "blocks_used",
        "steps",
    )


def test_each_tag_of_the_table_is_given_to_one_class() -> None:
    tags = [value for name, value in vars(Tag).items() if name.isupper()]
    assert sorted(tags) == sorted(SCHEMA)


def test_every_message_is_an_immutable_array() -> None:
    for cls in EVERY:
        assert cls.__struct_config__.array_like, cls
        assert cls.__struct_config__.frozen, cls


# --- evolution ------------------------------------------------------------------------------------


class NewAbort(Message, tag=Tag.ABORT, frozen=True):
    """AbortReq as a later version might have it."""

    vid: int
    floor: int = 0
    why: str = "left"
    more: tuple[int, ...] = ()


OLD = Codec(sends=[AbortReq], receives=[AbortReq])
NEW = Codec(sends=[NewAbort], receives=[NewAbort])


@given(new=structs(NewAbort, vid=st.integers(0, 99), floor=st.integers(0, 99)))
def test_an_old_reader_ignores_appended_fields(new: NewAbort) -> None:
    """What a new writer appended is skipped, whatever it is, and the rest is read as ever."""
    assert AbortReq(vid=new.vid, floor=new.floor) == OLD.decode(NEW.encode(new))


@given(old=messages(AbortReq))
def test_a_new_reader_fills_in_what_an_old_writer_does_not_know(old: AbortReq) -> None:
    """Appended fields that did not come have their defaults."""
    assert NewAbort(vid=old.vid, floor=old.floor) == NEW.decode(OLD.encode(old))


def test_a_sampling_parameter_this_side_does_not_know_is_refused() -> None:
    """Unlike an appended field, it cannot be ignored: it would silently not be honoured."""
    frame = msgspec.msgpack.encode([Tag.TOKENIZED_GENERATE, 1, 0, "r", bytes(4), {"min_p": 0.1}])
    with pytest.raises(DecodeError, match="unknown field `min_p`"):
        ANY.decode(frame)


def test_a_message_without_a_mandatory_field_is_refused() -> None:
    with pytest.raises(DecodeError, match="array"):
        ANY.decode(msgspec.msgpack.encode([Tag.HELLO, 1]))


# --- encoding -------------------------------------------------------------------------------------


@given(st.one_of(*map(messages, EVERY)))
def test_a_message_survives_the_wire(message: Message) -> None:
    """Decoding is the inverse of encoding, for all that a side of ours sends."""
    assert message == ANY.decode(ANY.encode(message))


@given(st.one_of(*map(messages, EVERY)), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_frame_may_come_in_any_kind_of_bytes(message: Message, kind: type) -> None:
    """bytes, bytearray and memoryview decode alike."""
    assert message == ANY.decode(kind(ANY.encode(message)))


def test_columns_stay_views_into_the_frame() -> None:
    frame = bytearray(ANY.encode(SAMPLES["request"]))
    request = ANY.decode(frame)
    assert isinstance(request, TokenizedGenerateReqInput)
    assert request.input_ids.obj is frame


@pytest.mark.parametrize("link", LINKS)
def test_each_side_sends_only_what_travels_its_way(link: str) -> None:
    codec = Codec(sends=LINKS[link], receives=EVERY)
    for message in SAMPLES.values():
        if type(message) in LINKS[link]:
            assert message == codec.decode(codec.encode(message))
        else:
            with pytest.raises(
                LocalProtocolError, match=f"^{type(message).__name__} does not travel this way; "
            ):
                codec.encode(message)


def test_what_does_travel_is_named() -> None:
    codec = Codec(sends=[Hello, AbortReq], receives=[Hello])
    with pytest.raises(
        LocalProtocolError, match=r"^ShutdownReq does not travel this way; AbortReq, Hello do$"
    ):
        codec.encode(ShutdownReq())


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (HeartbeatReq(id=1 << 64), "can't serialize ints"),
        (HeartbeatReq(id=-(1 << 63) - 1), "can't serialize ints"),
        (FreezeGCReq(id=object()), "object does not travel"),  # type: ignore[arg-type]
        (Hello(version=1, fingerprint="", role="half \ud800", pid=1), "surrogates not allowed"),
    ],
)
def test_what_cannot_travel_is_our_own_fault(message: Message, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"^{type(message).__name__} cannot be encoded: .*{why}"):
        ANY.encode(message)


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", LINKS)
def test_each_side_receives_only_what_travels_its_way(link: str) -> None:
    codec = Codec(sends=EVERY, receives=LINKS[link])
    for message in SAMPLES.values():
        if type(message) not in LINKS[link]:
            with pytest.raises(DecodeError, match="is no message of this link"):
                codec.decode(ANY.encode(message))


@pytest.mark.parametrize("vid", [-1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("sample", ["abort", "request", "heartbeat-asked"])
def test_a_vid_or_floor_that_no_front_could_issue_is_refused(sample: str, vid: int) -> None:
    """Such a number would fit into no packed column, or fail far from here."""
    message = SAMPLES[sample]
    for field in {"vid", "floor"} & set(message.__struct_fields__):
        frame = ANY.encode(msgspec.structs.replace(message, **{field: vid}))
        with pytest.raises(DecodeError, match=r"(>=|<=|out of range)"):
            ANY.decode(frame)


STOP = FinishReason("stop", matched=2)
CONTRADICTIONS = [
    (BatchTokenIDOutput(packed_vids=pack_i64([1])), "1 vids, 0 offsets, 1 counts"),
    (
        BatchTokenIDOutput(packed_vids=memoryview(b"abc")),
        "a packed column has 3 bytes, not a multiple of 8",
    ),
    (
        BatchTokenIDOutput(
            packed_vids=pack_i64([-1]), packed_offsets=pack_i32([0]), packed_ids=pack_i32([0])
        ),
        "vid -1 is negative",
    ),
    (BatchTokenIDOutput(sparse_reasons=[(0, STOP)]), "finish reason for row 0 of 0, after row -1"),
    (BatchStrOutput(output_strs=["x"]), "0 vids, 1 texts"),
    (
        TokenizedGenerateReqInput(
            vid=1,
            floor=0,
            rid="r",
            input_ids=memoryview(b"abc"),
            sampling_params=SamplingParams(sampling_seed=0),
        ),
        "input_ids has 3 bytes, not one or more int32",
    ),
]


@pytest.mark.parametrize(("message", "fault"), CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_no_message(message: Message, fault: str) -> None:
    with pytest.raises(DecodeError, match=f"^{type(message).__name__}: {fault}$"):
        ANY.decode(ANY.encode(message))


@given(st.one_of(structs(BatchTokenIDOutput), structs(BatchStrOutput), structs(TokenizedGenerateReqInput)))
def test_a_message_is_decoded_if_and_only_if_its_columns_agree(
    message: BatchTokenIDOutput | BatchStrOutput | TokenizedGenerateReqInput,
) -> None:
    """Columns of the right types decode, or are a DecodeError that says what check_columns says."""
    fault = message.check_columns()
    if fault is None:
        assert type(ANY.decode(ANY.encode(message))) is type(message)
    else:
        with pytest.raises(DecodeError) as raised:
            ANY.decode(ANY.encode(message))
        assert str(raised.value) == f"{type(message).__name__}: {fault}"


# --- the fuzz contract ----------------------------------------------------------------------------


@given(st.sampled_from(sorted(LINKS)), st.binary(max_size=200))
@example(link="front to scheduler", frame=b"")
@example(link="front to scheduler", frame=b"\x94\x10\x01\x00" + b"\x91" * 100_000)
@example(link="scheduler to detokenizer", frame=b"\x96\x20" + b"\xc4\x00" * 4 + b"\xdd\xff\xff\xff\xff")
def test_any_bytes(link: str, frame: bytes) -> None:
    """Any bytes decode to a message of the link or raise DecodeError, never anything else."""
    check_frame(Codec(sends=LINKS[link], receives=LINKS[link]), frame)


@given(mutated_frames(EVERY))
def test_any_mutated_frame(frame: bytes) -> None:
    """Any mutated frame decodes to a message of the link or raises DecodeError, never anything else."""
    check_frame(ANY, frame)


def test_many_mutated_frames() -> None:
    """30,000 frames that were tampered with decode to a message of the link or raise DecodeError."""
    report = run_codec(30_000)
    assert report.violations == ()
    assert report.frames == 30_000
    # Both sides of the contract are tried: some are still messages, most are not.
    assert 1_000 < report.messages < 15_000


@settings(max_examples=50)
@given(st.lists(mutated_frames([BatchTokenIDOutput, BatchStrOutput]), max_size=4))
def test_machines_judge_whatever_can_be_decoded(frames: list[bytes]) -> None:
    """Machines take what was decoded, or refuse it with a ProtocolError, never with anything else."""
    front, detokenizer = FrontMachine(), DetokenizerMachine()
    sent, _ = front.submit(Rid("sent")), front.submit(Rid("new"))
    front.send(sent)
    for frame in frames:
        try:
            message = ANY.decode(frame)
            assert isinstance(message, BatchTokenIDOutput | BatchStrOutput)
            for row in message.rows():
                detokenizer.receive(Vid(row.vid), row.offset, len(row.token_ids), end_of(row.reason))
                front.receive(Vid(row.vid), row.offset, len(row.token_ids), end_of(row.reason))
        except ProtocolError:
            continue


# --- Hello ----------------------------------------------------------------------------------------


def hello(**fields: object) -> Hello:
    ours = Hello(version=PROTOCOL_VERSION, fingerprint=ANY.fingerprint, role="scheduler", pid=77)
    return msgspec.structs.replace(ours, **fields)


def test_the_right_hello_is_returned() -> None:
    assert ANY.check_hello(hello(), role="scheduler") == hello()


@pytest.mark.parametrize(
    ("fields", "theirs"),
    [
        ({"version": 2}, f"2/{ANY.fingerprint}"),
        ({"fingerprint": "feedfeedfeedfeed"}, f"{PROTOCOL_VERSION}/feedfeedfeedfeed"),
    ],
)
def test_another_version_is_refused_and_both_are_named(fields: dict[str, object], theirs: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        ANY.check_hello(hello(**fields), role="scheduler")
    text = str(raised.value)
    assert f"the scheduler (pid 77) speaks protocol {theirs}" in text
    assert f"this side {PROTOCOL_VERSION}/{ANY.fingerprint}" in text
    assert "install the same version" in text


def test_another_role_is_refused() -> None:
    with pytest.raises(
        RemoteProtocolError, match=r"^the detokenizer should be at this link, but 'scheduler' is$"
    ):
        ANY.check_hello(hello(), role="detokenizer")


def test_a_link_opens_with_hello() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^a link opens with Hello, not with ShutdownReq$"):
        ANY.check_hello(ShutdownReq(), role="scheduler")


# --- fingerprint ----------------------------------------------------------------------------------


def test_the_fingerprint_is_the_same_on_every_link() -> None:
    assert {Codec(sends=classes, receives=classes).fingerprint for classes in LINKS.values()} == {
        fingerprint()
    }


def test_a_class_of_a_users_own_changes_the_fingerprint() -> None:
    class Score(Message, tag=200, frozen=True):
        vid: int

    codec = Codec(sends=[*EVERY, Score], receives=EVERY)
    assert codec.fingerprint == fingerprint([Score])
    assert codec.fingerprint != fingerprint()
    assert Score(vid=3) == Codec(sends=[Score], receives=[Score]).decode(codec.encode(Score(vid=3)))


def test_names_tags_and_order_and_types_of_fields_are_in_the_fingerprint() -> None:
    class One(Message, tag=200, frozen=True):
        a: int
        b: str

    class Other(Message, tag=200, frozen=True):
        a: int
        b: str

    class Renamed(Message, tag=200, frozen=True):
        a: int
        c: str

    class Retyped(Message, tag=200, frozen=True):
        a: int
        b: bytes

    class Reordered(Message, tag=200, frozen=True):
        b: str
        a: int

    class Retagged(Message, tag=201, frozen=True):
        a: int
        b: str

    variants: list[type[Message]] = [One, Other, Renamed, Retyped, Reordered, Retagged]
    for cls in variants[2:]:
        cls.__name__ = "One"
    seen = {fingerprint([cls]) for cls in variants}
    assert len(seen) == len(variants)
    # Classes of one name have no order of their own; it does not matter.
    assert fingerprint(variants) == fingerprint(reversed(variants))


def test_the_fingerprint_is_short_and_printable() -> None:
    assert len(fingerprint()) == 16
    assert set(fingerprint()) <= set(hashlib.sha256().hexdigest() + "0123456789abcdef")
