"""LiteLLM: chat, completions, responses and Anthropic's messages through it; a router that tries again."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

CHAT: list[Any] = [{"role": "user", "content": "Name three colours, and say what each is the colour of."}]
LONG: list[Any] = [{"role": "user", "content": "Tell a very long story."}]
PROMPT = "The capital of France is"


@pytest.fixture
def to(url: str, model: str) -> dict[str, Any]:
    """What every call says of where it goes."""
    return {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}


def check_chat(to: Any, native: Any) -> None:
    said = native.say(CHAT, 40)
    answer = litellm.completion(**to, messages=CHAT, max_tokens=40, temperature=0)
    assert answer.choices[0].message.content == said.text
    assert answer.choices[0].finish_reason == said.finish_reason
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == said[1:3]


def check_chat_as_a_hosted_vllm(to: Any, model: str, native: Any) -> None:
    """The name under which LiteLLM passes the parameters that OpenAI does not have."""
    said = native.say(CHAT, 40)
    to["model"] = f"hosted_vllm/{model}"
    answer = litellm.completion(**to, messages=CHAT, max_tokens=40, temperature=1, top_k=1, min_p=0.5)
    assert answer.choices[0].message.content == said.text


def check_chat_in_pieces(to: Any, native: Any) -> None:
    said = native.say(CHAT, 40)
    chunks = list(
        litellm.completion(
            **to,
            messages=CHAT,
            max_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said.text
    built = litellm.stream_chunk_builder(chunks, messages=CHAT)
    assert built is not None
    assert built.choices[0].message.content == said.text
    assert (built.usage.prompt_tokens, built.usage.completion_tokens) == said[1:3]


def check_text_completion(to: Any, model: str, native: Any) -> None:
    said = native.say(PROMPT, 12)
    to["model"] = f"text-completion-openai/{model}"
    answer = litellm.text_completion(**to, prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.choices[0].text == said.text


def check_responses(to: Any, native: Any) -> None:
    said = native.say(CHAT, 24)
    del to["num_retries"]
    answer = litellm.responses(**to, input=CHAT[0]["content"], max_output_tokens=24, temperature=0)
    assert answer.output[0].content[0].text == said.text
    assert answer.usage.output_tokens == said.completion_tokens


def check_anthropic_messages(url: str, model: str, native: Any) -> None:
    said = native.say(CHAT, 24)
    answer = litellm.completion(
        model=f"anthropic/{model}", api_base=url, api_key="none", messages=CHAT, max_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content == said.text
    assert answer.usage.completion_tokens == said.completion_tokens


def check_errors(to: Any) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**to, messages=CHAT, temperature=-1)
    with pytest.raises(litellm.NotFoundError, match="there is no model"):
        litellm.completion(**{**to, "model": "openai/gpt-4"}, messages=CHAT)


def check_a_context_that_is_too_long(to: Any) -> None:
    """Callers cut their conversations when they see this class, so it has to be this one."""
    words = [{"role": "user", "content": "word " * 12_000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**to, messages=words)


def check_a_router(to: Any, url: str, native: Any) -> None:
    said = native.say(CHAT, 24)
    del to["num_retries"]
    deployments = [
        {"model_name": "small", "litellm_params": {**to, "api_base": base}}
        for base in ("http://127.0.0.1:9/v1", f"{url}/v1")  # nothing listens on the first
    ]
    router = litellm.Router(model_list=deployments, num_retries=8, cooldown_time=60, allowed_fails=0)
    for _ in range(4):
        answer = router.completion(model="small", messages=CHAT, max_tokens=24, temperature=0)
        assert answer.choices[0].message.content == said.text


def check_async_chats_of_which_one_is_cancelled(to: Any, native: Any) -> None:
    said = native.say(CHAT, 24)

    async def main() -> list[Any]:
        long = asyncio.create_task(litellm.acompletion(**to, messages=LONG, max_tokens=4000))
        await asyncio.to_thread(native.wait_running)
        asked = {"messages": CHAT, "max_tokens": 24, "temperature": 0}
        answers = await asyncio.gather(*(litellm.acompletion(**to, **asked) for _ in range(4)))
        long.cancel()
        await asyncio.to_thread(native.wait_idle)
        return answers

    answers = asyncio.run(main())
    assert [answer.choices[0].message.content for answer in answers] == [said.text] * 4


def check_an_async_stream_that_is_left(to: Any, native: Any) -> None:
    async def main() -> None:
        stream = await litellm.acompletion(**to, messages=LONG, max_tokens=4000, stream=True)
        await anext(stream)
        await asyncio.to_thread(native.wait_running)
        await stream.aclose()
        await asyncio.to_thread(native.wait_idle)

    asyncio.run(main())
