"""The front and sessions: they are opened and closed by question, and a turn counts once it was read."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from tests.engine.front.conftest import STOP, Front, ask

from vidette.errors import EngineBroken, Error, Overloaded, RequestError, UsageError
from vidette.front.questions import MAX_QUESTIONS
from vidette.front.sessions import close_session, open_session
from vidette_protocol.messages import (
    AbortReq,
    CloseSessionReqInput,
    CloseSessionReqOutput,
    GenerateReqInput,
    OpenSessionReqInput,
    OpenSessionReqOutput,
    SessionParams,
    StrRow,
    TokenizedGenerateReqInput,
)

HERE = SessionParams(id="s", rid="a")


def turn(rid: str = "b") -> GenerateReqInput:
    return msgspec.structs.replace(ask(rid=rid), session_params=HERE)


def killed() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


async def asked(front: Front) -> OpenSessionReqInput | CloseSessionReqInput:
    """Wait for a question to the scheduler."""
    sent = front.sent()
    while not sent:
        await anyio.lowlevel.checkpoint()
        sent = front.sent()
    (question,) = sent
    assert isinstance(question, OpenSessionReqInput | CloseSessionReqInput)
    return question


# --- opening and closing ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "mine"])
async def test_a_session_has_the_id_that_was_chosen_or_a_new_one(name: str | None) -> None:
    async with Front.serving() as front, anyio.create_task_group() as tasks:
        opened: list[str] = []

        async def open_one() -> None:
            opened.append(
                await open_session(
                    front.manager.calls, name, streaming=True, timeout=3.5, capacity_of_str_len=9
                )
            )

        tasks.start_soon(open_one)
        question = await asked(front)
        assert isinstance(question, OpenSessionReqInput)
        assert (question.streaming, question.timeout, question.capacity_of_str_len) == (True, 3.5, 9)
        assert question.session_id == name or (name is None and len(question.session_id) == 32)
        front.scheduler.post(OpenSessionReqOutput(id=question.id, session_id=question.session_id))
        await front.until(lambda: opened == [question.session_id])


@pytest.mark.parametrize(("full", "error"), [(False, UsageError), (True, Overloaded)])
async def test_a_session_that_is_not_opened_is_an_error(full: bool, error: type[Error]) -> None:
    async with Front.serving() as front:

        async def refuse() -> None:
            question = await asked(front)
            front.scheduler.post(
                OpenSessionReqOutput(id=question.id, success=False, message="no room", full=full)
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            with pytest.raises(error, match="no room"):
                await open_session(front.manager.calls, "s")


async def test_closing_what_is_not_open_is_an_error() -> None:
    async with Front.serving() as front:

        async def refuse() -> None:
            question = await asked(front)
            front.scheduler.post(CloseSessionReqOutput(id=question.id, success=False, message="not open"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            with pytest.raises(UsageError, match="not open"):
                await close_session(front.manager.calls, "s")


@pytest.mark.parametrize("name", [None, "mine"])
async def test_a_session_whose_id_nobody_has_is_closed_again(name: str | None) -> None:
    async with Front.serving() as front:
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                await open_session(front.manager.calls, name)
        sent = front.sent()
        question = sent[0]
        assert isinstance(question, OpenSessionReqInput)
        if name is not None:
            assert len(sent) == 1  # he who has chosen the id can close it
            return
        _, closing = sent
        assert isinstance(closing, CloseSessionReqInput)
        assert closing.session_id == question.session_id
        front.scheduler.post(OpenSessionReqOutput(id=question.id, session_id=question.session_id))
        front.scheduler.post(CloseSessionReqOutput(id=closing.id))
        await front.until(lambda: not len(front.manager._questions))
        assert front.fault is None


async def test_a_session_that_was_never_asked_for_is_not_closed() -> None:
    """However often it is refused, no more answers come to be due."""
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_QUESTIONS):
                tasks.start_soon(open_session, front.manager.calls)
            await front.until(lambda: len(front.posted) == MAX_QUESTIONS)
            tasks.cancel_scope.cancel()
        due = len(front.manager._questions)
        assert due == 2 * MAX_QUESTIONS  # each that was asked for is closed again
        front.sent()
        for _ in range(10):
            with pytest.raises(Overloaded):
                await open_session(front.manager.calls)
        assert (len(front.manager._questions), front.sent()) == (due, [])


async def test_a_session_whose_ring_died_is_not_closed_on_the_next_one() -> None:
    async with Front.serving() as front, anyio.create_task_group() as tasks:

        async def fail() -> None:
            with pytest.raises(EngineBroken):
                await open_session(front.manager.calls)

        tasks.start_soon(fail)
        await asked(front)
        front.manager.lose(killed)
        front.attach()
        await front.heard()
        assert front.sent() == []


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan")])
async def test_a_timeout_is_more_than_nothing_and_finite(timeout: float) -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError, match="timeout is"):
            await open_session(front.manager.calls, timeout=timeout)
        assert front.sent() == []


@pytest.mark.parametrize("name", ["", "x" * 257, "\ud800"])
async def test_an_id_is_one_that_can_be_sent(name: str) -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError):
            await open_session(front.manager.calls, name)
        assert front.sent() == []


# --- turns -------------------------------------------------------------------------------------------------


async def test_where_a_request_goes_on_is_sent_with_it() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn()):
            (message,) = front.sent()
            assert isinstance(message, TokenizedGenerateReqInput)
            assert message.session_params == HERE


async def test_a_turn_that_was_read_is_left_without_a_word() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn()) as stream:
            front.say(StrRow(stream.vid, 0, (104,), STOP, "h"))
            await stream.read()
            front.sent()
        assert front.sent() == []


async def test_the_scheduler_hears_of_a_turn_whose_end_came_and_was_not_read() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn()) as stream:
            front.say(StrRow(stream.vid, 0, (104,), STOP, "h"))
            await front.heard()
            front.sent()
        (message,) = front.sent()
        assert isinstance(message, AbortReq)
        assert message.vid == stream.vid
        assert front.manager.totals.aborted == 0
        async with front.manager.generate(ask()) as other:  # of no session
            front.say(StrRow(other.vid, 0, (104,), STOP, "h"))
            await front.heard()
            front.sent()
        assert front.sent() == []


async def test_a_turn_that_lives_is_aborted_once() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn()) as stream:
            front.sent()
        assert [type(message) for message in front.sent()] == [AbortReq]
        assert stream.vid is not None


async def test_a_turn_does_not_go_on_after_the_death_of_its_process() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn("b")) as stream, front.manager.generate(ask(rid="c")) as other:
            front.say(StrRow(stream.vid, 0, (104,), None, "h"), StrRow(other.vid, 0, (104,), None, "h"))
            assert (await anext(stream)).text == "h"
            front.manager.lose(killed)
            with pytest.raises(RequestError, match="sessions do not go on after that; open another"):
                await anext(stream)
            front.attach()
            (again,) = front.sent()
            assert isinstance(again, TokenizedGenerateReqInput)
            assert again.vid == other.vid
        assert [type(message) for message in front.sent()] == [AbortReq]
    assert front.manager.totals.failed == 1


async def test_a_turn_left_while_there_is_no_ring_posts_nothing() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(turn()) as stream:
            front.say(StrRow(stream.vid, 0, (104,), STOP, "h"))
            await front.heard()
            front.manager.lose(killed)
            front.sent()
        assert front.sent() == []
