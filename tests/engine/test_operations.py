"""What whoever runs an engine does with it: ending requests by name, pausing, going on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import anyio
import pytest

from vidette import Engine, GenerateReqInput, RequestAborted, SamplingParams, open_engine
from vidette._operations import PauseMode
from vidette_protocol.messages import FlushCacheReqInput

DEADLINE = 20.0
ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}
SHORT = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
async def engine(anyio_backend: object) -> AsyncGenerator[Engine]:
    async with open_engine("toy", max_running=4) as engine:
        yield engine


async def text(engine: Engine, rid: str | None = None) -> str:
    async with engine.generate("hello", sampling_params=SHORT, rid=rid) as stream:
        return (await stream.read()).text


async def wait_quiet(engine: Engine) -> None:
    with anyio.fail_after(DEADLINE):
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


# --- ending one by its name --------------------------------------------------------------------------


async def test_the_one_that_is_named_ends_and_its_name_is_free_at_once(engine: Engine) -> None:
    before = engine.statistics().totals.aborted
    async with (
        engine.generate("x", sampling_params=ENDLESS, rid="req_1") as stream,
        engine.generate("y", sampling_params=ENDLESS, rid="req_10") as other,
    ):
        await anext(stream)
        await anext(other)
        assert engine.abort("req_1", "an operator said so") == 1
        assert engine.abort("req_1") == 0
        with pytest.raises(RequestAborted, match="ended, by its name: an operator said so") as raised:
            async for _ in stream:
                pass
        assert (raised.value.status, raised.value.code, raised.value.rid) == (499, "aborted", "req_1")
        assert await text(engine, "req_1")
        await anext(other)  # it matches exactly
    await wait_quiet(engine)
    assert engine.statistics().totals.aborted == before + 2


@pytest.mark.parametrize("rid", ["nobody", "", "x" * 10_000, "\ud800"])
async def test_an_unknown_name_ends_nothing(engine: Engine, rid: str) -> None:
    async with engine.generate("x", sampling_params=SHORT, rid="someone") as stream:
        assert engine.abort(rid) == 0
        assert (await stream.read()).text
        assert engine.abort("someone") == 0
    await wait_quiet(engine)


async def test_one_that_waits_for_its_turn_ends(engine: Engine) -> None:
    async with AsyncExitStack() as running:
        for _ in range(4):
            stream = await running.enter_async_context(engine.generate("x", sampling_params=ENDLESS))
            await anext(stream)
        async with engine.generate("waits", sampling_params=SHORT, rid="last") as stream:
            assert engine.abort("last") == 1
            with pytest.raises(RequestAborted):
                await stream.read()
    await wait_quiet(engine)


async def test_a_group_ends_by_its_own_name_and_by_those_of_its_answers(engine: Engine) -> None:
    request = GenerateReqInput(
        rid="many", text="x", sampling_params=SamplingParams(n=3, max_new_tokens=4000, ignore_eos=True)
    )
    async with engine.generate_group(request) as group:
        for stream in group.streams:
            await anext(stream)
        assert engine.abort("man") == 0
        assert engine.abort("many_1") == 1
        assert engine.abort("many") == 2
        assert engine.abort("many") == 0
        for stream in group.streams:
            with pytest.raises(RequestAborted):
                async for _ in stream:
                    pass
    await wait_quiet(engine)


async def test_a_name_of_a_list_is_that_of_its_prompt(engine: Engine) -> None:
    params = SamplingParams(n=2, max_new_tokens=4000, ignore_eos=True)
    request = GenerateReqInput(rid=["a", "b"], text=["x", "y"], sampling_params=params)
    async with engine.generate_group(request) as group:
        assert engine.abort("b") == 2
        assert [stream.rid for stream in group.streams if stream.done] == []
        await anext(group.streams[0])
        assert engine.abort("a") == 2
    await wait_quiet(engine)


async def test_who_took_a_name_of_a_group_since_is_not_of_it(engine: Engine) -> None:
    params = [SamplingParams(max_new_tokens=new, ignore_eos=True) for new in (1, 4000)]
    request = GenerateReqInput(rid="g", text=["x", "y"], sampling_params=params)
    async with engine.generate_group(request) as group:
        await group.streams[0].read()
        async with engine.generate("z", sampling_params=ENDLESS, rid="g_0") as stream:
            await anext(stream)
            assert engine.abort("g") == 1
            await anext(stream)
    assert engine.abort("g") == 0
    await wait_quiet(engine)


# --- a pause -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_stream_goes_on_behind_a_pause(engine: Engine, mode: PauseMode) -> None:
    params = {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True}
    async with engine.generate("pause", sampling_params=params) as stream:
        whole = (await stream.read()).text
    async with engine.generate("pause", sampling_params=params) as stream:
        await anext(stream)
        assert (await engine.pause_generation(mode, deadline_s=DEADLINE)).success
        beat = await engine.heartbeat()
        assert (beat.health.paused, beat.health.ready, beat.health.reason) == (
            True,
            False,
            "generation is paused",
        )
        assert beat.health.live
        assert beat.health.progress
        assert (await engine.heartbeat()).steps == beat.steps
        assert beat.running == (0 if mode == "retract" else 1)
        flushed = await engine.control(FlushCacheReqInput(id=0))
        assert flushed.success == (mode == "retract")
        async with engine.generate("late", sampling_params=SHORT) as late:
            with anyio.move_on_after(0.01):
                await late.read()
            assert not late.done
            assert engine.abort(late.rid) == 1
            with pytest.raises(RequestAborted):
                await late.read()
        assert (await engine.continue_generation(deadline_s=DEADLINE)).success
        assert (await stream.read()).text == whole
    await wait_quiet(engine)
    assert (await engine.heartbeat()).health.ready


async def test_a_pause_may_end_all_that_live(engine: Engine) -> None:
    async with engine.generate("x", sampling_params=ENDLESS) as stream:
        await anext(stream)
        assert (await engine.pause_generation()).success
        with pytest.raises(RequestAborted, match="generation is paused"):
            async for _ in stream:
                pass
    await wait_quiet(engine)
    async with engine.generate("hello", sampling_params=SHORT) as stream:  # it waits
        assert (await engine.continue_generation()).success
        assert (await stream.read()).text
    await wait_quiet(engine)


async def test_a_paused_engine_can_be_closed() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            async with engine.generate("x", sampling_params=ENDLESS):
                await engine.pause_generation("in_place")
                assert await engine.drain(0.01) == 1
            await engine.wait_quiet()


async def test_it_says_what_it_was_made_with(engine: Engine) -> None:
    assert (engine.config.model, engine.config.max_running) == ("toy", 4)
