"""Every handler is cancelled at each of its checkpoints: nothing is held, and the next request is served.

From outside, as a server does that stops: the whole call is cancelled, watcher and all. With the toy model in
this process; what is counted are the checkpoints of the handler's own task.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette

import vidette
from tests.service.driver import Call, call
from vidette.testing import sweep, wait_quiescent

SECONDS = 60.0
CHAT = "/v1/chat/completions"
PARAMS = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "x"}]
CHATTED = {"messages": MESSAGES, "max_tokens": 3, "temperature": 0, "ignore_eos": True}

SEVERAL = {"text": ["a", "b"], "rid": "swept", "sampling_params": {**PARAMS, "n": 2}}

CALLS: dict[str, tuple[str, str, Any]] = {
    "generate": ("POST", "/generate", {"text": "hello", "rid": "swept", "sampling_params": PARAMS}),
    "generate in pieces": (
        "POST",
        "/generate",
        {"text": "hello", "rid": "swept", "stream": True, "sampling_params": PARAMS},
    ),
    "generate several": ("POST", "/generate", SEVERAL),
    "generate several in pieces": ("POST", "/generate", {**SEVERAL, "stream": True}),
    "chat": ("POST", CHAT, {**CHATTED, "rid": "swept"}),
    "chat in pieces": ("POST", CHAT, {**CHATTED, "rid": "swept", "stream": True}),
    "health": ("GET", "/health", b""),
    "models": ("GET", "/v1/models", b""),
    "refused": ("POST", "/generate", {"text": ""}),
}


async def check_free_and_serving(engine: vidette.Engine, app: Starlette) -> None:
    """Check that nothing is held, and that the next request has the text that it always has."""
    await wait_quiescent(engine)
    done = await call(app, "/generate", {"text": "hello", "rid": "swept", "sampling_params": PARAMS})
    assert (done.status, done.json()["text"]) == (200, "sA/")


@pytest.mark.parametrize("name", CALLS)
async def test_whenever_it_is_cancelled_nothing_is_held(
    engine: vidette.Engine, app: Starlette, name: str
) -> None:
    """Cancelled at its first checkpoint, its second, at any: all ledgers are zero, the text is right."""
    method, path, body = CALLS[name]
    with anyio.fail_after(SECONDS):
        points = await sweep(
            lambda: Call(app, path, body, method=method).run(),
            partial(check_free_and_serving, engine, app),
            limit=80,
        )
    assert points >= 2
