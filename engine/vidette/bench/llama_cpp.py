"""llama.cpp's own benchmark of batches, `llama-batched-bench`, run with the sizes that are ours."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from vidette.errors import UsageError

PROGRAM: Final = "llama-batched-bench"
MOST_SECONDS: Final = 600
"""A run that takes longer has failed."""
_CONTEXT_STEP: Final = 256
"""It makes the room for a stream up to multiples of this."""


class Speeds(NamedTuple):
    """Tokens a second, of all streams together."""

    prefill: float
    decode: float


class _Line(msgspec.Struct):
    """What it prints of one size."""

    pp: int
    tg: int
    pl: int
    speed_pp: float
    speed_tg: float


def find_program(folder: Path) -> Path:
    """Return the program in a folder.

    Raises:
        UsageError: it is not there.
    """
    program = folder / PROGRAM
    if not program.is_file():
        raise UsageError(f"there is no {PROGRAM} in {folder}", param="llama_bin")
    return program


class LlamaBench:
    """A program and a file for it.

    Args:
        program: `find_program` knows where it is.
        model: a GGUF file.
        threads: how many it computes with.
    """

    def __init__(self, program: Path, model: Path, *, threads: int) -> None:
        self._program = program
        self._model = model
        self._threads = threads

    def measure(self, *, prompt: int, new: int, streams: int) -> Speeds:
        """Run it once.

        Args:
            prompt: tokens of each prompt.
            new: tokens that are decoded behind it.
            streams: how many at once.

        Raises:
            UsageError: it fails, or prints nothing that we know.
        """
        room = streams * -(-(prompt + new) // _CONTEXT_STEP) * _CONTEXT_STEP
        sizes = {"-npp": prompt, "-ntg": new, "-npl": streams, "-c": room}
        sizes |= {"-t": self._threads, "-tb": self._threads}
        command = [str(self._program), "-m", str(self._model), "--output-format", "jsonl"]
        command += [word for name, value in sizes.items() for word in (name, str(value))]
        try:
            done = subprocess.run(  # noqa: S603  the user says which program
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{PROGRAM}: {error}", param="llama_bin") from error
        for line in done.stdout.splitlines():
            found = _read(line)
            if found is not None and (found.pp, found.tg, found.pl) == (prompt, new, streams):
                return Speeds(found.speed_pp, found.speed_tg)
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UsageError(f"{PROGRAM} ended with {done.returncode}: {said}", param="llama_bin")


def _read(line: str) -> _Line | None:
    """Return what a line says of a size; None: something else."""
    start = line.find("{")
    try:
        return msgspec.json.decode(line[start:], type=_Line) if start >= 0 else None
    except (msgspec.DecodeError, UnicodeError):
        return None
