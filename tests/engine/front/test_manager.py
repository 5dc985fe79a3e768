"""The front: a request lives as long as its block, and what ends it is told at once and in order."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette.errors import (
    DuplicateRequest,
    Overloaded,
    RequestError,
    UsageError,
)
from vidette.front.stream import Stream
from vidette.front.totals import Totals
from vidette_protocol.ids import make_vid
from vidette_protocol.messages import (
    AbortReq,
    FinishReason,
    GenerateReqInput,
    Message,
    SchedulerLedger,
    StrRow,
    TokenizedGenerateReqInput,
)


class Left(Exception):  # noqa: N818
    """By this a block is left on purpose."""


def only_request(messages: list[Message]) -> TokenizedGenerateReqInput:
    """Return the one message there is, which is a request."""
    (message,) = messages
    assert isinstance(message, TokenizedGenerateReqInput)
    return message


# --- what is sent, and what comes of it ------------------------------------------------------------


async def test_a_text_is_tokenised_elsewhere_and_sent_with_nothing_left_open() -> None:
    async with Front.serving(max_total_tokens=50) as front:
        request = ask(" hello ", rid="mine", max_new_tokens=None, temperature=0.5, sampling_seed=None)
        async with front.manager.generate(request) as stream:
            sent = only_request(front.sent())
            assert front.offload.begun == 1
            assert sent.token_ids.tolist() == list(b"hello")
            assert (sent.vid, sent.floor, sent.rid) == (stream.vid, stream.vid, "mine")
            assert sent.sampling_params.max_new_tokens == 45
            assert sent.sampling_params.sampling_seed is not None
            assert sent.sampling_params.temperature == 0.5
            assert (stream.rid, stream.prompt_tokens) == ("mine", 5)
            assert len(front.manager) == 1


async def test_token_ids_are_sent_as_they_are() -> None:
    async with Front.serving() as front, front.manager.generate(ask([0, 5, 127])):
        assert only_request(front.sent()).token_ids.tolist() == [0, 5, 127]
        assert front.offload.begun == 0


async def test_what_comes_is_read_to_its_end() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (104,), None, "h"), ledger=SchedulerLedger(live=1, blocks_used=2))
            assert (await anext(stream)).text == "h"
            assert front.manager.scheduler_ledger == SchedulerLedger(live=1, blocks_used=2)
            front.say(StrRow(stream.vid, 1, (105, 0), STOP, "i"))
            completion = await stream.read()
        assert (completion.text, completion.token_ids) == ("hi", (104, 105, 0))
        assert completion.finish_reason == STOP
        assert len(front.manager) == 0
        assert front.manager.totals == Totals(submitted=1, finished=1)
        assert [type(message) for message in front.sent()] == [TokenizedGenerateReqInput]  # and no abort


async def test_requests_hear_their_own() -> None:
    async with Front.serving() as front, AsyncExitStack() as blocks:
        streams = [await blocks.enter_async_context(front.manager.generate(ask())) for _ in range(5)]
        for offset in range(3):
            front.say(*(StrRow(s.vid, offset, (65 + i,), None, chr(65 + i)) for i, s in enumerate(streams)))
        front.say(*(StrRow(s.vid, 3, (), STOP, "") for s in streams))
        assert [(await stream.read()).text for stream in streams] == ["AAA", "BBB", "CCC", "DDD", "EEE"]


async def test_an_error_of_a_request_is_its_own() -> None:
    failed = FinishReason("error", message="the model's logits are not finite")
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="a")) as one, front.manager.generate(ask()) as other:
            front.say(StrRow(one.vid, 0, (), failed, ""), StrRow(other.vid, 0, (0,), STOP, ""))
            with pytest.raises(RequestError, match=r"^request 'a' failed: the model's logits"):
                await one.read()
            assert (await other.read()).finish_reason == STOP
        assert front.manager.totals == Totals(submitted=2, finished=1, failed=1)


async def test_vids_are_of_the_front_and_floors_the_lowest_that_lives() -> None:
    async with Front.serving(front_id=7) as front, AsyncExitStack() as blocks:
        vids = []
        for _ in range(3):
            stream = await blocks.enter_async_context(front.manager.generate(ask()))
            vids.append(stream.vid)
        assert vids == [make_vid(7, count) for count in range(3)]
        assert [message.floor for message in front.sent() if hasattr(message, "floor")] == [vids[0]] * 3
        front.say(StrRow(vids[0], 0, (), STOP, ""))
        await front.heard()
        async with front.manager.generate(ask()):
            assert only_request(front.sent()).floor == vids[1]


async def test_who_was_cancelled_takes_nothing_whenever_it_comes() -> None:
    async with Front.serving() as front:
        for turns in range(8):
            async with front.manager.generate(ask()) as stream:
                front.say(StrRow(stream.vid, 0, (1,), None, "a"))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await anext(stream)
                assert scope.cancelled_caught, turns
                assert (await anext(stream)).text == "a"
                front.say(StrRow(stream.vid, 1, (2,), STOP, "b"))
                assert (await stream.read()).text == "ab"


# --- leaving ---------------------------------------------------------------------------------------


@asynccontextmanager
async def left_by(how: str, front: Front) -> AsyncGenerator[Stream]:
    """Open a request whose block is left in some way once the body is done."""
    if how == "deadline":
        with anyio.move_on_after(math.inf) as scope:
            async with front.manager.generate(ask()) as stream:
                yield stream
                scope.deadline = -math.inf
                await anyio.sleep_forever()
    elif how == "cancel":
        with anyio.CancelScope() as scope:
            async with front.manager.generate(ask()) as stream:
                yield stream
                scope.cancel()
                await stream.read()
    elif how == "exception":
        try:
            async with front.manager.generate(ask()) as stream:
                yield stream
                raise Left
        except Left:
            pass
    else:
        async with front.manager.generate(ask()) as stream:
            yield stream


WAYS = ["exit", "exception", "cancel", "deadline"]


@pytest.mark.parametrize("how", WAYS)
async def test_leaving_before_the_end_posts_an_abort_at_once(how: str) -> None:
    async with Front.serving() as front:
        async with left_by(how, front) as stream:
            only_request(front.sent())
        # Nothing was awaited since the block was left, and it is there.
        assert front.sent() == [AbortReq(vid=stream.vid, floor=stream.vid)]
        assert len(front.manager) == 1  # it is closing
        assert front.manager.totals == Totals(submitted=1, aborted=1)
        front.say(StrRow(stream.vid, 0, (65,), None, "A"))
        front.say(StrRow(stream.vid, 1, (), ABORTED, ""))
        await front.manager.wait_quiet()
        assert front.manager.totals == Totals(submitted=1, aborted=1, dropped=2)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("taken", [True, False])
async def test_leaving_after_the_end_posts_nothing(how: str, taken: bool) -> None:
    async with Front.serving() as front:
        async with left_by(how, front) as stream:
            front.say(StrRow(stream.vid, 0, (0,), STOP, ""))
            await front.heard()
            if taken:
                await stream.read()
        assert [type(message) for message in front.sent()] == [TokenizedGenerateReqInput]
        assert len(front.manager) == 0
        assert front.manager.totals == Totals(submitted=1, finished=1)


async def test_an_abort_that_crosses_the_end_is_over_with_it() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (0,), STOP, ""))
        assert len(front.manager) == 1
        await front.heard()
        assert len(front.manager) == 0
        assert front.manager.totals == Totals(submitted=1, aborted=1, dropped=1)


async def test_leaving_wakes_another_task_that_still_reads() -> None:
    async with Front.serving() as front, anyio.create_task_group() as tasks:

        async def read(stream: Stream) -> None:
            with pytest.raises(UsageError, match="the block of this request was left"):
                await stream.read()

        async with front.manager.generate(ask()) as stream:
            tasks.start_soon(read, stream)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(UsageError, match="the block of this request was left"):
            await anext(stream)


async def test_what_was_read_to_its_end_can_be_looked_at_outside_its_block() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            front.say(StrRow(stream.vid, 0, (0,), STOP, "!"))
            await stream.read()
        assert stream.completion() == await stream.read()


async def test_leaving_while_it_is_tokenised_sends_nothing() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def generate() -> None:
                async with front.manager.generate(ask(rid="mine")):
                    pytest.fail("it is not tokenised yet")

            tasks.start_soon(generate)
            await front.until(lambda: front.offload.begun == 1)
            assert len(front.manager) == 1
            tasks.cancel_scope.cancel()
        assert front.sent() == []
        assert len(front.manager) == 0
        assert front.manager.totals == Totals()  # it never was submitted
        front.offload.gate = None
        async with front.manager.generate(ask(rid="mine")):  # the name is free again
            only_request(front.sent())


@pytest.mark.parametrize("prompt", ["hello", [1, 2]])
async def test_a_scope_that_has_ended_submits_nothing(prompt: str | list[int]) -> None:
    async with Front.serving() as front:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with front.manager.generate(ask(prompt)):
                pytest.fail("its caller is gone")
        assert scope.cancelled_caught
        assert front.sent() == []
        assert len(front.manager) == 0


@pytest.mark.parametrize("prompt", ["hello", [1, 2, 3]])
async def test_cancelled_at_any_moment_it_leaves_nothing(prompt: str | list[int]) -> None:
    """A request's scope is cancelled after 0, 1, 2, ... turns of the others, until it is too late."""
    outcomes: list[str] = []
    async with Front.serving() as front:

        async def answer() -> None:
            """Be the ring: three tokens for each request, an acknowledgement for each abort."""
            made: dict[int, int] = {}
            while True:
                message = await front.scheduler.receive()
                if isinstance(message, TokenizedGenerateReqInput):
                    made[message.vid] = 0
                elif isinstance(message, AbortReq) and message.vid in made:
                    front.say(StrRow(message.vid, made.pop(message.vid), (), ABORTED, ""))
                for vid in list(made):
                    for offset in range(3):
                        front.say(StrRow(vid, offset, (65,), STOP if offset == 2 else None, "A"))
                        await anyio.lowlevel.checkpoint()
                    del made[vid]

        async def use(scope: anyio.CancelScope, left: anyio.Event) -> None:
            with scope:
                async with front.manager.generate(ask(prompt, rid="the only one")) as stream:
                    outcomes.append((await stream.read()).text)
            left.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            turns = 0
            while len(outcomes) < 3:  # three times too late
                scope, left = anyio.CancelScope(), anyio.Event()
                tasks.start_soon(use, scope, left)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
                turns += 1
                await left.wait()  # from here on its name can be used again, be it quiet or not
                if turns % 2:
                    await front.manager.wait_quiet()
            await front.manager.wait_quiet()
            tasks.cancel_scope.cancel()
        assert turns > 5
        assert outcomes == ["AAA"] * 3
        totals = front.manager.totals
        assert totals.aborted + totals.finished == totals.submitted <= turns
        assert (
            sum(isinstance(message, TokenizedGenerateReqInput) for message in front.sent())
            == totals.submitted
        )
        assert totals.finished >= 3
        assert front.fault is None


# --- names -----------------------------------------------------------------------------------------


async def test_a_name_can_be_used_again_at_once_and_hears_nothing_of_its_past() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="mine")) as first:
            pass
        async with front.manager.generate(ask(rid="mine")) as second:
            assert second.vid > first.vid
            assert [type(message) for message in front.sent()] == [
                TokenizedGenerateReqInput,
                AbortReq,
                TokenizedGenerateReqInput,
            ]
            front.say(StrRow(first.vid, 0, (88,), None, "X"))
            front.say(StrRow(second.vid, 0, (89,), None, "Y"), StrRow(first.vid, 1, (88, 0), STOP, "X"))
            assert (await anext(second)).text == "Y"
            front.say(StrRow(second.vid, 1, (0,), STOP, ""))
            assert (await second.read()).text == "Y"
        assert front.manager.totals == Totals(submitted=2, finished=1, aborted=1, dropped=2)
        assert len(front.manager) == 0


async def test_a_name_that_lives_is_refused_and_its_holder_left_alone() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="mine")) as stream:
            front.sent()
            with pytest.raises(DuplicateRequest, match="request id 'mine' is in use") as caught:
                async with front.manager.generate(ask(rid="mine")):
                    pytest.fail("the name is taken")
            assert caught.value.rid == "mine"
            assert front.sent() == []
            front.say(StrRow(stream.vid, 0, (0,), STOP, "!"))
            assert (await stream.read()).text == "!"
        assert front.manager.totals == Totals(submitted=1, finished=1)


async def test_a_name_is_made_for_whoever_has_none() -> None:
    async with (
        Front.serving() as front,
        front.manager.generate(ask()) as one,
        front.manager.generate(ask()) as other,
    ):
        assert len({one.rid, other.rid, ""}) == 3


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerateReqInput(), "no prompt is given; give just one of"),
        (ask(""), "text is empty"),
        (ask("  "), "text has no tokens"),
        (ask([]), "input_ids is empty"),
        (ask([1, 128]), r"input_ids\[1\] is 128; token ids of this model are 0 to 127"),
        (ask("x" * 100), "the prompt is too long: it has at least 100 tokens; at most 99 fit"),
        (ask([1] * 90, max_new_tokens=11), "ask for at most 10"),
        (ask(temperature=-1.0), "temperature is -1.0"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_leaves_nothing(
    request_: GenerateReqInput, message: str
) -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError, match=message):
            async with front.manager.generate(request_):
                pytest.fail("it cannot be served")
        assert front.sent() == []
        assert len(front.manager) == 0


async def test_more_than_may_live_are_refused_until_one_is_over() -> None:
    async with Front.serving(max_requests=2) as front:
        async with front.manager.generate(ask()) as stream, front.manager.generate(ask()):
            front.sent()
            with pytest.raises(Overloaded, match=r"^2 requests live; at most 2 may$"):
                async with front.manager.generate(ask()):
                    pytest.fail("there is no room")
            assert front.sent() == []
            front.say(StrRow(stream.vid, 0, (0,), STOP, ""))
            await stream.read()
            async with front.manager.generate(ask()):
                pass
        # Those that are closing still have their place in the ring.
        with pytest.raises(Overloaded):
            async with front.manager.generate(ask()):
                pytest.fail("there is no room")


# --- checkpoints -----------------------------------------------------------------------------------


def test_every_wait_is_a_checkpoint() -> None:
    async def main() -> None:
        async with Front.serving() as front:
            with trio.testing.assert_checkpoints():
                await front.manager.wait_quiet()
            for prompt in ("hello", [1, 2]):
                block = front.manager.generate(ask(prompt))
                with trio.testing.assert_checkpoints():
                    stream = await block.__aenter__()
                with trio.testing.assert_no_checkpoints():  # leaving awaits nothing
                    await block.__aexit__(None, None, None)
                front.say(StrRow(stream.vid, 0, (), ABORTED, ""))
            await front.manager.wait_quiet()

    trio.run(main)
