"""What passed a link, in a file: written by the side that receives, read by `vidette wire`.

A file is `MAGIC`, then records: a little-endian u32 length, and that many bytes. The first record is a JSON
object, a `CaptureHead`; each other one is a u64 of nanoseconds on the machine's monotonic clock, when the
frame had come, and the frame. A process that is killed leaves whole records, and at most one that is torn.

Prompts and answers are in it: a file can be read by its owner alone.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from vidette.errors import UsageError
from vidette_protocol.messages import PROTOCOL_VERSION

MAGIC: Final = b"VDWIRE1\n"
SUFFIX: Final = ".vdwire"
LENGTH: Final = struct.Struct("<I")
TIME: Final = struct.Struct("<Q")


class CaptureHead(Struct, kw_only=True, frozen=True):
    """What a capture says of itself.

    Args:
        sender: role that sent the frames.
        receiver: role that received and recorded them.
        protocol: PROTOCOL_VERSION of the receiver.
    """

    sender: str
    receiver: str
    protocol: int = PROTOCOL_VERSION


class Record(NamedTuple):
    """One frame that passed.

    Args:
        ns: when it had come, in nanoseconds on the monotonic clock.
        frame: as it came off the link.
    """

    ns: int
    frame: bytes


class Capture(Struct, frozen=True):
    """What was read from a file.

    Args:
        head: which link it is of, and which way.
        records: what passed, in order.
        torn: bytes at the end that are no whole record.
    """

    head: CaptureHead
    records: tuple[Record, ...]
    torn: int = 0


class Recorder:
    """Writes what one side of a link receives.

    Args:
        folder: where its file is made; the folder exists.
        head: which link it is of, and which way.
        incarnation: how often the processes were started before; each time has files of its own.

    Raises:
        UsageError: there is such a file already, or it cannot be made.
    """

    def __init__(self, folder: Path, head: CaptureHead, *, incarnation: int = 0) -> None:
        again = f"-{incarnation}" if incarnation else ""
        path = folder / f"{head.sender}-to-{head.receiver}{again}{SUFFIX}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}", param="capture") from error
        # Not buffered: what was received before a process is killed is in the file.
        self._file = FileIO(descriptor, "w")
        self._write(msgspec.json.encode(head), MAGIC)

    def record(self, frame: bytes | bytearray) -> None:
        """Write a frame that has just come; it blocks for as long as the file does.

        If it cannot be written, as on a full disk, recording ends. The engine goes on, and the torn end of
        the file tells.
        """
        if self._file.closed:
            return
        try:
            self._write(TIME.pack(time.monotonic_ns()) + frame)
        except OSError:
            self._file.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _write(self, body: bytes, before: bytes = b"") -> None:
        rest = memoryview(before + LENGTH.pack(len(body)) + body)
        while rest:
            rest = rest[self._file.write(rest) :]


@contextmanager
def recording(
    folder: str | None, *, sender: str, receiver: str, incarnation: int = 0
) -> Iterator[Recorder | None]:
    """Open a recorder for as long as a block runs; None if nothing is to be recorded.

    Args:
        folder: an existing folder; None: record nothing.
        sender: role at the other end of the link.
        receiver: role at this end.
        incarnation: as Recorder.

    Raises:
        UsageError: as Recorder.
    """
    if folder is None:
        yield None
        return
    recorder = Recorder(Path(folder), CaptureHead(sender=sender, receiver=receiver), incarnation=incarnation)
    try:
        yield recorder
    finally:
        recorder.close()


def read_capture(path: Path) -> Capture:
    """Read a file that a Recorder wrote.

    Raises:
        UsageError: it cannot be read, or is no such file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if not data.startswith(MAGIC):
        raise UsageError(f"{path} is no capture of a link: it does not begin with {MAGIC!r}")
    bodies, torn = _cut(memoryview(data)[len(MAGIC) :])
    try:
        head = msgspec.json.decode(bodies[0] if bodies else b"", type=CaptureHead)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} does not say which link it is of: {error}") from error
    records = []
    for body in bodies[1:]:
        if len(body) < TIME.size:
            raise UsageError(f"{path} has a record of {len(body)} bytes, too short for a time")
        records.append(Record(TIME.unpack_from(body)[0], bytes(body[TIME.size :])))
    return Capture(head, tuple(records), torn)


def _cut(rest: memoryview) -> tuple[list[memoryview], int]:
    """Return the whole records, and how many bytes are left."""
    bodies = []
    while len(rest) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(rest)[0]
        if end > len(rest):
            break
        bodies.append(rest[LENGTH.size : end])
        rest = rest[end:]
    return bodies, len(rest)
