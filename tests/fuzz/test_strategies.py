from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Annotated, Any, NewType, TypeVar

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from vidette_fuzz.frames import CodecReport, ContractBroken, check_frame, run_codec, tamper
from vidette_fuzz.samples import EVERY, SAMPLES
from vidette_fuzz.strategies import (
    frames,
    logprobs,
    messages,
    mutated_frames,
    str_rows,
    structs,
    token_rows,
    values,
    vids,
)
from vidette_protocol.codec import Codec
from vidette_protocol.ext import ExtHooks
from vidette_protocol.ids import MAX_VID
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    Message,
    SamplingParams,
    StrRow,
    TokenizedGenerateReqInput,
    TokenLogprobs,
    TokenRow,
    check_sampling,
)

ANY = Codec(sends=EVERY, receives=EVERY)
HOOKS = ExtHooks()
HOOKS_ENCODE = msgspec.msgpack.Encoder(enc_hook=HOOKS.enc_hook).encode

_Value = TypeVar("_Value")


def example_of(strategy: st.SearchStrategy[_Value], wanted: Callable[[_Value], object]) -> _Value:
    """Return some value for which something is true; a value as simple as possible is not looked for."""
    unshrunk = settings(phases=[Phase.generate], max_examples=2000, database=None)
    return find(strategy, lambda value: bool(wanted(value)), settings=unshrunk)


@pytest.mark.parametrize("cls", EVERY)
def test_there_are_messages_of_every_class(cls: type[Message]) -> None:
    @settings(max_examples=8)
    @given(messages(cls))
    def check(message: Message) -> None:
        assert type(message) is cls
        assert message.check_columns() is None
        assert check_frame(ANY, ANY.encode(message))

    check()


@pytest.mark.parametrize("cls", EVERY)
def test_structs_of_every_class_have_fields_of_the_right_types(cls: type[Message]) -> None:
    """msgspec itself agrees, once they are on the wire."""

    @settings(max_examples=8)
    @given(structs(cls))
    def check(message: Message) -> None:
        frame = msgspec.msgpack.encode(message, enc_hook=HOOKS.enc_hook)
        again = msgspec.msgpack.decode(frame, type=cls, ext_hook=HOOKS.ext_hook, dec_hook=HOOKS.dec_hook)
        assert type(again) is cls

    check()


@given(messages(TokenizedGenerateReqInput))
def test_requests_are_what_a_front_would_send(message: Message) -> None:
    """They can be honoured as they are."""
    assert isinstance(message, TokenizedGenerateReqInput)
    assert check_sampling(message.sampling_params) is None
    assert message.check_columns() is None


@given(token_rows(), str_rows(), vids())
def test_rows_have_vids_that_a_front_could_issue(tokens: TokenRow, text: StrRow, vid: int) -> None:
    """All vids are within 63 bits."""
    assert all(0 <= each <= MAX_VID for each in (tokens.vid, text.vid, vid))


CHECKED = [cls for cls in EVERY if cls.check_columns is not Message.check_columns]


@pytest.mark.parametrize("cls", CHECKED)
def test_structs_do_contradict_themselves(cls: type[Message]) -> None:
    """Else they would test nothing that messages do not."""
    assert example_of(structs(cls), lambda message: message.check_columns()).check_columns()


@pytest.mark.parametrize("cls", [BatchTokenIDOutput, BatchStrOutput])
def test_structs_look_like_columns_now_and_then(cls: type[BatchTokenIDOutput | BatchStrOutput]) -> None:
    """Else nothing beyond the first check of a column would ever be tried."""
    example_of(structs(cls), lambda message: "vids, " in str(message.check_columns()))


def test_rows_say_all_that_rows_can_say() -> None:
    example_of(token_rows(), lambda row: row.logprobs and row.spec and row.decoded_text)
    example_of(logprobs(2), lambda row: row.output_top_logprobs_val and row.input_top_logprobs_idx)


@given(st.integers(0, 3).flatmap(lambda count: st.tuples(st.just(count), logprobs(count))))
def test_log_probabilities_are_those_of_a_row(drawn: tuple[int, TokenLogprobs]) -> None:
    """They agree with each other and with the number of tokens."""
    count, row = drawn
    assert row.check(count) is None


def test_fields_may_be_given() -> None:
    assert example_of(structs(AbortReq, vid=st.just(7)), lambda _: True).vid == 7


@pytest.mark.parametrize("wanted", ["stop", "length", "abort", "error"])
def test_rows_end_for_every_reason(wanted: str) -> None:
    example_of(token_rows(), lambda row: row.reason and row.reason.type == wanted)


def test_most_rows_are_not_the_last_and_have_tokens() -> None:
    example_of(token_rows(), lambda row: not row.reason and len(row.token_ids) > 1)


@pytest.mark.parametrize("hint", [complex, Annotated[str, msgspec.Meta(max_length=3)], set[int]])
def test_a_type_that_no_field_has_is_refused_with_its_name(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"^no strategy for a field of type "):
        values(hint)


Small = NewType("Small", Annotated[int, msgspec.Meta(gt=0, le=3)])
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Some = Annotated[list[Small], msgspec.Meta(extra={"anything": 1})]


class Colour(Enum):
    """A choice."""

    RED = 1
    BLUE = 2


@given(values(Small), values(Share), values(dict[str, Colour]), values(Some), values(object))
def test_values_keep_to_bounds_and_look_behind_names(
    small: int, share: float, named: dict[str, Colour], some: list[int], anything: object
) -> None:
    """Bounds hold, a new type is its type, and metadata that says nothing of bounds leaves values alone."""
    assert 1 <= small <= 3
    assert 0 <= share <= 1
    assert set(map(type, named)) <= {str}
    assert set(map(type, named.values())) <= {Colour}
    assert all(1 <= each <= 3 for each in some)
    HOOKS_ENCODE(anything)


@pytest.mark.parametrize("wanted", [Colour.RED, Colour.BLUE])
def test_each_choice_is_made(wanted: Colour) -> None:
    example_of(values(Colour), lambda value: value is wanted)


@given(values(tuple[int, str]), values(tuple[bool, ...]), values(int | None))
def test_values_follow_the_hint(pair: object, flags: object, maybe: object) -> None:
    """Tuples of either kind and unions give values of their types."""
    assert isinstance(pair, tuple)
    assert [type(each) for each in pair] == [int, str]
    assert isinstance(flags, tuple)
    assert all(isinstance(flag, bool) for flag in flags)
    assert maybe is None or isinstance(maybe, int)


# --- frames ---------------------------------------------------------------------------------------


@given(frames(EVERY))
def test_frames_are_messages(frame: bytes) -> None:
    """A frame that was not tampered with decodes."""
    assert check_frame(ANY, frame)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_mutated_frame_may_be_a_message_or_not(wanted: bool) -> None:
    example_of(mutated_frames([AbortReq]), lambda frame: wanted is check_frame(ANY, frame))


@given(st.binary(max_size=40), st.integers(0, 1 << 32), st.lists(st.binary(max_size=40), max_size=2))
def test_anything_can_be_tampered_with(frame: bytes, seed: int, others: list[bytes]) -> None:
    """The empty frame too; and the same seed does the same."""
    assert tamper(frame, Random(seed), others=others) == tamper(frame, Random(seed), others=others)


# --- the codec fuzzer -----------------------------------------------------------------------------


def test_the_same_seed_tries_the_same_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []

    def note(codec: Codec, frame: bytes) -> bool:
        tried.append(frame)
        return check_frame(codec, frame)

    monkeypatch.setattr("vidette_fuzz.frames.check_frame", note)
    reports = [run_codec(200, seed=seed) for seed in (1, 1, 2)]
    assert reports[0] == reports[1]
    assert tried[:200] == tried[200:400] != tried[400:]


def test_a_run_counts_its_frames() -> None:
    assert run_codec(0) == CodecReport(0, 0, ())
    assert run_codec(7).frames == 7


def test_a_run_tells_of_each_frame_that_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(codec: Codec, frame: bytes) -> bool:
        raise ContractBroken(f"{len(frame)} bytes for {len(codec.receives)} classes")

    monkeypatch.setattr("vidette_fuzz.frames.check_frame", refuse)
    report = run_codec(3)
    assert (report.frames, report.messages, len(report.violations)) == (3, 0, 3)
    fault, _, frame = report.violations[0].rpartition(": ")
    assert f"{len(bytes.fromhex(frame))} bytes" in fault


class _Raises(Codec):
    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        raise RuntimeError(f"{len(frame)} bytes")


class _Strange(Codec):
    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        del frame
        return SAMPLES["hello"]


class _Forgetful(Codec):
    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        message = super().decode(frame)
        assert isinstance(message, AbortReq)
        return AbortReq(vid=message.vid // 2)


class _Torn(Codec):
    def decode(self, frame: bytes | bytearray | memoryview) -> Message:
        del frame
        return BatchTokenIDOutput(packed_vids=memoryview(b"abc"))


@pytest.mark.parametrize(
    ("codec", "fault"),
    [
        (_Raises, r"^decoding raises RuntimeError: \d+ bytes$"),
        (_Strange, "^a Hello came, which does not travel on this link$"),
        (_Forgetful, "^a AbortReq does not survive a round trip$"),
        (_Torn, "^reading a BatchTokenIDOutput raises ValueError: a packed column has 3 bytes"),
    ],
)
def test_a_codec_that_breaks_the_contract_is_caught(codec: type[Codec], fault: str) -> None:
    frame = ANY.encode(AbortReq(vid=1 << 50, floor=1 << 50))
    broken = codec(sends=[AbortReq, BatchTokenIDOutput], receives=[AbortReq, BatchTokenIDOutput])
    with pytest.raises(ContractBroken, match=fault):
        check_frame(broken, frame)


def test_samples_are_of_every_shape() -> None:
    reasons = [
        reason.type
        for message in SAMPLES.values()
        if isinstance(message, BatchTokenIDOutput | BatchStrOutput)
        for reason in message.finished_reasons
        if isinstance(reason, FinishReason)
    ]
    assert set(reasons) == {"stop", "length", "abort", "error"}
    assert any(
        isinstance(message, TokenizedGenerateReqInput)
        and message.sampling_params == SamplingParams(sampling_seed=0)
        for message in SAMPLES.values()
    )
