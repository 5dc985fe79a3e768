"""`vidette bench serve`: its options, its progress bar, and its picture."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vidette.cli._options import add_backend_option
from vidette.cli._run import Stop, run, say
from vidette.errors import UsageError

if TYPE_CHECKING:
    from vidette.bench.client import Client
    from vidette.bench.latency import Answer
    from vidette.bench.plot import Level
    from vidette.bench.results import Results
    from vidette.bench.serve import Plan

CONCURRENCY = 8
REQUESTS = 100
PLOT = "bench-serve.png"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench serve`."""
    parser.add_argument(
        "--url", required=True, metavar="URL", help="where the server is, such as http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="which of its models (default: the one that is served)"
    )
    parser.add_argument(
        "--endpoint",
        choices=("chat", "completions"),
        default="chat",
        help="/v1/chat/completions or /v1/completions (default: chat)",
    )
    load = parser.add_argument_group("load")
    kind = load.add_mutually_exclusive_group()
    kind.add_argument(
        "--concurrency",
        type=_count,
        metavar="N",
        help=f"a closed loop: so many requests under way at once (default: {CONCURRENCY})",
    )
    kind.add_argument(
        "--rate",
        type=_positive,
        metavar="R",
        help="an open loop: arrivals a second, at random (Poisson; default: a closed loop)",
    )
    kind.add_argument(
        "--sweep",
        type=_counts,
        metavar="N,N",
        help="closed loops, one after the other, and a plot (default: one)",
    )
    load.add_argument(
        "--requests",
        type=_count,
        metavar="N",
        help=f"how many are sent (default: {REQUESTS}, or what --seconds has time for)",
    )
    load.add_argument(
        "--seconds", type=_positive, metavar="SECONDS", help="send no more after that (default: any time)"
    )
    load.add_argument("--runs", type=_count, default=1, metavar="N", help="values of each kind (default: 1)")
    load.add_argument(
        "--warmup",
        type=_none_or_more,
        default=4,
        metavar="N",
        help="requests sent before it counts (default: 4)",
    )
    load.add_argument(
        "--timeout",
        type=_positive,
        default=600.0,
        metavar="SECONDS",
        help="longest a request may take (default: 600)",
    )
    load.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of prompts and arrivals (default: 0)"
    )
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument(
        "--prompt-tokens",
        type=_count,
        default=128,
        metavar="TOKENS",
        help="about so long are prompts (default: 128)",
    )
    sizes.add_argument(
        "--shared-prefix",
        type=_none_or_more,
        default=0,
        metavar="TOKENS",
        help="so many of them are the same in all (default: 0)",
    )
    sizes.add_argument(
        "--output-tokens", type=_count, default=128, metavar="TOKENS", help="longest answer (default: 128)"
    )
    sizes.add_argument(
        "--ignore-eos", action="store_true", help="ask for just as many, where the server knows `ignore_eos`"
    )
    parser.add_argument(
        "--slo",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="milliseconds a good answer takes at most: ttft, itl, tpot, e2el, such as ttft:200 itl:50 "
        "(default: any answer is good)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"where --sweep draws, as a PNG (default: {PLOT})"
    )
    add_backend_option(parser)


def bench_serve(options: argparse.Namespace) -> tuple[Results | None, int]:
    """Put a server under load; return what was found, or the status of a run that a signal ended."""
    from vidette.bench.client import open_client  # noqa: PLC0415
    from vidette.bench.plot import Level  # noqa: PLC0415
    from vidette.bench.serve import Bench, results_of  # noqa: PLC0415

    plan = _plan(options)
    draw = _drawing(options)
    levels: list[list[Level]] = []
    results: Results | None = None

    async def measure(client: Client) -> Results:
        bench = await Bench.prepare(client, plan, say=say)
        for number in range(options.runs):
            levels.append([])
            for concurrency in options.sweep or [plan.concurrency]:
                what = f"{plan.rate:g} a second" if plan.rate else f"{concurrency} at once"
                with Bar(what if options.runs == 1 else f"{what}, run {number + 1}", plan.requests) as bar:
                    levels[-1].append(Level(concurrency, await bench.measure(concurrency, bar)))
        return results_of(bench, plan, levels)

    async def program(_: Stop) -> int:
        nonlocal results
        async with open_client(options.url, timeout=options.timeout) as client:
            results = await measure(client)
        return 0

    status = run(program, backend=options.backend, uvloop=True)
    if results is not None and draw:
        results.notes.append(_draw(draw, levels[-1], results.details, plan))
    return results, status


class Bar:
    """A progress bar on stderr, where somebody sees it move.

    Args:
        what: is being done.
        requests: how many; None: nobody knows.
    """

    def __init__(self, what: str, requests: int | None) -> None:
        from tqdm import tqdm  # noqa: PLC0415

        self._bar: tqdm[Any] = tqdm(desc=what, total=requests, unit="req", disable=None, file=sys.stderr)
        self._tokens = self._failed = 0

    def heard(self, answer: Answer) -> None:
        """Take note of an answer."""
        self._tokens += answer.output_tokens
        self._failed += answer.error is not None
        self._bar.set_postfix(tokens=self._tokens, failed=self._failed, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def _plan(options: argparse.Namespace) -> Plan:
    from vidette.bench.latency import Objectives  # noqa: PLC0415
    from vidette.bench.serve import Plan  # noqa: PLC0415

    if not options.url.startswith(("http://", "https://")):
        raise UsageError(f"--url is {options.url!r}; it must begin with http:// or https://", param="url")
    if options.plot and not options.sweep:
        raise UsageError("--plot goes with --sweep: one load makes no curve", param="plot")
    if options.shared_prefix >= options.prompt_tokens:
        raise UsageError(
            f"--shared-prefix is {options.shared_prefix}; a prompt has {options.prompt_tokens} tokens in all",
            param="shared_prefix",
        )
    try:
        objectives = Objectives.of(options.slo)
    except ValueError as error:
        raise UsageError(f"--slo: {error}", param="slo") from None
    requests = options.requests
    if requests is None and options.seconds is None:
        requests = REQUESTS
    return Plan(
        endpoint=options.endpoint,
        model=options.model,
        concurrency=options.concurrency or (options.sweep or [CONCURRENCY])[-1],
        rate=options.rate,
        requests=requests,
        seconds=math.inf if options.seconds is None else options.seconds,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        shared_tokens=options.shared_prefix,
        ignore_eos=options.ignore_eos,
        warmup=options.warmup,
        objectives=objectives,
        seed=options.seed,
    )


def _drawing(options: argparse.Namespace) -> Path | None:
    """Return where to draw; None if nowhere. Nothing is measured for a picture that cannot be drawn."""
    if not options.sweep:
        return None
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415
    except ImportError as error:
        missing = f"{error.name} is not installed; `pip install vidette[bench]` adds it"
        if options.plot:
            raise UsageError(missing, param="plot") from error
        say(f"no picture: {missing}")
        return None
    path = options.plot or Path(PLOT)
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot is {path}, in a folder that is not there", param="plot")
    return path


def _draw(path: Path, levels: list[Level], details: Any, plan: Plan) -> str:
    from vidette.bench.plot import plot_latency  # noqa: PLC0415

    sizes = f"{plan.prompt_tokens} tokens of prompt, {plan.output_tokens} of output at most"
    try:
        plot_latency(str(path), levels, f"{details['model']}: {sizes}")
    except OSError as error:
        return f"no picture: {error}"
    return f"the picture is {path}"


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _none_or_more(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return number


def _counts(text: str) -> list[int]:
    return sorted({_count(part) for part in text.split(",")})


def _positive(text: str) -> float:
    number = float(text.removesuffix("s"))
    if not 0 < number < math.inf:  # NaN neither
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number
