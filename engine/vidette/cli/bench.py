"""`vidette bench`: measure parts of the engine, each against a baseline in the same run."""

from __future__ import annotations

import argparse
import math
import os
from typing import TYPE_CHECKING

from vidette.cli import bench_http, bench_load, bench_model
from vidette.cli._options import add_backend_option
from vidette.cli._parser import explain
from vidette.cli._run import Stop, run, say
from vidette.config import Topology
from vidette.errors import UsageError
from vidette.testing.report import Check, check, make_report

if TYPE_CHECKING:
    from vidette.bench.results import Results

TURNS = 40
QUICK_TURNS = 2
STEPS = 100
QUICK_STEPS = 5


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench`."""
    kinds = parser.add_subparsers(title="what to measure", required=True, metavar="KIND", dest="kind")
    wire = kinds.add_parser("wire", help="the codec, and how messages and tensors get to another process")
    wire.add_argument("--runs", type=_runs, default=9, metavar="N", help="values of each kind (default: 9)")
    wire.add_argument("--quick", action="store_true", help="little work a run: values not to be quoted")
    wire.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of contents and of their order (default: 0)"
    )
    scheduler = kinds.add_parser("scheduler", help="what a step costs beside the model")
    scheduler.add_argument(
        "--runs", type=_runs, default=5, metavar="N", help="values of each kind (default: 5)"
    )
    scheduler.add_argument("--quick", action="store_true", help="few steps a run: values not to be quoted")
    prefix = kinds.add_parser("prefix", help="what requests save that begin alike")
    prefix.add_argument(
        "--model", default="toy", metavar="MODEL", help="as with `vidette generate` (default: toy)"
    )
    prefix.add_argument(
        "--topology",
        choices=("processes", "inline"),
        default="processes",
        help="supervised processes, or all in one (default: processes)",
    )
    prefix.add_argument(
        "--requests",
        type=_several,
        default=32,
        metavar="N",
        help="how many requests begin alike (default: 32)",
    )
    prefix.add_argument(
        "--prefix-tokens",
        type=_runs,
        default=1000,
        metavar="TOKENS",
        help="how long what they share is, made up to whole blocks (default: 1000)",
    )
    prefix.add_argument("--runs", type=_runs, default=3, metavar="N", help="values of each kind (default: 3)")
    prefix.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all tokens (default: 0)")
    add_backend_option(prefix)
    serve = kinds.add_parser("serve", help="a server under load, seen by its clients")
    bench_load.add_options(serve)
    idle = kinds.add_parser("idle", help="CPU time of an engine that has nothing to do")
    idle.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="SECONDS", help="length of each run (default: 10)"
    )
    idle.add_argument("--runs", type=_runs, default=1, metavar="N", help="runs of each topology (default: 1)")
    idle.add_argument("--topology", choices=("processes", "inline"), help="only one of them (default: both)")
    idle.add_argument(
        "--model", default="toy", metavar="MODEL", help="as with `vidette generate` (default: toy)"
    )
    add_backend_option(idle)
    model = kinds.add_parser("model", help="steps of a model, against the floor and against llama.cpp")
    bench_model.add_model_options(model)
    quality = kinds.add_parser("quality", help="predictions of a model, against its weights in float32")
    bench_model.add_quality_options(quality)
    overhead = kinds.add_parser("overhead", help="what processes and HTTP cost beside the model")
    bench_http.add_overhead_options(overhead)
    abort = kinds.add_parser("abort", help="how soon what a client leaves behind is free")
    bench_http.add_abort_options(abort)
    for kind in (wire, scheduler, prefix, serve, idle, model, quality, overhead, abort):
        kind.add_argument("--json", action="store_true", help="print a report as the last line")
    explain(parser, "vidette bench wire --quick", "vidette bench serve --url http://127.0.0.1:8000")


def bench(options: argparse.Namespace) -> int:
    """Measure, and say what was found; whatever it is, it is no failure."""
    measure = {
        "wire": _wire,
        "scheduler": _scheduler,
        "prefix": _prefix,
        "serve": bench_load.bench_serve,
        "idle": _idle,
        "model": bench_model.bench_model,
        "quality": bench_model.bench_quality,
        "overhead": bench_http.bench_overhead,
        "abort": bench_http.bench_abort,
    }[options.kind]
    results, status = measure(options)
    if results is None:  # a signal came
        return status
    checks = [check(finding.name, finding.values, finding.unit) for finding in results.findings]
    notes = [*results.notes, f"load average at the end: {os.getloadavg()[0]:.1f}"]
    for line in (*map(_line, checks), *notes):
        say(line)
    if options.json:
        print(make_report(f"bench {options.kind}", checks, notes=notes, details=results.details).to_json())
    return status


def _wire(options: argparse.Namespace) -> tuple[Results | None, int]:
    try:
        from vidette.bench.interleave import Effort  # noqa: PLC0415
        from vidette.bench.wire import bench_codecs, bench_links, in_order  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; `pip install vidette[bench]` adds it") from error
    turns = QUICK_TURNS if options.quick else TURNS
    effort = Effort.seeded(options.seed, runs=options.runs, turns=turns)
    results = bench_codecs(effort, say=say)
    complete = False

    async def program(_: Stop) -> int:
        nonlocal results, complete
        results += await bench_links(effort, say=say)
        complete = True
        return 0

    status = run(program)
    return in_order(results) if complete else None, status


def _scheduler(options: argparse.Namespace) -> tuple[Results | None, int]:
    from vidette.bench.scheduler import bench_scheduler  # noqa: PLC0415

    steps = QUICK_STEPS if options.quick else STEPS
    return bench_scheduler(runs=options.runs, steps=steps, say=say), 0


def _prefix(options: argparse.Namespace) -> tuple[Results | None, int]:
    from vidette.bench.prefix import bench_prefix  # noqa: PLC0415

    results: Results | None = None

    async def program(_: Stop) -> int:
        nonlocal results
        results = await bench_prefix(
            options.model,
            topology=options.topology,
            requests=options.requests,
            prefix=options.prefix_tokens,
            runs=options.runs,
            seed=options.seed,
            say=say,
        )
        return 0

    status = run(program, backend=options.backend)
    return results, status


def _idle(options: argparse.Namespace) -> tuple[Results | None, int]:
    from vidette.bench.idle import bench_idle  # noqa: PLC0415

    topologies: tuple[Topology, ...] = (options.topology,) if options.topology else ("inline", "processes")
    results: Results | None = None

    async def program(_: Stop) -> int:
        nonlocal results
        results = await bench_idle(
            options.model, topologies, seconds=options.seconds, runs=options.runs, say=say
        )
        return 0

    status = run(program, backend=options.backend)
    return results, status


def _line(found: Check) -> str:
    return f"{found.name:<42} {found.value:>9.4g} {found.unit:<2} ({found.low:.4g} to {found.high:.4g})"


def _runs(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _several(text: str) -> int:
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"{text} is not 2 or more")
    return number


def _seconds(text: str) -> float:
    seconds = float(text.removesuffix("s"))
    if not 0 < seconds < math.inf:  # NaN neither
        raise argparse.ArgumentTypeError(f"{text} is no time in seconds")
    return seconds
