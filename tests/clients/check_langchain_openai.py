"""langchain-openai: a chat model and a completion model, invoked, streamed, in batches and in a chain."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

QUESTION = "Name three colours, and say what each is the colour of."
CHAT = [{"role": "user", "content": QUESTION}]
LONG = "Tell a very long story."
PROMPT = "The capital of France is"


@pytest.fixture
def to(url: str, model: str) -> dict[str, Any]:
    """What every model is made of."""
    return {"model": model, "base_url": f"{url}/v1", "api_key": "none", "temperature": 0, "max_retries": 0}


def check_a_chat_model(to: Any, native: Any) -> None:
    said = native.say([{"role": "system", "content": "Be brief."}, *CHAT], 40)
    chat = ChatOpenAI(**to, max_tokens=40)
    answer = chat.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert isinstance(answer, AIMessage)
    assert answer.content == said.text
    assert answer.response_metadata["finish_reason"] == said.finish_reason
    assert answer.usage_metadata is not None
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == said[1:3]


def check_it_in_pieces(to: Any, native: Any) -> None:
    said = native.say(CHAT, 40)
    pieces = list(ChatOpenAI(**to, max_tokens=40, stream_usage=True).stream(QUESTION))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.content == said.text
    assert whole.usage_metadata is not None
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == said[1:3]


def check_a_batch(to: Any, native: Any) -> None:
    questions = [f"Write a line about the number {number}." for number in range(4)]
    said = [native.say([{"role": "user", "content": question}], 20).text for question in questions]
    answers = ChatOpenAI(**to, max_tokens=20).batch(questions)
    assert [answer.content for answer in answers] == said


def check_a_chain(to: Any, native: Any) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("user", "{question}")])
    chain = prompt | ChatOpenAI(**to, max_tokens=24) | StrOutputParser()
    said = native.say([{"role": "system", "content": "Be brief."}, *CHAT], 24)
    assert chain.invoke({"how": "brief", "question": QUESTION}) == said.text


def check_logprobs(to: Any, native: Any) -> None:
    said = native.say(CHAT, 12)
    answer = ChatOpenAI(**to, max_tokens=12, logprobs=True, top_logprobs=2).invoke(QUESTION)
    listed = answer.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in listed) == said.text
    assert all(len(each["top_logprobs"]) == 2 for each in listed)


def check_it_over_responses(to: Any, native: Any) -> None:
    said = native.say(CHAT, 24)
    chat = ChatOpenAI(**to, max_tokens=24, use_responses_api=True)
    assert chat.invoke(QUESTION).text == said.text
    assert "".join(piece.text for piece in chat.stream(QUESTION)) == said.text


def check_a_completion_model(to: Any, native: Any) -> None:
    said = native.say(PROMPT, 12)
    completion = OpenAI(**to, max_tokens=12)
    assert completion.invoke(PROMPT) == said.text
    assert "".join(completion.stream(PROMPT)) == said.text
    assert completion.batch([PROMPT] * 2) == [said.text] * 2


def check_tools_are_refused(to: Any) -> None:
    """They are not supported yet, and are not silently left out either."""

    def colour(name: str) -> str:
        """Look up a colour."""
        return name

    with pytest.raises(openai.InternalServerError, match="tools"):
        ChatOpenAI(**to, max_tokens=8).bind_tools([colour]).invoke(QUESTION)


def check_async_streams_of_which_one_is_left(to: Any, native: Any) -> None:
    said = native.say(CHAT, 24)

    async def main() -> str:
        left = ChatOpenAI(**to, max_tokens=4000).astream(LONG)
        await anext(left)
        await asyncio.to_thread(native.wait_running)
        text = "".join(
            [str(piece.content) async for piece in ChatOpenAI(**to, max_tokens=24).astream(QUESTION)]
        )
        await left.aclose()
        await asyncio.to_thread(native.wait_idle)
        return text

    assert asyncio.run(main()) == said.text
