"""`vidette doctor`: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import itertools

import msgspec

from vidette import __version__
from vidette.cli._findings import Finding, can_run, examine
from vidette.cli._parser import explain


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette doctor`."""
    parser.add_argument(
        "--torch", action="store_true", help="import torch, which takes seconds, and ask it for CUDA devices"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    explain(
        parser,
        "vidette doctor --torch",
        note="Nothing is downloaded or compiled. Exit status: 0 if an engine can run, 1 if not.",
    )


def doctor(options: argparse.Namespace) -> int:
    """Look at all of it and print what was found; return 0 if an engine can run."""
    findings = examine(torch=options.torch)
    runs = can_run(findings)
    if options.json:
        report = {"command": "doctor", "version": __version__, "can_run": runs, "findings": findings}
        print(msgspec.json.encode(report).decode())
    else:
        print(render(findings))
    return 0 if runs else 1


def render(findings: list[Finding]) -> str:
    """Return what was found as lines for people: an area, its things, and below each what to do about it."""
    lines = [f"vidette {__version__}"]
    for area, group in itertools.groupby(findings, lambda finding: finding.area):
        lines += ["", area]
        for finding in group:
            lines.append(f"  {finding.state:<8} {finding.name}: {finding.text}")
            if finding.advice:
                lines.append(f"           {finding.advice}")
    stops = [finding.name for finding in findings if finding.needed and finding.state != "ok"]
    verdict = f"an engine cannot run: see {', '.join(stops)}" if stops else "an engine can run"
    return "\n".join([*lines, "", verdict])
