"""What a peer may not do with an arena: it is told to it, nothing leaks, and nothing is overwritten."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from vidette.transport.arena import SEALS
from vidette.transport.bulk import BulkOptions, Room
from vidette.transport.channel import Channel, socket_pair
from vidette.transport.link import Link
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.ext.bundle import Part, join_bundle
from vidette_protocol.lifecycle.extents import GRANULE
from vidette_protocol.messages import Message
from vidette_protocol.messages.bulk import ArenaCredit, ArenaOffer
from vidette_protocol.messages.columns import pack_i64

DEADLINE = 20.0
LARGE = 1024 * 1024


class Blob(Message, tag=1000, kw_only=True, frozen=True):
    """What travels."""

    data: object
    more: object = None


@pytest.fixture(autouse=True)
def views_are_gone(no_descriptor_is_left: None) -> Iterator[None]:
    """Let go of what tracebacks, and threads for a moment, hold: memory goes with its last view."""
    yield
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and any("memfd" in str(fd.readlink()) for fd in open_files()):
        gc.collect()


def open_files() -> list[Path]:
    return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]


def codec() -> Codec:
    return Codec(sends=[Blob], receives=[Blob], bulk=True)


class Forger:
    """A peer that says what it likes, against an honest link."""

    def __init__(self, **options: Any) -> None:
        ours, theirs = socket_pair()
        self.channel = Channel(theirs)
        bulk = BulkOptions(**options)
        self.link = Link(Channel(ours), codec(), role="right", peer="left", bulk=bulk, opened=True)
        self.codec = codec()

    def offer(self, nbytes: int, file: FileIO | None) -> None:
        frame = self.codec.encode(ArenaOffer(nbytes=nbytes))
        if file is None:
            self.channel.post(frame)
        else:
            self.channel.post_with_descriptor(frame, file)
        self.channel.flush_nowait()

    def post(self, message: bytes, *parts: Part) -> None:
        self.channel.post_pieces(join_bundle(message, parts))
        self.channel.flush_nowait()

    def describe(self, *shapes: list[int], more: object = None) -> bytes:
        """Encode a message of arrays of bytes, whatever the buffers will be."""
        arrays = [np.zeros(20_000, np.uint8) for _ in shapes]
        encoded, _ = self.codec.encode_parts(Blob(data=arrays, more=more))
        for number, shape in enumerate(shapes):
            old = b"\x91" + b"\xcd\x4e\x20" + b"\xa3|u1" + bytes([number])
            assert len(shape) == 1
            new = b"\x91" + b"\xcd" + shape[0].to_bytes(2, "big") + b"\xa3|u1" + bytes([number])
            assert encoded.count(old) == 1
            encoded = encoded.replace(old, new)
        return encoded

    def close(self) -> None:
        self.link.close()
        self.channel.close()


@pytest.fixture
def forger() -> Iterator[Forger]:
    made = Forger()
    yield made
    made.close()
    gc.collect(1)  # tracebacks hold views


def memory(nbytes: int, seals: int = SEALS) -> FileIO:
    file = FileIO(os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
    os.posix_fallocate(file.fileno(), 0, nbytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


async def test_an_offer_without_a_descriptor_is_refused(forger: Forger) -> None:
    forger.offer(GRANULE, None)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="no descriptor came with it"):
            await forger.link.receive()


@pytest.mark.parametrize(
    "make",
    [lambda: memory(GRANULE), lambda: memory(4 * GRANULE, fcntl.F_SEAL_SEAL), lambda: FileIO(__file__)],
    ids=["shorter", "not sealed", "a file"],
)
async def test_what_is_no_arena_is_refused(forger: Forger, make: Any) -> None:
    forger.offer(4 * GRANULE, make())
    with pytest.raises(RemoteProtocolError):
        await forger.link.receive()


async def test_a_second_offer_is_refused(forger: Forger) -> None:
    forger.offer(GRANULE, memory(GRANULE))
    forger.offer(GRANULE, memory(GRANULE))
    with pytest.raises(RemoteProtocolError, match=r"a second arena was offered|other descriptors came"):
        await forger.link.receive()


async def test_an_offer_that_is_cancelled_while_it_is_mapped_is_mapped_later(forger: Forger) -> None:
    forger.offer(GRANULE, memory(GRANULE))
    forger.post(forger.codec.encode(Blob(data=1)))
    for turns in range(6):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forger.link.receive)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        if forger.link.bulk_statistics().borrowed:
            break
    forger.post(forger.describe([10]), Part(10, place=0))
    with anyio.fail_after(DEADLINE):
        while not isinstance(message := await forger.link.receive(), Blob) or message.data == 1:
            pass
    assert message.data[0].tolist() == [0] * 10  # type: ignore[index]


async def test_credits_that_are_not_due_are_refused(forger: Forger) -> None:
    frame = forger.codec.encode(ArenaCredit(packed_places=pack_i64([0])))
    forger.channel.post(frame)
    forger.channel.flush_nowait()
    with pytest.raises(RemoteProtocolError, match="there is no arena"):
        await forger.link.receive()
    async with forger.link.reserve(Room((LARGE,), "uint8")) as (value,):
        forger.link.post(Blob(data=value))
    del value
    forger.channel.post(frame)
    forger.channel.post(frame)
    forger.channel.flush_nowait()
    with pytest.raises(RemoteProtocolError, match="a credit for byte 0 of an arena, which is not lent"):
        await forger.link.receive()
    assert forger.link.bulk_statistics().held == 0


async def test_a_buffer_in_an_arena_that_was_not_offered_is_refused(forger: Forger) -> None:
    forger.post(forger.describe([10]), Part(10, place=0))
    with pytest.raises(RemoteProtocolError, match="none was offered"):
        await forger.link.receive()


@pytest.mark.parametrize(
    ("shapes", "parts", "more", "fault"),
    [
        ([[10]], [Part(10, place=4 * GRANULE)], None, "of an arena of"),  # behind the end
        ([[10]], [Part(10, place=1)], None, "of an arena of"),  # not aligned
        ([[10]], [Part(9, place=0)], None, "9 bytes for a shape"),  # shorter than its shape
        ([[10], [10]], [Part(10, place=0), Part(10, place=0)], None, "lent twice"),
        ([[5000], [10]], [Part(5000, place=0), Part(10, place=GRANULE)], None, "lent twice"),
        ([[10], [10]], [Part(10, place=0)], None, "buffer 1 of 1"),
        ([[10]], [Part(10, place=0)], "broken", "no message"),  # what follows is malformed
    ],
)
async def test_a_message_that_is_refused_returns_all_that_it_names(
    forger: Forger, shapes: list[list[int]], parts: list[Part], more: str | None, fault: str
) -> None:
    forger.offer(4 * GRANULE, memory(4 * GRANULE))
    message = forger.describe(*shapes, more=more)
    if more is not None:
        message = message.replace(b"\xa6broken", b"\xa6brok\xffn")
    forger.post(message, *parts)
    with pytest.raises(DecodeError, match=fault) as caught:
        await forger.link.receive()
    assert forger.link.bulk_statistics().borrowed == 0  # although the exception still refers to them
    assert caught.value.__traceback__ is not None
    del caught
    # And the link still works.
    forger.post(forger.describe([10]), Part(10, place=0))
    assert isinstance(await forger.link.receive(), Blob)


async def test_a_part_that_the_message_does_not_name_is_returned(forger: Forger) -> None:
    forger.offer(4 * GRANULE, memory(4 * GRANULE))
    forger.post(forger.describe([10]), Part(10, place=0), Part(10, place=GRANULE))
    message = await forger.link.receive()
    assert forger.link.bulk_statistics().borrowed == 1
    del message
    assert forger.link.bulk_statistics().borrowed == 0


async def test_what_is_lent_again_before_it_is_returned_is_refused(forger: Forger) -> None:
    forger.offer(4 * GRANULE, memory(4 * GRANULE))
    forger.post(forger.describe([10]), Part(10, place=0))
    kept = await forger.link.receive()
    forger.post(forger.describe([10]), Part(10, place=0))
    with pytest.raises(DecodeError, match="lent twice"):
        await forger.link.receive()
    assert isinstance(kept, Blob)
