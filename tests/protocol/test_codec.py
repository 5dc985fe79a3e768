from __future__ import annotations

import contextlib
import string

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.protocol.conftest import ANY, same

from vidette_fuzz.frames import check_frame, run_codec
from vidette_fuzz.samples import EVERY, LINKS, SAMPLES
from vidette_fuzz.strategies import messages, mutated_frames, structs
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, LocalProtocolError, ProtocolError
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import DetokenizerMachine, FrontMachine, end_of
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Hello,
    Message,
    SamplingParams,
    ShutdownReq,
    TokenizedGenerateReqInput,
    pack_i32,
    pack_i64,
)

# --- encoding -------------------------------------------------------------------------------------


@given(st.sampled_from(EVERY).flatmap(messages))
def test_a_message_survives_the_wire(message: Message) -> None:
    """Decoding is the inverse of encoding, for all that a side of ours sends."""
    assert same(message, ANY.decode(ANY.encode(message)))


@given(st.sampled_from(EVERY).flatmap(messages), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_frame_may_come_in_any_kind_of_bytes(message: Message, kind: type) -> None:
    """bytes, bytearray and memoryview decode alike."""
    assert same(message, ANY.decode(kind(ANY.encode(message))))


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
            assert same(message, codec.decode(codec.encode(message)))
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
        "token ids of 3 bytes, not one or more int32",
    ),
]


@pytest.mark.parametrize(("message", "fault"), CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_no_message(message: Message, fault: str) -> None:
    with pytest.raises(DecodeError, match=f"^{type(message).__name__}: {fault}$"):
        ANY.decode(ANY.encode(message))


@given(st.sampled_from(EVERY).flatmap(structs))
def test_a_message_is_decoded_if_and_only_if_its_columns_agree(message: Message) -> None:
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
    assert 2_000 < report.messages < 4_000


def test_every_message_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: set[type[Message]] = set()

    def decode(codec: Codec, frame: bytes) -> bool:
        with contextlib.suppress(DecodeError):
            decoded.add(type(codec.decode(frame)))
        return True

    monkeypatch.setattr("vidette_fuzz.frames.check_frame", decode)
    run_codec(30_000)
    assert decoded == set(EVERY)


@settings(max_examples=30)
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


# --- fingerprint ----------------------------------------------------------------------------------


def test_both_sides_of_a_link_have_one_fingerprint() -> None:
    for there, back in (
        ("front to scheduler", "scheduler to front"),
        ("scheduler to detokenizer", "detokenizer to scheduler"),
        ("detokenizer to front", "front to detokenizer"),
    ):
        one = Codec(sends=LINKS[there], receives=LINKS[back])
        other = Codec(sends=LINKS[back], receives=LINKS[there])
        assert (one.fingerprint, one.schema) == (other.fingerprint, other.schema)


def test_a_class_of_a_users_own_changes_the_fingerprint() -> None:
    class Score(Message, tag=300, frozen=True):
        vid: int

    codec = Codec(sends=[*EVERY, Score], receives=EVERY)
    assert codec.fingerprint != ANY.fingerprint
    assert Score(vid=3) == Codec(sends=[Score], receives=[Score]).decode(codec.encode(Score(vid=3)))


def test_the_fingerprint_is_short_and_printable() -> None:
    assert len(ANY.fingerprint) == 16
    assert set(ANY.fingerprint) <= set(string.hexdigits.lower())
