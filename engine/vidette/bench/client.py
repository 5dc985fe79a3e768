"""A client of OpenAI's streaming endpoints that notes when what came, and is cheap: it shares the machine.

Of an event only what is measured is decoded. Whatever goes wrong with a request becomes its error.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import anyio
import httpx
import msgspec
from msgspec import Struct

from vidette.bench.latency import Answer
from vidette.errors import Error

Endpoint = Literal["chat", "completions"]
PATHS: Final[dict[Endpoint, str]] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
LINE_BYTES: Final = 16 << 20
"""Bytes of one line of a stream; a longer one is an error."""
SHOWN: Final = 200
"""Characters of an answer that are shown in an error."""


class BenchFailed(Error):  # noqa: N818  named like the engine's errors
    """There is nothing to measure; the message says why."""


class Request(Struct, frozen=True):
    """What all requests of a benchmark have in common.

    Args:
        endpoint: "chat" or "completions".
        model: name of the model.
        output_tokens: most tokens of each answer.
        ignore_eos: whether to ask for just as many; servers that know no `ignore_eos` may refuse it.
    """

    endpoint: Endpoint
    model: str
    output_tokens: int
    ignore_eos: bool = False

    def body(self, prompt: str) -> bytes:
        """Return the JSON of one of them."""
        fields: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)


class Client:
    """A client of one server.

    Args:
        http: with the server's address.
        timeout: seconds that a request may take.
        clock: what answers are timed by; that of an event loop may be too coarse.
    """

    def __init__(
        self, http: httpx.AsyncClient, *, timeout: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._http = http
        self._clock = clock
        self._timeout = timeout
        self.pieces = 0
        """How many pieces of text came."""

    async def find_model(self) -> str:
        """Return the name of the model that is served, the first if there are several.

        Raises:
            BenchFailed: the server does not say.
        """
        try:
            with anyio.fail_after(self._timeout):
                response = await self._http.get("/v1/models")
            served = msgspec.json.decode(response.content, type=_Models).data if response.is_success else []
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, msgspec.DecodeError) as error:
            raise BenchFailed(f"{self._http.base_url} does not answer as a server: {_say(error)}") from error
        if not served:
            raise BenchFailed(
                f"{self._http.base_url} names no model (status {response.status_code}); give --model"
            )
        return served[0].id

    async def ask(self, request: Request, prompt: str) -> Answer:
        """Send a request; return what came of it, and when."""
        body = request.body(prompt)
        answer = Answer(self._clock(), pieces=[])
        try:
            with anyio.fail_after(self._timeout):
                await self._ask(PATHS[request.endpoint], body, answer)
        except TimeoutError:
            answer.error = answer.error or f"not complete within {self._timeout:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            answer.error = answer.error or _say(error)
        answer.ended = self._clock()
        if not answer.counted:
            answer.output_tokens = len(answer.pieces)
        return answer

    async def _ask(self, path: str, body: bytes, answer: Answer) -> None:
        events = EventReader()
        async with self._http.stream("POST", path, content=body, headers=_HEADERS) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                answer.error = f"status {response.status_code}: {text[:SHOWN]}"
                return
            # To the end in any case: the connection is used again.
            async for data in response.aiter_raw():
                if answer.error is None:
                    answer.error = self._take(events, data, answer)
        if not events.ended and answer.error is None:
            answer.error = "the stream ended before the answer was complete"

    def _take(self, events: EventReader, data: bytes, answer: Answer) -> str | None:
        """Take what came of a stream; return what is wrong with it."""
        now = self._clock()
        try:
            found = events.feed(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"a malformed event: {error}"
        except _TooLong as error:
            return str(error)
        for event in found:
            if event.error is not None:
                return f"in the stream: {msgspec.json.encode(event.error).decode()[:SHOWN]}"
            if event.has_text:
                answer.pieces.append(now)
                self.pieces += 1
            if event.usage is not None:
                _count(answer, event.usage)
        return None


@asynccontextmanager
async def open_client(
    url: str,
    *,
    timeout: float,
    clock: Callable[[], float] = time.perf_counter,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncGenerator[Client]:
    """Open a client, with as many connections as it takes.

    Args:
        url: of the server; one that ends in `/v1` is taken as well.
        timeout: seconds that each request may take.
        clock: what answers are timed by.
        transport: instead of a network.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # Whatever proxy the environment names would be measured along.
    async with httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        timeout=None,  # noqa: S113  each request has one as a whole
        limits=limits,
        transport=transport,
        trust_env=False,
    ) as http:
        yield Client(http, timeout=timeout, clock=clock)


class EventReader:
    """Bytes of a stream of events to events, wherever they are cut.

    Attributes:
        ended: whether `[DONE]` came, behind which nothing counts, or a reason why the answer ended.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._done = False
        self.ended = False

    def feed(self, data: bytes) -> list[Event]:
        """Take what came; return the events that are complete with it.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError: an event is not what it should be.
            ValueError: a line has no end.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise _TooLong(f"a line of the stream has more than {LINE_BYTES} bytes")
        events = []
        for line in lines:
            if self._done or not line.startswith(b"data:"):  # a comment, a name, or the end of an event
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                self._done = self.ended = True
                continue
            if not text:
                continue
            event = _DECODE(text)
            self.ended = self.ended or event.ends
            events.append(event)
        return events


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Event(Struct):
    """What is looked at of an event."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def has_text(self) -> bool:
        """Whether it adds anything to an answer, thoughts included."""
        for choice in self.choices:
            delta = choice.delta
            if choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)):
                return True
        return False

    @property
    def ends(self) -> bool:
        """Whether it says how an answer ended."""
        return any(choice.finish_reason for choice in self.choices)


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] = []


class _TooLong(ValueError):  # noqa: N818  named like the engine's errors
    """A line of a stream has no end."""


def _count(answer: Answer, usage: _Usage) -> None:
    answer.prompt_tokens = usage.prompt_tokens
    if usage.prompt_tokens_details is not None:
        answer.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
    if usage.completion_tokens is not None:
        answer.output_tokens = usage.completion_tokens
        answer.counted = True


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_DECODE: Final = msgspec.json.Decoder(Event).decode
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
}
