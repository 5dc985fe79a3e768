"""A real model behind the real server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx
import msgspec
import pytest

import vidette
from vidette.service import Gate, build_app
from vidette.service.servers import serving
from vidette.service.sockets import bind, url_of

pytestmark = pytest.mark.real_model

MODEL = "smollm2-135m-instruct"
CHAT = "/v1/chat/completions"
SECONDS = 90.0
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """One server will do: what is asked here is asked of the model."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def engine(anyio_backend: object) -> AsyncGenerator[vidette.Engine]:
    async with vidette.open_engine(MODEL, topology="processes", threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
async def client(engine: vidette.Engine) -> AsyncGenerator[httpx.AsyncClient]:
    gate = Gate()
    sock = bind("127.0.0.1", 0)
    async with (
        serving(build_app(engine, gate=gate), sock, gate=gate),
        httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=SECONDS) as client,
    ):
        yield client


async def test_a_chat(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    answer = (await client.post(CHAT, json=body)).json()
    text = answer["choices"][0]["message"]["content"]
    assert "Paris" in text
    assert answer["choices"][0]["finish_reason"] == "stop"
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", CHAT, json=body) as response:
        frames = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert frames.pop() == "[DONE]"
    chunks = [msgspec.json.decode(frame) for frame in frames]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == text
    first, second = answer["usage"], chunks[-1]["usage"]
    cached = [usage.pop("prompt_tokens_details")["cached_tokens"] for usage in (first, second)]
    assert (first, cached[0]) == (second, 0)
    assert second["prompt_tokens"] - 16 <= cached[1] < second["prompt_tokens"]  # whole blocks


async def test_a_seed_gives_the_same_text_again(client: httpx.AsyncClient) -> None:
    body = {"text": "Once upon a time", "sampling_params": {"sampling_seed": 5, "max_new_tokens": 12}}
    first, second = [(await client.post("/generate", json=body)).json() for _ in range(2)]
    assert first["output_ids"] == second["output_ids"]
    assert first["meta_info"]["completion_tokens"] == len(first["output_ids"]) <= 12


async def test_a_client_that_leaves_during_the_prefill(
    client: httpx.AsyncClient, engine: vidette.Engine
) -> None:
    body = {"text": "The sentry rode on. " * 300, "sampling_params": {"max_new_tokens": 200}}
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post("/generate", json=body))
            while not (await engine.heartbeat()).ledgers.blocks:
                pass
            tasks.cancel_scope.cancel()
        await engine.wait_quiet()
    assert engine.statistics().ledgers.total() == 0


async def test_no_part_of_a_stop_string_is_ever_streamed(client: httpx.AsyncClient) -> None:
    """It begins and ends within tokens, and is hidden from its first character on."""
    body: dict[str, Any] = {"messages": QUESTION, "temperature": 0, "max_tokens": 24}
    text = (await client.post(CHAT, json=body)).json()["choices"][0]["message"]["content"]
    stop = "ital of Fr"
    assert stop in text
    body |= {"stop": ["never said", stop], "logprobs": True}
    answer = (await client.post(CHAT, json=body)).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == text.partition(stop)[0]
    assert choice["finish_reason"] == "stop"
    said = [token["token"] for token in choice["logprobs"]["content"]]
    assert stop in "".join(said)  # those that spelled it are reported with the rest
    assert all(stop not in token for token in said)
    assert len(said) == answer["usage"]["completion_tokens"]
    async with client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        frames = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert frames.pop() == "[DONE]"
    shown = ""
    for frame in frames:
        for choice in msgspec.json.decode(frame)["choices"]:
            shown += choice["delta"].get("content", "")
            assert text.partition(stop)[0].startswith(shown)
    assert shown == text.partition(stop)[0]
