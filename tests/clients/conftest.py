"""What the checks of every client stand on: the server's address, and what the engine says natively.

A check runs in the environment of its client, so nothing here needs more than pytest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import ProxyHandler, Request, build_opener

import pytest

SECONDS = 60.0


class Said(NamedTuple):
    """What the engine says to a prompt, at temperature 0."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str


class Native:
    """The server, asked without any client: what a client shows has to be what is answered here.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # Whatever proxy the environment names does not know the server of this machine.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, path: str) -> Any:
        """Return what is answered to a GET."""
        with self._opener.open(self._url + path, timeout=SECONDS) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return what is answered to a POST."""
        request = Request(self._url + path, json.dumps(body).encode())
        with self._opener.open(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def tokens(self, prompt: str | list[dict[str, str]]) -> list[int]:
        """Return the tokens of a text, or of a conversation."""
        name = "prompt" if isinstance(prompt, str) else "messages"
        tokens: list[int] = self.post("/tokenize", {name: prompt})["tokens"]
        return tokens

    def say(self, prompt: str | list[dict[str, str]], max_tokens: int) -> Said:
        """Return what the engine says to a text, or in a conversation."""
        params = {"temperature": 0, "max_new_tokens": max_tokens}
        answer = self.post("/generate", {"input_ids": self.tokens(prompt), "sampling_params": params})
        info = answer["meta_info"]
        return Said(
            answer["text"], info["prompt_tokens"], info["completion_tokens"], info["finish_reason"]["type"]
        )

    def load(self) -> dict[str, Any]:
        """Return how busy the scheduler is."""
        load: dict[str, Any] = self.get("/v1/loads")["loads"][0]
        return load

    def wait_running(self, count: int = 1) -> None:
        """Wait until so many requests run."""
        self._wait(lambda load: load["num_running_reqs"] == count, f"{count} running")

    def wait_idle(self) -> None:
        """Wait until no request is left, and none of its memory."""
        held = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
        self._wait(lambda load: not any(load[name] for name in held), "none left")

    def _wait(self, is_so: Any, what: str) -> None:
        end = time.monotonic() + SECONDS
        while not is_so(load := self.load()):
            assert time.monotonic() < end, f"waited {SECONDS:g} s for {what}: {load}"
            time.sleep(0.01)


@pytest.fixture(scope="session")
def url() -> str:
    """The address of the server."""
    return os.environ["VIDETTE_URL"]


@pytest.fixture(scope="session")
def model() -> str:
    """The name of the model that it serves."""
    return os.environ["VIDETTE_MODEL"]


@pytest.fixture(scope="session")
def tokenizer() -> Path:
    """A folder with the model's tokenizer, in the form that benchmarks load."""
    return Path(os.environ["VIDETTE_TOKENIZER"])


@pytest.fixture(scope="session")
def native(url: str) -> Native:
    """The server, asked without any client."""
    return Native(url)


@pytest.fixture(autouse=True)
def leaves_nothing(native: Native) -> Iterator[None]:
    """Hold every check to it: what it asked for is over when it is."""
    yield
    native.wait_idle()
