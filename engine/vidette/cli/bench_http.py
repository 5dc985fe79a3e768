"""`vidette bench overhead` and `vidette bench abort`: what is measured over HTTP, on both servers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vidette.cli._run import Backend, Stop, run, say

if TYPE_CHECKING:
    from vidette.bench.abort import Leaving
    from vidette.bench.results import Results

BACKENDS: tuple[Backend, ...] = ("asyncio", "trio")


def add_overhead_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench overhead`."""
    parser.add_argument("--runs", type=_count, default=3, metavar="N", help="runs of each kind (default: 3)")
    parser.add_argument(
        "--streams", type=_count, default=64, metavar="N", help="how many are read at once (default: 64)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=_count,
        default=128,
        metavar="TOKENS",
        help="length of each stream (default: 128)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="SECONDS", help="idle time in each run (default: 5)"
    )


def add_abort_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette bench abort`."""
    parser.add_argument(
        "--model", default="toy", metavar="MODEL", help="as with `vidette generate` (default: toy)"
    )
    parser.add_argument(
        "--runs", type=_count, default=20, metavar="N", help="clients of each kind that leave (default: 20)"
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="asyncio for uvicorn, trio for hypercorn (default: both)"
    )


def bench_overhead(options: argparse.Namespace) -> tuple[Results | None, int]:
    """Measure what all that is not the model costs."""
    from vidette.bench.overhead import bench_overhead  # noqa: PLC0415

    results: Results | None = None

    async def program(_: Stop) -> int:
        nonlocal results
        results = await bench_overhead(
            runs=options.runs,
            streams=options.streams,
            chunks=options.max_new_tokens,
            seconds=options.seconds,
            say=say,
        )
        return 0

    status = run(program, uvloop=True)
    return results, status


def bench_abort(options: argparse.Namespace) -> tuple[Results | None, int]:
    """Measure how soon what a client leaves behind is free."""
    from vidette.bench.abort import bench_abort, to_results  # noqa: PLC0415

    leavings: dict[str, list[Leaving]] = {}

    async def program(_: Stop) -> int:
        leavings.update(await bench_abort(options.model, runs=options.runs, say=say))
        return 0

    for backend in (options.backend,) if options.backend else BACKENDS:
        status = run(program, backend=backend, uvloop=True)
        if status:
            return None, status
    return to_results(options.model, leavings), 0


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number
