"""Large tensors between real processes: they arrive whole, and whoever dies, nothing stays lent or lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from tests.process.conftest import DEADLINE
from vidette.transport.bulk import BulkOptions, Room
from vidette.transport.channel import Channel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette_protocol.codec import Codec
from vidette_protocol.messages import Message

pytestmark = pytest.mark.usefixtures("shared_memory_unchanged")

NBYTES = 8 * 1024 * 1024
OPTIONS = BulkOptions(arena_bytes=4 * NBYTES)

MESSAGES = '''
class Parcel(Message, tag=1000, kw_only=True, frozen=True):
    """What is handed over, and what is to be done with it."""

    data: object
    order: str = ""


class Receipt(Message, tag=1001, kw_only=True, frozen=True):
    """What arrived."""

    checksum: int
'''

CHILD = f"""
import socket, sys, zlib
import anyio
import numpy as np
from vidette.transport.bulk import BulkOptions, Room
from vidette.transport.channel import Channel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette_protocol.codec import Codec
from vidette_protocol.messages import Message
{MESSAGES}

def checksum(value):
    return zlib.crc32(value.numpy() if hasattr(value, "numpy") else value)

async def main():
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    codec = Codec(sends=[Parcel, Receipt], receives=[Parcel, Receipt], bulk=True)
    bulk = BulkOptions(arena_bytes={4 * NBYTES})
    link = Link(channel, codec, role="child", peer="parent", bulk=bulk, opened=True)
    kept = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run_writer)
        try:
            while True:
                message = await link.receive()
                if message.order == "produce":
                    async with link.reserve(Room(({NBYTES},), "uint8", "numpy")) as (made,):
                        made[:] = np.arange({NBYTES}) % 251
                        link.post(Parcel(data=made))
                    del made
                    continue
                link.post(Receipt(checksum=checksum(message.data)))
                if message.order == "keep":
                    kept.append(message)
                del message
        except LinkClosed:
            tasks.cancel_scope.cancel()
    kept.clear()
    link.close()

anyio.run(main, backend=sys.argv[2])
"""


class Parcel(Message, tag=1000, kw_only=True, frozen=True):
    """What is handed over, and what is to be done with it."""

    data: object
    order: str = ""


class Receipt(Message, tag=1001, kw_only=True, frozen=True):
    """What arrived."""

    checksum: int


class Parent:
    """A link to a child, and the child."""

    def __init__(self, link: Link, child: subprocess.Popen[bytes]) -> None:
        self.link = link
        self.child = child

    @property
    def held(self) -> int:
        return self.link.bulk_statistics().held

    async def receipt(self) -> int:
        message = await self.link.receive()
        assert isinstance(message, Receipt)
        return message.checksum

    async def until_closed(self) -> None:
        """Read until the child is gone."""
        with pytest.raises(LinkClosed):
            while True:
                await self.link.receive()


def start_child(backend: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket_pair()
    with theirs:
        number = str(theirs.fileno())
        child = subprocess.Popen([sys.executable, "-c", CHILD, number, backend], pass_fds=[theirs.fileno()])
    return child, ours


@asynccontextmanager
async def started(backend: str) -> AsyncIterator[Parent]:
    child, ours = start_child(backend)
    codec = Codec(sends=[Parcel, Receipt], receives=[Parcel, Receipt], bulk=True)
    link = Link(Channel(ours), codec, role="parent", peer="child", bulk=OPTIONS, opened=True)
    try:
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.run_writer)
                yield Parent(link, child)
                tasks.cancel_scope.cancel()
    finally:
        link.close()
        child.kill()
        child.wait()


def values(seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, NBYTES, np.uint8)


async def copy_in(parent: Parent, value: Any, order: str = "") -> None:
    async with parent.link.prepare(Parcel(data=value, order=order), wait_seconds=DEADLINE) as prepared:
        parent.link.post(prepared)


async def in_place(parent: Parent, value: Any, order: str = "") -> None:
    async with parent.link.reserve(Room((NBYTES,), "uint8", "numpy"), wait_seconds=DEADLINE) as (made,):
        made[:] = value
        parent.link.post(Parcel(data=made, order=order))


async def by_frame(parent: Parent, value: Any, order: str = "") -> None:
    parent.link.post(Parcel(data=value, order=order))


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names, not paths
        link = Path("/proc/self/fd", name)
        if link.is_symlink():
            found[name] = str(link.readlink())
    return found


@pytest.mark.parametrize("way", [copy_in, in_place, by_frame])
async def test_large_tensors_arrive_whole_and_credits_return(
    anyio_backend: str, way: Callable[[Parent, Any], Any]
) -> None:
    async with started(anyio_backend) as parent:
        for seed in range(12):  # three times what the arena holds
            value = values(seed)
            await way(parent, value)
            assert await parent.receipt() == zlib.crc32(value.data)
        parent.link.post(Parcel(data=np.zeros(1), order="last"))
        await parent.receipt()
        # Returned by now, or with the next thing that comes: the child posts credits before anything else.
        while parent.held:
            parent.link.post(Parcel(data=np.zeros(1)))
            await parent.receipt()
        assert parent.link.bulk_statistics().arena.used_bytes == 0


async def test_when_a_consumer_is_killed_all_that_it_held_is_free(anyio_backend: str) -> None:
    async with started(anyio_backend) as parent:
        for seed in range(3):
            await copy_in(parent, values(seed), "keep")
            await parent.receipt()
        assert parent.link.bulk_statistics().arena.lent == 3
        parent.child.kill()
        await parent.until_closed()
        assert parent.held == 0
        assert parent.link.bulk_statistics().arena.used_bytes == 0


async def test_when_a_producer_is_killed_what_it_sent_stays(anyio_backend: str) -> None:
    async with started(anyio_backend) as parent:
        parent.link.post(Parcel(data=None, order="produce"))
        message = await parent.link.receive()
        assert isinstance(message, Parcel)
        view: Any = message.data
        del message
        parent.child.kill()
        parent.child.wait()
        await parent.until_closed()
        assert parent.link.bulk_statistics().borrowed == 1
    # The link is closed as well, and the producer long gone.
    assert np.array_equal(view, np.arange(NBYTES) % 251)
    view += 1
    part = view[-3:]
    del view
    assert part.tolist() == [(NBYTES - n) % 251 + 1 for n in (3, 2, 1)]


async def test_no_descriptor_is_left(anyio_backend: str) -> None:
    before = descriptors()
    async with started(anyio_backend) as parent:
        await in_place(parent, values(0))
        await parent.receipt()
        parent.link.post(Parcel(data=None, order="produce"))
        message = await parent.link.receive()
        del message
    left = {name: what for name, what in descriptors().items() if before.get(name) != what}
    assert not left


async def test_a_child_that_is_left_alone_ends_cleanly(anyio_backend: str) -> None:
    async with started(anyio_backend) as parent:
        await copy_in(parent, values(0), "keep")
        await parent.receipt()
        parent.link.channel._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        with anyio.fail_after(DEADLINE):
            while parent.child.poll() is None:
                await anyio.lowlevel.checkpoint()
        assert parent.child.returncode == 0
