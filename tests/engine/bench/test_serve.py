"""Loads against a server on a clock that does not wait: what is found is what was put in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
import httpx
import msgspec
import pytest
import trio
from trio.testing import MockClock

from vidette.bench.client import BenchFailed, open_client
from vidette.bench.latency import Answer, Objectives
from vidette.bench.plot import Level
from vidette.bench.results import Results
from vidette.bench.serve import Bench, Plan, results_of

T = TypeVar("T")
TEMPLATE = 11
"""Tokens that come with any prompt."""
PER_WORD = 2


class Server(httpx.AsyncBaseTransport):
    """Takes 200 ms for the first token and 50 ms for each of the others; now and then it fails."""

    def __init__(self, *, fails: Callable[[int], bool] = lambda _: False, counts: bool = True) -> None:
        self.prompts: list[str] = []
        self.max_tokens: list[int] = []
        self._fails = fails
        self._counts = counts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        if request.url.path == "/v1/models":
            return httpx.Response(200, content=b'{"data":[{"id":"fake"}]}')
        body = msgspec.json.decode(request.content)
        assert body["model"] == "fake"
        self.prompts.append(body["messages"][0]["content"])
        self.max_tokens.append(body["max_tokens"])
        if self._fails(len(self.prompts)):
            return httpx.Response(503, content=b"too busy")
        return httpx.Response(200, stream=Body(self.prompts[-1], body["max_tokens"], counts=self._counts))


class Body(httpx.AsyncByteStream):
    def __init__(self, prompt: str, tokens: int, *, counts: bool) -> None:
        self._prompt = TEMPLATE + PER_WORD * len(prompt.split())
        self._tokens = tokens
        self._counts = counts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for token in range(self._tokens):
            await anyio.sleep(0.05 if token else 0.2)
            yield b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        if self._counts:
            usage = {"prompt_tokens": self._prompt, "completion_tokens": self._tokens}
            yield b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n"
        yield b"data: [DONE]\n\n"


class Heard:
    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def heard(self, answer: Answer) -> None:
        self.answers.append(answer)


def virtually(program: Callable[[], Awaitable[T]]) -> T:
    return trio.run(program, clock=MockClock(autojump_threshold=0))


async def bench(server: Server, plan: Plan, loads: tuple[int, ...], runs: int = 1) -> Results:
    async with open_client("http://fake", timeout=60, clock=anyio.current_time, transport=server) as client:
        prepared = await Bench.prepare(client, plan, say=lambda _: None)
        levels = [[Level(load, await prepared.measure(load, Heard())) for load in loads] for _ in range(runs)]
        return results_of(prepared, plan, levels)


def values(results: Results) -> dict[str, list[float]]:
    return {finding.name: finding.values for finding in results.findings}


PLAN = Plan(concurrency=4, requests=12, prompt_tokens=51, output_tokens=9, warmup=3)


def test_what_is_put_in_is_found() -> None:
    server = Server()
    results = virtually(lambda: bench(server, PLAN, (4,), runs=2))
    found = values(results)
    assert list(found) == [
        "request_s",
        "output_tok_s",
        "ttft_p50_ms",
        "ttft_p99_ms",
        "itl_p50_ms",
        "itl_p99_ms",
        "tpot_p50_ms",
        "goodput_s",
    ]
    # Each takes 200 + 8 * 50 ms; three rounds of four.
    assert found["request_s"] == pytest.approx([12 / 1.8] * 2)
    assert found["output_tok_s"] == pytest.approx([9 * 12 / 1.8] * 2)
    for name in ("ttft_p50_ms", "ttft_p99_ms"):
        assert found[name] == pytest.approx([200, 200])
    for name in ("itl_p50_ms", "itl_p99_ms", "tpot_p50_ms"):
        assert found[name] == pytest.approx([50, 50])
    assert found["goodput_s"] == found["request_s"]
    # Two probes, three to warm up, and two runs; no prompt twice, each of the length that was wanted.
    assert len(set(server.prompts)) == len(server.prompts) == 29
    measured = server.prompts[5:]
    assert {TEMPLATE + PER_WORD * len(prompt.split()) for prompt in measured} == {51}
    assert server.max_tokens == [1, 1, *[9] * 27]


def test_objectives_make_the_difference() -> None:
    for texts, share in ((["ttft:201", "itl:51"], 1), (["ttft:199"], 0), (["tpot:49"], 0)):
        plan = msgspec.structs.replace(PLAN, objectives=Objectives.of(texts))
        found = values(virtually(partial(bench, Server(), plan, (4,))))
        assert found["goodput_s"] == pytest.approx([share * 12 / 1.8])


def test_an_open_loop_is_measured() -> None:
    plan = msgspec.structs.replace(PLAN, rate=20.0, requests=200)
    results = virtually(lambda: bench(Server(), plan, (4,)))
    (rate,) = values(results)["request_s"]
    assert rate == pytest.approx(20, rel=0.2)
    assert results.notes[0].startswith("20 a second: 200 of 200 requests completed")


def test_of_a_sweep_the_best_goodput_counts() -> None:
    results = virtually(lambda: bench(Server(), PLAN, (1, 2, 12)))
    assert values(results)["request_s"] == pytest.approx([12 / 0.6])
    levels = msgspec.to_builtins(results.details)["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2, 12]
    assert [level["seconds"] for level in levels] == pytest.approx([7.2, 3.6, 0.6])
    assert any("12 at once, the best goodput" in note for note in results.notes)


def test_errors_are_counted_and_told() -> None:
    server = Server(fails=lambda number: number > 5 and number % 4 == 0)
    results = virtually(lambda: bench(server, PLAN, (4,)))
    assert any(note == "4 at once: 3 failed: status 503: too busy" for note in results.notes)
    (level,) = msgspec.to_builtins(results.details)["levels"]
    assert (level["requests"], level["completed"], level["errors"]) == (12, 9, {"status 503: too busy": 3})


def test_tokens_that_are_not_counted_are_said() -> None:
    server = Server(counts=False)
    plan = msgspec.structs.replace(PLAN, prompt_tokens=30)
    results = virtually(lambda: bench(server, plan, (4,)))
    assert any("did not count the tokens of 12" in note for note in results.notes)
    assert {len(prompt.split()) for prompt in server.prompts[5:]} == {30}  # a word for a token


def test_what_is_not_there_is_no_value() -> None:
    plan = msgspec.structs.replace(PLAN, output_tokens=1)
    results = virtually(lambda: bench(Server(), plan, (4,)))
    assert not {"itl_p50_ms", "itl_p99_ms", "tpot_p50_ms"} & values(results).keys()
    assert any("no answer came in more than one piece" in note for note in results.notes)


@pytest.mark.parametrize(("fails_from", "why"), [(1, "the first"), (3, "to warm up"), (6, "none of 12")])
def test_nothing_to_measure_is_an_error(fails_from: int, why: str) -> None:
    server = Server(fails=lambda number: number >= fails_from)
    with pytest.raises(BenchFailed, match=f"{why}.*status 503: too busy"):
        virtually(lambda: bench(server, PLAN, (4,)))
