"""A front whose ring dies and is replaced: callers hear each character once, and nobody waits in vain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from tests.engine.front.conftest import ABORTED, STOP, Front, ask

from vidette.errors import EngineBroken, Error, Overloaded, RequestError, RequestReplaced
from vidette.front.route import MAX_RESUMES
from vidette.front.stream import Stream
from vidette.front.totals import Totals
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenizedGenerateReqInput,
    GenerateReqInput,
    HeartbeatReq,
    SamplingParams,
    SchedulerLedger,
    StrRow,
    TokenizedGenerateReqInput,
)


def killed() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


def requests(front: Front) -> list[TokenizedGenerateReqInput]:
    """Return the requests that were sent since this was asked last; nothing else was."""
    sent = front.sent()
    assert all(isinstance(message, TokenizedGenerateReqInput) for message in sent)
    return [message for message in sent if isinstance(message, TokenizedGenerateReqInput)]


# --- what goes on --------------------------------------------------------------------------------------


async def test_a_request_goes_on_behind_what_its_caller_has_had() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="r")) as stream:
            (first,) = requests(front)
            front.say(StrRow(stream.vid, 0, (104, 105), None, "hi"))
            assert (await anext(stream)).text == "hi"
            front.say(StrRow(stream.vid, 2, (33,), None, "!"))  # it comes, but is not taken yet
            await front.heard()
            front.manager.lose(killed)
            assert stream.vid > first.vid
            front.attach()
            (again,) = requests(front)
            assert (again.vid, again.floor, again.rid) == (stream.vid, stream.vid, "r")
            assert again.resumed_ids.tolist() == [104, 105, 33]
            assert again.token_ids.tolist() == first.token_ids.tolist()
            assert again.sampling_params == first.sampling_params
            front.say(StrRow(stream.vid, 0, (104, 105, 33), None, "hi!"))
            front.say(StrRow(stream.vid, 3, (63, 0), STOP, "?"))
            completion = await stream.read()
        assert (completion.text, completion.token_ids) == ("hi!?", (104, 105, 33, 63, 0))
        assert completion.resumed == 1
        assert front.manager.totals == Totals(submitted=1, finished=1, resumed=1)
        assert len(front.manager) == 0
        assert front.fault is None


async def test_one_of_which_nothing_was_heard_is_sent_as_it_was() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        (first,) = requests(front)
        front.manager.lose(killed)
        front.attach()
        (again,) = requests(front)
        assert again.resumed_output_ids is None
        assert (again.vid, first.vid) == (stream.vid, stream.vid - 1)


async def test_text_that_was_held_back_at_the_death_comes_once() -> None:
    """The first byte of a character had no text; after the replay the character is whole."""
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.say(StrRow(stream.vid, 0, (97, 0xC3), None, "a"))
        await front.heard()
        front.manager.lose(killed)
        front.attach()
        front.say(StrRow(stream.vid, 0, (97, 0xC3), None, "a"))
        front.say(StrRow(stream.vid, 2, (0xA9,), STOP, "é"))
        completion = await stream.read()
    assert (completion.text, completion.token_ids) == ("aé", (97, 0xC3, 0xA9))


async def test_text_that_is_held_back_to_the_end_comes_with_it() -> None:
    """All tokens were made before the death: the replay is followed by an end without tokens."""
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.say(StrRow(stream.vid, 0, (97, 0xC3), None, "a"))
        await front.heard()
        front.manager.lose(killed)
        front.attach()
        front.say(StrRow(stream.vid, 0, (97, 0xC3), None, "a"), StrRow(stream.vid, 2, (), STOP, "�"))
        assert (await stream.read()).text == "a�"


@pytest.mark.parametrize("replayed", [False, True])
async def test_several_deaths_in_a_row(replayed: bool) -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.say(StrRow(stream.vid, 0, (104,), None, "h"))
        await front.heard()
        for _ in range(3):
            front.manager.lose(killed)
            front.manager.lose(killed)  # the one that took its place died before it turned
            front.attach()
            (again,) = requests(front)
            assert again.resumed_ids.tolist() == [104]
            if replayed:
                front.say(StrRow(stream.vid, 0, (104,), None, "h"))
                await front.heard()
        if not replayed:
            front.say(StrRow(stream.vid, 0, (104,), None, "h"))
        front.say(StrRow(stream.vid, 1, (105,), STOP, "i"))
        completion = await stream.read()
    assert (completion.text, completion.token_ids, completion.resumed) == ("hi", (104, 105), 3)


async def test_a_request_that_processes_keep_dying_over_ends_and_others_go_on() -> None:
    """It may be what they die of, and is not to take the engine with it."""
    async with Front.serving() as front, front.manager.generate(ask(rid="poison")) as stream:
        for _ in range(MAX_RESUMES):
            front.manager.lose(killed)
            front.attach()
        async with front.manager.generate(ask(rid="other")) as other:
            front.sent()
            front.manager.lose(killed)
            front.attach()
            with pytest.raises(
                RequestError, match=r"^request 'poison' failed: processes died over it 4 times$"
            ):
                await stream.read()
            assert [request.rid for request in requests(front)] == ["other"]
            front.say(StrRow(other.vid, 0, (0,), STOP, ""))
            await other.read()
        assert front.manager.totals.failed == 1
    assert len(front.manager) == 0


async def test_the_answers_of_a_group_go_on_each_for_itself() -> None:
    request = GenerateReqInput(text=["a", "b"], sampling_params=SamplingParams(n=2, max_new_tokens=5))
    async with Front.serving() as front:
        async with front.manager.generate_group(request) as group:
            (batch,) = front.sent()
            assert isinstance(batch, BatchTokenizedGenerateReqInput)
            one, two, three, four = group.streams
            front.say(StrRow(one.vid, 0, (65,), STOP, "A"), StrRow(two.vid, 0, (66,), None, "B"))
            await front.heard()
            front.manager.lose(killed)
            front.attach()
            assert [again.vid for again in requests(front)] == [two.vid, three.vid, four.vid]
            front.say(StrRow(two.vid, 0, (66,), None, "B"))
            front.say(*(StrRow(s.vid, s is two, (67,), STOP, "C") for s in (two, three)))
            assert [(await s.read()).text for s in (one, two, three)] == ["A", "BC", "C"]
            assert [s.resumed for s in group.streams] == [0, 1, 1, 1]
        assert front.sent() == [AbortReq(vid=four.vid, floor=four.vid)]


async def test_there_is_nothing_new_in_what_is_said_again() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.say(StrRow(stream.vid, 0, (104,), None, "h"))
        await anext(stream)
        front.manager.lose(killed)
        front.attach()
        front.say(StrRow(stream.vid, 0, (104,), None, "h"))
        await front.heard()
        assert not stream.ready


async def test_what_a_dead_ring_still_says_is_left_out() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        front.say(ledger=SchedulerLedger(live=1, blocks_used=1), detokenizer_open=1)
        await front.until(lambda: front.manager.detokenizer_open == 1)
        old, vid = front.detokenizer, stream.vid
        front.manager.lose(killed)
        front.say(StrRow(vid, 0, (104,), None, "h"), ledger=SchedulerLedger(live=3))
        old.post(HeartbeatReq(id=1, detokenizer_open=9))
        old.close()
        await front.until(lambda: front.fault is not None)  # it has heard the link close
        assert front.manager.scheduler_ledger == SchedulerLedger()
        assert front.manager.detokenizer_open == 0
        assert not stream.ready


# --- who has left, and who has not come yet --------------------------------------------------------------


async def test_whose_caller_leaves_meanwhile_is_not_sent_again() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask(rid="r")):
            front.manager.lose(killed)
        assert len(front.manager) == 0
        front.attach()
        assert front.sent() == []
        assert front.manager.totals == Totals(submitted=1, aborted=1)
        async with front.manager.generate(ask(rid="r")):
            assert len(requests(front)) == 1


async def test_whose_caller_had_left_before_is_over_with_the_ring() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()):
            pass
        assert len(front.manager) == 1
        front.manager.lose(killed)
        await front.manager.wait_quiet()
        front.attach()
        assert front.sent() == []
        assert front.manager.totals == Totals(submitted=1, aborted=1)


async def test_one_that_is_replaced_meanwhile_is_not_sent_again() -> None:
    async with Front.serving() as front, AsyncExitStack() as blocks:
        first = await blocks.enter_async_context(front.manager.generate(ask(rid="r")))
        front.manager.lose(killed)

        async def replace() -> None:
            async with front.manager.generate(ask("other", rid="r"), replace=True) as stream:
                front.say(StrRow(stream.vid, 0, (65,), STOP, "A"))
                assert (await stream.read()).text == "A"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replace)
            with pytest.raises(RequestReplaced):
                await first.read()
            front.attach()
            await front.until(lambda: len(front.posted) == 1)
            assert requests(front)[0].token_ids.tolist() == list(b"other")
        assert front.manager.totals == Totals(submitted=2, aborted=1, finished=1)


async def test_new_requests_wait_tokenised_until_there_is_a_ring() -> None:
    async with Front.serving() as front:
        front.manager.lose(killed)
        texts: list[str] = []

        async def generate(prompt: str) -> None:
            async with front.manager.generate(ask(prompt)) as stream:
                front.say(StrRow(stream.vid, 0, (65,), STOP, prompt))
                texts.append((await stream.read()).text)

        async def generate_two() -> None:
            params = SamplingParams(max_new_tokens=5)
            request = GenerateReqInput(text=["c", "d"], sampling_params=params)
            async with front.manager.generate_group(request) as group:
                texts.append(f"{len(group.streams)} streams")

        async with anyio.create_task_group() as tasks:
            for prompt in ("a", "b"):
                tasks.start_soon(generate, prompt)
            tasks.start_soon(generate_two)
            await front.until(lambda: front.offload.begun == 4)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert front.sent() == []
            assert len(front.manager) == 4
            front.attach()
        assert sorted(texts) == ["2 streams", "a", "b"]
        assert front.manager.totals.resumed == 0


async def test_those_that_wait_are_counted_by_admission() -> None:
    async with Front.serving(max_requests=1) as front, anyio.create_task_group() as tasks:
        front.manager.lose(killed)

        async def wait() -> None:
            async with front.manager.generate(ask()):
                pytest.fail("there is no ring")

        tasks.start_soon(wait)
        await front.until(lambda: len(front.manager) == 1)
        with pytest.raises(Overloaded):
            async with front.manager.generate(ask()):
                pytest.fail("there is no room")
        tasks.cancel_scope.cancel()


async def test_one_that_waits_can_be_left() -> None:
    async with Front.serving() as front:
        front.manager.lose(killed)
        with anyio.move_on_after(0.01) as scope:
            async with front.manager.generate(ask()):
                pytest.fail("there is no ring")
        assert scope.cancelled_caught
        assert len(front.manager) == 0
        front.attach()
        assert front.sent() == []


def test_what_is_left_of_a_deadline_is_sent_again() -> None:
    async def main() -> None:
        async with Front.serving() as front:
            with anyio.fail_after(10):
                async with front.manager.generate(ask(), deadline_s=10.0):
                    assert requests(front)[0].deadline_s == 10
                    await anyio.sleep(3)
                    front.manager.lose(killed)
                    await anyio.sleep(2)
                    front.attach()
                    assert requests(front)[0].deadline_s == pytest.approx(5)
            with anyio.move_on_after(1) as scope:
                async with front.manager.generate(ask()) as stream:
                    front.sent()
                    front.manager.lose(killed)
                    await stream.read()  # until the caller's own deadline
            assert scope.cancelled_caught
            front.attach()
            assert front.sent() == []

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- questions, and the end ------------------------------------------------------------------------------


async def test_questions_fail_at_once_with_the_cause_until_there_is_a_ring() -> None:
    async with Front.serving() as front:
        errors: list[Error] = []

        async def expect(wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
            with pytest.raises(EngineBroken, match="SIGKILL") as caught:
                await wait()
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect, front.manager.heartbeat)
            tasks.start_soon(expect, front.manager.calls.freeze_gc)
            await front.until(lambda: len(front.posted) == 2)
            front.manager.lose(killed)
        await expect(front.manager.heartbeat)
        assert len(set(map(id, errors))) == 3
        front.attach()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.manager.heartbeat)
            await front.until(lambda: len(front.posted) == 1)
            (question,) = front.sent()
            assert isinstance(question, HeartbeatReq)
            front.detokenizer.post(question)
        assert front.fault is None


async def test_the_end_reaches_those_that_wait_for_a_ring() -> None:
    async with Front.serving() as front:
        errors: list[str] = []

        async def wait() -> None:
            try:
                async with front.manager.generate(ask()) as stream:
                    await stream.read()
            except EngineBroken as error:
                errors.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await front.until(lambda: len(front.posted) == 1)
            front.manager.lose(killed)
            tasks.start_soon(wait)
            await front.until(lambda: len(front.manager) == 2)
            front.manager.end(lambda: EngineBroken("too often"))
        assert errors == ["too often"] * 2
        assert front.manager.totals == Totals(submitted=1, failed=1)
        await front.manager.wait_quiet()


async def test_a_front_that_is_closed_meanwhile_says_nothing_to_the_dead() -> None:
    async with Front.serving() as front:
        front.manager.lose(killed)
        front.manager.shutdown()
        assert front.sent() == []


async def test_an_abort_that_was_on_its_way_is_not_awaited() -> None:
    """Its answer died with the ring; the next one knows nothing of the vid."""
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            vid = stream.vid
        front.manager.lose(killed)
        front.attach()
        front.say(StrRow(vid, 0, (), ABORTED, ""))  # late, not wrong
        await front.heard()
        assert front.fault is None
        assert front.manager.totals.dropped == 1


# --- the stream ----------------------------------------------------------------------------------------


def test_what_is_said_again_is_left_out_however_it_is_cut() -> None:
    """For every cut of a replay into rows: each token and each character comes once."""
    for heard in range(4):
        for cut in range(5):
            stream = Stream("r", Vid(1), 3)
            if heard:
                stream.deliver(StrRow(1, 0, (1, 2, 3, 4)[:heard], None, "abcd"[:heard]))
            stream.move(stream.vid)
            for start, end, reason in ((0, cut, None), (cut, 4, STOP)):
                stream.deliver(StrRow(1, start, (1, 2, 3, 4)[start:end], reason, "abcd"[start:end]))
            assert stream.heard_ids == (1, 2, 3, 4)

            async def main(stream: Stream = stream) -> None:
                assert (await stream.read()).text == "abcd"

            trio.run(main)
