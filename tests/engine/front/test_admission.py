"""Who is let in: by number, by tokens, and by what waits to be sent; and when there may be room again."""

from __future__ import annotations

from contextlib import AsyncExitStack

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
from vidette_protocol.messages import AbortReq, GenerateItem, SamplingParams, StrRow


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
    assert len(ToyTokenizer().encode(text)) <= most_tokens(text)
    assert len(text.encode("utf-8", "surrogatepass")) + 1 <= most_tokens(text)


@pytest.mark.parametrize(
    ("prompt", "wanted", "tokens"),
    [
        ("abc", 5, 1 + 3 + 5),
        ("é", 5, 1 + 4 + 5),
        ("abc", 99, 100),
        ("abc", None, 100),
        ("a" * 500, 5, 501),  # it will not fit, but it is there
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
    counted.admit(Vid(1), 50)  # as it turns out
    counted.check([50], None)


async def test_a_conversation_counts_while_it_is_rendered() -> None:
    counted = admission(max_requests=2)
    messages = [{"role": "user", "content": "é" * 10}]
    with counted.rendering(messages):
        assert (counted.tokens, len(counted)) == (5 + 41, 1)
        with counted.rendering(messages):
            with pytest.raises(Overloaded, match=r"^2 requests live"):
                counted.check([1], None)
        with pytest.raises(Overloaded, match=r"^1 requests live, which may take 46 tokens"):
            counted.check([55], None)
    assert (counted.tokens, len(counted)) == (0, 0)


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
