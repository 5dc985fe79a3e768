"""`Trace` finds what is wrong with what passed, and nothing wrong with what is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    BatchTokenizedGenerateReqInput,
    FinishReason,
    FlushCacheReqInput,
    Message,
    SamplingParams,
    SchedulerLedger,
    StrRow,
    TokenizedGenerateReqInput,
    TokenRow,
    pack_i32,
)
from vidette_protocol.trace import Trace

STOP = FinishReason("stop", matched=2)


def request(vid: int) -> TokenizedGenerateReqInput:
    return TokenizedGenerateReqInput(
        vid=vid, rid="r", input_ids=pack_i32([1]), sampling_params=SamplingParams(sampling_seed=0)
    )


def tokens(vid: int, offset: int, count: int = 1, reason: FinishReason | None = None) -> BatchTokenIDOutput:
    return BatchTokenIDOutput.from_rows([TokenRow(vid, offset, (5,) * count, reason)], SchedulerLedger())


def text(vid: int, offset: int, count: int = 1, reason: FinishReason | None = None) -> BatchStrOutput:
    return BatchStrOutput.from_rows([StrRow(vid, offset, (5,) * count, reason, "x")], SchedulerLedger(), 0)


def faults(*messages: Message, whole: bool = True) -> list[str]:
    trace = Trace(whole=whole)
    return [fault for message in messages if (fault := trace.see(message)) is not None]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans())
def test_a_request_that_went_well_has_no_fault(counts: list[int], together: bool) -> None:
    """Rows that follow each other up to one end, each passed on, are right, whatever else passes."""
    trace = Trace()
    asked: Message = BatchTokenizedGenerateReqInput(reqs=[request(7)]) if together else request(7)
    assert trace.see(asked) is None
    assert trace.open == {7}
    offset = 0
    for i, count in enumerate(counts):
        reason = STOP if i == len(counts) - 1 else None
        assert trace.see(tokens(7, offset, count, reason)) is None
        assert trace.see(FlushCacheReqInput(id=1)) is None
        assert trace.see(text(7, offset, count, reason)) is None
        offset += count
    assert trace.open == frozenset()
    assert trace.counts == {"requested": 1, "aborted": 0, "ended": 1}


def test_an_abort_is_counted() -> None:
    trace = Trace()
    for message in (request(7), AbortReq(vid=7), tokens(7, 0, 0, STOP), text(7, 0, 0, STOP)):
        assert trace.see(message) is None
    assert trace.counts["aborted"] == 1


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ((request(1), request(1)), "vid 1 is requested twice"),
        (
            (request(1), BatchTokenizedGenerateReqInput(reqs=[request(2), request(1)])),
            "vid 1 is requested twice",
        ),
        ((tokens(1, 0),), "vid 1 has a row at offset 0, and was never requested"),
        ((request(1), tokens(1, 1)), "vid 1 is not open, but a row at offset 1 came"),
        ((request(1), tokens(1, 0), tokens(1, 0)), "vid 1 expects offset 1, but a row at offset 0 came"),
        (
            (request(1), tokens(1, 0, 1, STOP), tokens(1, 0)),
            "vid 1 has a row at offset 0 after its end",
        ),
        (
            (request(1), tokens(1, 0), text(1, 0), text(1, 1)),
            "vid 1 has 2 tokens at the front, of 1 that the scheduler sent",
        ),
        (
            (request(1), tokens(1, 0), text(1, 0, 1, STOP), text(1, 1)),
            "vid 1 has a row at offset 1 after its end",
        ),
    ],
)
def test_what_went_wrong_is_told(messages: tuple[Message, ...], fault: str) -> None:
    assert faults(*messages) == [fault]


def test_of_a_part_of_a_trace_unknown_vids_are_no_fault() -> None:
    assert faults(tokens(1, 0), text(1, 0), whole=False) == []
