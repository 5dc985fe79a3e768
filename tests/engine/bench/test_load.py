"""When requests are sent: on a clock that does not wait, with requests that take what they are told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import repeat
from math import inf
from random import Random
from typing import TypeVar

import anyio
import pytest
import trio
from trio.testing import MockClock

from vidette.bench.latency import Answer, summarise
from vidette.bench.load import poisson, run_closed, run_open

T = TypeVar("T")


def virtually(program: Callable[[], Awaitable[T]]) -> T:
    """Run a program on a clock that jumps to whatever is next."""
    return trio.run(program, clock=MockClock(autojump_threshold=0))


class Server:
    """Answers after a time, and notes how many wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.numbers: list[int] = []
        self.started: list[float] = []
        self.at_once = self.most = 0
        self.heard: list[Answer] = []

    async def ask(self, number: int) -> Answer:
        self.numbers.append(number)
        answer = Answer(anyio.current_time(), pieces=[])
        self.started.append(answer.started)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await anyio.sleep(self.seconds)
        self.at_once -= 1
        answer.ended = anyio.current_time()
        return answer


def test_a_closed_loop_keeps_as_many_under_way_as_it_has_users() -> None:
    server = Server(0.5)

    async def program() -> list[Answer]:
        return await run_closed(server.ask, concurrency=4, requests=10, heard=server.heard.append)

    answers = virtually(program)
    assert sorted(server.numbers) == list(range(10))
    assert server.most == 4
    assert server.heard == answers
    assert summarise(answers).seconds == pytest.approx(1.5)  # four, four and two
    assert summarise(answers).request_s == pytest.approx(10 / 1.5)


def test_a_closed_loop_ends_in_time_and_waits_for_what_is_under_way() -> None:
    server = Server(0.4)

    async def program() -> list[Answer]:
        return await run_closed(
            server.ask, concurrency=2, requests=None, seconds=1.0, heard=server.heard.append
        )

    answers = virtually(program)
    assert len(answers) == 6  # at 0, 0.4 and 0.8 seconds
    assert summarise(answers).seconds == pytest.approx(1.2)


def test_there_are_no_more_users_than_requests() -> None:
    server = Server(1.0)

    async def program() -> list[Answer]:
        return await run_closed(server.ask, concurrency=64, requests=3, heard=server.heard.append)

    assert len(virtually(program)) == server.most == 3


def test_an_open_loop_sends_when_it_is_due_however_slow_the_server() -> None:
    server = Server(10.0)

    async def program() -> tuple[list[Answer], float]:
        return await run_open(server.ask, gaps=repeat(0.25), requests=5, heard=server.heard.append)

    answers, late = virtually(program)
    began = server.started[0]
    assert [start - began for start in server.started] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert server.most == 5
    assert len(answers) == 5
    assert late < 1e-9


def test_an_open_loop_ends_in_time() -> None:
    server = Server(1.0)

    async def program() -> tuple[list[Answer], float]:
        return await run_open(
            server.ask, gaps=repeat(0.4), requests=None, seconds=1.0, heard=server.heard.append
        )

    assert len(virtually(program)[0]) == 3  # at 0, 0.4 and 0.8 seconds


def test_what_one_arrival_is_late_by_the_next_is_not() -> None:
    clock = MockClock(autojump_threshold=0)
    server = Server(1.0)

    async def ask(number: int) -> Answer:
        answer = await server.ask(number)
        if number == 0:
            clock.jump(1.5)  # just as the second is due
        return answer

    async def program() -> tuple[list[Answer], float]:
        return await run_open(ask, gaps=repeat(1.25), requests=4, heard=server.heard.append)

    _, late = trio.run(program, clock=clock)
    assert [start - server.started[0] for start in server.started] == pytest.approx([0, 2.5, 2.5, 3.75])
    assert late == pytest.approx(1.25)


def test_a_client_that_cannot_keep_up_shows() -> None:
    clock = MockClock()  # time passes only where it is told to

    async def slow(number: int) -> Answer:
        await trio.lowlevel.checkpoint()
        clock.jump(3.0)
        return Answer(trio.current_time(), pieces=[], ended=trio.current_time())

    async def program() -> float:
        return (await run_open(slow, gaps=repeat(1.0), requests=3, heard=lambda _: None))[1]

    assert trio.run(program, clock=clock) >= 2.0


def test_arrivals_come_at_their_rate_and_know_nothing_of_each_other() -> None:
    gaps = poisson(20.0, Random(5))
    found = [next(gaps) for _ in range(20_000)]
    mean = sum(found) / len(found)
    deviation = (sum((gap - mean) ** 2 for gap in found) / len(found)) ** 0.5
    assert mean == pytest.approx(1 / 20, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)  # as of an exponential distribution
    again = poisson(20.0, Random(5))
    assert [next(again) for _ in range(20)] == found[:20]


async def test_loads_run_on_both_backends() -> None:
    async def ask(number: int) -> Answer:
        await anyio.lowlevel.checkpoint()
        return Answer(0.0, pieces=[], error=None if number % 2 else "odd")

    heard: list[Answer] = []
    with anyio.fail_after(20):
        closed = await run_closed(ask, concurrency=3, requests=7, seconds=inf, heard=heard.append)
        opened, _ = await run_open(ask, gaps=repeat(0.0), requests=7, heard=heard.append)
    assert (len(closed), len(opened), len(heard)) == (7, 7, 14)
    assert summarise(closed).errors == {"odd": 4}
