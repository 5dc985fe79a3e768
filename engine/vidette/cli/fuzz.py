"""`vidette fuzz`: try to break the protocol, or check that what should break it does."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from vidette.cli._run import say
from vidette.errors import UsageError
from vidette.testing.report import Check, check, make_report

if TYPE_CHECKING:
    from vidette_fuzz.mutants import Mutant

FRAMES_A_ROUND = 20_000


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette fuzz`."""
    kinds = parser.add_subparsers(title="what to do", required=True, metavar="KIND", dest="kind")
    explore = kinds.add_parser("explore", help="walk every world within bounds, breadth first")
    explore.add_argument("--budget", type=_seconds, default=60.0, metavar="SECONDS", help="such as 60s")
    explore.add_argument(
        "--mutant", metavar="NAME|all", help="explore a seeded bug, or check that all are caught"
    )
    lifecycle = kinds.add_parser("lifecycle", help="walk random histories of requests")
    lifecycle.add_argument("--mutant", metavar="NAME|all", help="as with explore")
    codec = kinds.add_parser("codec", help="decode frames that were tampered with")
    for kind in (lifecycle, codec):
        kind.add_argument("--seconds", type=float, default=30.0, metavar="N", help="how long (default: 30)")
        kind.add_argument(
            "--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)"
        )
    for kind in (explore, lifecycle, codec):
        kind.add_argument("--json", action="store_true", help="print a report as the last line")


def fuzz(options: argparse.Namespace) -> int:
    """Run; return 1 if an invariant was broken, with the story on stderr."""
    try:
        import vidette_fuzz.machines  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed; `pip install vidette[fuzz]` adds it") from error
    run = {"explore": _explore, "lifecycle": _lifecycle, "codec": _codec}[options.kind]
    checks, stories, failed = run(options)
    for story in stories:
        say(story)
    if options.json:
        print(make_report(f"fuzz {options.kind}", checks).to_json())
    return 1 if failed else 0


Result = tuple[list[Check], list[str], bool]
"""Checks, stories of what was found, and whether that makes the run fail."""


def _explore(options: argparse.Namespace) -> Result:
    from vidette_fuzz.explore import CONFIGURATIONS, LONG_CONFIGURATIONS, explore, explore_all  # noqa: PLC0415

    def caught(mutant: Mutant) -> list[str]:
        found = explore(mutant.parts, mutant.bounds).violation
        return [] if found is None else [str(found)]

    if options.mutant is not None:
        return _mutants(options.mutant, caught)
    configurations = {**CONFIGURATIONS, **LONG_CONFIGURATIONS}
    explorations = explore_all(options.budget, configurations=configurations)
    for name, exploration in explorations:
        reach = "all of them" if exploration.complete else f"up to depth {exploration.depth}"
        say(f"{name}: {exploration.states} states, {reach}, {exploration.states_per_s:.0f} a second")
    states = sum(exploration.states for _, exploration in explorations)
    seconds = sum(exploration.seconds for _, exploration in explorations)
    violations = [e.violation for _, e in explorations if e.violation is not None]
    checks = [
        check("states", states, "states"),
        check("states_per_s", states / seconds if seconds else 0, "1/s"),
        check("depth", max(exploration.depth for _, exploration in explorations), "steps"),
        check("violations", len(violations), "stories"),
    ]
    return checks, list(map(str, violations)), bool(violations)


def _lifecycle(options: argparse.Namespace) -> Result:
    from vidette_fuzz.machines import run_lifecycle  # noqa: PLC0415

    def caught(mutant: Mutant) -> list[str]:
        report = run_lifecycle(mutant.parts, options.seconds, options.seed, bounds=mutant.bounds)
        return list(map(str, report.violations))

    if options.mutant is not None:
        return _mutants(options.mutant, caught)
    report = run_lifecycle(seconds=options.seconds, seed=options.seed)
    say(f"{report.histories} histories")
    checks = [
        check("histories", report.histories, "histories"),
        check("violations", len(report.violations), "stories"),
    ]
    return checks, list(map(str, report.violations)), bool(report.violations)


def _codec(options: argparse.Namespace) -> Result:
    import time  # noqa: PLC0415

    from vidette_fuzz.frames import run_codec  # noqa: PLC0415

    end, frames, found = time.monotonic() + options.seconds, 0, list[str]()
    while not found and time.monotonic() < end:
        report = run_codec(FRAMES_A_ROUND, options.seed + frames)
        frames += report.frames
        found += report.violations
    say(f"{frames} frames")
    return [check("frames", frames, "frames"), check("violations", len(found), "frames")], found, bool(found)


def _mutants(name: str, stories_of: Callable[[Mutant], list[str]]) -> Result:
    """Hunt one mutant, whose story makes the run fail; or all of them, of which each must be caught."""
    from vidette_fuzz.mutants import MUTANTS  # noqa: PLC0415

    if name != "all" and name not in MUTANTS:
        raise UsageError(f"there is no mutant {name!r}; there are {', '.join(MUTANTS)} and all")
    hunted = list(MUTANTS.values()) if name == "all" else [MUTANTS[name]]
    found = {mutant.name: stories_of(mutant) for mutant in hunted}
    for mutant in hunted:
        say(f"{mutant.name}: {'caught' if found[mutant.name] else 'SURVIVED'} ({mutant.report})")
    killed = sum(map(bool, found.values()))
    checks = [check("mutants", len(hunted), "mutants"), check("killed", killed, "mutants")]
    if name == "all":
        return checks, [], killed < len(hunted)
    return checks, found[name], bool(killed)


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
