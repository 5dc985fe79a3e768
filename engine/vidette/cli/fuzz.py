"""`vidette fuzz`: try to break the protocol, or check that what should break it does."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from vidette.cli._parser import explain
from vidette.cli._run import say
from vidette.errors import UsageError
from vidette.testing.report import Check, check, make_report

if TYPE_CHECKING:
    from vidette_fuzz.mutant import Mutant

FRAMES_A_ROUND = 20_000


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette fuzz`."""
    kinds = parser.add_subparsers(title="what to do", required=True, metavar="KIND", dest="kind")
    explore = kinds.add_parser("explore", help="walk every world within bounds, breadth first")
    explore.add_argument(
        "--budget", type=_seconds, default=60.0, metavar="SECONDS", help="how long, such as 60s (default: 60)"
    )
    explore.add_argument(
        "--mutant",
        metavar="NAME|all",
        help="explore a seeded bug, or check that all are caught (default: none)",
    )
    explore.add_argument(
        "--workers", type=int, metavar="N", help="processes at a time (default: one for each processor)"
    )
    explore.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="go on from FILE if it exists; how far it came is kept there (default: nowhere)",
    )
    lifecycle = kinds.add_parser("lifecycle", help="walk random histories of requests")
    lifecycle.add_argument(
        "--mutant", metavar="NAME|all", help="as with `vidette fuzz explore` (default: none)"
    )
    codec = kinds.add_parser("codec", help="decode frames that were tampered with")
    codec.add_argument(
        "--frames",
        type=int,
        default=0,
        metavar="N",
        help="go on until there were so many, if that is longer (default: 0)",
    )
    simulate = kinds.add_parser("simulate", help="run the engine on a clock that jumps, against an adversary")
    simulate.add_argument(
        "--mutant", metavar="NAME|all", help="as with explore, in the engine's own code (default: none)"
    )
    replay = kinds.add_parser("replay", help="tell one history of simulate again")
    replay.add_argument("seed", type=int, metavar="SEED", help="as simulate says it")
    replay.add_argument("--mutant", metavar="NAME", help="with a seeded bug in the engine (default: none)")
    for kind in (lifecycle, codec, simulate):
        kind.add_argument(
            "--seconds", type=float, default=30.0, metavar="SECONDS", help="how long (default: 30)"
        )
        kind.add_argument(
            "--seed", type=int, default=0, metavar="N", help="seed of everything random (default: 0)"
        )
    for kind in (explore, lifecycle, codec, simulate, replay):
        kind.add_argument("--json", action="store_true", help="print a report as the last line")
    explain(parser, "vidette fuzz lifecycle --seconds 10 --seed 7", "vidette fuzz explore --budget 60s")


def fuzz(options: argparse.Namespace) -> int:
    """Run; return 1 if an invariant was broken, with the story on stderr."""
    try:
        import vidette_fuzz.machines  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; `pip install vidette[fuzz]` adds it") from error
    run = {
        "explore": _explore,
        "lifecycle": _lifecycle,
        "codec": _codec,
        "simulate": _simulate,
        "replay": _replay,
    }[options.kind]
    result = run(options)
    for story in result.stories:
        say(story)
    if options.json:
        notes, faults = list(result.notes), result.faults
        print(make_report(f"fuzz {options.kind}", result.checks, notes=notes, faults=faults).to_json())
    return 1 if result.failed else 0


class Result(NamedTuple):
    """What a run found.

    Args:
        checks: for other programs.
        stories: of what was found.
        failed: whether that makes the run fail.
        notes: sentences for the report.
        faults: what was done on purpose, by kind.
    """

    checks: list[Check]
    stories: list[str]
    failed: bool
    notes: Sequence[str] = ()
    faults: Mapping[str, int] | None = None


def _explore(options: argparse.Namespace) -> Result:
    from vidette_fuzz.explore import SavedByAnother, explore  # noqa: PLC0415
    from vidette_fuzz.workers import Outcome, explore_all  # noqa: PLC0415

    def caught(mutant: Mutant) -> tuple[str | None, str]:
        found = explore(mutant.small)
        story = found.violation
        if story is None:
            return None, f"none of {found.states} states"
        return str(story), f"{len(story.story)} steps, after {found.states} states and {found.seconds:.2f} s"

    def tell(outcome: Outcome) -> None:
        say(str(outcome))
        notes.append(str(outcome))

    if options.mutant is not None:
        return _mutants(options.mutant, caught)
    if options.workers is not None and options.workers < 1:
        raise UsageError(f"--workers {options.workers} is not at least 1")
    notes: list[str] = []
    began = time.monotonic()
    try:
        outcomes = explore_all(options.budget, workers=options.workers, saved=options.resume, report=tell)
    except SavedByAnother as error:
        raise UsageError(f"{options.resume}: {error}; take it away to begin anew") from error
    seconds = time.monotonic() - began
    stories = [f"{outcome.name}:\n{outcome.story}" for outcome in outcomes if outcome.story is not None]
    checks = [
        check("states", sum(outcome.whole + outcome.states for outcome in outcomes), "states"),
        check("states_per_s", sum(outcome.new for outcome in outcomes) / seconds, "1/s"),
        check("depth", max(outcome.depth for outcome in outcomes), "steps"),
        check("violations", len(stories), "stories"),
    ]
    return Result(checks, stories, bool(stories), notes)


def _lifecycle(options: argparse.Namespace) -> Result:
    from vidette_fuzz.machines import run_lifecycle  # noqa: PLC0415

    def caught(mutant: Mutant) -> tuple[str | None, str]:
        report = run_lifecycle(options.seconds, options.seed, make=mutant.large, shrink=False)
        found = f"{report.histories} histories"
        return (str(report.violations[0]) if report.violations else None), found

    if options.mutant is not None:
        return _mutants(options.mutant, caught)
    report = run_lifecycle(options.seconds, options.seed)
    say(f"{report.histories} histories, {_told(report.faults)}")
    checks = [
        check("histories", report.histories, "histories"),
        check("simulated_s", 0.0, "s"),  # worlds have no clock: what takes time may happen at any moment
        check("faults", report.faults.total(), "faults"),
        check("violations", len(report.violations), "stories"),
    ]
    return Result(checks, list(map(str, report.violations)), bool(report.violations), faults=report.faults)


def _codec(options: argparse.Namespace) -> Result:
    from vidette_fuzz.frames import run_codec  # noqa: PLC0415

    end, frames, found = time.monotonic() + options.seconds, 0, list[str]()
    while not found and (time.monotonic() < end or frames < options.frames):
        report = run_codec(FRAMES_A_ROUND, options.seed + frames)
        frames += report.frames
        found += report.violations
    say(f"{frames} frames")
    checks = [check("frames", frames, "frames"), check("violations", len(found), "frames")]
    return Result(checks, found, bool(found))


def _simulate(options: argparse.Namespace) -> Result:
    from vidette_fuzz.simulate import run_simulation  # noqa: PLC0415
    from vidette_fuzz.simulation.mutants import ENGINE_MUTANTS, EngineMutant  # noqa: PLC0415

    def caught(mutant: EngineMutant) -> tuple[str | None, str]:
        report = run_simulation(options.seconds, options.seed, mutant.build)
        return (str(report.violations[0]) if report.violations else None), f"{report.histories} histories"

    if options.mutant is not None:
        return _hunt(options.mutant, ENGINE_MUTANTS, caught)
    report = run_simulation(options.seconds, options.seed)
    hours = report.seconds / 3600
    say(f"{report.histories} histories, {report.requests} requests, {hours:.1f} simulated hours")
    say(_told(report.faults))
    checks = [
        check("histories", report.histories, "histories"),
        check("simulated_s", report.seconds, "s"),
        check("faults", report.faults.total(), "faults"),
        check("violations", len(report.violations), "stories"),
        *(check(f"faults_{kind}", number, "faults") for kind, number in sorted(report.faults.items())),
    ]
    notes = [f"`vidette fuzz replay {history.seed}` tells it again" for history in report.violations]
    stories = [*map(str, report.violations), *notes]
    return Result(checks, stories, bool(report.violations), notes, report.faults)


def _replay(options: argparse.Namespace) -> Result:
    from vidette_fuzz.simulate import simulate  # noqa: PLC0415
    from vidette_fuzz.simulation.engine import Build  # noqa: PLC0415
    from vidette_fuzz.simulation.mutants import ENGINE_MUTANTS  # noqa: PLC0415

    if options.mutant is not None and options.mutant not in ENGINE_MUTANTS:
        raise UsageError(f"there is no mutant {options.mutant!r}; there are {', '.join(ENGINE_MUTANTS)}")
    build = Build() if options.mutant is None else ENGINE_MUTANTS[options.mutant].build
    history = simulate(options.seed, build)
    checks = [
        check("simulated_s", history.seconds, "s"),
        check("faults", history.faults.total(), "faults"),
        check("violations", len(history.violations), "rules"),
    ]
    return Result(checks, [str(history)], bool(history.violations), faults=history.faults)


def _told(faults: Counter[str]) -> str:
    kinds = ", ".join(f"{kind} {number}" for kind, number in faults.most_common())
    return f"{faults.total()} faults: {kinds}" if kinds else "no faults"


class _Named(Protocol):
    """A mutant of either kind."""

    @property
    def name(self) -> str: ...

    @property
    def report(self) -> str: ...


M = TypeVar("M", bound=_Named)


def _mutants(name: str, hunt: Callable[[Mutant], tuple[str | None, str]]) -> Result:
    """Hunt one mutant, whose story makes the run fail; or all of them, of which each must be caught."""
    from vidette_fuzz.mutants import MUTANTS  # noqa: PLC0415

    return _hunt(name, MUTANTS, hunt)


def _hunt(name: str, mutants: Mapping[str, M], hunt: Callable[[M], tuple[str | None, str]]) -> Result:
    if name != "all" and name not in mutants:
        raise UsageError(f"there is no mutant {name!r}; there are {', '.join(mutants)} and all")
    hunted = list(mutants.values()) if name == "all" else [mutants[name]]
    stories = []
    for mutant in hunted:
        story, effort = hunt(mutant)
        if story is not None:
            stories.append(story)
        say(f"{mutant.name}: {'SURVIVED' if story is None else 'caught'}, {effort} ({mutant.report})")
    checks = [check("mutants", len(hunted), "mutants"), check("killed", len(stories), "mutants")]
    if name == "all":
        return Result(checks, [], len(stories) < len(hunted))
    return Result(checks, stories, bool(stories))


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
