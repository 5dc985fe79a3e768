"""A request lives exactly as long as its scope: left at any stage, it is gone within a step.

Each test leaves a request at one stage, then looks at the ledgers through a heartbeat, which follows the
abort on the same way and so sees what the abort left behind.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.process.conftest import DEADLINE
from vidette import (
    DuplicateRequest,
    Engine,
    EngineClosed,
    Overloaded,
    SamplingParams,
    Stream,
    UsageError,
    open_engine,
)
from vidette.testing import wait_quiescent
from vidette.testing.storm import run_storm

ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}
SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
LONG_PROMPT = "a long prompt " * 292  # 4088 tokens of the toy model


async def answers(engine: Engine, rid: str) -> None:
    """The engine answers the next request, under the rid that was just left."""
    async with engine.generate("next", sampling_params=SHORT, rid=rid) as stream:
        assert (await stream.read()).completion_tokens == 4


async def assert_free(engine: Engine) -> None:
    ledgers = (await engine.heartbeat()).ledgers
    assert (ledgers.blocks, ledgers.scheduler) == (0, 0)


async def test_left_while_it_decodes(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("x", sampling_params=ENDLESS, rid="r") as stream:
                await anext(stream)
                assert engine.statistics().ledgers.blocks > 0
            steps = engine.statistics().steps
            await assert_free(engine)
            # Within one step: those counted since are at most the one it was in, and those that ran while
            # the abort was on its way, of which the toy model takes many in no time; none came after it.
            assert engine.statistics().steps >= steps
            await answers(engine, "r")
            await wait_quiescent(engine)


async def test_left_while_it_is_queued(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, max_running=1) as engine:
            async with engine.generate("first", sampling_params=ENDLESS) as first:
                await anext(first)
                async with engine.generate("second", sampling_params=ENDLESS, rid="r"):
                    waiting = await engine.heartbeat()
                    assert (waiting.waiting, waiting.ledgers.scheduler) == (1, 2)
                left = await engine.heartbeat()  # its blocks are those of the first, which grows meanwhile
                assert (left.waiting, left.ledgers.scheduler) == (0, 1)
                assert (await anext(first)).finish_reason is None  # the one that runs runs on
            await answers(engine, "r")
            await wait_quiescent(engine)


async def test_left_during_the_prefill_of_a_4k_prompt(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, step_tokens=1, max_running=1) as engine:
            async with engine.generate(LONG_PROMPT, sampling_params=SHORT, rid="r") as stream:
                assert stream.prompt_tokens == len(LONG_PROMPT)
                during = await engine.heartbeat()
                assert during.steps < len(LONG_PROMPT)  # one token a step: it is still being prefilled
                assert during.ledgers.scheduler == 1
            await assert_free(engine)
            await answers(engine, "r")
            await wait_quiescent(engine)


async def test_left_before_the_first_step(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            for _ in range(20):
                async with engine.generate("x", sampling_params=ENDLESS, rid="r"):
                    pass
            await assert_free(engine)
            await answers(engine, "r")
            statistics = await wait_quiescent(engine)
            assert statistics.totals.aborted == 20


async def test_left_after_its_end_is_no_abort(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            for _ in range(5):
                await answers(engine, "r")
            statistics = await wait_quiescent(engine)
            assert (statistics.totals.finished, statistics.totals.aborted) == (5, 0)


async def test_left_while_it_is_finishing(topology: str) -> None:
    """The abort and the natural end meet somewhere on the ring: one end, nothing kept."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            for count in range(1, 30):
                params = {"max_new_tokens": count, "ignore_eos": True}
                async with engine.generate("x", sampling_params=params, rid="r") as stream:
                    await anext(stream)
            statistics = await wait_quiescent(engine)
            totals = statistics.totals
            assert totals.finished + totals.aborted == 29


async def test_cancelled_from_outside(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            for left_after in (0.0, 0.001, 0.01):
                with anyio.move_on_after(left_after) as scope:
                    async with engine.generate("x", sampling_params=ENDLESS, rid="r") as stream:
                        await stream.read()
                assert scope.cancelled_caught
            await assert_free(engine)
            await answers(engine, "r")
            await wait_quiescent(engine)


async def test_a_rid_is_free_again_at_once_and_not_before(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("x", sampling_params=ENDLESS, rid="r") as first:
                with pytest.raises(DuplicateRequest, match="'r'"):
                    async with engine.generate("x", sampling_params=SHORT, rid="r"):
                        pass
                assert (await anext(first)).token_ids  # the refusal did not touch it
            async with engine.generate("x", sampling_params=SHORT, rid="r") as second:
                assert second.vid > first.vid
                completion = await second.read()
            assert completion.completion_tokens == 4
            await wait_quiescent(engine)


async def test_what_was_left_reaches_nobody(topology: str) -> None:
    """Many uses of one rid, each left at once: the one that stays hears its own text alone."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("mine", sampling_params=SHORT) as alone:
                expected = await alone.read()
            for _ in range(10):
                for number in range(5):
                    async with engine.generate(
                        f"not mine {number}", sampling_params=ENDLESS, rid="r"
                    ) as stream:
                        if number % 2:
                            await anext(stream)
                async with engine.generate("mine", sampling_params=SHORT, rid="r") as stream:
                    completion = await stream.read()
                assert (completion.text, completion.token_ids) == (expected.text, expected.token_ids)
            await wait_quiescent(engine)


async def test_a_caller_who_does_not_read_keeps_one_merged_delta(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            params = {"max_new_tokens": 200, "ignore_eos": True}
            async with engine.generate("x", sampling_params=params) as stream:
                await engine.wait_quiet()  # all of it has come round
                delta = await anext(stream)
                assert len(delta.token_ids) == 200
                assert delta.finish_reason is not None


async def test_too_many_requests_are_refused_at_once(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, max_requests=2) as engine:
            async with (
                engine.generate("x", sampling_params=ENDLESS),
                engine.generate("x", sampling_params=ENDLESS),
            ):
                with pytest.raises(Overloaded):
                    async with engine.generate("x"):
                        pass
            await wait_quiescent(engine)
            await answers(engine, "r")


async def test_closing_the_engine_ends_what_lives(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def live(stream_of: Any, opened: anyio.Event) -> None:
                with pytest.raises(EngineClosed):
                    async with stream_of as stream:
                        assert isinstance(stream, Stream)
                        opened.set()
                        await stream.read()

            async with open_engine("toy", topology=topology) as engine:
                opened = anyio.Event()
                tasks.start_soon(live, engine.generate("x", sampling_params=ENDLESS), opened)
                await opened.wait()
        with pytest.raises(EngineClosed):
            async with engine.generate("late"):
                pass
        with pytest.raises(EngineClosed):
            await engine.heartbeat()


async def test_a_cancelled_caller_can_still_read_in_a_shield(topology: str) -> None:
    """The engine's own tasks end when the engine is closed, not when a scope around it is cancelled."""
    with anyio.fail_after(DEADLINE), anyio.CancelScope() as outer:
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("x", sampling_params=SHORT) as stream:
                outer.cancel()
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.move_on_after(DEADLINE, shield=True):
                        assert (await stream.read()).completion_tokens == 4


async def test_whoever_reads_a_stream_when_its_block_is_left_is_told() -> None:
    async def read(stream: Stream, reading: anyio.Event) -> None:
        with pytest.raises(UsageError, match="block of this request was left"):
            async for _ in stream:
                reading.set()

    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine, anyio.create_task_group() as tasks:
            reading = anyio.Event()
            async with engine.generate("x", sampling_params=ENDLESS) as stream:
                tasks.start_soon(read, stream, reading)
                await reading.wait()


async def test_a_stream_has_one_reader_at_a_time() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", max_running=1) as engine, anyio.create_task_group() as tasks:
            async with (
                engine.generate("x", sampling_params=ENDLESS),
                engine.generate("y", sampling_params=ENDLESS) as queued,
            ):

                async def wait() -> None:
                    with pytest.raises(UsageError):
                        await anext(queued)

                tasks.start_soon(wait)
                while not queued._waiting:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(anyio.BusyResourceError):
                    await anext(queued)


async def test_waiting_for_a_break_ends_when_the_engine_is_closed(topology: str) -> None:
    async def wait(engine: Engine) -> None:
        with pytest.raises(EngineClosed):
            await engine.wait_broken()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, open_engine("toy", topology=topology) as engine:
            tasks.start_soon(wait, engine)


async def test_values_of_wrong_types_are_refused_and_touch_nobody_else() -> None:
    wrong: list[dict[str, Any]] = [
        {"max_new_tokens": 2.5},
        {"max_new_tokens": True},
        {"top_k": 2.5},
        {"ignore_eos": 1},
        {"temperature": "1"},
        {"temperature": float("nan")},
    ]
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            async with engine.generate("x", sampling_params=ENDLESS) as other:
                for params in wrong:
                    with pytest.raises(UsageError, match=next(iter(params))):
                        async with engine.generate("y", sampling_params=SamplingParams(**params)):
                            pass
                for prompt in (b"bytes", [1.5], ["a"], [True], [-1], [10**9], [], "half \ud800"):
                    with pytest.raises(UsageError):
                        async with engine.generate(prompt):  # type: ignore[arg-type]
                            pass
                assert (await anext(other)).finish_reason is None
            statistics = await wait_quiescent(engine)
            assert (statistics.totals.submitted, statistics.totals.aborted) == (1, 1)


async def test_freeze_gc_comes_round(topology: str) -> None:
    import gc

    with anyio.fail_after(DEADLINE):
        try:
            async with open_engine("toy", topology=topology) as engine:
                await engine.freeze_gc()
                await answers(engine, "r")
        finally:
            gc.unfreeze()


@pytest.mark.parametrize("seed", [7, 8])
async def test_storm(topology: str, seed: int) -> None:
    with anyio.fail_after(2 * DEADLINE):
        async with open_engine("toy", topology=topology, kv_tokens=4096) as engine:
            outcome = await run_storm(engine, requests=150, cancel=0.5, seed=seed)
            assert outcome.errors == []
            assert outcome.finished + outcome.cancelled == 150
            assert outcome.finished
            assert outcome.cancelled
            await wait_quiescent(engine)
            await answers(engine, "slot-0")
