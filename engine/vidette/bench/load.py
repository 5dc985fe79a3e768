"""Loads: when each request of a benchmark is sent. What a request is, whoever starts a load says.

A closed loop has a number of users: each sends its next request once the one before is answered, so a slow
server is asked less. An open loop sends requests when they are due, however many are not answered yet, as
users do who know nothing of each other: what a server falls behind by shows in its latencies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from math import inf
from random import Random

import anyio
import anyio.lowlevel

from vidette.bench.latency import Answer

Ask = Callable[[int], Awaitable[Answer]]
"""Sends the request of a number, from 0, and returns what came of it; raises nothing."""
Heard = Callable[[Answer], None]
"""Told of each answer as it comes."""


async def run_closed(
    ask: Ask, *, concurrency: int, requests: int | None, seconds: float = inf, heard: Heard
) -> list[Answer]:
    """Send requests in a closed loop.

    Args:
        ask: sends one.
        concurrency: how many are under way at once.
        requests: how many in all; None: as many as there is time for.
        seconds: after which no more are begun; those under way are waited for.
        heard: told of each answer.
    """
    numbers = _numbers(requests)
    until = anyio.current_time() + seconds
    answers: list[Answer] = []

    async def use() -> None:
        for number in numbers:
            answer = await ask(number)
            answers.append(answer)
            heard(answer)
            if anyio.current_time() >= until:
                return

    async with anyio.create_task_group() as users:
        for _ in range(concurrency if requests is None else min(concurrency, requests)):
            users.start_soon(use)
    return answers


async def run_open(
    ask: Ask, *, gaps: Iterator[float], requests: int | None, seconds: float = inf, heard: Heard
) -> tuple[list[Answer], float]:
    """Send requests in an open loop.

    Args:
        ask: sends one.
        gaps: seconds from one arrival to the next; the first request is sent at once.
        requests: how many in all; None: as many as there is time for.
        seconds: after which no more are sent; those under way are waited for.
        heard: told of each answer.

    Returns:
        The answers, and by how many seconds the latest request was sent too late: if that is not little, it
        is this client that was too slow.
    """
    due = began = anyio.current_time()
    late = 0.0
    answers: list[Answer] = []

    async def use(number: int) -> None:
        answer = await ask(number)
        answers.append(answer)
        heard(answer)

    async with anyio.create_task_group() as users:
        for number in _numbers(requests):
            if due - began >= seconds:
                break
            await anyio.sleep_until(due)
            late = max(late, anyio.current_time() - due)
            users.start_soon(use, number)
            due += next(gaps)
    return answers, late


def poisson(rate: float, rng: Random) -> Iterator[float]:
    """Yield the gaps between arrivals that know nothing of each other, so many a second on average."""
    while True:
        yield rng.expovariate(rate)


def _numbers(requests: int | None) -> Iterator[int]:
    return count() if requests is None else islice(count(), requests)
