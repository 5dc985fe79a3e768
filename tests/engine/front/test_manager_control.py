"""Control messages of the front: each finds its answer, in any order, in time or not at all."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.front.conftest import Front, ask

from vidette.errors import EngineBroken, EngineClosed, Error, Overloaded, UsageError
from vidette.front.questions import MAX_QUESTIONS
from vidette_fuzz.samples import SAMPLES
from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.messages import (
    ControlOutput,
    ControlReq,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    FreezeGCReq,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartbeatReq,
)
from vidette_protocol.messages.catalogue import CONTROL


def broken() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


async def asked(front: Front, number: int = 1) -> list[ControlReq]:
    """Wait until so many questions were sent; return them."""
    await front.until(lambda: len(front.posted) >= number)
    questions = front.sent()
    assert all(isinstance(question, ControlReq) for question in questions)
    return [question for question in questions if isinstance(question, ControlReq)]


async def test_no_more_is_asked_than_answers_may_be_due() -> None:
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_QUESTIONS):
                tasks.start_soon(front.manager.calls.control, GetInternalStateReq(id=0))
            await asked(front, MAX_QUESTIONS)
            tasks.cancel_scope.cancel()  # nobody waits any more, but the answers are due
        with pytest.raises(Overloaded, match=r"^1024 answers are due from the scheduler; at most 1024 may$"):
            await front.manager.heartbeat()
        front.scheduler.post(GetInternalStateReqOutput(id=1))
        await front.until(lambda: len(front.manager._questions) < MAX_QUESTIONS)
        with anyio.move_on_after(0):
            await front.manager.heartbeat()
        assert len(front.manager._questions) == MAX_QUESTIONS


async def test_the_heartbeat_of_the_front_itself_is_never_refused() -> None:
    """However many answers are due from a ring that stands still, that it does is noticed."""
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_QUESTIONS):
                tasks.start_soon(front.manager.calls.control, GetInternalStateReq(id=0))
            await asked(front, MAX_QUESTIONS)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.manager.pulse.run)
            await front.until(lambda: front.manager.pulse.silence_s > 0)
            (heartbeat,) = front.sent()
            assert isinstance(heartbeat, HeartbeatReq)
            front.detokenizer.post(heartbeat)
            await front.until(lambda: front.manager.pulse.heard_s is not None)
            tasks.cancel_scope.cancel()


async def test_answers_that_come_after_the_end_are_read_and_are_not_wrong() -> None:
    async with Front.serving() as front:

        async def give_up() -> None:
            with pytest.raises(EngineBroken):
                await front.manager.calls.control(GetInternalStateReq(id=0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            await asked(front)
            front.manager.end(broken)
        front.scheduler.post(GetInternalStateReqOutput(id=1))
        front.detokenizer.post(HeartbeatReq(id=2))
        await front.heard()
        await front.until(lambda: not front.scheduler_channel.queued_bytes)
        assert front.fault is None


async def test_an_answer_is_returned_whatever_it_says() -> None:
    async with Front.serving() as front:

        async def answer() -> None:
            (question,) = await asked(front)
            front.scheduler.post(
                FlushCacheReqOutput(id=question.id, success=False, message="3 requests live")
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            got = await front.manager.calls.control(FlushCacheReqInput(id=99, timeout_s=1.5))
        assert got == FlushCacheReqOutput(id=1, success=False, message="3 requests live")
        assert not front.manager._questions


@pytest.mark.parametrize("cls", CONTROL)
async def test_every_control_message_is_sent_as_it_is_but_for_its_id(cls: type[ControlReq]) -> None:
    sample = next(message for message in SAMPLES.values() if type(message) is cls)
    async with Front.serving() as front:

        async def answer() -> None:
            (question,) = await asked(front)
            assert type(question) is cls
            front.scheduler.post(question.output(id=question.id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            assert isinstance(sample, ControlReq)
            got = await front.manager.calls.control(sample)
        assert type(got) is cls.output


async def test_answers_find_their_questions_in_any_order() -> None:
    async with Front.serving() as front:
        got: dict[str, ControlOutput | HeartbeatReq] = {}

        async def flush() -> None:
            got["flush"] = await front.manager.calls.control(FlushCacheReqInput(id=0, deadline_s=9.0))

        async def state() -> None:
            got["state"] = await front.manager.calls.control(GetInternalStateReq(id=0, deadline_s=8.0))

        async def beat() -> None:
            got["beat"] = await front.manager.heartbeat()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush)
            await front.until(lambda: len(front.posted) == 1)
            tasks.start_soon(state)
            await front.until(lambda: len(front.posted) == 2)
            tasks.start_soon(beat)
            await front.until(lambda: len(front.posted) == 3)
            assert front.sent() == [
                FlushCacheReqInput(id=1, deadline_s=9.0),
                GetInternalStateReq(id=2, deadline_s=8.0),
                HeartbeatReq(id=3),
            ]
            front.scheduler.post(GetInternalStateReqOutput(id=2, internal_state={"x": 1}))
            await front.until(lambda: "state" in got)
            front.detokenizer.post(HeartbeatReq(id=3))
            await front.until(lambda: "beat" in got)
            front.scheduler.post(FlushCacheReqOutput(id=1))
        assert got["state"] == GetInternalStateReqOutput(id=2, internal_state={"x": 1})
        assert got["flush"] == FlushCacheReqOutput(id=1)


async def test_control_does_not_wait_behind_requests() -> None:
    async with Front.serving() as front, front.manager.generate(ask()):

        async def answer() -> None:
            await front.until(lambda: len(front.posted) == 2)
            front.scheduler.post(GetInternalStateReqOutput(id=1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            got = await front.manager.calls.control(GetInternalStateReq(id=0))
            assert got == GetInternalStateReqOutput(id=1)


# --- deadlines -------------------------------------------------------------------------------------


async def test_without_an_answer_in_time_it_is_a_timeout_and_a_late_answer_is_dropped() -> None:
    async with Front.serving() as front:
        with pytest.raises(TimeoutError):
            await front.manager.calls.control(FlushCacheReqInput(id=0, deadline_s=0.0))
        (question,) = await asked(front)
        assert question == FlushCacheReqInput(id=1, deadline_s=0.0)
        assert len(front.manager._questions) == 1  # its answer is still due
        front.scheduler.post(FlushCacheReqOutput(id=1))  # nobody waits for it any more
        await front.until(lambda: not front.manager._questions)

        async def answer() -> None:
            await front.until(lambda: len(front.posted) == 2)
            front.scheduler.post(FlushCacheReqOutput(id=2))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            assert await front.manager.calls.control(FlushCacheReqInput(id=0)) == FlushCacheReqOutput(id=2)
        assert front.fault is None


@pytest.mark.parametrize("answer", [GetInternalStateReqOutput(id=77), FlushCacheReqOutput(id=1)])
async def test_an_answer_that_is_not_due_is_a_fault_of_the_scheduler(answer: ControlOutput) -> None:
    """To what was never asked, or a second one."""
    async with Front.serving() as front:
        with pytest.raises(TimeoutError):
            await front.manager.calls.control(FlushCacheReqInput(id=0, deadline_s=0.0))
        front.scheduler.post(FlushCacheReqOutput(id=1))
        front.scheduler.post(answer)
        await front.until(lambda: front.fault is not None)
        assert f"{type(answer).__name__} {answer.id} answers nothing that is due" in str(front.fault)


async def test_a_deadline_of_the_callers_travels_as_what_is_left_of_it() -> None:
    async with Front.serving() as front:
        with anyio.move_on_after(3600) as scope:

            async def leave() -> None:
                await front.until(lambda: len(front.posted) == 1)
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave)
                await front.manager.calls.control(GetInternalStateReq(id=0))
        assert scope.cancelled_caught
        (question,) = await asked(front)
        # Whoever serves the test has a deadline as well, which comes first.
        assert question.deadline_s is not None
        assert 0 < question.deadline_s < 3600


async def test_a_deadline_that_is_over_travels_as_no_time_at_all() -> None:
    async with Front.serving() as front:
        with anyio.move_on_after(-1) as scope:
            await front.manager.calls.control(GetInternalStateReq(id=0))
        assert scope.cancelled_caught
        assert [question.deadline_s for question in front.sent() if isinstance(question, ControlReq)] == [0.0]


async def test_without_any_deadline_none_travels() -> None:
    front = Front()  # nobody serves it, so nobody bounds it
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(front.manager.calls.control, GetInternalStateReq(id=0))
        await front.until(lambda: len(front.posted) == 1)
        assert front.sent() == [GetInternalStateReq(id=1)]
        tasks.cancel_scope.cancel()


# --- what cannot be sent ---------------------------------------------------------------------------


def refuse_long(front: Front) -> None:
    """Have the link to the scheduler refuse what is posted, as it does with what is too long for a frame."""
    link = front.manager._scheduler

    def post(message: object) -> None:
        raise LocalProtocolError("a frame of 67108999 bytes; 67108864 is the limit")

    link.post = post  # type: ignore[method-assign]


async def test_a_question_that_is_too_long_is_an_error_of_use_and_leaves_nothing() -> None:
    async with Front.serving() as front:
        refuse_long(front)
        for _ in range(3):
            with pytest.raises(UsageError, match=r"^FlushCacheReqInput cannot be sent: a frame of 67108999 "):
                await front.manager.calls.control(FlushCacheReqInput(id=0))
            with pytest.raises(LocalProtocolError):
                front.manager.calls.tell(FlushCacheReqInput(id=0))
        assert not front.manager._questions
        assert front.manager._questions._waiting == {}
        front.scheduler.post(FlushCacheReqOutput(id=1))  # nothing is due
        await front.until(lambda: front.fault is not None)
        assert "answers nothing that is due" in str(front.fault)


# --- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [FlushCacheReqOutput(id=1), GetInternalStateReqOutput(id=1)])
async def test_an_answer_of_another_class_is_a_fault_of_the_scheduler(wrong: ControlOutput) -> None:
    async with Front.serving() as front:
        question = GetInternalStateReq(id=0) if isinstance(wrong, FlushCacheReqOutput) else None
        async with anyio.create_task_group() as tasks:
            if question is not None:
                tasks.start_soon(front.manager.calls.control, question)
            else:
                tasks.start_soon(front.manager.heartbeat)
            await front.until(lambda: len(front.posted) == 1)
            front.scheduler.post(wrong)
            await front.until(lambda: front.fault is not None)
            tasks.cancel_scope.cancel()
        assert isinstance(front.fault, RemoteProtocolError)
        expected = "GetInternalStateReqOutput" if question is not None else "HeartbeatReq"
        assert str(front.fault) == f"{type(wrong).__name__} 1 came back, but {expected} was expected"


async def test_what_goes_round_the_ring_does_not_answer_a_control_message() -> None:
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.manager.calls.control, GetInternalStateReq(id=0))
            await front.until(lambda: len(front.posted) == 1)
            front.detokenizer.post(FreezeGCReq(id=1))
            await front.until(lambda: front.fault is not None)
            tasks.cancel_scope.cancel()
        assert "FreezeGCReq 1 came back" in str(front.fault)


async def test_the_end_of_the_engine_is_the_answer_of_all_that_wait() -> None:
    async with Front.serving() as front:
        errors: list[EngineBroken] = []

        async def expect() -> None:
            with pytest.raises(EngineBroken) as caught:
                await front.manager.calls.control(GetInternalStateReq(id=0))
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(expect)
            await front.until(lambda: len(front.posted) == 3)
            front.manager.end(broken)
        assert [error.exit_status for error in errors] == [-9] * 3
        assert not front.manager._questions


async def test_after_the_end_nothing_is_asked() -> None:
    async with Front.serving() as front:
        front.manager.shutdown()
        front.sent()
        with pytest.raises(EngineClosed):
            await front.manager.calls.control(GetInternalStateReq(id=0))
        assert front.sent() == []
