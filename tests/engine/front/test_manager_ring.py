"""The front and its ring: questions that go round, an end that everybody hears, and faults of others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.front.conftest import ABORTED, DEADLINE, STOP, Front, ask

from vidette.errors import (
    EngineBroken,
    EngineClosed,
    Error,
    Overloaded,
)
from vidette.front.totals import Totals
from vidette.transport.framing import LinkClosed
from vidette.transport.link import RoleFailed
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    AbortReq,
    Failed,
    FreezeGCReq,
    HeartbeatReq,
    Ready,
    SchedulerLedger,
    ShutdownReq,
    StrRow,
)


def broken() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


# --- questions -------------------------------------------------------------------------------------


async def test_a_heartbeat_goes_round_and_brings_the_ledgers() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.sent()

        async def answer() -> None:
            await front.until(lambda: len(front.posted) == 2)
            (question,) = front.sent()
            assert question == HeartbeatReq(id=1, floor=stream.vid)
            ledger = SchedulerLedger(live=1, blocks_used=3)
            front.detokenizer.post(HeartbeatReq(id=1, scheduler=ledger, detokenizer_open=1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            beat = await front.manager.heartbeat()
        assert (beat.id, beat.detokenizer_open) == (1, 1)
        assert front.manager.scheduler_ledger == SchedulerLedger(live=1, blocks_used=3)
        assert front.manager.detokenizer_open == 1


async def test_answers_find_their_questions_in_any_order() -> None:
    async with Front.serving() as front:
        answered: list[str] = []

        async def ask_for(name: str, question: Callable[[], Coroutine[Any, Any, object]]) -> None:
            await question()
            answered.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_for, "first", front.manager.heartbeat)
            await front.until(lambda: len(front.posted) == 1)
            tasks.start_soon(ask_for, "second", front.manager.calls.freeze_gc)
            await front.until(lambda: len(front.posted) == 2)
            assert front.sent() == [HeartbeatReq(id=1), FreezeGCReq(id=2)]
            front.detokenizer.post(FreezeGCReq(id=2))
            await front.until(lambda: answered == ["second"])
            front.detokenizer.post(HeartbeatReq(id=1))
        assert answered == ["second", "first"]


async def test_an_answer_of_another_kind_is_a_fault_of_the_ring() -> None:
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.manager.heartbeat)
            await front.until(lambda: len(front.posted) == 1)
            front.detokenizer.post(FreezeGCReq(id=1))
            await front.until(lambda: front.fault is not None)
            tasks.cancel_scope.cancel()
        assert isinstance(front.fault, RemoteProtocolError)
        assert "FreezeGCReq 1 came back, but HeartbeatReq was expected" in str(front.fault)


async def test_a_question_can_be_given_up() -> None:
    async with Front.serving() as front:
        with anyio.move_on_after(0):
            await front.manager.heartbeat()
        front.sent()
        front.detokenizer.post(HeartbeatReq(id=1, detokenizer_open=4))  # nobody waits for it any more
        await front.until(lambda: front.manager.detokenizer_open == 4)
        assert front.fault is None
        assert not front.manager._questions


async def test_conversations_that_are_rendered_count_as_living() -> None:
    async with Front.serving(max_requests=2) as front, anyio.create_task_group() as tasks:
        front.offload.gate = anyio.Event()
        tasks.start_soon(front.manager.render_chat, [])
        tasks.start_soon(front.manager.render_chat, [])
        await front.until(lambda: front.offload.begun == 2)
        with pytest.raises(Overloaded, match=r"^2 requests live; at most 2 may$"):
            await front.manager.render_chat([])
        with pytest.raises(Overloaded):
            async with front.manager.generate(ask()):
                pytest.fail("there is no room")
        tasks.cancel_scope.cancel()


async def test_conversations_that_were_rendered_or_given_up_do_not_count() -> None:
    async with Front.serving(max_requests=1) as front:
        with anyio.move_on_after(0):
            await front.manager.render_chat([])
        for _ in range(3):
            await front.manager.render_chat([])


async def test_a_conversation_is_rendered_elsewhere() -> None:
    async with Front.serving() as front:
        assert await front.manager.render_chat([{"role": "user", "content": "hi"}]) == "user: hi\n"
        assert front.offload.begun == 1


# --- the end of the engine -------------------------------------------------------------------------


async def test_its_end_wakes_every_waiter_with_an_error_of_its_own() -> None:
    async with Front.serving() as front:
        errors: list[Error] = []
        reading = anyio.Event()

        async def expect(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
            with pytest.raises(EngineBroken) as caught:
                await wait()
            errors.append(caught.value)

        async def read() -> None:
            async with front.manager.generate(ask()) as stream:
                front.say(StrRow(stream.vid, 0, (65,), None, "A"))
                await anext(stream)
                reading.set()
                await stream.read()

        async def tokenise() -> None:
            async with front.manager.generate(ask()):
                pytest.fail("the engine has ended")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect, read)
            await reading.wait()
            front.offload.gate = anyio.Event()
            tasks.start_soon(expect, tokenise)
            tasks.start_soon(expect, front.manager.heartbeat)
            tasks.start_soon(expect, front.manager.calls.freeze_gc)
            tasks.start_soon(front.manager.wait_quiet)
            await front.until(lambda: len(front.posted) == 3 and front.offload.begun == 2)
            front.manager.end(broken)
            front.offload.gate.set()
        assert len(set(map(id, errors))) == 4
        assert all(error.exit_status == -9 for error in errors if isinstance(error, EngineBroken))
        assert front.manager.totals == Totals(submitted=1, failed=1)
        assert len(front.manager) == 0
        assert not any(isinstance(message, AbortReq) for message in front.sent())


async def test_after_its_end_nothing_is_served_and_the_first_end_counts() -> None:
    async with Front.serving() as front:
        front.manager.end(broken)
        front.manager.end(lambda: EngineClosed("too late"))
        front.manager.shutdown()
        render_chat = partial(front.manager.render_chat, [])
        for wait in (front.manager.heartbeat, front.manager.calls.freeze_gc, render_chat):
            with pytest.raises(EngineBroken):
                await wait()
        with pytest.raises(EngineBroken):
            async with front.manager.generate(ask()):
                pytest.fail("the engine has ended")
        assert front.sent() == []


async def test_a_shutdown_is_told_to_the_ring_once_and_to_every_waiter() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.sent()
            front.manager.shutdown()
            front.manager.shutdown()
            assert front.sent() == [ShutdownReq()]
            with pytest.raises(EngineClosed, match="the engine was closed"):
                await stream.read()
        assert front.sent() == []


async def test_rows_that_come_after_the_end_are_late_not_wrong() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.manager.end(broken)
        front.say(StrRow(stream.vid, 0, (65,), None, "A"))
        front.say(StrRow(stream.vid, 1, (), ABORTED, ""))
        await front.heard()
        assert front.fault is None
        assert front.manager.totals.dropped == 2
        with pytest.raises(EngineBroken):
            await stream.read()


async def test_a_stream_that_has_its_end_keeps_it() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (0,), STOP, "!"))
            await front.heard()
            front.manager.end(broken)
            assert (await stream.read()).text == "!"
        assert front.manager.totals == Totals(submitted=1, finished=1)


async def test_quiet_is_waited_for_by_everybody() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as earlier:
            front.say(StrRow(earlier.vid, 0, (0,), STOP, ""))
            await earlier.read()
        await front.manager.wait_quiet()
        quiet: list[int] = []

        async def wait(number: int) -> None:
            await front.manager.wait_quiet()
            quiet.append(number)

        async with anyio.create_task_group() as tasks:
            async with front.manager.generate(ask()) as one, front.manager.generate(ask()) as other:
                tasks.start_soon(wait, 1)
                tasks.start_soon(wait, 2)
                await anyio.wait_all_tasks_blocked()  # that it was quiet before does not keep them awake
                front.say(StrRow(one.vid, 0, (0,), STOP, ""))
                await one.read()
            await front.heard()
            assert quiet == []  # the abort of the other is on its way
            front.say(StrRow(other.vid, 0, (), ABORTED, ""))
        assert sorted(quiet) == [1, 2]


# --- a ring that does what it must not -------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([StrRow(make_vid(0, 5), 0, (1,), None, "")], "vid 5 was never issued by front 0"),
        ([StrRow(make_vid(1, 0), 0, (1,), None, "")], "was never issued by front 0"),
        ([StrRow(0, 1, (1,), None, "")], "vid 0: tokens from 1 on, but 0 is next"),
        ([StrRow(0, 0, (1, 2), None, ""), StrRow(0, 1, (2,), None, "")], "tokens from 1 on, but 2 is next"),
        ([StrRow(0, 0, (), ABORTED, "")], "vid 0 is sent: its end answers an abort that was not sent"),
        ([StrRow(0, 0, (1,), STOP, ""), StrRow(0, 1, (2,), None, "")], r"vid 0 is over \(ended\)"),
        ([StrRow(0, 0, (1,), STOP, ""), StrRow(0, 1, (), STOP, "")], r"vid 0 is over \(ended\)"),
    ],
)
async def test_rows_that_cannot_be_are_a_fault_of_the_detokenizer(rows: list[StrRow], fault: str) -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        assert stream.vid == 0
        for row in rows:
            front.say(row)
        await front.until(lambda: front.fault is not None)
        with pytest.raises(RemoteProtocolError, match=fault):
            raise front.fault or AssertionError


async def test_what_came_before_a_row_that_cannot_be_is_read_all_the_same() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        read = []

        async def reader() -> None:
            read.append(await stream.read())

        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader)
                await anyio.wait_all_tasks_blocked()
                front.say(StrRow(stream.vid, 0, (1, 0), STOP, "a"), StrRow(make_vid(0, 5), 0, (1,), None, ""))
        assert (read[0].text, read[0].finish_reason) == ("a", STOP)
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, RemoteProtocolError)


async def test_rows_of_what_was_not_sent_are_a_fault_of_the_detokenizer() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def generate() -> None:
                async with front.manager.generate(ask()):
                    pytest.fail("it is not tokenised yet")

            tasks.start_soon(generate)
            await front.until(lambda: front.offload.begun == 1)
            front.say(StrRow(0, 0, (1,), None, ""))
            await front.until(lambda: front.fault is not None)
            tasks.cancel_scope.cancel()
        assert isinstance(front.fault, RemoteProtocolError)
        assert str(front.fault) == "vid 0 was not sent yet, nothing of it can come"


@pytest.mark.parametrize("link", ["scheduler", "detokenizer"])
async def test_garbage_is_a_fault_of_whoever_sent_it(link: str) -> None:
    async with Front.serving() as front:
        channel = front.scheduler_channel if link == "scheduler" else front.detokenizer_channel
        channel.post(b"\xc1\xc1")
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, DecodeError)


@pytest.mark.parametrize("link", ["scheduler", "detokenizer"])
async def test_a_ready_after_the_handshake_is_a_fault(link: str) -> None:
    async with Front.serving() as front:
        sender = front.scheduler if link == "scheduler" else front.detokenizer
        sender.post(Ready(role=link))
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, RemoteProtocolError)
        assert str(front.fault) == "Ready came after the handshake"


@pytest.mark.parametrize("link", ["scheduler", "detokenizer"])
async def test_a_role_that_fails_says_so(link: str) -> None:
    async with Front.serving() as front:
        sender = front.scheduler if link == "scheduler" else front.detokenizer
        sender.post(Failed(role=link, message="OSError: no"))
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, RoleFailed)
        assert str(front.fault) == "OSError: no"
        assert front.fault.role == link


@pytest.mark.parametrize("link", ["scheduler", "detokenizer"])
async def test_a_link_that_closes_ends_the_hearing_of_it(link: str) -> None:
    async with Front.serving() as front:
        (front.scheduler_channel if link == "scheduler" else front.detokenizer_channel).close()
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, LinkClosed)
