"""The client against a server whose bytes come when they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise

import anyio
import httpx
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from vidette.bench import client as client_module
from vidette.bench.client import BenchFailed, Client, EventReader, Request, open_client
from vidette.bench.latency import Answer

REQUEST = Request("chat", "m", 16, ignore_eos=True)
Piece = tuple[float, bytes]
"""Seconds to wait, and what comes then."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


def event(content: str | None = None, **fields: object) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return b"data: " + msgspec.json.encode({"choices": choices, **fields}) + b"\n\n"


END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = event(
    usage={"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
)
DONE = b"data: [DONE]\n\n"


class Body(httpx.AsyncByteStream):
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, data in self._pieces:
            await (anyio.sleep(seconds) if seconds else anyio.lowlevel.checkpoint())
            yield data


class Server(httpx.AsyncBaseTransport):
    """Answers every request with the same pieces."""

    def __init__(self, *pieces: Piece, status: int = 200, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._status = status
        self._error = error
        self.asked: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        self.asked.append(request)
        if self._error is not None:
            raise self._error
        return httpx.Response(self._status, stream=Body(self._pieces))


async def ask(server: Server, request: Request = REQUEST, *, timeout: float = 60.0) -> Answer:
    async with open_client(
        "http://server/v1/", timeout=timeout, clock=anyio.current_time, transport=server
    ) as client:
        return await client.ask(request, "hello")


def virtually(program: Callable[[], Awaitable[Answer]]) -> Answer:
    return trio.run(program, clock=MockClock(autojump_threshold=0))


def test_times_are_those_at_which_text_came() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    server = Server(
        (0.5, role),  # no text: no first piece
        (0.25, event("a")),
        (0.1, event("b") + event("c")),  # at once
        (0.2, b": a comment\n\n" + END),
        (3.0, USAGE + DONE),
    )

    answer = virtually(lambda: ask(server))
    assert answer.error is None
    assert [piece - answer.started for piece in answer.pieces] == pytest.approx([0.75, 0.85, 0.85])
    assert answer.ttft == pytest.approx(0.75)
    assert answer.e2el == pytest.approx(0.85)
    assert answer.ended - answer.started == pytest.approx(4.05)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (9, 3, 7)
    assert answer.tpot == pytest.approx(0.1 / 6)


def test_an_answer_that_takes_too_long_failed() -> None:
    answer = virtually(lambda: ask(Server((1.0, event("a")), (99.0, DONE)), timeout=10.0))
    assert answer.error == "not complete within 10 s"
    assert answer.ended - answer.started == pytest.approx(10.0)
    assert len(answer.pieces) == 1


async def test_what_is_asked() -> None:
    server = Server((0, event("a") + END + DONE))
    answer = await ask(server)
    assert (answer.error, answer.counted, answer.output_tokens) == (None, False, 1)
    (asked,) = server.asked
    assert (asked.method, str(asked.url)) == ("POST", "http://server/v1/chat/completions")
    assert msgspec.json.decode(asked.content) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_what_is_asked_of_completions() -> None:
    text = b'data: {"choices":[{"text":"a","index":0}],"usage":null}\n\n'
    server = Server((0, text + text + DONE))
    answer = await ask(server, Request("completions", "m", 16))
    assert (answer.error, answer.output_tokens, len(answer.pieces)) == (None, 2, 2)
    assert str(server.asked[0].url) == "http://server/v1/completions"
    body = msgspec.json.decode(server.asked[0].content)
    assert body["prompt"] == "hello"
    assert not {"messages", "ignore_eos"} & body.keys()


async def test_thoughts_are_text() -> None:
    for field in ("reasoning_content", "reasoning"):
        thought = b'data: {"choices":[{"delta":{"' + field.encode() + b'":"hm"}}]}\n\n'
        assert len((await ask(Server((0, thought + DONE)))).pieces) == 1


FAILURES = [
    (Server((0, b'{"error": "busy"}'), status=429), 'status 429: {"error": "busy"}'),
    (Server((0, event("a"))), "the stream ended before the answer was complete"),
    (Server((0, b"data: {]\n\n"), (0, DONE)), "a malformed event"),
    (Server((0, b'data: {"choices": 3}\n\n'), (0, DONE)), "a malformed event"),
    (
        Server((0, event("a") + event(error={"message": "died"})), (0, event("b"))),
        'in the stream: {"message":"died"}',
    ),
    (Server(error=httpx.ConnectError("refused")), "ConnectError: refused"),
    (Server(error=httpx.ReadError("")), "ReadError"),
]


@pytest.mark.parametrize(("server", "error"), FAILURES, ids=[error[:20] for _, error in FAILURES])
async def test_what_goes_wrong_is_told(server: Server, error: str) -> None:
    answer = await ask(server)
    assert answer.error is not None
    assert answer.error.startswith(error)
    assert answer.ended >= answer.started


async def test_a_line_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LINE_BYTES", 1000)
    answer = await ask(Server((0, b"data: " + b"x" * 1001), (0, b"\n" + DONE)))
    assert answer.error == "a line of the stream has more than 1000 bytes"


async def model_of(server: Server) -> str:
    async with open_client("http://server", timeout=60.0, transport=server) as client:
        return await client.find_model()


async def test_the_model_is_the_one_that_is_served() -> None:
    assert await model_of(Server((0, b'{"data":[{"id":"one"},{"id":"two"}],"object":"list"}'))) == "one"


@pytest.mark.parametrize(
    "server",
    [
        Server((0, b'{"data":[]}')),
        Server((0, b"no"), status=404),
        Server((0, b"no")),
        Server(error=httpx.ConnectError("refused")),
    ],
    ids=["none", "no such path", "no JSON", "nobody there"],
)
async def test_no_model_is_said(server: Server) -> None:
    with pytest.raises(BenchFailed, match="http://server"):
        await model_of(server)


STREAM = (
    b"event: x\r\n: comment\n"
    + event("\u00e4")
    + b"data:"
    + event("b")[6:].replace(b"\n", b"\r\n")
    + END
    + DONE
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_they_are_cut(cuts: list[int]) -> None:
    """Contract: any cut of the bytes gives the same events."""
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    events = [found for start, end in pairwise(places) for found in reader.feed(STREAM[start:end])]
    assert [found.has_text for found in events] == [True, True, False]
    assert [found.ends for found in events] == [False, False, True]
    assert reader.ended


@given(st.lists(st.binary(max_size=60) | st.sampled_from([DONE, END, b"data: ", b"{}\n"]), max_size=12))
def test_any_bytes_are_events_or_malformed(pieces: list[bytes]) -> None:
    """Contract: whatever comes gives events, or one of two errors; nothing counts behind `[DONE]`."""
    reader = EventReader()
    try:
        for piece in [*pieces, b"\n", DONE]:
            reader.feed(piece)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert reader.ended
    assert reader.feed(event("a")) == []


def test_a_client_counts_its_pieces() -> None:
    async def program() -> Answer:
        async with open_client(
            "http://x", timeout=1, transport=Server((0, event("a") + event("b") + DONE))
        ) as one:
            assert isinstance(one, Client)
            answer = await one.ask(REQUEST, "hello")
            assert one.pieces == 2
            return answer

    virtually(program)
