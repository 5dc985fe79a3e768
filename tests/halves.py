"""Run all tests in two halves, side by side: those of processes wait most of the time, the others compute.

`python tests/halves.py` takes about two thirds of the time of `python -m pytest`, and runs the same. What
fails is run once more, alone: a test that passes then has found how busy the machine was; it is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROCESSES = "tests/process"
CACHES = (".pytest_cache/process", ".pytest_cache/others")
FEW = 5
"""With more failures than this, something is broken, and nothing is run again."""


def main() -> int:
    """Run both halves; return 0 if all passed, at once or alone."""
    with tempfile.TemporaryFile() as output:
        first, second = command(CACHES[0], PROCESSES), command(CACHES[1], f"--ignore={PROCESSES}")
        with subprocess.Popen(first, stdout=output, stderr=subprocess.STDOUT) as processes:
            try:
                statuses = [subprocess.call(second)]
                statuses.insert(0, processes.wait())
            finally:
                processes.terminate()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    if not any(statuses):
        return 0
    failed = [failures(cache) for cache in CACHES]
    broken = any(status not in (0, 1) for status in statuses)  # 1: some tests failed, and all were run
    if broken or not 0 < sum(map(len, failed)) <= FEW:
        return 1
    for tests, cache in zip(failed, CACHES, strict=True):
        if tests and subprocess.call(command(cache, "--last-failed", *tests)):
            return 1
    for test in (*failed[0], *failed[1]):
        print(f"failed beside the other half, passed alone: {test}")
    return 0


def command(cache: str, *arguments: str) -> list[str]:
    """Return how to run some of the tests."""
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]


def failures(cache: str) -> list[str]:
    """Return the tests that failed in the last run."""
    path = Path(cache, "v/cache/lastfailed")
    return list(json.loads(path.read_text())) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
