"""Run all tests in two halves, side by side: those of processes wait most of the time, the others compute.

`python tests/halves.py` takes about two thirds of the time of `python -m pytest`, and runs the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

PROCESSES = "tests/process"


def main() -> int:
    """Run both halves; return the first status that is not 0."""
    with tempfile.TemporaryFile() as output:
        first = [sys.executable, "-m", "pytest", "-o", "cache_dir=.pytest_cache/process", PROCESSES]
        second = [sys.executable, "-m", "pytest", f"--ignore={PROCESSES}"]
        with subprocess.Popen(first, stdout=output, stderr=subprocess.STDOUT) as processes:
            try:
                others = subprocess.call(second)
                status = processes.wait()
            finally:
                processes.terminate()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    return others or status


if __name__ == "__main__":
    sys.exit(main())
