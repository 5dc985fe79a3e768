"""`vidette bench serve`: what a server with OpenAI's endpoints takes and gives, seen by its clients.

`latency` has the definitions, `load` says when requests are sent, `client` sends them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from vidette.bench.client import BenchFailed, Client, Endpoint, Request
from vidette.bench.latency import ANY, Answer, Objectives, Summary, summarise
from vidette.bench.load import poisson, run_closed, run_open
from vidette.bench.plot import Level
from vidette.bench.prompts import Prompts
from vidette.bench.results import Finding, Results

BUSY: Final = 0.7
"""Share of a core from which on this client may be what is slow."""
KINDS: Final = 8
"""How many kinds of errors are told of; a report has all of them."""
LATE: Final = 0.010
"""Seconds by which a request may be sent late without a word."""
PROBES: Final = (16, 80)
"""Words of the prompts that tell how many tokens a word has, and how many come with any prompt."""


class Progress(Protocol):
    """Shows how far a load is."""

    def heard(self, answer: Answer) -> None:
        """Take note of an answer."""


class Plan(Struct, frozen=True):
    """What is asked of a server.

    Args:
        endpoint: "chat" or "completions".
        model: name; None: the one that is served.
        concurrency: requests under way at once, in a closed loop.
        rate: arrivals a second, in an open loop; None: it is a closed one.
        requests: how many; None: as many as there is time for.
        seconds: after which no more are sent.
        prompt_tokens: of each prompt, about.
        output_tokens: at most, of each answer.
        shared_tokens: of each prompt, about, the same in all from the first.
        ignore_eos: whether answers are to be just as long.
        warmup: requests before what is measured.
        objectives: what a good answer takes.
        seed: of everything random.
    """

    endpoint: Endpoint = "chat"
    model: str | None = None
    concurrency: int = 8
    rate: float | None = None
    requests: int | None = 100
    seconds: float = inf
    prompt_tokens: int = 128
    output_tokens: int = 128
    shared_tokens: int = 0
    ignore_eos: bool = False
    warmup: int = 4
    objectives: Objectives = ANY
    seed: int = 0


class Bench:
    """One server under one plan; made by `prepare`.

    Args:
        client: of the server.
        plan: what is asked of it.
        request: what all requests have in common.
        prompts: of the length that is wanted.
    """

    def __init__(self, client: Client, plan: Plan, request: Request, prompts: Prompts) -> None:
        self._client = client
        self._plan = plan
        self._request = request
        self._prompts = prompts
        self._sent = 0
        self.notes: list[str] = []

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._request.model

    @classmethod
    async def prepare(cls, client: Client, plan: Plan, *, say: Callable[[str], None]) -> Bench:
        """Look what is served, find out how long a word is there, and warm the server up.

        Args:
            client: of the server.
            plan: what will be asked of it.
            say: told what happens.

        Raises:
            BenchFailed: the server does not answer.
        """
        model = plan.model or await client.find_model()
        request = Request(plan.endpoint, model, plan.output_tokens, ignore_eos=plan.ignore_eos)
        extra, each = await _measure_words(client, request, plan)
        words = max(1, round((plan.prompt_tokens - extra) / each))
        shared = min(words - 1, round(max(0.0, plan.shared_tokens - extra) / each))
        bench = cls(client, plan, request, Prompts(plan.seed, words, shared))
        if plan.warmup:
            say(f"{plan.warmup} requests to {model} to warm up")
            answers = await run_closed(
                bench._warm_up, concurrency=plan.concurrency, requests=plan.warmup, heard=lambda _: None
            )
            for answer in answers:
                if answer.error is not None:
                    raise BenchFailed(f"a request to warm up failed: {answer.error}")
        return bench

    async def measure(self, concurrency: int, progress: Progress) -> Summary:
        """Put the server under load once; return what came of it.

        Args:
            concurrency: requests under way at once, if it is a closed loop.
            progress: told of each answer.

        Raises:
            BenchFailed: every request failed, or none was sent.
        """
        plan = self._plan
        first = self._sent
        cpu, pieces, began = time.process_time(), self._client.pieces, time.perf_counter()

        async def ask(number: int) -> Answer:
            self._sent += 1
            return await self._client.ask(self._request, self._prompts.text(first + number))

        if plan.rate is None:
            what, late = f"{concurrency} at once", 0.0
            answers = await run_closed(
                ask,
                concurrency=concurrency,
                requests=plan.requests,
                seconds=plan.seconds,
                heard=progress.heard,
            )
        else:
            what = f"{plan.rate:g} a second"
            gaps = poisson(plan.rate, Random(f"{plan.seed}: arrivals"))
            answers, late = await run_open(
                ask, gaps=gaps, requests=plan.requests, seconds=plan.seconds, heard=progress.heard
            )
        summary = summarise(answers, plan.objectives)
        if not summary.completed:
            why = next(iter(summary.errors), "there was no time for one")
            raise BenchFailed(f"none of {summary.requests} requests was completed: {why}")
        busy = (time.process_time() - cpu) / max(time.perf_counter() - began, 1e-9)
        came = self._client.pieces - pieces
        self.notes += _tell(what, summary, busy, 1e6 * (time.process_time() - cpu) / max(came, 1), late)
        return summary

    async def _warm_up(self, number: int) -> Answer:
        return await self._client.ask(self._request, self._prompts.text(-1 - number))


async def _measure_words(client: Client, request: Request, plan: Plan) -> tuple[float, float]:
    """Return how many tokens come with any prompt, and how many a word has.

    If the server does not say, that is 0 and 1.
    """
    request = msgspec.structs.replace(request, output_tokens=1)
    found = []
    for words in PROBES:
        answer = await client.ask(request, Prompts(plan.seed, words).text(-2 - plan.warmup))
        if answer.error is not None:
            raise BenchFailed(f"the first request failed: {answer.error}")
        found.append(answer.prompt_tokens)
    each = (found[1] - found[0]) / (PROBES[1] - PROBES[0])
    return (found[0] - each * PROBES[0], each) if found[0] and each > 0 else (0.0, 1.0)


def results_of(bench: Bench, plan: Plan, levels: list[list[Level]]) -> Results:
    """Return what was found: of the load with the largest goodput, and of the lightest such load.

    Args:
        bench: that measured.
        plan: that it followed.
        levels: of each run, its loads.
    """
    goodputs = [sum(run[place].summary.goodput_s for run in levels) for place in range(len(levels[0]))]
    best = goodputs.index(max(goodputs))
    found = [run[best].summary for run in levels]
    findings = [
        Finding("request_s", "requests/s", [summary.request_s for summary in found]),
        Finding("output_tok_s", "tokens/s", [summary.output_tok_s for summary in found]),
    ]
    findings += [
        Finding(f"{name}_{percentile}_ms", "ms", values)
        for name, percentile in (
            ("ttft", "p50"),
            ("ttft", "p99"),
            ("itl", "p50"),
            ("itl", "p99"),
            ("tpot", "p50"),
        )
        if (values := _percentiles(found, name, percentile))
    ]
    findings.append(Finding("goodput_s", "requests/s", [summary.goodput_s for summary in found]))
    notes = list(bench.notes)
    if len(goodputs) > 1:
        notes.append(f"the values are those of {levels[0][best].concurrency} at once, the best goodput")
    if plan.objectives == ANY:
        notes.append("no objectives (--slo): every completed request is good")
    notes.append(
        "TTFT: to the first piece with text; ITL: between pieces; TPOT: (last - first) / (tokens - 1)"
    )
    details = {
        "plan": msgspec.structs.asdict(plan),
        "model": bench.model,
        "levels": [
            {"concurrency": level.concurrency, **msgspec.structs.asdict(level.summary)}
            for run in levels
            for level in run
        ],
    }
    return Results(findings, notes, details)


def _percentiles(summaries: Sequence[Summary], name: str, percentile: str) -> list[float]:
    """Return one percentile of each run; nothing if a run has none."""
    found: list[float] = []
    for summary in summaries:
        spread = {"ttft": summary.ttft, "itl": summary.itl, "tpot": summary.tpot}[name]
        if spread is None:
            return []
        found.append({"p50": spread.p50, "p99": spread.p99}[percentile])
    return found


def _tell(what: str, summary: Summary, busy: float, each_us: float, late: float) -> list[str]:
    completed = max(summary.completed, 1)
    notes = []
    notes.append(
        f"{what}: {summary.completed} of {summary.requests} requests completed in {summary.seconds:.1f} s, "
        f"{summary.good} of them good; {summary.prompt_tokens / completed:.0f} tokens of prompt each, "
        f"{summary.cached_tokens / max(summary.prompt_tokens, 1):.0%} of them cached, "
        f"{summary.output_tokens / completed:.0f} of output; "
        f"this client took {busy:.0%} of a core, {each_us:.0f} us for each piece"
    )
    kinds = list(summary.errors.items())
    notes += [f"{what}: {count} failed: {error}" for error, count in kinds[:KINDS]]
    if len(kinds) > KINDS:
        others = sum(count for _, count in kinds[KINDS:])
        notes.append(f"{what}: {others} failed in {len(kinds) - KINDS} other ways")
    if summary.uncounted:
        notes.append(
            f"{what}: the server did not count the tokens of {summary.uncounted}; their pieces were counted"
        )
    if summary.itl is None:
        notes.append(f"{what}: no answer came in more than one piece")
    if busy > BUSY:
        notes.append(f"{what}: this client was busy {busy:.0%} of the time: it may be what is slow")
    if late > LATE:
        notes.append(
            f"{what}: a request was sent {1e3 * late:.0f} ms late: this client is too slow for the rate"
        )
    return notes
