"""A long run of everything that tries to break the protocol: `make fuzz SECONDS=600`.

Worlds are explored breadth first, histories are walked at random far beyond that, and frames are tampered
with, each for a third of the time. Exit status 1, and the story, if anything is found.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from vidette_fuzz.explore import LONG_CONFIGURATIONS, explore
from vidette_fuzz.frames import run_codec
from vidette_fuzz.machines import run_lifecycle

FRAMES_A_ROUND = 20_000


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description="Try to break the protocol, for a while.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long in all (default: 60)")
    parser.add_argument("--seed", type=int, help="of histories and frames (default: drawn, and said)")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    share = options.seconds / 3
    found = [*search(share), *walk(share, seed), *tamper(share, seed)]
    for story in found:
        print(f"\n{story}")
    return 1 if found else 0


def search(seconds: float) -> list[str]:
    """Explore what is too large for every push; the time is shared out."""
    found = []
    end = time.monotonic() + seconds
    for place, (name, bounds) in enumerate(LONG_CONFIGURATIONS.items()):
        left = max(0.0, end - time.monotonic())
        exploration = explore(bounds=bounds, budget_s=left / (len(LONG_CONFIGURATIONS) - place))
        reach = "all of them" if exploration.complete else f"to depth {exploration.depth}"
        print(f"explored {name}: {exploration.states} states, {reach}", flush=True)
        if exploration.violation is not None:
            found.append(str(exploration.violation))
    return found


def walk(seconds: float, seed: int) -> list[str]:
    """Walk random histories."""
    report = run_lifecycle(seconds=seconds, seed=seed)
    print(f"walked {report.histories} histories", flush=True)
    return [str(violation) for violation in report.violations]


def tamper(seconds: float, seed: int) -> list[str]:
    """Decode frames that were tampered with."""
    end = time.monotonic() + seconds
    frames = 0
    found: list[str] = []
    while not found and time.monotonic() < end:
        report = run_codec(FRAMES_A_ROUND, seed + frames)
        frames += report.frames
        found += report.violations
    print(f"decoded {frames} frames")
    return found


if __name__ == "__main__":
    sys.exit(main())
