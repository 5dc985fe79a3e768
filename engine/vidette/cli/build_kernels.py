"""`vidette build-kernels`: compile the native kernels ahead of time."""

from __future__ import annotations

import argparse
import time

from vidette.cli._parser import explain
from vidette.cli._run import say
from vidette.kernels.build import compile_kernels
from vidette.kernels.library import load_kernels
from vidette.kernels.target import TARGETS, missing_features
from vidette.testing.report import check, make_report


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette build-kernels`."""
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default="native",
        help="this very machine, any x86-64 with AVX2, or whatever the compiler is for (default: native)",
    )
    parser.add_argument("--force", action="store_true", help="compile even if that was done before")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")
    explain(parser, "vidette build-kernels --target avx2")


def build_kernels(options: argparse.Namespace) -> int:
    """Compile, unless that was done before; print where the library is and what it is for."""
    started = time.monotonic()
    compiled = False

    def starting() -> None:
        nonlocal compiled
        compiled = True
        say(f"compiling the native kernels for {options.target}, which takes some seconds")

    path = compile_kernels(target=options.target, force=options.force, starting=starting)
    seconds = time.monotonic() - started
    missing = missing_features(options.target)
    isa = None if missing else load_kernels(path).isa  # loaded as a proof, too
    size = path.stat().st_size
    if options.json:
        details = {"path": str(path), "target": options.target, "isa": isa, "compiled": compiled}
        checks = [check("build_s", seconds, "s"), check("library_kib", size / 1024, "KiB")]
        print(make_report("build-kernels", checks, details=details).to_json())
    else:
        runs = f"for {isa}" if isa else f"not for this processor, which lacks {', '.join(missing)}"
        print(f"{path}: {runs}, {size / 1024:.0f} KiB, ", end="")
        print(f"compiled in {seconds:.1f} s" if compiled else "was there already")
    return 0
