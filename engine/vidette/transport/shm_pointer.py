"""Tensors in named segments of shared memory: what a `ShmPointer` points at.

Whoever creates a segment owns it, in a ledger, and unlinks it: when every reader has acknowledged, when the
message is dropped before anyone can read it, or when the link closes. A reader only reads, so nothing is
leaked by a message that is aborted, dropped or never decoded; and a reader that has decoded a pointer
acknowledges it exactly once, whether it takes the tensor or not. A process that is killed leaves its
segments behind, but not the locks it held on them: `sweep()` finds them by that.

Segments are read with `preadv`, not mapped: a mapping that its owner shortens kills whoever touches it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import ShmPointer, flatten, restore_tensor

if TYPE_CHECKING:
    import torch

DIRECTORY: Final = Path("/dev/shm")  # noqa: S108  where named shared memory is; not a place for temporary files
PREFIX: Final = "vidette-"
MAX_SEGMENT_BYTES: Final = 1 << 30
"""Longest segment that is written or read."""


class SegmentStatistics(NamedTuple):
    """What a ledger holds just now.

    Args:
        segments: how many segments.
        nbytes: how long they are together.
    """

    segments: int
    nbytes: int


class _Segment(NamedTuple):
    fd: int  # holds the lock that tells `sweep()` that the owner lives
    nbytes: int
    readers: int


class SharedSegments:
    """The ledger of one producer: the segments it has made and not yet unlinked.

    It knows nothing of links; what arrives there is told to it, and all of its calls are synchronous.

    Args:
        directory: where segments lie.
        max_bytes: most bytes in all segments together.
    """

    def __init__(self, *, directory: Path = DIRECTORY, max_bytes: int = MAX_SEGMENT_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segments: dict[str, _Segment] = {}
        self._nbytes = 0

    def create(self, value: object, *, readers: int = 1, precomputed_hash: int | None = None) -> ShmPointer:
        """Copy a tensor or array into a segment of its own.

        Args:
            value: what the readers get a copy of.
            readers: how many acknowledge it.
            precomputed_hash: of its contents, if known.

        Raises:
            TypeError: it is neither, or of a kind that does not travel.
            LocalProtocolError: nobody would read it, or the ledger is full. Send it in the frame instead.
            OSError: the system has no room for it, or no shared memory.
        """
        if readers < 1:
            raise LocalProtocolError(f"a segment with {readers} readers")
        shape, dtype, raw = flatten(value)
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(16)}"
        pointer = ShmPointer(name, shape, dtype, precomputed_hash)
        if self._nbytes + raw.nbytes > self._max_bytes:
            raise LocalProtocolError(f"{raw.nbytes} bytes more than the {self._max_bytes} that may be shared")
        fd = _write_segment(self._directory, name, raw)
        self._segments[name] = _Segment(fd, raw.nbytes, readers)
        self._nbytes += raw.nbytes
        return pointer

    def acknowledge(self, name: str) -> bool:
        """Note that one reader is done with a segment; after the last it is unlinked.

        Returns:
            Whether the segment was there. It is not when it was dropped meanwhile, which is no error.
        """
        segment = self._segments.get(name)
        if segment is None:
            return False
        if segment.readers == 1:
            return self.drop(name)
        self._segments[name] = segment._replace(readers=segment.readers - 1)
        return True

    def drop(self, name: str) -> bool:
        """Unlink a segment, however many have still to acknowledge it.

        Call it when the message was dropped or its request is over. Who reads it just now reads on.

        Returns:
            Whether the segment was there.
        """
        segment = self._segments.pop(name, None)
        if segment is None:
            return False
        self._nbytes -= segment.nbytes
        try:
            (self._directory / name).unlink(missing_ok=True)
        finally:
            os.close(segment.fd)
        return True

    def close(self) -> None:
        """Unlink all segments, as when the readers are gone; idempotent."""
        for name in list(self._segments):
            self.drop(name)

    def statistics(self) -> SegmentStatistics:
        """Return what the ledger holds."""
        return SegmentStatistics(len(self._segments), self._nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_segment(directory: Path, name: str, raw: memoryview) -> int:
    """Write a segment, and give it its name only then; return the descriptor that holds its lock.

    So no reader finds half of one, no sweep finds one whose lock is not yet taken, and nothing is left
    behind if this fails.
    """
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Written, not mapped: without room, writing is an error, and touching a mapping is a signal.
        at = 0
        while at < raw.nbytes:
            at += os.write(fd, raw[at:])
        _name_segment(directory, name, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _name_segment(directory: Path, name: str, fd: int) -> None:
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with a directory's descriptor does Python make the call that follows the link in /proc.
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=at, follow_symlinks=True)
    finally:
        os.close(at)


# --- the reader ------------------------------------------------------------------------------------


def materialise(
    pointer: ShmPointer, acknowledge: Callable[[str], object], *, directory: Path = DIRECTORY
) -> torch.Tensor:
    """Return a copy of the tensor that a pointer points at, and acknowledge the pointer.

    Args:
        pointer: as decoded.
        acknowledge: called once with the segment's name, also when reading fails: it tells the owner.
        directory: where segments lie.

    Raises:
        LocalProtocolError: the pointer was acknowledged before; nothing is read.
        RemoteProtocolError: there is no such segment, or not one of ours as long as the pointer says.
    """
    return restore_tensor(read(pointer, acknowledge, directory=directory), pointer.shape, pointer.dtype)


def read(
    pointer: ShmPointer, acknowledge: Callable[[str], object], *, directory: Path = DIRECTORY
) -> bytearray:
    """Return a copy of the bytes that a pointer points at, and acknowledge the pointer; needs no torch.

    Args and errors are those of `materialise`.
    """
    pointer.acknowledgement.take()
    try:
        return _read_segment(directory, pointer.shm_name, pointer.nbytes)
    finally:
        acknowledge(pointer.shm_name)


def discard(pointer: ShmPointer, acknowledge: Callable[[str], object]) -> None:
    """Acknowledge a pointer that will not be read; do nothing if it was acknowledged.

    Whoever drops a decoded message calls this for each pointer in it, and may call it in any `finally`.
    """
    if not pointer.acknowledgement.taken:
        pointer.acknowledgement.take()
        acknowledge(pointer.shm_name)


def _read_segment(directory: Path, name: str, nbytes: int) -> bytearray:
    if nbytes > MAX_SEGMENT_BYTES:
        raise RemoteProtocolError(f"a segment of {nbytes} bytes; {MAX_SEGMENT_BYTES} are allowed")
    try:
        fd = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RemoteProtocolError(f"segment {name} cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise RemoteProtocolError(f"{name} is no segment of this user's")
        # Pages that are not there take no memory from whoever made them, but would from us.
        if min(found.st_size, found.st_blocks * 512) < nbytes:
            raise RemoteProtocolError(f"segment {name} has {found.st_size} bytes, not {nbytes}")
        raw = bytearray(nbytes)
        with memoryview(raw) as view:
            at = 0
            while at < nbytes:
                got = os.preadv(fd, [view[at:]], at)
                if not got:
                    raise RemoteProtocolError(f"segment {name} was shortened to {at} bytes while it was read")
                at += got
        return raw
    finally:
        os.close(fd)


def sweep(directory: Path = DIRECTORY) -> int:
    """Unlink the segments whose owners have died; return how many.

    Segments of owners that live, here or anywhere, stay: their locks are held.
    """
    swept = 0
    for path in directory.glob(f"{PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue  # gone by now, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            swept += 1
        except OSError:
            continue  # its owner lives, or another sweep was quicker
        finally:
            os.close(fd)
    return swept
