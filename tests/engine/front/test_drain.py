"""Emptying a front: all requests are aborted at once, whatever they wait for, and nothing new is taken."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette.errors import EngineBroken, EngineClosed, EngineDraining, RequestAborted, RequestReplaced
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import AbortReq, HeartbeatReq, StrRow, TokenizedGenerateReqInput

LOST = partial(EngineBroken, "it died")


async def test_all_that_live_end_by_one_message_and_keep_what_they_have_heard() -> None:
    async with Front.serving(front_id=3) as front, AsyncExitStack() as blocks:
        streams = [await blocks.enter_async_context(front.manager.generate(ask())) for _ in range(3)]
        vids = [stream.vid for stream in streams]
        front.say(StrRow(vids[0], 0, (65,), None, "A"), StrRow(vids[1], 0, (66,), STOP, "B"))
        await front.heard()
        front.sent()
        assert front.manager.aborts.all("the weights change") == 2
        last = AbortReq(vid=vids[2], floor=vids[0], abort_all=True, abort_message="the weights change")
        assert front.sent() == [last]
        assert (await anext(streams[0])).text == "A"
        for stream in (streams[0], streams[2]):
            with pytest.raises(RequestAborted, match=f"'{stream.rid}' was ended.*: the weights change"):
                await anext(stream)
        assert (await streams[1].read()).text == "B"  # it had its end
        # Nobody hears what still comes; the ends that answer are the last of them.
        front.say(StrRow(vids[0], 1, (65,), None, "A"), StrRow(vids[2], 0, (), ABORTED, ""))
        front.say(StrRow(vids[0], 2, (), ABORTED, ""))
        await front.heard()
        assert (front.fault, len(front.manager)) == (None, 0)
        await blocks.aclose()
        assert front.sent() == []
        totals = front.manager.totals
        assert (totals.submitted, totals.finished, totals.aborted, totals.dropped) == (3, 1, 2, 3)


async def test_a_second_time_there_is_nothing_to_end_and_new_ones_live() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="r")):
            assert front.manager.aborts.all() == 1
            assert front.manager.aborts.all() == 0
            front.sent()
            async with front.manager.generate(ask(rid="r")) as stream:  # the slot is free at once
                assert isinstance(front.sent()[0], TokenizedGenerateReqInput)
                front.say(StrRow(stream.vid, 0, (65,), STOP, "A"))
                assert (await stream.read()).text == "A"


async def test_one_that_is_being_tokenised_is_not_sent() -> None:
    caught: list[Exception] = []

    async def generate(front: Front) -> None:
        try:
            async with front.manager.generate(ask()):
                pytest.fail("it was sent")
        except RequestAborted as error:
            caught.append(error)

    async def generate_group(front: Front) -> None:
        try:
            async with front.manager.generate_group(ask(n=2)):
                pytest.fail("they were sent")
        except RequestAborted as error:
            caught.append(error)

    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate, front)
            tasks.start_soon(generate_group, front)
            await front.until(lambda: front.offload.begun == 2)
            assert front.manager.aborts.all("late") == 3
            front.offload.gate.set()
        assert len(caught) == 2
        assert all("late" in str(error) for error in caught)
        assert front.sent() == []
        assert (len(front.manager), len(front.manager.drain)) == (0, 0)
        assert front.manager.totals.aborted == 0


async def test_one_that_was_replaced_is_still_told_so() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="r")) as old:
            async with front.manager.generate(ask(rid="r"), replace=True) as new:
                assert front.manager.aborts.all() == 1
                with pytest.raises(RequestReplaced):
                    await old.read()
                with pytest.raises(RequestAborted):
                    await new.read()


async def test_those_that_wait_for_another_ring_hear_of_it_at_once() -> None:
    caught: list[Exception] = []

    async def generate(front: Front) -> None:
        try:
            async with front.manager.generate(ask()):
                pytest.fail("it was sent")
        except RequestAborted as error:
            caught.append(error)

    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream, anyio.create_task_group() as tasks:
            front.manager.lose(LOST)
            tasks.start_soon(generate, front)
            await anyio.wait_all_tasks_blocked()
            assert front.manager.aborts.all() == 2
            with pytest.raises(RequestAborted):
                await stream.read()
            await front.until(lambda: len(caught) == 1)
        front.attach()
        assert front.sent() == []  # nothing of them goes on
        assert len(front.manager) == 0
        assert front.manager.totals.aborted == 1


async def test_when_it_has_ended_there_is_nothing_to_abort() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.manager.end(LOST)
            front.sent()
            assert front.manager.aborts.all() == 0
            assert front.sent() == []
            with pytest.raises(EngineBroken):
                await stream.read()


async def test_while_it_drains_nothing_new_is_taken_and_all_else_goes_on() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            assert not front.manager.drain.begun
            front.manager.drain.begin(7.0)
            assert front.manager.drain.begun
            for block in (front.manager.generate(ask()), front.manager.generate_group(ask(n=2))):
                with pytest.raises(EngineDraining) as caught:
                    async with block:
                        pytest.fail("it was taken")
                assert 6.0 < caught.value.retry_after <= 7.0
            with pytest.raises(EngineClosed, match="takes no more"):
                await front.manager.render_chat([])
            front.manager.drain.begin(100.0)  # the shortest time counts
            front.manager.drain.begin(0.0)
            with pytest.raises(EngineDraining) as caught:
                await front.manager.render_chat([])
            assert caught.value.retry_after == 1.0
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(front.manager.heartbeat)
                await front.until(lambda: any(isinstance(sent, HeartbeatReq) for sent in front.sent()))
                front.detokenizer.post(HeartbeatReq(id=1))
            front.say(StrRow(stream.vid, 0, (65,), STOP, "A"))
            assert (await stream.read()).text == "A"


async def test_one_that_was_taken_before_it_drains_is_sent() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            entered = anyio.Event()

            async def generate() -> None:
                async with front.manager.generate(ask()):
                    entered.set()

            tasks.start_soon(generate)
            await front.until(lambda: front.offload.begun == 1)
            front.manager.drain.begin(5.0)
            front.offload.gate.set()
            await entered.wait()


async def test_a_vid_of_several_fronts_is_named_whole() -> None:
    async with Front.serving(front_id=2) as front:
        async with front.manager.generate(ask()):
            front.sent()
            front.manager.aborts.all()
            (abort,) = front.sent()
            assert isinstance(abort, AbortReq)
            assert abort.vid == make_vid(2, 0)
