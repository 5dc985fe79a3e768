"""Several answers at once: taken in all or none, left all together, and each with an end of its own."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette.errors import (
    DuplicateRequest,
    EngineClosed,
    Overloaded,
    RequestError,
    RequestReplaced,
    UsageError,
)
from vidette.front.stream import Group
from vidette.front.totals import Totals
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedGenerateReqInput,
    FinishReason,
    GenerateReqInput,
    SamplingParams,
    StrRow,
    TokenizedGenerateReqInput,
)

FAILED = FinishReason("error", message="the model's logits are not finite")


def ask_many(*texts: str, rid: str | list[str] | None = None, n: int = 1, **params: Any) -> GenerateReqInput:
    """Return a request for several answers, as a caller makes it."""
    sampling = SamplingParams(**{"max_new_tokens": 5, "sampling_seed": 7, "n": n, **params})
    return GenerateReqInput(rid=rid, text=list(texts), sampling_params=sampling)


def only_batch(front: Front) -> list[TokenizedGenerateReqInput]:
    """Return the requests of the one message that was sent."""
    (message,) = front.sent()
    assert isinstance(message, BatchTokenizedGenerateReqInput)
    return list(message)


def end_all(front: Front, group: Group) -> None:
    """Let every answer come to its end."""
    front.say(*(StrRow(s.vid, 0, (65 + i,), STOP, chr(65 + i)) for i, s in enumerate(group.streams)))


# --- what is sent, and what comes of it ------------------------------------------------------------


async def test_they_are_sent_in_one_message_prompt_after_prompt() -> None:
    async with Front.serving() as front:
        async with front.manager.generate_group(ask_many("ab", "cde", n=2, rid="mine")) as group:
            requests = only_batch(front)
            assert [bytes(each.token_ids.tolist()) for each in requests] == [b"ab", b"ab", b"cde", b"cde"]
            assert [each.rid for each in requests] == ["mine_0", "mine_1", "mine_2", "mine_3"]
            assert [each.sampling_params.sampling_seed for each in requests] == [7, 8, 7, 8]
            assert [each.sampling_params.n for each in requests] == [1] * 4
            assert [each.vid for each in requests] == [stream.vid for stream in group.streams]
            assert {each.floor for each in requests} == {requests[0].vid}
            assert [stream.rid for stream in group.streams] == [each.rid for each in requests]
            assert [stream.prompt_tokens for stream in group.streams] == [2, 2, 3, 3]
            assert (group.n, group.single) == (2, False)
            end_all(front, group)
            assert [each.text for each in await group.read()] == ["A", "B", "C", "D"]
        assert front.sent() == []
        assert len(front.manager) == 0
        assert front.manager.totals == Totals(submitted=4, finished=4)


async def test_a_prompt_is_tokenised_once_for_all_its_answers() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask_many("a", "b", n=40)) as group:
        assert front.offload.begun == 2
        assert len(only_batch(front)) == len(group.streams) == 80


async def test_one_answer_to_one_prompt_is_a_group_as_well() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask("hello", rid="mine")) as group:
        (request,) = only_batch(front)
        assert request.rid == "mine"
        assert group.single
        end_all(front, group)
        assert [each.text for each in await group.read()] == ["A"]


async def test_a_list_of_one_is_no_single_answer() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask_many("hello")) as group:
        assert (len(group.streams), group.single) == (1, False)


async def test_without_a_seed_each_answer_has_its_own() -> None:
    request = ask_many("a", n=8, sampling_seed=None)
    async with Front.serving() as front, front.manager.generate_group(request):
        assert len({each.sampling_params.sampling_seed for each in only_batch(front)}) == 8


# --- all or none -----------------------------------------------------------------------------------


async def test_a_name_that_lives_refuses_all() -> None:
    async with Front.serving() as front, front.manager.generate(ask(rid="b")):
        front.sent()
        with pytest.raises(DuplicateRequest, match="request id 'b' is in use"):
            async with front.manager.generate_group(ask_many("x", "y", "z", rid=["a", "b", "c"])):
                pytest.fail("a name is taken")
        assert front.sent() == []
        assert len(front.manager) == 1
        async with front.manager.generate_group(ask_many("x", "y", rid=["a", "c"])):  # they are free
            assert len(only_batch(front)) == 2


async def test_more_than_there_is_room_for_refuses_all() -> None:
    async with Front.serving(max_requests=4) as front, front.manager.generate(ask()):
        front.sent()
        with pytest.raises(Overloaded, match=r"^1 requests live; at most 4 may$"):
            async with front.manager.generate_group(ask_many("x", "y", n=2)):
                pytest.fail("there is no room for four")
        assert front.sent() == []
        async with front.manager.generate_group(ask_many("x", n=3)):  # just as many as there is room for
            assert len(only_batch(front)) == 3


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask_many("x", "  "), "text has no tokens"),
        (ask_many("x", "y" * 100), "the prompt is too long: it has at least 100 tokens; at most 99 fit"),
        (ask_many("x", "y", temperature=-1.0), "temperature is -1.0"),
        (ask_many("x", "y", rid=["a", "a"]), "more than once"),
        (ask_many(), "text is"),
        (ask_many("x", n=129), "n is 129"),
        (GenerateReqInput(input_ids=[[1, 2], [128]]), r"input_ids\[0\] is 128"),
        (ask_many("x", "y", min_new_tokens=6), "min_new_tokens"),
        (GenerateReqInput(text=["x", "y"], lora_path=[None, "l"]), "lora_path"),
    ],
)
async def test_one_that_cannot_be_served_refuses_all(request_: GenerateReqInput, message: str) -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError, match=message):
            async with front.manager.generate_group(request_):
                pytest.fail("one cannot be served")
        assert front.sent() == []
        assert len(front.manager) == 0
        assert front.manager.totals == Totals()


# --- leaving ---------------------------------------------------------------------------------------


async def test_leaving_aborts_all_that_live() -> None:
    async with Front.serving() as front:
        async with front.manager.generate_group(ask_many("a", "b", "c")) as group:
            only_batch(front)
            one, two, three = group.streams
            front.say(StrRow(one.vid, 0, (65,), None, "A"), StrRow(two.vid, 0, (66,), STOP, "B"))
            await front.heard()
        # Nothing was awaited since the block was left.
        aborts = front.sent()
        assert [(type(m), m.vid) for m in aborts if isinstance(m, AbortReq)] == [
            (AbortReq, one.vid),
            (AbortReq, three.vid),
        ]
        assert len(aborts) == 2
        front.say(StrRow(one.vid, 1, (), ABORTED, ""), StrRow(three.vid, 0, (), ABORTED, ""))
        await front.manager.wait_quiet()
        assert front.manager.totals == Totals(submitted=3, finished=1, aborted=2, dropped=2)


@pytest.mark.parametrize("tokenised", [0, 1, 2])
async def test_cancelled_half_way_through_its_prompts_it_leaves_nothing(tokenised: int) -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def generate() -> None:
                async with front.manager.generate_group(ask_many("a", "b", "c", n=2, rid="mine")):
                    pytest.fail("they are not all tokenised yet")

            tasks.start_soon(generate)
            for count in range(1, tokenised + 2):
                await front.until(lambda count=count: front.offload.begun == count)  # type: ignore[misc]
                if count <= tokenised:
                    await anyio.wait_all_tasks_blocked()  # at the gate
                    gate, front.offload.gate = front.offload.gate, anyio.Event()
                    gate.set()
            assert len(front.manager) == 6
            tasks.cancel_scope.cancel()
        assert front.sent() == []
        assert len(front.manager) == 0
        assert front.manager.totals == Totals()
        front.offload.gate = None
        async with front.manager.generate_group(ask_many("a", "b", "c", n=2, rid="mine")):
            assert len(only_batch(front)) == 6


async def test_the_end_of_the_engine_while_it_is_tokenised_sends_nothing() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def generate() -> None:
                with pytest.raises(EngineClosed):
                    async with front.manager.generate_group(ask_many("a", "b")):
                        pytest.fail("the engine is closed")

            tasks.start_soon(generate)
            await front.until(lambda: front.offload.begun == 1)
            front.manager.shutdown()
            front.offload.gate.set()
        assert not any(isinstance(message, BatchTokenizedGenerateReqInput) for message in front.sent())
        assert len(front.manager) == 0


# --- each for itself -------------------------------------------------------------------------------


async def test_one_that_fails_leaves_the_others_alone() -> None:
    async with Front.serving() as front:
        async with front.manager.generate_group(ask_many("a", "b", "c")) as group:
            one, two, three = group.streams
            front.say(StrRow(one.vid, 0, (65,), None, "A"), StrRow(two.vid, 0, (), FAILED, ""))
            with pytest.raises(RequestError, match="the model's logits are not finite"):
                await two.read()
            front.say(StrRow(one.vid, 1, (66,), STOP, "B"), StrRow(three.vid, 0, (67,), STOP, "C"))
            assert (await one.read()).text == "AB"
            assert (await three.read()).text == "C"
            with pytest.raises(RequestError):
                await group.read()
        assert front.manager.totals == Totals(submitted=3, finished=2, failed=1)
        assert len(front.manager) == 0


async def test_one_whose_name_is_taken_over_leaves_the_others_alone() -> None:
    async with Front.serving() as front:
        async with front.manager.generate_group(ask_many("a", "b", rid=["x", "y"])) as group:
            one, two = group.streams
            only_batch(front)
            async with front.manager.generate(ask(rid="x"), replace=True) as successor:
                with pytest.raises(RequestReplaced):
                    await one.read()
                front.say(StrRow(two.vid, 0, (66,), STOP, "B"))
                assert (await two.read()).text == "B"
                abort, _ = front.sent()
                assert abort == AbortReq(vid=one.vid, floor=one.vid)
                front.say(StrRow(successor.vid, 0, (67,), STOP, "C"))
                assert (await successor.read()).text == "C"
        assert front.sent() == []


async def test_one_whose_name_is_taken_over_before_they_are_sent_ends_all() -> None:
    """They are taken in all or none: the answer of one is not to come."""
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def generate() -> None:
                with pytest.raises(RequestReplaced, match="'y' was replaced"):
                    async with front.manager.generate_group(ask_many("a", "b", rid=["x", "y"])):
                        pytest.fail("one of them was replaced")

            tasks.start_soon(generate)
            await front.until(lambda: front.offload.begun == 1)
            await anyio.wait_all_tasks_blocked()  # at the gate
            gate, front.offload.gate = front.offload.gate, None
            async with front.manager.generate(ask(rid="y"), replace=True) as successor:
                gate.set()
                await front.until(lambda: len(front.manager) == 1)
                (request,) = front.sent()
                assert isinstance(request, TokenizedGenerateReqInput)
                front.say(StrRow(successor.vid, 0, (67,), STOP, "C"))
                assert (await successor.read()).text == "C"


# --- waiting for whichever is next -----------------------------------------------------------------


async def test_who_waits_is_told_which_of_them_have_something() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask_many("a", "b", "c")) as group:
        one, two, three = group.streams
        for stream, place in ((three, 2), (one, 0)):
            front.say(StrRow(stream.vid, 0, (65,), None, "A"))
            assert await group.wait_ready() == (place,)
            assert await group.wait_ready() == (place,)  # it was not taken yet
            assert (await anext(stream)).text == "A"
        front.say(StrRow(one.vid, 1, (66,), STOP, "B"), StrRow(two.vid, 0, (), FAILED, ""))
        assert await group.wait_ready() == (0, 1)
        assert (await one.read()).text == "AB"
        assert await group.wait_ready() == (1,)
        with pytest.raises(RequestError):
            await anext(two)
        assert two.done
        front.say(StrRow(three.vid, 1, (), STOP, ""))
        assert await group.wait_ready() == (2,)
        assert (await three.read()).text == "A"
        assert await group.wait_ready() == ()
        assert all(stream.done and not stream.ready for stream in group.streams)


async def test_who_waits_is_woken_by_the_end_of_the_engine() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask_many("a", "b")) as group:
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                assert await group.wait_ready() == (0, 1)

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            front.manager.shutdown()
        for stream in group.streams:
            with pytest.raises(EngineClosed):
                await anext(stream)
        assert await group.wait_ready() == ()


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    async with Front.serving() as front, front.manager.generate_group(ask_many("a", "b")) as group:
        with anyio.move_on_after(0):
            await group.wait_ready()
        end_all(front, group)
        await front.heard()
        assert await group.wait_ready() == (0, 1)


async def test_all_of_it_is_read_by_waiting_whatever_the_order() -> None:
    """The loop that an answer in pieces is: wait, take what there is, until nothing is left."""
    async with Front.serving() as front, front.manager.generate_group(ask_many("a", "b", "c")) as group:

        async def feed() -> None:
            for offset in range(4):
                for place, stream in enumerate(group.streams):
                    reason = STOP if offset == 1 + place else None
                    if offset <= 1 + place:
                        front.say(StrRow(stream.vid, offset, (65,), reason, chr(65 + place)))
                        await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            while ready := await group.wait_ready():
                for place in ready:
                    await anext(group.streams[place])
        assert [stream.text for stream in group.streams] == ["AA", "BBB", "CCCC"]


def test_every_wait_is_a_checkpoint() -> None:
    async def main() -> None:
        async with Front.serving() as front:
            block = front.manager.generate_group(ask_many("a", "b"))
            with trio.testing.assert_checkpoints():
                group = await block.__aenter__()
            end_all(front, group)
            await front.heard()
            for _ in range(2):
                with trio.testing.assert_checkpoints():
                    await group.wait_ready()
                with trio.testing.assert_checkpoints():
                    await group.read()
            with trio.testing.assert_no_checkpoints():
                await block.__aexit__(None, None, None)

    trio.run(main)
