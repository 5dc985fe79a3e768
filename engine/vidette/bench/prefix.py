"""`vidette bench prefix`: what requests save that begin alike, through a whole engine.

One request comes first and finds nothing; those behind it, one by one, find the prefix that it left. Then as
many come at once with another prefix, which none of them finds: one computes it, and the others wait for
that. How many tokens were computed the scheduler itself has counted.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import median
from typing import Final, NamedTuple

import anyio

from vidette.api import Engine, open_engine
from vidette.bench.results import Finding, Results
from vidette.config import Topology
from vidette.models.interface import BLOCK_SIZE
from vidette_protocol.messages import SamplingParams

OWN: Final = 8
"""Tokens of each prompt behind the prefix, which no other has."""
PARAMS: Final = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True)


class _Found(NamedTuple):
    """What one run found; times in seconds, tokens of the prefix, however often."""

    cold: float
    warm: float
    one_by_one: int
    together: float
    at_once: int


async def bench_prefix(
    model: str,
    *,
    topology: Topology,
    requests: int,
    prefix: int,
    runs: int,
    seed: int,
    say: Callable[[str], None],
) -> Results:
    """Measure what a shared prefix saves.

    Args:
        model: a known name, "toy" or a path.
        topology: of the engine.
        requests: how many share a prefix; at least 2.
        prefix: tokens of it; made up to whole blocks, since only those are shared.
        runs: values of each kind.
        seed: of all tokens.
        say: told what is measured next.
    """
    rng = Random(seed)
    tokens = -(-prefix // BLOCK_SIZE) * BLOCK_SIZE
    say(f"opening {model}, {topology}")
    async with open_engine(model, topology=topology) as engine:
        made = _Prompts(rng, engine.info.vocab_size)
        await _first(engine, made.prefix(tokens) + made.own(0))  # whatever is slower the first time
        found = []
        for run in range(runs):
            say(f"run {run + 1} of {runs}: {requests} requests share {tokens} tokens")
            found.append(await _run(engine, made, requests, tokens))
    warm, cold = median(one.warm for one in found), median(one.cold for one in found)
    together = median(one.together for one in found)
    return Results(
        [
            Finding("ttft_warm_vs_cold", "x", [one.warm / one.cold for one in found]),
            Finding("prefix_tokens_computed", "tokens", [max(one.one_by_one, one.at_once) for one in found]),
        ],
        [
            f"{model}, {topology}; {requests} requests share {tokens} tokens and have {OWN} of their own",
            f"TTFT of the first {1e3 * cold:.1f} ms, median of the others, one by one, {1e3 * warm:.1f} ms",
            f"all at once: median TTFT {1e3 * together:.1f} ms",
            f"tokens of the prefix computed one by one: {[one.one_by_one for one in found]}",
            f"tokens of the prefix computed all at once: {[one.at_once for one in found]}",
        ],
    )


async def _run(engine: Engine, made: _Prompts, requests: int, tokens: int) -> _Found:
    prefix = made.prefix(tokens)
    before = await _computed(engine)
    times = [await _first(engine, prefix + made.own(number)) for number in range(requests)]
    between = await _computed(engine)
    prefix, together = made.prefix(tokens), list[float]()

    async def ask(number: int) -> None:
        together.append(await _first(engine, prefix + made.own(number)))

    async with anyio.create_task_group() as tasks:
        for number in range(requests):
            tasks.start_soon(ask, number)
    after = await _computed(engine)
    own = requests * OWN
    return _Found(
        times[0], median(times[1:]), between - before - own, median(together), after - between - own
    )


async def _computed(engine: Engine) -> int:
    """Return how many tokens prefills have computed by now."""
    await engine.wait_quiet()
    return (await engine.heartbeat()).scheduler.prompt_tokens


async def _first(engine: Engine, prompt: list[int]) -> float:
    """Return how long the first token of an answer takes; read it to its end."""
    began, first = anyio.current_time(), 0.0
    async with engine.generate(prompt, sampling_params=PARAMS) as stream:
        async for _ in stream:
            first = first or anyio.current_time()
    return first - began


class _Prompts:
    """Token ids that no other prompt has begun with."""

    def __init__(self, rng: Random, vocab_size: int) -> None:
        self._rng = rng
        self._most = min(vocab_size, 256)  # ordinary ones, in any vocabulary

    def prefix(self, tokens: int) -> list[int]:
        return self._rng.choices(range(32, self._most), k=tokens)

    def own(self, number: int) -> list[int]:
        return [
            32 + number % 128,
            32 + number // 128 % 128,
            *self._rng.choices(range(32, self._most), k=OWN - 2),
        ]
