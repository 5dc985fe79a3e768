"""The real model through the real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.process.conftest import DEADLINE
from vidette import Completion, Engine, open_engine
from vidette.testing import wait_quiescent
from vidette.testing.crash import Victim, run_crash
from vidette.testing.storm import run_storm

pytestmark = pytest.mark.real_model

MODEL = "smollm2-135m-instruct"
LONG = 8 * DEADLINE
"""Seconds that a computation of the real model may take on a busy machine."""
GREEDY = {"temperature": 0, "max_new_tokens": 24}
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):",
    "Wasser kocht bei",
    "The three primary colours are",
]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, one engine each: loading takes seconds."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="module")
async def engine(anyio_backend: str) -> AsyncIterator[Engine]:
    # One thread: on a machine that does other things as well, two wait for each other most of the time.
    async with open_engine(MODEL, topology="processes", threads=1) as opened:
        yield opened


async def complete(engine: Engine, prompt: str, **params: object) -> Completion:
    async with engine.generate(prompt, sampling_params={**GREEDY, **params}) as stream:
        return await stream.read()


async def test_it_knows_what_it_says(engine: Engine) -> None:
    with anyio.fail_after(LONG):
        completion = await complete(engine, PROMPTS[0])
    assert completion.text.startswith(" Paris")


async def test_it_answers_in_a_conversation_and_ends_by_itself(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    with anyio.fail_after(LONG):
        prompt = await engine.render_chat(messages)
        completion = await complete(engine, prompt, max_new_tokens=64)
    assert completion.finish_reason.type == "stop"
    assert "hello" in completion.text.lower()
    assert "<|im_end|>" not in completion.text


async def test_many_at_once_say_what_each_says_alone(engine: Engine) -> None:
    """Greedy texts do not depend on the batch (on these prompts: no two tokens come near a tie)."""
    together: dict[str, str] = {}

    async def run(prompt: str) -> None:
        together[prompt] = (await complete(engine, prompt)).text

    with anyio.fail_after(LONG):
        alone = {prompt: (await complete(engine, prompt)).text for prompt in PROMPTS}
        async with anyio.create_task_group() as tasks:
            for prompt in PROMPTS:
                tasks.start_soon(run, prompt)
    assert together == alone


async def test_a_seed_gives_the_same_text_again(engine: Engine) -> None:
    params = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "sampling_seed": 7}
    with anyio.fail_after(LONG):
        first = await complete(engine, PROMPTS[1], **params)
        second = await complete(engine, PROMPTS[1], **params)
        other = await complete(engine, PROMPTS[1], **{**params, "sampling_seed": 8})
    assert first.text == second.text != other.text


async def test_pieces_put_together_are_the_text(engine: Engine) -> None:
    with anyio.fail_after(LONG):
        whole = await complete(engine, "Emojis: 🦊🐈🐕🦔 日本語 äöü", max_new_tokens=40)
        params = {**GREEDY, "max_new_tokens": 40}
        async with engine.generate("Emojis: 🦊🐈🐕🦔 日本語 äöü", sampling_params=params) as stream:
            pieces = [delta.text async for delta in stream]
    assert "".join(pieces) == whole.text


async def test_left_during_the_prefill_of_a_4k_prompt(engine: Engine) -> None:
    prompt = "one two three four five six seven eight nine ten " * 410
    with anyio.fail_after(LONG):
        async with engine.generate(prompt, sampling_params=GREEDY, rid="r") as stream:
            assert stream.prompt_tokens > 4000
            while not (during := await engine.heartbeat()).ledgers.blocks:
                pass  # answered before the first step; the next answer comes behind it
        after = await engine.heartbeat()
        assert (after.ledgers.blocks, after.ledgers.scheduler) == (0, 0)
        # The heartbeat is answered at the next step boundary, right behind the abort: usually one step
        # later. A busy machine may take a few until the abort is there, but not the sixteen of the prompt.
        assert after.steps - during.steps < 8
        async with engine.generate("next", sampling_params=GREEDY, rid="r") as stream:
            assert (await stream.read()).completion_tokens > 0


async def test_a_prompt_longer_than_the_context_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="9001 tokens; at most 8191"):
        await complete(engine, "word " * 9000)
    with anyio.fail_after(LONG):
        assert (await complete(engine, PROMPTS[0])).text.startswith(" Paris")


async def test_storm(engine: Engine) -> None:
    with anyio.fail_after(2 * LONG):
        outcome = await run_storm(engine, requests=24, cancel=0.6, seed=7, streams=8, compare=False)
        assert outcome.errors == []
        await wait_quiescent(engine, timeout=LONG)


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
async def test_streams_go_on_after_a_death(victim: Victim) -> None:
    """Greedy and sampled, to the last token: what is computed anew as one chunk has the same bits."""
    with anyio.fail_after(2 * LONG):
        async with open_engine(MODEL, topology="processes", threads=1, supervision="restart") as engine:
            outcome = await run_crash(engine, victim=victim, streams=4, tokens=32)
            await wait_quiescent(engine, timeout=LONG)
    assert outcome.errors == []
    assert outcome.differences == []
    assert (outcome.finished, outcome.resumed) == (4, 4)
