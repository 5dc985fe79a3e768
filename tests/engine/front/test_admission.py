"""Who is let in: by number, by tokens, and by what waits to be sent; and when there may be room again."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.front.conftest import ABORTED, DEADLINE, STOP, Front, ask

from vidette.errors import DuplicateRequest, Overloaded, RequestReplaced, UsageError
from vidette.front.admission import (
    ENDS_REMEMBERED,
    LONGEST_RETRY,
    REQUESTS_BYTES,
    Admission,
    most_taken,
    most_tokens,
)
from vidette.models.toy_tokenizer import ToyTokenizer
from vidette_protocol.ids import Vid
from vidette_protocol.messages import AbortReq, GenerateItem, GenerateReqInput, SamplingParams, StrRow


def admission(max_requests: int = 100, max_tokens: int = 100) -> Admission:
    """Return one whose requests live until it is told that they do not."""
    counted: Admission = Admission(
        max_requests, max_tokens, living=lambda: len(counted._costs), is_over=lambda _: False
    )
    return counted


# --- what a request costs --------------------------------------------------------------------------


@given(text=st.text(max_size=50))
def test_no_text_has_more_tokens_than_it_counts_with(text: str) -> None:
    """For every text: the bound is not below its tokens, nor below its bytes and one token in front."""
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    assert len(ToyTokenizer().encode(text)) <= most_tokens(text, 1000) == nbytes + 1
    assert most_tokens(text, 20) == min(nbytes + 1, 20)


@pytest.mark.parametrize(
    ("prompt", "wanted", "tokens"),
    [
        ("abc", 5, 1 + 3 + 5),
        ("é", 5, 1 + 2 + 5),
        ("\ud800", 5, 1 + 3 + 5),
        ("abc", 99, 100),
        ("abc", None, 100),
        ("a" * 500, 5, 100),  # fewer tokens than bytes, or it is refused: it comes to hold no more
        ("é" * 60, 5, 100),
        ([1, 2, 3], 5, 8),
        ([1, 2, 3], None, 100),
        ([1] * 99, 5, 100),
    ],
)
def test_a_request_counts_with_what_it_may_come_to_hold(
    prompt: str | list[int], wanted: int | None, tokens: int
) -> None:
    text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    params = SamplingParams(max_new_tokens=wanted)
    item = GenerateItem(rid="r", text=text, input_ids=ids, sampling_params=params)
    assert most_taken(item, 100) == tokens


# --- who is let in ---------------------------------------------------------------------------------


async def test_tokens_are_refused_beyond_their_bound_and_only_there() -> None:
    counted = admission()
    counted.check([40], None)
    counted.admit(Vid(1), 40)
    counted.check([60], None)
    counted.check([30, 30], None)
    for costs in ([61], [30, 31]):
        with pytest.raises(
            Overloaded, match=r"^1 requests live, which may take 40 tokens, and 61 are asked for"
        ):
            counted.check(costs, None)
    counted.end(Vid(1))
    counted.check([61], None)
    assert (counted.tokens, len(counted)) == (0, 0)


async def test_what_is_too_large_for_all_is_let_in_when_nothing_lives() -> None:
    counted = admission()
    counted.check([1000], None)
    counted.admit(Vid(1), 1000)
    with pytest.raises(Overloaded):
        counted.check([1], None)
    counted.check([1000], None, replaced=Vid(1))
    counted.admit(Vid(1), 50)  # as it turns out
    counted.check([50], None)


async def test_a_conversation_counts_while_it_is_rendered() -> None:
    counted = admission(max_requests=2)
    messages = [{"role": "user", "content": "é" * 10}]
    with counted.rendering(messages, 100):
        assert (counted.tokens, len(counted)) == (5 + 21, 1)
        with counted.rendering(messages, 100):
            with pytest.raises(Overloaded, match=r"^2 requests live"):
                counted.check([1], None)
        with pytest.raises(Overloaded, match=r"^1 requests live, which may take 26 tokens"):
            counted.check([75], None)
    with counted.rendering([{"content": "é" * 1000}, *messages], 40):
        assert counted.tokens == 40  # more of it would not fit
    assert (counted.tokens, len(counted)) == (0, 0)


async def test_who_takes_the_place_of_another_needs_no_more_room_than_is_left_without_it() -> None:
    counted = admission(max_requests=2)
    counted.admit(Vid(1), 70)
    counted.admit(Vid(2), 20)
    counted.check([80], None, replaced=Vid(1))
    with pytest.raises(Overloaded, match=r"^1 other requests live, which may take 20 tokens, and 81 are"):
        counted.check([81], None, replaced=Vid(1))
    counted.admit(Vid(3), 5)  # in the place of the first, whose end is on its way
    with pytest.raises(Overloaded, match=r"^2 other requests live; at most 2 may"):
        counted.check([1], None, replaced=Vid(3))


def test_when_another_try_is_sensible_is_told_by_how_requests_have_ended() -> None:
    async def main() -> None:
        counted = admission(max_requests=1000, max_tokens=1000)

        def retry_after(tokens: int) -> float:
            with pytest.raises(Overloaded) as caught:
                counted.check([tokens], None)
            return caught.value.retry_after

        for vid in range(100):
            counted.admit(Vid(vid), 10)
        assert retry_after(1) == 1  # nothing is known yet
        for vid in range(ENDS_REMEMBERED):
            await anyio.sleep(3)
            counted.end(Vid(vid))
            counted.admit(Vid(1000 + vid), 10)
        spacing = 3 * (ENDS_REMEMBERED - 1) / ENDS_REMEMBERED
        assert retry_after(1) == pytest.approx(spacing)
        assert retry_after(100) == pytest.approx(10 * spacing)
        assert retry_after(1000) == LONGEST_RETRY
        await anyio.sleep(3)
        assert retry_after(1) == pytest.approx(3)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("at_once", [1, 2])
def test_time_in_which_nothing_lives_does_not_put_another_try_off(at_once: int) -> None:
    async def main() -> None:
        counted = admission(max_requests=at_once)
        vids = iter(map(Vid, range(1000)))
        for _ in range(ENDS_REMEMBERED):  # two seconds each, and a minute of rest
            living = [next(vids) for _ in range(at_once)]
            for vid in living:
                counted.admit(vid, 1)
            await anyio.sleep(2)
            for vid in living:
                counted.end(vid)
            await anyio.sleep(60)
        with ExitStack() as stack:  # before any other lives
            for _ in range(at_once):
                stack.enter_context(counted.rendering([], 100))
            with pytest.raises(Overloaded) as caught:
                counted.check([1], None)
            assert caught.value.retry_after <= 2
        for _ in range(at_once):
            counted.admit(next(vids), 1)
        await anyio.sleep(2)
        with pytest.raises(Overloaded) as caught:
            counted.check([1], None)
        assert caught.value.retry_after == pytest.approx(2 / at_once)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- the front -------------------------------------------------------------------------------------


async def test_a_request_counts_until_its_end_has_come_round() -> None:
    async with Front.serving(max_queued_tokens=40) as front:
        tokens = front.manager._admission
        async with front.manager.generate(ask("hello", max_new_tokens=20)) as stream:
            assert tokens.tokens == 25  # exactly, now that it is tokenised
            with pytest.raises(Overloaded):
                async with front.manager.generate(ask("hello", max_new_tokens=20)):
                    pytest.fail("it is let in")
            async with front.manager.generate(ask("hello", max_new_tokens=5)):
                assert tokens.tokens == 35
        assert tokens.tokens == 35  # both were left, and live on until the scheduler says otherwise
        front.say(StrRow(stream.vid, 0, (), ABORTED, ""), StrRow(stream.vid + 1, 0, (), STOP, ""))
        await front.heard()
        assert (tokens.tokens, len(tokens), len(front.manager)) == (0, 0, 0)
        assert front.fault is None


async def test_a_refusal_comes_before_anything_is_tokenised_and_leaves_nothing() -> None:
    async with (
        Front.serving(max_queued_tokens=40) as front,
        front.manager.generate(ask([1], max_new_tokens=9)),
    ):
        front.sent()
        for request in (ask("x" * 30, max_new_tokens=1), ask([1] * 30, max_new_tokens=1)):
            with pytest.raises(Overloaded, match=r"together they may take at most 40$"):
                async with front.manager.generate(request):
                    pytest.fail("it is let in")
        with pytest.raises(Overloaded):
            async with front.manager.generate_group(ask([1], max_new_tokens=9, n=4)):
                pytest.fail("they are let in")
        with pytest.raises(Overloaded):
            await front.manager.render_chat([{"role": "user", "content": "x" * 30}])
        assert (front.offload.begun, front.sent(), len(front.manager)) == (0, [], 1)
        assert front.manager._admission.tokens == 10


async def test_a_text_that_cannot_fit_is_refused_before_it_counts_or_is_tokenised() -> None:
    async with Front.serving(max_queued_tokens=100) as front:
        for prompt in ("x" * 100, "x" * 100_000):
            with pytest.raises(UsageError, match=r"has at least 100 tokens; at most 99 fit$") as caught:
                async with front.manager.generate(ask(prompt)):
                    pytest.fail("it is let in")
            assert (caught.value.param, caught.value.code) == ("text", "context_length_exceeded")
        group = GenerateReqInput(text=["x", "x" * 100], sampling_params=SamplingParams(max_new_tokens=1))
        with pytest.raises(UsageError, match="at least 100 tokens"):
            async with front.manager.generate_group(group):
                pytest.fail("they are let in")
        assert (front.offload.begun, front.sent(), len(front.manager._admission)) == (0, [], 0)
        async with front.manager.generate(ask("x" * 99, max_new_tokens=1)):
            pass


@pytest.mark.parametrize("by", ["text", "conversation"])
async def test_while_a_text_becomes_a_prompt_it_takes_no_more_than_the_longest_that_fits(by: str) -> None:
    async with Front.serving(max_queued_tokens=220) as front, anyio.create_task_group() as tasks:
        front.offload.gate = gate = anyio.Event()
        long = " " * 100_000 + "x"  # of one token, which shows when it is tokenised

        async def make() -> None:
            if by == "text":
                async with front.manager.generate(ask(long)):
                    pass
            else:
                await front.manager.render_chat([{"role": "user", "content": long}])

        tasks.start_soon(make)
        tasks.start_soon(make)
        await front.until(lambda: front.offload.begun == 2)
        assert front.manager._admission.tokens == 200
        async with front.manager.generate(ask([1] * 5)):
            gate.set()


async def test_what_is_refused_for_another_reason_is_not_counted() -> None:
    async with Front.serving() as front:
        counted = front.manager._admission
        for request in (ask("   "), ask("x" * 99, max_new_tokens=50), ask([500])):
            with pytest.raises(UsageError):
                async with front.manager.generate(request):
                    pytest.fail("it is let in")
            assert (counted.tokens, len(counted)) == (0, 0)
        async with front.manager.generate(ask(rid="mine")):
            with pytest.raises(DuplicateRequest):
                async with front.manager.generate(ask(rid="mine")):
                    pytest.fail("it is let in")
            assert (counted.tokens, len(counted)) == (10, 1)


async def test_a_request_that_is_left_while_it_is_tokenised_is_not_counted() -> None:
    async with Front.serving() as front:
        front.offload.gate = anyio.Event()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(front.until, lambda: front.offload.begun == 1)
                tasks.start_soon(_cancel_when_begun, front, scope)
                async with front.manager.generate(ask()):
                    pytest.fail("it is tokenised")
        assert (front.manager._admission.tokens, len(front.manager._admission)) == (0, 0)


async def _cancel_when_begun(front: Front, scope: anyio.CancelScope) -> None:
    await front.until(lambda: front.offload.begun == 1)
    assert front.manager._admission.tokens == 1 + 5 + 5
    scope.cancel()


async def test_a_request_that_takes_the_place_of_another_counts_beside_it_until_that_has_ended() -> None:
    async with Front.serving(max_requests=1, max_queued_tokens=30) as front:
        counted = front.manager._admission
        with pytest.raises(RequestReplaced):
            async with front.manager.generate(ask([1] * 5, rid="mine")) as old:
                async with front.manager.generate(ask([1] * 5, rid="mine"), replace=True) as new:
                    assert (counted.tokens, len(counted)) == (20, 2)
                    front.say(StrRow(old.vid, 0, (), ABORTED, ""))
                    await front.heard()
                    assert front.fault is None, front.fault
                    assert (counted.tokens, len(counted)) == (10, 1)
                    front.say(StrRow(new.vid, 0, (), STOP, ""))
                    await new.read()
                assert (counted.tokens, len(counted)) == (0, 0)
                await old.read()


async def test_a_request_that_takes_the_place_of_another_needs_no_room_beside_it() -> None:
    async with Front.serving(max_queued_tokens=19) as front:
        counted = front.manager._admission
        with pytest.raises(RequestReplaced):
            async with front.manager.generate(ask([1] * 5, rid="mine")) as old:
                with pytest.raises(Overloaded):
                    async with front.manager.generate(ask([1] * 5, rid="another"), replace=True):
                        pytest.fail("it is let in")
                async with front.manager.generate(ask([1] * 5, rid="mine"), replace=True):
                    assert counted.tokens == 20
                    with pytest.raises(Overloaded):  # so what is replaced over and over is bounded
                        async with front.manager.generate(ask([1] * 5, rid="mine"), replace=True):
                            pytest.fail("it is let in")
                await old.read()


async def test_what_goes_on_after_a_death_is_counted_as_before_and_nothing_else_is() -> None:
    async with Front.serving() as front:
        counted = front.manager._admission
        async with front.manager.generate(ask([1] * 5)):
            async with front.manager.generate(ask([1] * 5)):
                pass
            assert len(counted) == 2  # the end of one is on its way, and will not come
            front.manager.lose(lambda: UsageError("gone"))
            assert (counted.tokens, len(counted)) == (10, 1)
            front.attach()
            assert (counted.tokens, len(counted)) == (10, 1)
        front.manager.end(lambda: UsageError("gone"))
        assert (counted.tokens, len(counted)) == (0, 0)


async def test_a_scheduler_that_takes_nothing_gets_aborts_and_questions_but_no_requests() -> None:
    async with Front.serving() as front:
        async with front.manager.generate(ask()) as stream:
            other = AbortReq(vid=stream.vid, abort_message="x" * (REQUESTS_BYTES - 1000))
            front.manager._scheduler.post(other)
            async with front.manager.generate(ask()):  # just below
                front.manager._scheduler.post(AbortReq(vid=stream.vid, abort_message="x" * 1000))
                front.sent()
                for prompt in ("x", [1]):
                    with pytest.raises(
                        Overloaded, match="bytes wait to be sent to the scheduler; nothing new"
                    ):
                        async with front.manager.generate(ask(prompt)):
                            pytest.fail("it is let in")
                with anyio.move_on_after(0):
                    await front.manager.heartbeat()
        assert [type(message).__name__ for message in front.sent()] == [
            "HeartbeatReq",
            "AbortReq",
            "AbortReq",
        ]
        with anyio.fail_after(DEADLINE):
            for _ in range(3):
                await front.scheduler_channel.receive()
        async with front.manager.generate(ask()):
            pass


async def test_what_was_tokenised_meanwhile_is_not_sent_to_a_scheduler_that_takes_nothing() -> None:
    async with Front.serving() as front, AsyncExitStack() as stack:
        front.offload.gate = gate = anyio.Event()
        tasks = await stack.enter_async_context(anyio.create_task_group())

        async def ask_late() -> None:
            with pytest.raises(Overloaded):
                async with front.manager.generate(ask()):
                    pytest.fail("it is sent")

        tasks.start_soon(ask_late)
        await front.until(lambda: front.offload.begun == 1)
        front.manager._scheduler.post(AbortReq(vid=1, abort_message="x" * REQUESTS_BYTES))
        gate.set()
    assert len(front.manager._admission) == 0
