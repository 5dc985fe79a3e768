"""The anthropic package: messages whole and in pieces, counts, errors, and a stream that is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

CHAT: list[Any] = [{"role": "user", "content": "Name three colours, and say what each is the colour of."}]
LONG: list[Any] = [{"role": "user", "content": "Tell a very long story."}]
GREEDY = {"temperature": 0}
"""The package has no sampling parameters of its own any more."""
SYSTEM = "Be brief."
WITH_SYSTEM = [{"role": "system", "content": SYSTEM}, *CHAT]


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def check_messages(client: anthropic.Anthropic, model: str, native: Any) -> None:
    said = native.say(WITH_SYSTEM, 40)
    message = client.messages.create(
        model=model, system=SYSTEM, messages=CHAT, max_tokens=40, extra_body=GREEDY
    )
    (block,) = message.content
    assert (block.type, block.text) == ("text", said.text)
    assert message.stop_reason == ("max_tokens" if said.finish_reason == "length" else "end_turn")
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == said.prompt_tokens
    assert usage.output_tokens == said.completion_tokens


def check_a_stop_sequence(client: anthropic.Anthropic, model: str, native: Any) -> None:
    said = native.say(CHAT, 40).text
    word = said.split()[5]
    message = client.messages.create(
        model=model, messages=CHAT, max_tokens=40, extra_body=GREEDY, stop_sequences=[word]
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert "".join(block.text for block in message.content) == said.partition(word)[0]


def check_messages_in_pieces(client: anthropic.Anthropic, model: str, native: Any) -> None:
    said = native.say(CHAT, 40)
    with client.messages.stream(model=model, messages=CHAT, max_tokens=40, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 10
    assert "".join(pieces) == final.content[0].text == said.text
    assert final.usage.output_tokens == said.completion_tokens
    events = client.messages.create(model=model, messages=CHAT, max_tokens=40, extra_body=GREEDY, stream=True)
    types = [event.type for event in events]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def check_parts_and_turns(client: anthropic.Anthropic, model: str, native: Any) -> None:
    turns = [
        *CHAT,
        {"role": "assistant", "content": "Red, green, blue."},
        {"role": "user", "content": "More?"},
    ]
    said = native.say(turns, 16)
    parts: list[Any] = [
        {"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]} for turn in turns
    ]
    message = client.messages.create(model=model, messages=parts, max_tokens=16, extra_body=GREEDY)
    assert message.content[0].text == said.text
    # And the answer goes back as it came.
    more: list[Any] = [*parts, {"role": "assistant", "content": message.content}, *CHAT]
    assert client.messages.create(model=model, messages=more, max_tokens=4, extra_body=GREEDY).content


def check_count_tokens(client: anthropic.Anthropic, model: str, native: Any) -> None:
    count = client.messages.count_tokens(model=model, system=SYSTEM, messages=CHAT)
    assert count.input_tokens == len(native.tokens(WITH_SYSTEM))


def check_models(client: anthropic.Anthropic, model: str) -> None:
    assert [each.id for each in client.models.list()] == [model]


def check_errors(client: anthropic.Anthropic, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match="there is no model 'claude'") as missing:
        client.messages.create(model="claude", messages=CHAT, max_tokens=4)
    assert missing.value.body["error"]["type"] == "not_found_error"
    tool: Any = {"name": "colour", "input_schema": {"type": "object"}}
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        client.messages.create(model=model, messages=CHAT, max_tokens=4, tools=[tool])


def check_a_stream_that_is_left(client: anthropic.Anthropic, model: str, native: Any) -> None:
    with client.messages.stream(model=model, messages=LONG, max_tokens=4000) as stream:
        next(iter(stream.text_stream))
        native.wait_running()
    native.wait_idle()


def check_async_messages(url: str, model: str, native: Any) -> None:
    said = native.say(CHAT, 24)

    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            asked: Any = {"model": model, "messages": CHAT, "max_tokens": 24, "extra_body": GREEDY}
            whole = await client.messages.create(**asked)
            assert whole.content[0].text == said.text
            async with client.messages.stream(**asked) as stream:
                assert "".join([piece async for piece in stream.text_stream]) == said.text
            left = asyncio.create_task(
                client.messages.create(**{**asked, "messages": LONG, "max_tokens": 4000})
            )
            await asyncio.to_thread(native.wait_running)
            left.cancel()
            await asyncio.to_thread(native.wait_idle)

    asyncio.run(main())
