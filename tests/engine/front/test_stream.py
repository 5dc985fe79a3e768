"""What a caller holds: deltas that merge while nobody reads, and ends that everybody hears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.errors import EngineBroken, EngineClosed, Error, RequestError
from vidette.front.stream import Completion, Delta, Stream, waking
from vidette_protocol.ids import Vid
from vidette_protocol.messages import FinishReason, StrRow

DEADLINE = 20.0
STOP = FinishReason("stop", matched=2)
LENGTH = FinishReason("length", length=4)
FAILED = FinishReason("error", message="the model's logits are not finite")


def row(text: str, *token_ids: int, reason: FinishReason | None = None) -> StrRow:
    return StrRow(9, 0, token_ids, reason, text)


async def hear(stream: Stream, news: StrRow) -> None:
    """Do with a row what a front does with those that it hears."""
    stream.deliver(news)
    async with waking() as told:
        told.append(stream)


def closed() -> Error:
    return EngineClosed("the engine was closed")


@pytest.fixture
def stream() -> Stream:
    return Stream("mine", Vid(9), 3)


# --- reading ---------------------------------------------------------------------------------------


async def test_each_delta_is_what_came_since_the_last(stream: Stream) -> None:
    stream.deliver(row("a", 1))
    assert await anext(stream) == Delta("a", (1,), None)
    stream.deliver(row("", 2))  # a token that completes no character is news all the same
    assert await anext(stream) == Delta("", (2,), None)
    stream.deliver(row("b", 3, reason=STOP))
    assert await anext(stream) == Delta("b", (3,), STOP)
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_what_comes_while_nobody_reads_is_one_delta(stream: Stream) -> None:
    for number in range(1000):
        stream.deliver(row("x", number))
    stream.deliver(row("!", reason=STOP))
    assert [delta async for delta in stream] == [Delta("x" * 1000 + "!", tuple(range(1000)), STOP)]


async def test_a_reader_that_waits_is_woken_by_each_row(stream: Stream) -> None:
    read: list[Delta] = []

    async def feed() -> None:
        for number in range(50):
            while len(read) < number:
                await anyio.lowlevel.checkpoint()
            await hear(stream, row(str(number), number))
        while len(read) < 50:
            await anyio.lowlevel.checkpoint()
        await hear(stream, row("", reason=STOP))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            async for delta in stream:
                read.append(delta)  # noqa: PERF401  the feeder looks at it
    assert len(read) == 51


async def test_a_row_that_brings_nothing_wakes_nobody_for_good(stream: Stream) -> None:
    async def feed() -> None:
        for text, ids in (("", ()), ("", ()), ("a", (1,))):
            await hear(stream, row(text, *ids))
            await anyio.wait_all_tasks_blocked()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            assert await anext(stream) == Delta("a", (1,), None)


async def test_a_read_returns_everything_whatever_was_taken_before(stream: Stream) -> None:
    stream.deliver(row("one ", 1))
    await anext(stream)
    assert (stream.text, stream.token_ids) == ("one ", (1,))
    stream.deliver(row("two ", 2))
    stream.deliver(row("three", 3, reason=STOP))
    whole = Completion("mine", "one two three", (1, 2, 3), STOP, 3)
    assert await stream.read() == whole
    assert await stream.read() == whole
    assert stream.completion() == whole
    assert whole.completion_tokens == 3


async def test_there_is_no_completion_before_the_end(stream: Stream) -> None:
    for reason in (None, LENGTH):
        stream.deliver(row("a", 1, reason=reason))
        with pytest.raises(RuntimeError, match=r"^the stream has not been read to its end$"):
            stream.completion()  # it has come, but was not taken
    await stream.read()
    assert stream.completion().finish_reason == LENGTH


async def test_an_end_without_text_is_a_delta(stream: Stream) -> None:
    stream.deliver(row("", reason=LENGTH))
    assert await anext(stream) == Delta("", (), LENGTH)
    assert await stream.read() == Completion("mine", "", (), LENGTH, 3)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.text(max_size=3), st.lists(st.integers(0, 9), min_size=1, max_size=2), st.booleans())
    )
)
def test_deltas_together_are_the_rows_together(rows: list[tuple[str, list[int], bool]]) -> None:
    """However reading and delivering interleave: the deltas put together are the rows put together.

    And there are no more deltas than reads, however many rows there were.
    """
    stream = Stream("mine", Vid(9), 3)
    deltas: list[Delta] = []

    async def main() -> None:
        for text, ids, then_read in rows:
            stream.deliver(row(text, *ids))
            if then_read:
                deltas.append(await anext(stream))
        stream.deliver(row("", reason=STOP))
        deltas.extend([delta async for delta in stream])

    trio.run(main)
    assert len(deltas) == 1 + sum(then_read for *_, then_read in rows)
    assert "".join(text for text, *_ in rows) == "".join(delta.text for delta in deltas)
    assert [i for _, ids, _ in rows for i in ids] == [i for delta in deltas for i in delta.token_ids]
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [STOP]


# --- ends ------------------------------------------------------------------------------------------


async def test_an_error_of_the_request_is_raised_behind_its_text(stream: Stream) -> None:
    stream.deliver(row("so far", 1))
    stream.deliver(row("", reason=FAILED))
    with pytest.raises(RequestError, match=r"^request 'mine' failed: the model's logits are not finite$"):
        await stream.read()
    assert stream.text == "so far"
    assert stream.token_ids == (1,)
    for read in (stream.read, stream.__anext__):
        with pytest.raises(RequestError):
            await read()


async def test_a_failure_wakes_whoever_waits(stream: Stream) -> None:
    async def wait() -> None:
        with pytest.raises(EngineClosed):
            await stream.read()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            stream.fail(closed)


async def test_what_came_before_a_failure_is_read_before_it(stream: Stream) -> None:
    stream.deliver(row("so far", 1))
    stream.fail(closed)
    assert await anext(stream) == Delta("so far", (1,), None)
    with pytest.raises(EngineClosed):
        await anext(stream)
    with pytest.raises(RuntimeError):
        stream.completion()


async def test_a_cancelled_reader_takes_nothing_even_if_news_comes_at_once(stream: Stream) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            # It runs as soon as the reader waits, before a cancellation is delivered.
            tasks.start_soon(hear, stream, row("late", 1))
            scope.cancel()
            await anext(stream)
        assert scope.cancelled_caught
    assert await anext(stream) == Delta("late", (1,), None)


async def test_a_second_reader_is_refused_while_one_waits(stream: Stream) -> None:
    async def wait() -> None:
        assert (await anext(stream)).text == "for the first"

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            await hear(stream, row("for the first", 1))
    stream.deliver(row("for anyone", 2))
    assert (await anext(stream)).text == "for anyone"


@pytest.mark.parametrize("reason", [STOP, None])
async def test_a_second_reader_is_refused_while_one_takes_what_has_come(
    stream: Stream, reason: FinishReason | None
) -> None:
    stream.deliver(row("for one", 1, reason=reason))
    heard: list[str] = []

    async def take() -> None:
        try:
            heard.append((await anext(stream)).text)
        except anyio.BusyResourceError:
            heard.append("busy")

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            tasks.start_soon(take)
    assert sorted(heard) == ["busy", "for one"]


async def test_a_failure_is_raised_anew_each_time(stream: Stream) -> None:
    stream.fail(closed)
    errors: list[Error] = []
    for read in (stream.read, stream.__anext__, stream.read):
        with pytest.raises(EngineClosed) as caught:
            await read()
        errors.append(caught.value)
    assert len(set(map(id, errors))) == 3


async def test_the_end_of_a_request_outlives_that_of_the_engine(stream: Stream) -> None:
    stream.deliver(row("done", 1, reason=STOP))
    stream.fail(closed)
    assert (await stream.read()).text == "done"
    stream.fail(closed)
    assert (await stream.read()).text == "done"


async def test_the_first_failure_that_is_read_has_its_cause(stream: Stream) -> None:
    cause = OSError("no")

    def broken() -> Error:
        error = EngineBroken("the scheduler is gone", role="scheduler")
        error.__cause__ = cause
        return error

    stream.fail(broken)
    with pytest.raises(EngineBroken) as caught:
        await anext(stream)
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        (FAILED, 500, "internal_error"),
        (FinishReason("error", message="no", status_code=400), 400, "invalid_request_error"),
        (
            FinishReason("error", message="no", status_code=503, err_type="waiting_timeout"),
            503,
            "service_unavailable",
        ),
        (
            FinishReason("error", message="no", status_code=504, err_type="deadline_exceeded"),
            504,
            "timeout_error",
        ),
        (FinishReason("error", message="no", status_code=-1), 500, "internal_error"),
    ],
)
async def test_an_error_of_the_request_has_the_status_that_the_scheduler_gave_it(
    stream: Stream, reason: FinishReason, status: int, kind: str
) -> None:
    stream.deliver(row("", reason=reason))
    with pytest.raises(RequestError) as caught:
        await stream.read()
    assert (caught.value.status, caught.value.kind) == (status, kind)
    assert caught.value.code == reason.err_type


# --- cancellation ----------------------------------------------------------------------------------


async def test_a_read_that_is_cancelled_loses_nothing(stream: Stream) -> None:
    stream.deliver(row("a", 1))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(stream)
    assert scope.cancelled_caught
    stream.deliver(row("b", 2))
    with anyio.move_on_after(0):
        await stream.read()
    stream.deliver(row("c", 3, reason=STOP))
    with anyio.fail_after(DEADLINE):
        assert (await stream.read()).text == "abc"


async def test_a_wait_that_is_cancelled_does_not_spoil_the_next(stream: Stream) -> None:
    stream.deliver(row("taken", 0))
    await anext(stream)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, stream)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            assert await anext(stream) == Delta("a", (1,), None)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await hear(stream, row("a", 1))


def deliver(stream: Stream) -> None:
    stream.deliver(row("a", 1))


def deliver_end(stream: Stream) -> None:
    stream.deliver(row("a", 1, reason=STOP))


def deliver_failure(stream: Stream) -> None:
    stream.deliver(row("", reason=FAILED))


def fail(stream: Stream) -> None:
    stream.fail(closed)


async def take(stream: Stream) -> None:
    await anext(stream)


async def read(stream: Stream) -> None:
    await stream.read()


@pytest.mark.parametrize(
    ("before", "act", "raised"),
    [
        ([deliver], take, None),
        ([deliver_end], take, None),
        ([deliver_end], read, None),
        ([deliver_end, take], take, StopAsyncIteration),
        ([deliver_end, take], read, None),
        ([deliver_failure], take, RequestError),
        ([fail], take, EngineClosed),
        ([fail], read, EngineClosed),
    ],
)
def test_every_way_through_is_a_checkpoint(
    stream: Stream,
    before: list[Callable[[Stream], Awaitable[None] | None]],
    act: Callable[[Stream], Awaitable[None]],
    raised: type[BaseException] | None,
) -> None:
    async def main() -> None:
        for step in before:
            done = step(stream)
            if done is not None:
                await done
        with trio.testing.assert_checkpoints():
            if raised is None:
                await act(stream)
            else:
                with pytest.raises(raised):
                    await act(stream)

    trio.run(main)
