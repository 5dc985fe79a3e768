"""Prompts are made in time or not at all; a call that takes longer keeps no more than its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import anyio
import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray
from tests.engine.front.conftest import DEADLINE, AsciiTokenizer, Front, ask

from vidette.errors import Overloaded, PromptTimeout, UsageError
from vidette.front.offload import ThreadOffload
from vidette.front.prompts import LONG_TEXT_CHARS, LONG_TEXTS_CHARS, Prompts
from vidette_protocol.messages import GenerateItem, SamplingParams


class Stuck(AsciiTokenizer):
    """Takes as long for "slow" as the test wants."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def encode(self, text: str) -> NDArray[np.int32]:
        if text == "slow":
            self._wait()
        return super().encode(text)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        if messages[0]["content"] == "slow":
            self._wait()
        return super().render_chat(messages)

    def _wait(self) -> None:
        self.begun.set()
        assert self.go_on.wait(DEADLINE)


@pytest.fixture
def tokenizer() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.go_on.set()


def item(text: str) -> GenerateItem:
    return GenerateItem(rid="r", text=text, sampling_params=SamplingParams())


@pytest.mark.parametrize("what", ["tokenised", "rendered"])
async def test_what_takes_too_long_is_refused_and_keeps_its_place_until_it_has_ended(
    tokenizer: Stuck, what: str
) -> None:
    async with anyio.create_task_group() as tasks:
        prompts = Prompts(tokenizer, ThreadOffload(tasks, 1), vocab_size=128, timeout=0.05)

        async def make(text: str) -> None:
            if what == "tokenised":
                await prompts.tokenise(item(text))
            else:
                await prompts.render([{"role": "user", "content": text}])

        for text in ("slow", "quick"):  # the second never gets its turn
            with pytest.raises(PromptTimeout, match=rf"^the prompt was not {what} within 0.05 s"):
                await make(text)
        tokenizer.go_on.set()
        patient = Prompts(tokenizer, prompts._offload, vocab_size=128, timeout=DEADLINE)
        assert bytes((await patient.tokenise(item("quick"))).cast("i").tolist()) == b"quick"
        tasks.cancel_scope.cancel()


async def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    """Tokenizers may have names of tokens beyond the vocabulary of their model."""
    prompts = Prompts(AsciiTokenizer(), Front().offload, vocab_size=100, timeout=DEADLINE)
    assert (await prompts.tokenise(item("abc"))).cast("i").tolist() == [97, 98, 99]
    with pytest.raises(
        UsageError, match=r"^text has the token 122; token ids of this model are 0 to 99"
    ) as caught:
        await prompts.tokenise(item("az"))
    assert caught.value.param == "text"


async def test_long_texts_wait_in_a_bounded_number_and_short_ones_are_taken_all_the_same() -> None:
    front = Front()
    offload = front.offload
    prompts = Prompts(AsciiTokenizer(), offload, vocab_size=128, timeout=DEADLINE)
    offload.gate = anyio.Event()
    too_long = " " * LONG_TEXTS_CHARS + "x"
    long = " " * LONG_TEXT_CHARS + "x"
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prompts.tokenise, item(too_long))  # taken: there is no other
            await front.until(lambda: offload.begun == 1)
            with pytest.raises(Overloaded, match=f"made of {len(too_long)} characters, and {len(long)} more"):
                await prompts.tokenise(item(long))
            with pytest.raises(Overloaded):
                await prompts.render([{"role": "user", "content": long[:40_000]}] * 2)
            tasks.start_soon(prompts.tokenise, item(long[1:]))
            tasks.start_soon(prompts.render, [{"role": "user", "content": "x" * (LONG_TEXT_CHARS - 4)}])
            await front.until(lambda: offload.begun == 3)
            offload.gate.set()
        assert len(await prompts.tokenise(item(long))) == 4


def test_a_request_whose_prompt_takes_too_long_leaves_nothing() -> None:
    async def main() -> None:
        async with Front.serving(tokenise_timeout=5) as front:
            front.offload.gate = anyio.Event()
            began = anyio.current_time()
            with pytest.raises(PromptTimeout):
                async with front.manager.generate(ask("hello")):
                    pytest.fail("it is let in")
            with pytest.raises(PromptTimeout):
                await front.manager.render_chat([{"role": "user", "content": "hello"}])
            assert anyio.current_time() - began == pytest.approx(10)
            assert (len(front.manager), len(front.manager._admission), front.sent()) == (0, 0, [])
            front.offload.gate.set()
            async with front.manager.generate(ask("hello")):
                assert len(front.sent()) == 1

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
