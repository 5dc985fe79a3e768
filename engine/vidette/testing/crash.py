"""A process of the engine is killed while streams run; they go on as if nothing had been.

`python -m vidette.testing.crash --victim scheduler --streams 8 --model toy --json`

The same requests, half of them greedy and half of them sampled by a seed, run twice: undisturbed, and with
the victim killed (`kill -9`) once every stream has begun. What it checks: every stream comes to its own end,
says that it was resumed, and has the text that it has undisturbed.

Equal means equal: a request's logits are the same bits in whatever steps they are computed. Only torch, which
computes where there are no native kernels, may choose otherwise where two tokens are almost equally good.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Final, Literal, NamedTuple

import anyio
import msgspec
from msgspec import Struct

from vidette.api import Engine, open_engine
from vidette.errors import Error
from vidette.front.stream import Completion, Stream
from vidette.models import BLOCK_SIZE
from vidette.testing.report import Check, check, make_report
from vidette_protocol.messages import SamplingParams

Victim = Literal["scheduler", "detokenizer"]

BEGUN_TOKENS: Final = 6
"""How many tokens each stream has had when the victim is killed."""
RUN_SECONDS: Final = 600.0
"""How long all of it may take."""
PROMPTS: Final = (
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):",
    "Wasser kocht bei",
    "The three primary colours are",
    "A recipe for pancakes:",
    "In the year 1862,",
    "日本の首都は",
)


class Plan(NamedTuple):
    """One request, to be run twice."""

    prompt: str
    params: SamplingParams


class Outcome(Struct):
    """What became of the streams.

    Args:
        finished: how many came to their own ends.
        resumed: how many of them say that they were resumed as often as somebody was killed.
        differences: those whose text is not what it is undisturbed, in sentences.
        gaps: of each stream, the longest wait for news, in seconds.
        errors: what went wrong besides, in sentences.
    """

    finished: int = 0
    resumed: int = 0
    differences: list[str] = []
    gaps: list[float] = []
    errors: list[str] = []


def plans(streams: int, tokens: int) -> list[Plan]:
    """Return so many requests of so many output tokens, every other one sampled."""
    return [
        Plan(
            PROMPTS[number % len(PROMPTS)],
            SamplingParams(
                max_new_tokens=tokens,
                temperature=0.8 * (number % 2),
                sampling_seed=number,
                ignore_eos=True,
            ),
        )
        for number in range(streams)
    ]


async def run_crash(
    engine: Engine, *, victim: str, streams: int = 8, tokens: int = 48, kills: int = 1
) -> Outcome:
    """Run requests undisturbed, then again, with a process killed once all of them have begun.

    Args:
        engine: supervised by "restart", with processes, and used by nobody else meanwhile.
        victim: role of the process that is killed.
        streams: how many requests run at once.
        tokens: length of each answer.
        kills: how often; each time all streams have got on since the last.
    """
    outcome = Outcome()
    planned = plans(streams, tokens)
    undisturbed = await _Run(planned).read_all(engine)
    run = _Run(planned)
    completions: list[Completion | str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_kill, engine, victim, run, kills)
        completions = await run.read_all(engine)
        tasks.cancel_scope.cancel()
    outcome.gaps = run.gaps
    for plan, expected, got in zip(planned, undisturbed, completions, strict=True):
        if isinstance(expected, str) or isinstance(got, str):
            outcome.errors += [error for error in (expected, got) if isinstance(error, str)]
            continue
        outcome.finished += 1
        outcome.resumed += got.resumed == kills
        if got.token_ids != expected.token_ids:
            place = _first_difference(expected.token_ids, got.token_ids)
            outcome.differences.append(f"{plan.prompt!r}: another token at {place}")
        elif got.text != expected.text:
            outcome.differences.append(
                f"{plan.prompt!r}: the same tokens, and {got.text!r}, not {expected.text!r}"
            )
    return outcome


class _Run:
    """The requests as they run."""

    def __init__(self, planned: list[Plan]) -> None:
        self.gaps = [0.0] * len(planned)
        self._plans = planned
        self._counts = [0] * len(planned)
        self._news = anyio.Event()

    async def read_all(self, engine: Engine) -> list[Completion | str]:
        """Run all requests at once; return their answers, or in a sentence why there is none."""
        answers: list[Completion | str] = [""] * len(self._plans)

        async def read(number: int) -> None:
            plan = self._plans[number]
            try:
                async with engine.generate(plan.prompt, sampling_params=plan.params) as stream:
                    await self._follow(number, stream)
                    answers[number] = stream.completion()
            except Error as error:
                answers[number] = f"{plan.prompt!r}: {type(error).__name__}: {error}"

        async with anyio.create_task_group() as tasks:
            for number in range(len(self._plans)):
                tasks.start_soon(read, number)
        return answers

    async def _follow(self, number: int, stream: Stream) -> None:
        before: float | None = None
        async for delta in stream:
            now = time.monotonic()
            if before is not None:
                self.gaps[number] = max(self.gaps[number], now - before)
            before = now
            self._counts[number] += len(delta.token_ids)
            self._news.set()

    async def wait_progress(self, tokens: int) -> None:
        """Wait until every stream has got on by so many tokens."""
        wanted = [count + tokens for count in self._counts]
        while any(count < least for count, least in zip(self._counts, wanted, strict=True)):
            self._news = anyio.Event()
            await self._news.wait()


async def _kill(engine: Engine, victim: str, run: _Run, times: int) -> None:
    for _ in range(times):
        await run.wait_progress(BEGUN_TOKENS)
        await engine.wait_turning()
        os.kill(next(p.pid for p in engine.statistics().processes if p.role == victim), signal.SIGKILL)


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def _main(options: argparse.Namespace) -> int:
    tokens = options.tokens or (2000 if options.model == "toy" else 48)
    room = options.streams * (tokens + BLOCK_SIZE * 4)
    async with open_engine(
        options.model,
        topology="processes",
        supervision="restart",
        kv_tokens=max(16384, room),
        threads=options.threads,
    ) as engine:
        print(f"{options.streams} streams, and kill -9 of the {options.victim}", file=sys.stderr)
        outcome = Outcome(errors=[f"it took more than {RUN_SECONDS:g} s"])
        with anyio.move_on_after(RUN_SECONDS):
            outcome = await run_crash(engine, victim=options.victim, streams=options.streams, tokens=tokens)
            await engine.wait_quiet()
            await engine.heartbeat()
        ledgers = engine.statistics().ledgers
    faults = outcome.errors + outcome.differences
    if ledgers.total():
        faults.append(f"something is still held: {ledgers}")
    equal = not faults and outcome.finished == options.streams
    checks: list[Check] = [
        check("streams", outcome.finished, "streams"),
        check("resumed", outcome.resumed, "streams"),
        check("text_equal", int(equal), "yes or no"),
        check("gap_s", outcome.gaps or 0.0, "s"),
    ]
    notes = faults[:20]
    report = make_report("crash", checks, ledgers=msgspec.structs.asdict(ledgers), notes=notes)
    for note in notes:
        print(note, file=sys.stderr)
    print(", ".join(f"{item.name} {item.value:.3g}" for item in checks), file=sys.stderr)
    if options.json:
        print(report.to_json())
    return 0 if equal and outcome.resumed == options.streams else 1


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if all went on as it should, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m vidette.testing.crash", description=__doc__)
    parser.add_argument("--victim", choices=["scheduler", "detokenizer"], default="scheduler")
    parser.add_argument("--streams", type=int, default=8, help="how many run at once (default 8)")
    parser.add_argument("--tokens", type=int, help="of each answer (default 48; of the toy model 2000)")
    parser.add_argument("--threads", type=int, help="that compute a step")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--model", default="toy", help="a known name, toy, or a GGUF file (default toy)")
    parser.add_argument("--json", action="store_true", help="print a report as the last line")
    options = parser.parse_args(argv)
    if options.streams < 1 or not (options.tokens is None or options.tokens > 2 * BEGUN_TOKENS):
        parser.error(f"--streams is at least 1, --tokens more than {2 * BEGUN_TOKENS}")
    try:
        return anyio.run(_main, options, backend=options.backend)
    except Error as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
