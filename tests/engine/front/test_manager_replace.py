"""A name that is taken over, at every stage of its holder; and the deadline that travels with a request."""

from __future__ import annotations

import math

import anyio
import pytest
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette.errors import DuplicateRequest, Overloaded, RequestError, RequestReplaced
from vidette.front.stream import Stream
from vidette.front.totals import Totals
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedGenerateReqInput,
    StrRow,
    TokenizedGenerateReqInput,
)


async def check_serves(front: Front, stream: Stream) -> None:
    """Check that a request hears what is its own, and comes to its end."""
    front.say(StrRow(stream.vid, 0, (66,), STOP, "B"))
    assert (await stream.read()).text == "B"


# --- taking over -----------------------------------------------------------------------------------


async def test_nobody_to_replace_is_no_difference() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="mine"), replace=True) as stream:
            (request,) = front.sent()
            assert isinstance(request, TokenizedGenerateReqInput)
            await check_serves(front, stream)
        assert front.manager.totals == Totals(submitted=1, finished=1)


@pytest.mark.parametrize("heard", [False, True], ids=["SENT", "LIVE"])
async def test_one_that_was_sent_is_aborted_and_its_caller_told(heard: bool) -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="mine")) as first:
            if heard:
                front.say(StrRow(first.vid, 0, (65,), None, "A"))
                assert (await anext(first)).text == "A"
            front.sent()
            async with front.manager.generate(ask(rid="mine"), replace=True) as second:
                abort, request = front.sent()
                assert abort == AbortReq(vid=first.vid, floor=first.vid)
                assert isinstance(request, TokenizedGenerateReqInput)
                assert request.vid == second.vid > first.vid
                with pytest.raises(RequestReplaced, match="request 'mine' was replaced") as caught:
                    await anext(first)
                assert caught.value.rid == "mine"
                assert isinstance(caught.value, RequestError)
                assert first.text == ("A" if heard else "")
                # What is still in flight of the first reaches nobody.
                front.say(StrRow(first.vid, int(heard), (88,), None, "X"))
                front.say(StrRow(first.vid, 1 + heard, (), ABORTED, ""))
                await check_serves(front, second)
        assert front.sent() == []  # of the first no second abort, of the second none at all
        assert len(front.manager) == 0
        assert front.manager.totals == Totals(submitted=2, finished=1, aborted=1, dropped=2)


async def test_a_reader_who_waits_is_woken() -> None:
    async with Front.serving() as front, front.manager.generate(ask(rid="mine")) as first:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                with pytest.raises(RequestReplaced):
                    await first.read()

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            async with front.manager.generate(ask(rid="mine"), replace=True) as second:
                await check_serves(front, second)


async def test_one_that_is_being_tokenised_is_never_sent() -> None:
    async with Front.serving() as front:
        gate = front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def first() -> None:
                with pytest.raises(RequestReplaced):
                    async with front.manager.generate(ask(rid="mine")):
                        pytest.fail("it was replaced")

            tasks.start_soon(first)
            await front.until(lambda: front.offload.begun == 1)
            await anyio.wait_all_tasks_blocked()  # at the gate
            front.offload.gate = None
            async with front.manager.generate(ask(rid="mine"), replace=True) as second:
                (request,) = front.sent()  # and no abort
                assert isinstance(request, TokenizedGenerateReqInput)
                assert request.vid == second.vid
                gate.set()
                await anyio.wait_all_tasks_blocked()  # the first has left
                await check_serves(front, second)
        assert front.sent() == []
        assert front.manager.totals == Totals(submitted=1, finished=1)
        assert len(front.manager) == 0


async def test_one_that_is_closing_has_no_name_any_more() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="mine")) as first:
            pass
        front.sent()
        async with front.manager.generate(ask(rid="mine"), replace=True) as second:
            (request,) = front.sent()  # no second abort
            assert isinstance(request, TokenizedGenerateReqInput)
            front.say(StrRow(first.vid, 0, (), ABORTED, ""))
            await check_serves(front, second)
        assert front.manager.totals == Totals(submitted=2, finished=1, aborted=1, dropped=1)


async def test_one_that_is_over_keeps_its_end() -> None:
    async with Front.serving() as front, front.manager.generate(ask(rid="mine")) as first:
        front.say(StrRow(first.vid, 0, (65,), STOP, "A"))
        await front.heard()
        async with front.manager.generate(ask(rid="mine"), replace=True) as second:
            assert (await first.read()).text == "A"
            await check_serves(front, second)
    assert front.manager.totals == Totals(submitted=2, finished=2)


async def test_the_exit_of_the_first_never_aborts_its_successor() -> None:
    async with Front.serving() as front:
        first_block = front.manager.generate(ask(rid="mine"))
        await first_block.__aenter__()
        async with front.manager.generate(ask(rid="mine"), replace=True) as second:
            front.sent()
            await first_block.__aexit__(None, None, None)
            assert front.sent() == []
            with pytest.raises(DuplicateRequest):  # the name is still that of the second
                async with front.manager.generate(ask(rid="mine")):
                    pytest.fail("the name is taken")
            await check_serves(front, second)


async def test_taken_over_again_and_again() -> None:
    """Each ends the one before it, and only the last one answers."""
    async with Front.serving() as front:
        async with anyio.create_task_group() as tasks:
            replaced = 0

            async def generate() -> None:
                nonlocal replaced
                with pytest.raises(RequestReplaced):
                    async with front.manager.generate(ask(rid="mine"), replace=True) as stream:
                        await stream.read()
                replaced += 1

            for _ in range(10):
                tasks.start_soon(generate)
                await anyio.wait_all_tasks_blocked()
            async with front.manager.generate(ask(rid="mine"), replace=True) as last:
                await front.until(lambda: replaced == 10)
                await check_serves(front, last)
        sent = front.sent()
        assert sum(isinstance(message, TokenizedGenerateReqInput) for message in sent) == 11
        assert len({message.vid for message in sent if isinstance(message, AbortReq)}) == 10
        assert len(sent) == 21


async def test_in_a_full_house_it_takes_the_place_of_its_holder_only() -> None:
    async with Front.serving(max_requests=1) as front, front.manager.generate(ask(rid="mine")):
        with pytest.raises(Overloaded):
            async with front.manager.generate(ask(rid="other"), replace=True):
                pytest.fail("there is no room")
        async with front.manager.generate(ask(rid="mine"), replace=True) as second:
            await check_serves(front, second)


# --- deadlines -------------------------------------------------------------------------------------


def deadline_sent(front: Front) -> float | None:
    """Return the deadline of the one request that was sent."""
    (message,) = front.sent()
    if isinstance(message, BatchTokenizedGenerateReqInput):
        (value,) = {request.deadline_s for request in message}
        return value
    assert isinstance(message, TokenizedGenerateReqInput)
    return message.deadline_s


async def test_only_a_deadline_that_was_asked_for_is_sent() -> None:
    """Not that of the scope: it may be moved while the request lives, and may enclose its beginning alone."""
    async with Front.serving() as front:
        with anyio.fail_after(50.0):
            async with front.manager.generate(ask()):
                assert deadline_sent(front) is None
            front.sent()
            async with front.manager.generate(ask(), deadline_s=3.5):
                assert deadline_sent(front) == 3.5
            front.sent()
            async with front.manager.generate_group(ask()):
                assert deadline_sent(front) is None
            front.sent()
            async with front.manager.generate_group(ask(), deadline_s=0.0):
                assert deadline_sent(front) == 0.0


async def test_a_deadline_that_passes_while_it_is_tokenised_sends_nothing() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        with anyio.move_on_after(math.inf) as scope:
            scope.deadline = anyio.current_time()
            async with front.manager.generate(ask()):
                pytest.fail("its caller waits no more")
        assert scope.cancelled_caught
        assert front.sent() == []
        assert len(front.manager) == 0
