"""Where compiled kernels are kept: whole or not at all, and nobody else may write there.

A library runs as whoever loads it. So the folder is made for its owner alone, and what others may have
written is neither used nor loaded. Beside each library lies its SHA-256, which is put in place first:
a library whose checksum is missing or another is as good as none.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vidette.errors import KernelError

SUFFIX: Final = ".so"
"""What names of libraries end in."""
TEMPORARY: Final = ".build-"
"""What names of folders begin with in which a library is being made."""
KEPT: Final = 4
"""Libraries of one target that are kept, the latest used: of machines or environments that share a folder."""
LOCK_SECONDS: Final = 75.0
"""How long another process may build while we wait."""

_CHECKSUM: Final = ".sha256"
_LOCK: Final = "lock"
_LOCK_LOOK_SECONDS: Final = 0.02
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def kernels_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of compiled kernels; it need not exist.

    Args:
        environ: the environment to look in (default: the process's). `$VIDETTE_HOME/kernels` comes first,
            then `$XDG_CACHE_HOME/vidette/kernels`, then `~/.cache/vidette/kernels`. An empty variable counts
            as absent.

    Raises:
        KernelError: there is no home directory.
    """
    env = os.environ if environ is None else environ
    if home := env.get("VIDETTE_HOME"):
        return Path(home) / "kernels"
    if cache := env.get("XDG_CACHE_HOME"):
        return Path(cache) / "vidette" / "kernels"
    try:
        return Path.home() / ".cache" / "vidette" / "kernels"
    except RuntimeError as exc:  # a user without a home
        raise KernelError(f"there is no place for native kernels, set VIDETTE_HOME: {exc}") from exc


def make_directory(directory: Path) -> None:
    """Make the directory, for its owner alone, unless it is there.

    Raises:
        KernelError: others may write there, or it belongs to somebody else.
        OSError: it cannot be made.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(directory, directory.stat())


def check_trust(library: Path) -> None:
    """Look whether a library can be ours, before it is loaded.

    Raises:
        KernelError: it, or its directory, belongs neither to us nor to root, or others may write to it; or
            it is no regular file.
        OSError: it is not there.
    """
    _check_owner(library.parent, library.parent.stat())
    status = library.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise KernelError(f"{library} is no regular file, and is not loaded")
    _check_owner(library, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise KernelError(f"{path} belongs to user {status.st_uid}, so kernels from there are not loaded")
    if status.st_mode & _OTHERS_WRITE:
        raise KernelError(
            f"others may write to {path}, so kernels from there are not loaded; `chmod go-w {path}` helps, "
            "if nobody has"
        )


@contextmanager
def locked(directory: Path, *, seconds: float = LOCK_SECONDS) -> Iterator[bool]:
    """Keep other processes from building in a directory; yields False where a file system has no locks.

    Args:
        directory: it must exist.
        seconds: how long to wait for another one.

    Raises:
        KernelError: another one still builds.
        OSError: the lock cannot be made.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise KernelError(
                        f"another process has been building kernels in {directory} for {seconds:g} s"
                    ) from None
                time.sleep(_LOCK_LOOK_SECONDS)
            except OSError as exc:
                if exc.errno not in _NO_LOCKS:
                    raise
                yield False  # two may build the same at once then; the last one's is kept
                return
            else:
                yield True
                return
    finally:
        os.close(descriptor)


def is_whole(library: Path) -> bool:
    """Return whether a library is there, and is what was put there."""
    try:
        said = _checksum_of(library).read_text(encoding="ascii", errors="replace")
        with library.open("rb") as file:
            return said == _checksum_line(hashlib.file_digest(file, "sha256").hexdigest(), library)
    except OSError:
        return False


def put(built: Path, library: Path) -> None:
    """Move what was built into its place, with its checksum.

    Args:
        built: the library; on the same file system, in a directory that nobody else writes to.
        library: where it belongs.

    Raises:
        OSError: it cannot be done.
    """
    with built.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    checksum = built.with_name(f"{built.name}{_CHECKSUM}")
    checksum.write_text(_checksum_line(digest, library), encoding="ascii")
    for path in (checksum, built):
        path.chmod(0o644)  # whatever the umask; the directory is closed to others
    checksum.replace(_checksum_of(library))
    built.replace(library)


def mark_used(library: Path) -> None:
    """Make it one of those that are kept, where that can be written down."""
    with suppress(OSError):
        os.utime(library)


def remove_old(directory: Path, prefix: str) -> None:
    """Remove all but the KEPT latest used of those libraries whose names begin alike.

    Raises:
        OSError: the directory cannot be read.
    """
    ages = {}
    for path in directory.glob(f"{prefix}*{SUFFIX}"):
        with suppress(FileNotFoundError):
            ages[path] = path.stat().st_mtime_ns
    for path in sorted(ages, key=ages.__getitem__, reverse=True)[KEPT:]:
        path.unlink(missing_ok=True)
        _checksum_of(path).unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove what builds that were killed have left; only while no other can be at work."""
    for path in directory.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(f"*{SUFFIX}{_CHECKSUM}"):
        if not path.with_name(path.name.removesuffix(_CHECKSUM)).exists():
            path.unlink(missing_ok=True)


def _checksum_of(library: Path) -> Path:
    return library.with_name(f"{library.name}{_CHECKSUM}")


def _checksum_line(digest: str, library: Path) -> str:
    """What `sha256sum --check` reads."""
    return f"{digest}  {library.name}\n"
