"""A storm of requests, many of them left at random moments, with rids that are used again at once.

`python -m vidette.testing.storm --requests 300 --seed 7 --model toy --json`

Every worker owns one rid and uses it for one request after the other. What it checks, whatever happens:
a request that is not left comes to its own end; it has as many tokens as its finish reason says; with the
toy model the same prompt, parameters and seed always give the same text, also in the midst of the storm;
the engine has counted one end for each request that it took; afterwards every ledger in every process is
zero, and the next request answers.

With `--kill-every N` a process of the engine, scheduler and detokenizers in turn, is killed (`kill -9`) each
time another N requests have begun. Nothing else changes: the same has to hold for requests that go on after
that as for any others.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from random import Random
from typing import Any, Final, Literal, NamedTuple

import anyio
import msgspec
from msgspec import Struct

from vidette.api import Engine, open_engine
from vidette.errors import EngineBroken, Error
from vidette.front.stream import Completion, Stream
from vidette.front.totals import Totals
from vidette.testing.report import Check, check, make_report
from vidette_protocol.messages import SamplingParams

PROMPTS = 24
"""How many different requests a storm repeats, so that texts can be compared."""
FOLLOWING_SECONDS = 120.0
"""How long the request after the storm may take."""
SUPERVISED: Final[dict[str, Any]] = {
    "supervision": "restart",
    "max_restarts": 1_000_000,
    "restart_delay": 0.05,
    "max_restart_delay": 0.05,
}
"""Options of an engine whose processes are killed over and over: it does not give up, nor wait longer."""

Leave = Literal["never", "time", "deltas", "exception"]
LEAVES: Final[tuple[Leave, ...]] = ("time", "deltas", "exception")


class Outcome(Struct):
    """What became of a storm's requests.

    Args:
        finished: how many came to their own ends.
        cancelled: how many were left before.
        resumed: how many of those that finished had gone on after the death of a process.
        killed: roles of the processes that were killed, in order.
        errors: what went wrong, in sentences.
    """

    finished: int = 0
    cancelled: int = 0
    resumed: int = 0
    killed: list[str] = []
    errors: list[str] = []


class Plan(NamedTuple):
    """One request of a storm, and when it is left.

    Args:
        prompt: text.
        params: sampling parameters, with a seed.
        leave: "never", or by what it is left.
        after: seconds (by a deadline), or deltas (by a plain exit of the block).
    """

    prompt: str
    params: SamplingParams
    leave: Leave
    after: float


class StormFailure(Exception):  # noqa: N818
    """Raised inside a request's block on purpose, to leave it by an exception."""


async def run_storm(
    engine: Engine,
    *,
    requests: int,
    cancel: float = 0.5,
    seed: int = 0,
    streams: int = 48,
    compare: bool = True,
    kill_every: int | None = None,
) -> Outcome:
    """Send requests and leave a share of them at random moments.

    Args:
        engine: an engine that nobody else uses meanwhile.
        requests: how many.
        cancel: share of them that is left, 0 to 1.
        seed: of everything random; the moments are still those of a real clock.
        streams: how many live at once.
        compare: whether equal requests must give equal texts (a model whose arithmetic depends on the
            batch may differ where two tokens are almost equally probable).
        kill_every: kill a process each time so many requests have begun; the engine has to be supervised by
            "restart" and to have processes. It is an error if that kills none. None: none is killed.
    """
    random = Random(seed)  # noqa: S311  a storm, not a secret
    plans = _plans(random, requests, cancel, _longest(engine))
    outcome = Outcome()
    texts: dict[tuple[str, SamplingParams], str] = {}
    killer = _Killer(engine, outcome, kill_every, first=seed)
    before = engine.statistics()

    async def worker(rid: str) -> None:
        while plans:
            plan = plans.pop()
            killer.note()
            try:
                completion = await _run(engine, rid, plan)
            except StormFailure:
                outcome.cancelled += 1
            except Error as error:
                outcome.errors.append(f"{type(error).__name__}: {error}")
            else:
                if completion is None:
                    outcome.cancelled += 1
                else:
                    outcome.finished += 1
                    outcome.resumed += completion.resumed > 0
                    fault = _fault(plan, completion, texts if compare else None)
                    if fault is not None:
                        outcome.errors.append(fault)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(killer.run)
        async with anyio.create_task_group() as workers:
            for number in range(min(streams, requests)):
                workers.start_soon(worker, f"slot-{number}")
        killer.stop()
    outcome.errors += killer.missed()
    with anyio.move_on_after(FOLLOWING_SECONDS) as quieting:
        await engine.wait_quiet()
    if quieting.cancelled_caught:
        outcome.errors.append(f"something still lives after {FOLLOWING_SECONDS:g} s: {engine.statistics()}")
    outcome.errors += _miscounted(before.totals, engine.statistics().totals)
    return outcome


class _Killer:
    """Kills a process each time that enough requests have begun.

    Args:
        engine: whose processes it kills.
        outcome: what it kills is noted there.
        every: how many requests have to begin before each; None: it kills nothing.
        first: whom it kills first of those that it kills in turn; any number.
    """

    def __init__(self, engine: Engine, outcome: Outcome, every: int | None, *, first: int) -> None:
        self._engine = engine
        self._outcome = outcome
        self._every = every
        self._first = first
        self._begun = 0
        self._due = 0
        self._stopped = False
        self._news = anyio.Event()

    def note(self) -> None:
        """Note that a request begins."""
        self._begun += 1
        if self._every is not None and self._begun % self._every == 0:
            self._due += 1
            self._news.set()

    def stop(self) -> None:
        """Note that no more will begin; `run` returns when all that are due were killed and started again."""
        self._stopped = True
        self._news.set()

    async def run(self) -> None:
        """Kill, until told to stop."""
        killed = self._outcome.killed
        while True:
            if len(killed) == self._due:
                if self._stopped:
                    return
                await self._news.wait()
                self._news = anyio.Event()
                continue
            try:
                await self._engine.wait_turning()
                pids = {process.role: process.pid for process in self._engine.statistics().processes}
                if not pids:
                    return  # inline
                victim = sorted(pids, reverse=True)[(self._first + len(killed)) % len(pids)]
                os.kill(pids[victim], signal.SIGKILL)
                killed.append(victim)
                with suppress(EngineBroken):  # told to whoever asks, once the death is noticed
                    while True:
                        await self._engine.heartbeat()
                await self._engine.wait_turning()
            except Error as error:
                after = f"after the death of the {killed[-1]}" if killed else "before any death"
                self._outcome.errors.append(f"{after}: {error}")
                return

    def missed(self) -> list[str]:
        """Return in a sentence, if it is so, that not all were killed that had to be, or that none had to."""
        killed = len(self._outcome.killed)
        if self._every is None or killed == self._due > 0:
            return []
        return [
            f"{self._due} processes were to be killed, one after each {self._every} requests; {killed} were"
        ]


def _miscounted(before: Totals, after: Totals) -> list[str]:
    """Return in a sentence, if it is so, that the engine did not count one end for each request."""
    begun = after.submitted - before.submitted
    ended = _ends(after) - _ends(before)
    return [] if begun == ended else [f"the engine counts {begun} requests, and {ended} ends of requests"]


def _ends(totals: Totals) -> int:
    return totals.finished + totals.aborted + totals.failed


def _longest(engine: Engine) -> int:
    return min(400, engine.max_total_tokens // 4)


def _plans(random: Random, requests: int, cancel: float, longest: int) -> list[Plan]:
    letters = "abcdefghij klmnop qrstuvwxyz äöü 日本 🦊."
    kinds = [
        (
            "".join(random.choices(letters, k=random.choice([1, 5, 40, longest]))),
            SamplingParams(
                max_new_tokens=random.randint(1, 48),
                temperature=random.choice([0.0, 0.7, 1.0]),
                top_p=random.choice([1.0, 0.9]),
                top_k=random.choice([-1, 20]),
                ignore_eos=random.random() < 0.5,
                sampling_seed=random.randrange(1 << 32),
            ),
        )
        for _ in range(PROMPTS)
    ]
    plans = []
    for _ in range(requests):
        prompt, params = random.choice(kinds)
        if random.random() >= cancel:
            plans.append(Plan(prompt, params, "never", 0))
            continue
        leave = random.choice(LEAVES)
        after = random.choice([0.0, random.uniform(0, 0.05)]) if leave == "time" else random.randint(0, 6)
        plans.append(Plan(prompt, params, leave, after))
    return plans


async def _run(engine: Engine, rid: str, plan: Plan) -> Completion | None:
    """Run one request; return None if it was left before its end."""
    if plan.leave == "time":
        with anyio.move_on_after(plan.after):
            async with engine.generate(plan.prompt, sampling_params=plan.params, rid=rid) as stream:
                return await stream.read()
        return None
    async with engine.generate(plan.prompt, sampling_params=plan.params, rid=rid) as stream:
        if plan.leave == "never":
            return await stream.read()
        if await _read_deltas(stream, int(plan.after)):
            return stream.completion()
        if plan.leave == "exception":
            raise StormFailure
    return None


async def _read_deltas(stream: Stream, count: int) -> bool:
    """Read so many deltas; return whether that was all of them."""
    while count:
        delta = await anext(stream, None)
        if delta is None or delta.finish_reason is not None:
            return True
        count -= 1
    return False


def _fault(
    plan: Plan, completion: Completion, texts: dict[tuple[str, SamplingParams], str] | None
) -> str | None:
    """Return what is wrong with an answer, in a sentence."""
    reason, made = completion.finish_reason, completion.completion_tokens
    if reason.type not in ("stop", "length"):
        return f"{completion.rid}: ended by {reason.type}, though it was not left"
    if reason.type == "length" and made != plan.params.max_new_tokens:
        return f"{completion.rid}: {made} tokens, not {plan.params.max_new_tokens}"
    if texts is None:
        return None
    expected = texts.setdefault((plan.prompt, plan.params), completion.text)
    if completion.text != expected:
        return f"{completion.rid}: {completion.text!r} is not the {expected!r} of the same request before"
    return None


async def _main(options: argparse.Namespace) -> int:
    started = time.monotonic()
    supervised = SUPERVISED if options.kill_every else {}
    async with open_engine(
        options.model, topology=options.topology, detokenizers=options.detokenizers, **supervised
    ) as engine:
        kills = f", and kill -9 after each {options.kill_every}" if options.kill_every else ""
        print(f"{options.requests} requests, {options.cancel:.0%} of them left early{kills}", file=sys.stderr)
        outcome = await run_storm(
            engine,
            requests=options.requests,
            cancel=options.cancel,
            seed=options.seed,
            streams=options.streams,
            compare=options.model == "toy",
            kill_every=options.kill_every,
        )
        with anyio.move_on_after(FOLLOWING_SECONDS) as following:
            params = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)
            async with engine.generate("after the storm", sampling_params=params, rid="slot-0") as stream:
                completion = await stream.read()
                if completion.completion_tokens != params.max_new_tokens:
                    outcome.errors.append(f"the following request made {completion.completion_tokens} tokens")
            await engine.wait_quiet()
            await engine.heartbeat()
        if following.cancelled_caught:
            outcome.errors.append(f"the following request did not answer within {FOLLOWING_SECONDS} s")
        statistics = engine.statistics()
    ledgers = statistics.ledgers
    leaks = ledgers.total()
    checks: list[Check] = [
        check("finished", outcome.finished, "requests"),
        check("cancelled", outcome.cancelled, "requests"),
        check("errors", len(outcome.errors), "requests"),
        check("leaks", leaks, "entries"),
    ]
    notes = outcome.errors[:20]
    if options.kill_every:
        checks += [
            check("kills", len(outcome.killed), "kills"),
            check("resumed", outcome.resumed, "requests"),
        ]
        notes.append(
            f"killed: {', '.join(outcome.killed) or 'none'}; {statistics.totals.resumed} requests were "
            f"resumed, {outcome.resumed} of them came to their own ends"
        )
    report = make_report("storm", checks, ledgers=msgspec.structs.asdict(ledgers), notes=notes)
    for note in notes:
        print(note, file=sys.stderr)
    counted = ", ".join(f"{int(item.value)} {item.name}" for item in checks)
    print(f"{counted} in {time.monotonic() - started:.1f} s", file=sys.stderr)
    if options.json:
        print(report.to_json())
    return 1 if outcome.errors or leaks else 0


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if nothing was violated, 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m vidette.testing.storm", description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--cancel", type=float, default=0.5, help="share that is left early (default 0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--streams", type=int, default=48, help="how many live at once (default 48)")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument(
        "--kill-every", type=int, metavar="N", help="kill a process each time N requests have begun"
    )
    parser.add_argument(
        "--topology", choices=["processes", "inline"], help="(default inline; with --kill-every processes)"
    )
    parser.add_argument("--detokenizers", type=int, default=1, help="how many the engine has (default 1)")
    parser.add_argument("--model", default="toy", help="a known name, toy, or a GGUF file (default toy)")
    parser.add_argument("--json", action="store_true", help="print a report as the last line")
    options = parser.parse_args(argv)
    if options.requests < 1 or options.streams < 1 or not 0 <= options.cancel <= 1:
        parser.error("--requests and --streams are at least 1, --cancel is from 0 to 1")
    if options.kill_every is not None:
        if options.kill_every < 1:
            parser.error("--kill-every is at least 1")
        if options.topology == "inline":
            parser.error("--kill-every kills processes, and with --topology inline there are none")
        if options.kill_every > options.requests:
            parser.error(f"--kill-every {options.kill_every} kills nobody with --requests {options.requests}")
    options.topology = options.topology or ("inline" if options.kill_every is None else "processes")
    try:
        return anyio.run(_main, options, backend=options.backend)
    except Error as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
