"""Sessions of an engine, from a caller's side: what was read to its end counts, and nothing else does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from vidette import Completion, Engine, RequestError, UsageError, open_engine, sync
from vidette_protocol.messages import FlushCacheReqInput, GenerateReqInput, SamplingParams, SessionParams

DEADLINE = 20.0


@asynccontextmanager
async def opened() -> AsyncGenerator[Engine]:
    """Open an engine, and check that nothing is held when all is done."""
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            yield engine
            await engine.wait_quiet()
            assert (await engine.heartbeat()).ledgers.total() == 0


def turn(
    session: str, prompt: list[int], rid: str, behind: str | None = None, *, new: int = 6, **params: Any
) -> GenerateReqInput:
    return GenerateReqInput(
        input_ids=prompt,
        rid=rid,
        sampling_params=SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True),
        session_params=SessionParams(id=session, rid=behind, **params),
    )


async def say(engine: Engine, request: GenerateReqInput) -> Completion:
    async with engine.generate(request) as stream:
        return await stream.read()


async def say_plain(engine: Engine, prompt: list[int]) -> tuple[int, ...]:
    """Return what is said to a whole prompt, of no session."""
    params = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    async with engine.generate(prompt, sampling_params=params) as stream:
        return (await stream.read()).token_ids


async def test_a_conversation_goes_on_branches_and_is_replaced() -> None:
    async with opened() as engine:
        name = await engine.open_session()
        assert (await engine.heartbeat()).ledgers.sessions == 1
        first = await say(engine, turn(name, [1, 2, 3], "a"))
        known = [1, 2, 3, *first.token_ids]
        for rid in ("b", "c"):
            made = await say(engine, turn(name, [ord(rid)], rid, "a"))
            assert made.token_ids == await say_plain(engine, [*known, ord(rid)])
        made = await say(engine, turn(name, [9], "d", "a", replace=True, offset=4))
        assert made.token_ids == await say_plain(engine, [*known[:4], 9])
        with pytest.raises(RequestError, match="it was replaced"):
            await say(engine, turn(name, [9], "e", "b"))
        await engine.close_session(name)


async def test_a_turn_in_flight_is_replaced_and_its_caller_is_told() -> None:
    async with opened() as engine:
        name = await engine.open_session()
        async with engine.generate(turn(name, [1, 2], "a", new=500)) as stream:
            await anext(stream)
            made = await say(engine, turn(name, [3], "b", "a", replace=True))
            with pytest.raises(RequestError, match="took its place") as caught:
                await stream.read()
        assert (caught.value.status, caught.value.code) == (409, "replaced")
        assert made.token_ids == await say_plain(engine, [1, 2, 3])
        await engine.close_session(name)


@pytest.mark.parametrize("tokens", [0, 1, 3])
async def test_a_turn_that_is_left_early_never_was(tokens: int) -> None:
    async with opened() as engine:
        name = await engine.open_session(streaming=True)
        first = await say(engine, turn(name, [1, 2, 3], "a"))
        async with engine.generate(turn(name, [4], "b", new=500)) as stream:
            while len(stream.token_ids) < tokens:
                await anext(stream)
        again = await say(engine, turn(name, [4], "b"))
        assert again.token_ids == await say_plain(engine, [1, 2, 3, *first.token_ids, 4])
        await engine.close_session(name)


async def test_a_turn_whose_end_came_but_was_not_read_never_was() -> None:
    async with opened() as engine:
        name = await engine.open_session(streaming=True)
        async with engine.generate(turn(name, [4], "b")):
            await engine.wait_quiet()
        made = await say(engine, turn(name, [5], "a"))
        assert made.token_ids == await say_plain(engine, [5])
        await engine.close_session(name)


async def test_closing_lets_what_lives_come_to_its_end() -> None:
    async with opened() as engine:
        name = await engine.open_session("mine")
        async with engine.generate(turn(name, [1], "a", new=300)) as stream:
            await anext(stream)
            await engine.close_session("mine")
            with pytest.raises(RequestError, match="is being closed"):
                await say(engine, turn(name, [1], "b"))
            assert len((await stream.read()).token_ids) == 300
        with pytest.raises(RequestError, match="session 'mine' is not open"):
            await say(engine, turn(name, [1], "b"))
        with pytest.raises(UsageError, match="is not open"):
            await engine.close_session("mine")


async def test_an_idle_session_ends_by_itself_and_the_front_hears_of_it() -> None:
    async with opened() as engine:
        await engine.open_session(timeout=0.02)
        while not engine.statistics().ledgers.sessions:
            await anyio.lowlevel.checkpoint()
        while engine.statistics().ledgers.sessions:
            await anyio.lowlevel.checkpoint()


async def test_the_cache_can_be_flushed_under_a_session() -> None:
    async with opened() as engine:
        name = await engine.open_session()
        prompt = [*range(1, 60)]
        first = await say(engine, turn(name, prompt, "a"))
        answer = await engine.control(FlushCacheReqInput(id=0))
        assert answer.success
        made = await say(engine, turn(name, [4], "b", "a"))
        assert made.token_ids == await say_plain(engine, [*prompt, *first.token_ids, 4])
        await engine.close_session(name)


def test_sessions_without_an_event_loop() -> None:
    with sync.open_engine("toy") as engine:
        name = engine.open_session(streaming=True, timeout=60, capacity_of_str_len=100)
        lengths = []
        for rid in ("a", "b"):
            with engine.generate(turn(name, [1, 2], rid)) as stream:
                lengths.append(len(stream.read().token_ids))
        assert lengths == [6, 6]
        engine.close_session(name)
        assert engine.heartbeat().ledgers.total() == 0
