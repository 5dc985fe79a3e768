"""The scheduler's shell: batches, aborts of all, and control messages."""

from __future__ import annotations

from typing import get_args

from tests.engine.scheduler.conftest import ENDLESS, GatedModel, foretell, request
from tests.engine.scheduler.test_process import CONFIG, Kind, kind, running

from vidette.scheduler.controls import Control
from vidette_fuzz.samples import SAMPLES
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedGenerateReqInput,
    ConfigureLoggingReq,
    ControlReq,
    FinishReason,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    ProfileReq,
    SchedulerLedger,
    ShutdownReq,
)
from vidette_protocol.messages.catalogue import CONTROL

__all__ = ["kind"]  # the fixture


# --- batches ---------------------------------------------------------------------------------------


async def test_each_request_of_a_batch_is_answered(kind: Kind) -> None:
    async with running(kind) as ends:
        batch = [request(vid, [vid + 1], max_new_tokens=3 + vid) for vid in range(8)]
        ends.front.post(BatchTokenizedGenerateReqInput(reqs=batch))
        for one in batch:
            assert await ends.receive_until_end_of(one.vid) == "length"
            assert ends.heard.tokens[one.vid] == foretell([one.vid + 1], one.sampling_params)[0]
        assert (await ends.ask()).live == 0


async def test_an_abort_right_behind_a_batch_finds_its_request(kind: Kind) -> None:
    model = GatedModel()
    async with running(kind, model) as ends:
        batch = [request(vid, max_new_tokens=900) for vid in range(5)]
        ends.front.post(BatchTokenizedGenerateReqInput(reqs=batch))
        ends.front.post(AbortReq(vid=3))
        model.open()
        assert await ends.receive_until_end_of(3) == "abort"
        ends.front.post(AbortReq(vid=4, abort_all=True))
        for vid in (0, 1, 2, 4):
            assert await ends.receive_until_end_of(vid) == "abort"
        assert await ends.ask(floor=5) == SchedulerLedger(steps=ends.heard.ledger.steps)


async def test_one_of_a_batch_that_asks_too_much_ends_alone(kind: Kind) -> None:
    async with running(kind) as ends:
        batch = [request(1), request(2, regex="x"), request(3)]
        ends.front.post(BatchTokenizedGenerateReqInput(reqs=batch))
        assert [await ends.receive_until_end_of(vid) for vid in (1, 2, 3)] == ["length", "error", "length"]
        assert ends.heard.ends[2].message == "this scheduler does not support regex"


async def test_a_vid_that_lives_cannot_come_again_in_a_batch(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ends.front.post(BatchTokenizedGenerateReqInput(reqs=[request(2), request(1)]))
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "vid 1 was sent twice"


# --- aborts ----------------------------------------------------------------------------------------


async def test_all_of_one_front_up_to_a_vid_are_ended_with_the_reason_given(kind: Kind) -> None:
    async with running(kind) as ends:
        ours = [make_vid(1, count) for count in range(4)]
        other = make_vid(0, 9)
        for vid in (*ours, other):
            ends.front.post(request(vid, max_new_tokens=ENDLESS))
        ends.front.post(AbortReq(vid=ours[2], abort_all=True, abort_message="the weights change"))
        for vid in ours[:3]:
            assert await ends.receive_until_end_of(vid) == "abort"
        assert {ends.heard.ends[vid] for vid in ours[:3]} == {
            FinishReason("abort", message="the weights change")
        }
        assert (await ends.ask()).live == 2
        assert not {ours[3], other} & ends.heard.ends.keys()
        ends.front.post(AbortReq(vid=ours[3]))
        ends.front.post(AbortReq(vid=other))
        assert await ends.receive_until_end_of(other) == "abort"
        assert await ends.receive_until_end_of(ours[3]) == "abort"
        assert (await ends.ask(floor=make_vid(1, 4))).live == 0


async def test_an_abort_of_one_that_was_ended_with_all_is_silent(kind: Kind) -> None:
    async with running(kind) as ends:
        for vid in range(5):
            ends.front.post(request(vid, max_new_tokens=ENDLESS))
        ends.front.post(AbortReq(vid=4, abort_all=True))
        ends.front.post(AbortReq(vid=2))
        for vid in range(5):
            assert await ends.receive_until_end_of(vid) == "abort"
        ends.front.post(request(5, max_new_tokens=1))
        assert await ends.receive_until_end_of(5) == "length"
        assert (await ends.ask()).tombstones == 0


async def test_those_that_live_on_are_still_known(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ends.front.post(request(2, max_new_tokens=ENDLESS))
        ends.front.post(AbortReq(vid=1, abort_all=True))
        assert await ends.receive_until_end_of(1) == "abort"
        ends.front.post(request(2))
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "vid 2 was sent twice"


async def test_the_reason_of_a_single_abort_is_passed_on(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ends.front.post(AbortReq(vid=1, abort_message="its turn is over"))
        assert await ends.receive_until_end_of(1) == "abort"
        assert ends.heard.ends[1].message == "its turn is over"


# --- control ---------------------------------------------------------------------------------------


async def test_its_state_is_told_while_it_computes(kind: Kind) -> None:
    model = GatedModel()
    async with running(kind, model) as ends:
        ends.front.post(request(1, max_new_tokens=3))
        ends.front.post(GetInternalStateReq(id=41))
        answer = await ends.front.receive()
        assert isinstance(answer, GetInternalStateReqOutput)
        assert (answer.id, answer.success) == (41, True)
        told = {name: answer.internal_state[name] for name in ("num_blocks", "step_tokens", "max_running")}
        assert told == {
            "num_blocks": CONFIG.num_blocks,
            "step_tokens": CONFIG.step_tokens,
            "max_running": CONFIG.max_running,
        }


HANDLED = {GetInternalStateReq, ProfileReq, *get_args(Control)}
UNHANDLED = [
    next(message for message in SAMPLES.values() if type(message) is cls)
    for cls in CONTROL
    if cls not in HANDLED
]


async def test_what_is_not_supported_is_refused_with_a_sentence_and_ends_nothing(kind: Kind) -> None:
    async with running(kind) as ends:
        for question in UNHANDLED:
            assert isinstance(question, ControlReq)
            ends.front.post(question)
            answer = await ends.front.receive()
            told = f"this scheduler does not support {type(question).__name__}"
            assert answer == question.output(id=question.id, success=False, message=told)
        ends.front.post(request(1, max_new_tokens=1))
        assert await ends.receive_until_end_of(1) == "length"


async def test_answers_come_in_the_order_of_the_questions(kind: Kind) -> None:
    async with running(kind) as ends:
        for number in range(20):
            kinds = (GetInternalStateReq, ConfigureLoggingReq)
            ends.front.post(kinds[number % 2](id=number))
        answers = [await ends.front.receive() for _ in range(20)]
        assert [getattr(answer, "id", None) for answer in answers] == list(range(20))


async def test_a_control_message_goes_before_the_end(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(GetInternalStateReq(id=1))
        ends.front.post(ShutdownReq())
        assert isinstance(await ends.front.receive(), GetInternalStateReqOutput)
        assert await ends.wait_ended() is None


def test_every_control_message_is_tried() -> None:
    assert {type(question) for question in UNHANDLED} | HANDLED == set(CONTROL)
