"""Large buffers over a link: in the arena or in the frame, they arrive whole, and nothing stays lent."""

from __future__ import annotations

import gc
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import torch
import trio.testing

import vidette.transport.bulk as bulk_module
from vidette.transport.arena import ArenaStatistics
from vidette.transport.bulk import COPY_BYTES, THRESHOLD_BYTES, BulkOptions, Room
from vidette.transport.channel import Channel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext.bundle import join_bundle
from vidette_protocol.lifecycle.extents import GRANULE
from vidette_protocol.messages import Message

DEADLINE = 20.0
ARENA = 4 * 1024 * 1024
LARGE = 1024 * 1024
"""Bytes of a tensor that goes into the arena."""


class Blob(Message, tag=1000, kw_only=True, frozen=True):
    """What travels."""

    data: object
    more: object = None
    number: int = 0


@pytest.fixture(autouse=True)
def views_are_gone(no_descriptor_is_left: None) -> Iterator[None]:
    """Let go of what tracebacks, and threads for a moment, hold: memory goes with its last view."""
    yield
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and any("memfd" in str(fd.readlink()) for fd in open_files()):
        gc.collect()


def open_files() -> list[Path]:
    return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]


def codec(*, bulk: bool = True) -> Codec:
    return Codec(sends=[Blob], receives=[Blob], bulk=bulk)


def tensor(nbytes: int = LARGE, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8))


class Ends:
    """Both ends of a link, which live in one loop; what arrives is collected."""

    def __init__(self, left: Any, right: Any, **options: Any) -> None:
        settings = BulkOptions(**{"arena_bytes": ARENA, **options})
        self.left = Link(left, codec(), role="left", peer="right", bulk=settings, opened=True)
        self.right = Link(right, codec(), role="right", peer="left", bulk=settings, opened=True)
        self.arrived: list[Blob] = []
        self.fault: Exception | None = None
        self.news = anyio.Event()
        self.reading = anyio.Event()  # the right end waits for it
        self.reading.set()

    async def read(self, link: Link, *, keep: bool) -> None:
        try:
            while True:
                if keep:
                    await self.reading.wait()
                message = await link.receive()
                assert isinstance(message, Blob)
                if keep:
                    self.arrived.append(message)
                del message
                self.tell()
        except (LinkClosed, RemoteProtocolError) as error:
            self.fault = self.fault or error
            self.tell()

    def tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    async def next(self) -> Blob:
        """Wait for the next message at the right end, and forget it here."""
        with anyio.fail_after(DEADLINE):
            while not self.arrived:
                assert self.fault is None, self.fault
                await self.news.wait()
        return self.arrived.pop(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(DEADLINE):
            while not condition():
                await anyio.lowlevel.checkpoint()

    async def until_quiet(self) -> None:
        """Wait until neither end holds anything."""
        await self.until(lambda: self.left.bulk_statistics().held == self.right.bulk_statistics().held == 0)


@asynccontextmanager
async def linked(kind: str = "sockets", **options: Any) -> AsyncIterator[Ends]:
    left, right = map(Channel, socket_pair()) if kind == "sockets" else MemoryChannel.pair()
    ends = Ends(left, right, **options)
    async with anyio.create_task_group() as tasks:
        for link in (ends.left, ends.right):
            tasks.start_soon(link.run_writer)
        tasks.start_soon(_read_left, ends)
        tasks.start_soon(_read_right, ends)
        try:
            yield ends
        finally:
            tasks.cancel_scope.cancel()
    ends.left.close()
    ends.right.close()
    ends.arrived.clear()
    gc.collect(1)


async def _read_left(ends: Ends) -> None:
    await ends.read(ends.left, keep=False)


async def _read_right(ends: Ends) -> None:
    await ends.read(ends.right, keep=True)


def arena_of(link: Link) -> ArenaStatistics:
    return link.bulk_statistics().arena


# --- by frame --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sockets", "memory"])
@pytest.mark.parametrize("nbytes", [10, 20_000, 300_000, 5_000_000])
async def test_what_is_posted_as_it_is_travels_in_its_frame(kind: str, nbytes: int) -> None:
    value = tensor(nbytes)
    async with linked(kind) as ends:
        ends.left.post(Blob(data=[value, value.numpy(), b"between", value.to(torch.float32)], number=3))
        back = await ends.next()
        assert back.number == 3
        assert isinstance(back.data, list)
        assert torch.equal(back.data[0], value)
        assert np.array_equal(back.data[1], value.numpy())
        assert torch.equal(back.data[3], value.to(torch.float32))
        back.data[0][0] += 1  # writable, and the sender's is another
        back.data[1][0] += 1
        assert torch.equal(back.data[3], value.to(torch.float32))
        assert arena_of(ends.left).nbytes == 0


async def test_views_of_a_frame_are_read_only_if_that_was_asked_for() -> None:
    async with linked(writable=False) as ends:
        ends.left.post(Blob(data=tensor().numpy()))
        back: Any = (await ends.next()).data
        assert not back.flags.writeable


async def test_a_frame_longer_than_the_other_end_accepts_is_not_sent() -> None:
    async with linked(frame_bytes=2_000_000) as ends:
        for message in (Blob(data=tensor(2_000_000)), Blob(data=bytes(2_000_000))):
            with pytest.raises(LocalProtocolError, match="2000000 is the limit"):
                ends.left.post(message)
        ends.left.post(Blob(data="next"))
        assert (await ends.next()).data == "next"


async def test_a_link_without_bulk_has_the_same_interface() -> None:
    left, right = MemoryChannel.pair()
    sender = Link(left, codec(bulk=False), role="left", peer="right", opened=True)
    receiver = Link(right, codec(bulk=False), role="right", peer="left", opened=True)
    async with sender.reserve(Room((LARGE,), "uint8")) as (value,):
        value[:] = tensor()
        async with sender.prepare(Blob(data=value)) as prepared:
            sender.post(prepared)
    await sender.run_writer()
    message = await receiver.receive()
    assert isinstance(message, Blob)
    assert torch.equal(message.data, tensor())  # type: ignore[arg-type]
    right.post(b"".join(join_bundle(codec().encode(Blob(data=1)), [])))
    with pytest.raises(DecodeError):
        await sender.receive()
    sender.close()


# --- copied in -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [THRESHOLD_BYTES, LARGE, COPY_BYTES - GRANULE])
async def test_a_prepared_message_lies_in_the_arena(nbytes: int) -> None:
    value = tensor(nbytes)
    async with linked(arena_bytes=2 * COPY_BYTES) as ends:
        async with ends.left.prepare(Blob(data=value, more=value.numpy(), number=5)) as prepared:
            assert arena_of(ends.left).taken == 2
            value_was = value.clone()
            value += 1  # it was copied: what becomes of it does not matter
            ends.left.post(prepared)
            assert arena_of(ends.left).lent == 2
        back = await ends.next()
        assert back.number == 5
        assert torch.equal(back.data, value_was)  # type: ignore[arg-type]
        assert np.array_equal(back.more, value_was.numpy())  # type: ignore[arg-type]
        assert ends.right.bulk_statistics().borrowed == 2
        back.data[0] += 1  # type: ignore[index]
        del back, prepared
        await ends.until_quiet()


async def test_small_buffers_stay_in_the_frame_of_a_prepared_message() -> None:
    small = tensor(THRESHOLD_BYTES - 1)
    async with linked() as ends:
        async with ends.left.prepare(Blob(data=[small, tensor(), 7])) as prepared:
            ends.left.post(prepared)
        assert arena_of(ends.left).lent == 1
        back: Any = (await ends.next()).data
        assert torch.equal(back[0], small)
        assert torch.equal(back[1], tensor())
        assert back[2] == 7
        async with ends.left.prepare(Blob(data=small)) as prepared:
            ends.left.post(prepared)
        assert torch.equal((await ends.next()).data, small)  # type: ignore[arg-type]
        assert arena_of(ends.left).lent <= 1


async def test_a_slice_keeps_the_extent_of_its_tensor() -> None:
    async with linked() as ends:
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        part: Any = (await ends.next()).data
        part = part[5:10]
        gc.collect(1)
        assert ends.right.bulk_statistics().borrowed == 1
        assert torch.equal(part, tensor()[5:10])
        del part
        await ends.until_quiet()


@pytest.mark.parametrize("rounds", [30])
async def test_an_arena_is_used_again_and_again(rounds: int) -> None:
    async with linked() as ends:
        for number in range(rounds):
            async with ends.left.prepare(
                Blob(data=tensor(seed=number), number=number), wait_seconds=DEADLINE
            ) as prepared:
                ends.left.post(prepared)
            back = await ends.next()
            assert back.number == number
            assert torch.equal(back.data, tensor(seed=number))  # type: ignore[arg-type]
            del back
        await ends.until_quiet()


async def test_both_ends_may_have_an_arena() -> None:
    async with linked() as ends:
        async with ends.right.prepare(Blob(data=tensor())) as prepared:
            ends.right.post(prepared)
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        back = await ends.next()
        assert torch.equal(back.data, tensor())  # type: ignore[arg-type]
        del back, prepared
        await ends.until_quiet()
        assert arena_of(ends.left).nbytes == arena_of(ends.right).nbytes == ARENA


# --- in place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sockets", "memory"])
async def test_what_is_produced_in_place_is_not_copied(kind: str) -> None:
    async with linked(kind) as ends:
        rooms = Room((2, LARGE // 8)), Room((LARGE // 2,), "int16", "numpy"), Room((7,), "bfloat16")
        async with ends.left.reserve(*rooms) as (left, right, small):
            assert (left.dtype, right.dtype, small.dtype) == (torch.float32, np.int16, torch.bfloat16)
            left.fill_(1.5)
            right[:] = np.arange(LARGE // 2) % 1000
            small.fill_(2)
            assert arena_of(ends.left).taken == (2 if kind == "sockets" else 0)
            ends.left.post(Blob(data=left, more=[right, small]))
            assert arena_of(ends.left).lent == (2 if kind == "sockets" else 0)
        del left, right, small
        back: Any = await ends.next()
        assert torch.equal(back.data, torch.full((2, LARGE // 8), 1.5))
        assert np.array_equal(back.more[0], np.arange(LARGE // 2) % 1000)
        assert torch.equal(back.more[1], torch.full((7,), 2, dtype=torch.bfloat16))
        del back
        await ends.until_quiet()


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "float8_e5m2", "bool", "uint16"])
async def test_every_type_can_be_produced_in_place(dtype: str) -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((300, 1024), dtype)) as (value,):
            value.view(torch.uint8)[:] = 1
            ends.left.post(Blob(data=value))
            assert arena_of(ends.left).lent == 1
        back: Any = (await ends.next()).data
        assert back.dtype == value.dtype
        assert back.shape == (300, 1024)
        assert bool(torch.all(back.view(torch.uint8) == 1))


async def test_what_is_reserved_and_prepared_goes_together() -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((LARGE,), "uint8")) as (value,):
            value[:] = 1
            async with ends.left.prepare(Blob(data=value, more=tensor())) as prepared:
                assert arena_of(ends.left).taken == 2  # nothing was copied that is there
                ends.left.post(prepared)
        back: Any = await ends.next()
        assert bool(torch.all(back.data == 1))
        assert torch.equal(back.more, tensor())


async def test_a_shorter_view_from_the_beginning_is_sent_in_place_and_others_are_copied() -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((LARGE,), "uint8")) as (value,):
            value[:] = torch.arange(LARGE) % 251
            expected = value.clone()
            # The same memory twice: one of them is sent as it is, the other as a copy.
            ends.left.post(Blob(data=[value[: LARGE // 2], value, value[LARGE // 2 :]]))
            assert arena_of(ends.left).lent == 1
        del value
        back: Any = (await ends.next()).data
        assert torch.equal(back[0], expected[: LARGE // 2])
        assert torch.equal(back[1], expected)
        assert torch.equal(back[2], expected[LARGE // 2 :])
        del back
        await ends.until_quiet()


async def test_a_part_that_is_copied_does_not_change_with_its_memory() -> None:
    async with linked() as ends:
        ends.reading = anyio.Event()
        ends.left.post(Blob(data=bytes(LARGE * 4)))  # what is posted behind it waits
        async with ends.left.reserve(Room((ARENA,), "uint8")) as (value,):
            value[:] = 1
            ends.left.post(Blob(data=value[LARGE:]))
        async with ends.left.reserve(Room((ARENA,), "uint8")) as (value,):
            value[:] = 2
        del value
        ends.reading.set()
        await ends.next()
        back: Any = (await ends.next()).data
        assert bool(torch.all(back == 1))


async def test_memory_that_was_sent_or_given_back_is_not_sent() -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((LARGE,), "uint8"), Room((LARGE,), "uint8")) as (sent, kept):
            ends.left.post(Blob(data=sent))
            for part in (sent, sent[100_000:]):
                with pytest.raises(LocalProtocolError, match="after it was sent or given back"):
                    ends.left.post(Blob(data=part))
            async with ends.left.prepare(Blob(data=kept)) as prepared:
                pass
        for late in (Blob(data=kept), prepared):
            with pytest.raises(LocalProtocolError, match="after it was sent or given back"):
                ends.left.post(late)
        await ends.next()
        await ends.until_quiet()


async def test_a_prepared_message_is_posted_once() -> None:
    async with linked() as ends:
        for message in (Blob(data=tensor()), Blob(data=1)):
            async with ends.left.prepare(message) as prepared:
                ends.left.post(prepared)
                with pytest.raises(LocalProtocolError, match="posted twice"):
                    ends.left.post(prepared)
            await ends.next()


async def test_room_for_what_does_not_travel_is_refused() -> None:
    async with linked() as ends:
        for room in (
            Room((1,), "qint8"),
            Room((1,), "bfloat16", "numpy"),
            Room((300_000,), "float8_e5m2", "numpy"),
        ):
            with pytest.raises(LocalProtocolError, match="travel"):
                async with ends.left.reserve(room):
                    pass
        await ends.until_quiet()


# --- nothing stays behind --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reserve", "prepare"])
@pytest.mark.parametrize("ending", ["return", "raise", "cancel"])
async def test_what_is_not_posted_is_returned(how: str, ending: str) -> None:
    async with linked() as ends:
        make = (
            (lambda: ends.left.reserve(Room((LARGE,), "uint8"), Room((LARGE,), "uint8")))
            if how == "reserve"
            else (lambda: ends.left.prepare(Blob(data=[tensor(), tensor()])))
        )
        with anyio.CancelScope() as scope:
            try:
                async with make():
                    assert arena_of(ends.left).taken == 2
                    if ending == "raise":
                        raise LookupError
                    if ending == "cancel":
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
            except LookupError:
                pass
        assert arena_of(ends.left) == ArenaStatistics(ARENA, 0, 0, 0)


async def test_a_message_that_cannot_be_encoded_leaves_its_room_with_the_reservation() -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((LARGE,), "uint8")) as (value,):
            with pytest.raises(LocalProtocolError, match="does not travel"):
                ends.left.post(Blob(data=value, more=object()))
            with pytest.raises(LocalProtocolError, match="does not travel"):
                async with ends.left.prepare(Blob(data=value, more=object())):
                    pass
            assert arena_of(ends.left).taken == 1
            ends.left.post(Blob(data=value))
        await ends.next()
        await ends.until_quiet()


async def test_a_prepared_message_that_is_too_long_leaves_nothing() -> None:
    async with linked(frame_bytes=100_000) as ends:
        with pytest.raises(LocalProtocolError, match="100000 is the limit"):
            async with ends.left.prepare(Blob(data=tensor(), more=bytes(100_000))):
                pass
        assert arena_of(ends.left).taken == 0


@pytest.mark.parametrize("turns", range(12))
async def test_preparing_that_is_cancelled_at_any_moment_leaves_nothing(turns: int) -> None:
    async with linked(arena_bytes=4 * COPY_BYTES) as ends:
        if turns % 2:
            async with ends.left.reserve(Room((LARGE,), "uint8")):
                pass  # so that the arena is there
        posted = []

        async def prepare() -> None:
            async with ends.left.prepare(Blob(data=tensor(COPY_BYTES + 1))) as prepared:
                ends.left.post(prepared)
                posted.append(prepared)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare)
            for _ in range(turns // 2):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert arena_of(ends.left).taken == 0
        await ends.until(lambda: len(ends.arrived) == len(posted))
        ends.arrived.clear()
        await ends.until_quiet()


# --- no room ---------------------------------------------------------------------------------------


async def test_what_does_not_fit_in_time_travels_in_frames() -> None:
    async with linked() as ends:
        async with ends.left.reserve(Room((ARENA - LARGE,), "uint8")):
            async with ends.left.prepare(Blob(data=[tensor(), tensor()]), wait_seconds=0) as prepared:
                assert arena_of(ends.left).taken == 1  # neither of them: all or none
                ends.left.post(prepared)
            async with ends.left.reserve(
                Room((LARGE,), "uint8"), Room((LARGE,), "uint8"), wait_seconds=0.01
            ) as (left, right):
                left[:], right[:] = 1, 2
                ends.left.post(Blob(data=[left, right]))
            assert arena_of(ends.left).lent == 0
        first: Any = (await ends.next()).data
        second: Any = (await ends.next()).data
        assert all(torch.equal(one, tensor()) for one in first)
        assert [int(one[-1]) for one in second] == [1, 2]


async def test_what_never_fits_does_not_wait() -> None:
    async with linked() as ends:
        with anyio.fail_after(DEADLINE):
            async with ends.left.prepare(Blob(data=tensor(ARENA + 1)), wait_seconds=float("inf")) as prepared:
                ends.left.post(prepared)
        assert torch.equal((await ends.next()).data, tensor(ARENA + 1))  # type: ignore[arg-type]
        assert arena_of(ends.left).nbytes == 0


async def test_who_waits_goes_on_when_room_is_returned() -> None:
    async with linked() as ends:
        ends.reading = anyio.Event()
        async with ends.left.prepare(Blob(data=tensor(ARENA))) as prepared:
            ends.left.post(prepared)
        done = []

        async def prepare(number: int) -> None:
            async with ends.left.prepare(
                Blob(data=tensor(ARENA // 2 + number), number=number), wait_seconds=DEADLINE
            ) as waiting:
                assert arena_of(ends.left).taken == 1
                ends.left.post(waiting)
                done.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(1, 4):
                tasks.start_soon(prepare, number)
                await anyio.wait_all_tasks_blocked()
            assert done == []
            ends.reading.set()
            for _ in range(4):
                await ends.next()
        assert done == [1, 2, 3]
        await ends.until_quiet()


async def test_who_waits_longest_is_served_first() -> None:
    async with linked() as ends:
        order = []

        async def prepare(name: str, nbytes: int) -> None:
            async with ends.left.reserve(Room((nbytes,), "uint8"), wait_seconds=DEADLINE):
                order.append(name)

        async with anyio.create_task_group() as tasks:
            async with ends.left.reserve(Room((ARENA // 2,), "uint8")):
                tasks.start_soon(prepare, "large", ARENA)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(prepare, "small", LARGE)  # there is room for it, but it is not its turn
                await anyio.wait_all_tasks_blocked()
                assert order == []
        assert order == ["large", "small"]


async def test_without_memory_for_an_arena_there_are_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(bulk_module, "Arena", fail)
    async with linked() as ends:
        for _ in range(2):
            async with ends.left.prepare(Blob(data=tensor())) as prepared:
                ends.left.post(prepared)
            assert torch.equal((await ends.next()).data, tensor())  # type: ignore[arg-type]
        assert ends.left.bulk_statistics().held == 0


async def test_an_end_may_do_without_an_arena() -> None:
    async with linked(arena_bytes=0) as ends:
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        assert torch.equal((await ends.next()).data, tensor())  # type: ignore[arg-type]


# --- the other end is gone -------------------------------------------------------------------------


async def test_when_the_consumer_is_gone_all_it_held_is_free() -> None:
    async with linked() as ends:
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        async with ends.left.reserve(Room((LARGE,), "uint8")) as (value,):
            kept = await ends.next()
            waiting = anyio.Event()

            async def wait_for_room() -> None:
                async with ends.left.reserve(Room((ARENA,), "uint8"), wait_seconds=float("inf")) as (late,):
                    late[:] = 1
                    ends.left.post(Blob(data=late))
                    waiting.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_room)
                await anyio.wait_all_tasks_blocked()
                assert not waiting.is_set()
                ends.right.channel._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
                with anyio.fail_after(DEADLINE):
                    await waiting.wait()
            assert ends.left.bulk_statistics().held == 0
            value[:] = 3  # still memory
            ends.left.post(Blob(data=value))
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        assert ends.left.bulk_statistics().held == 0
        assert torch.equal(kept.data, tensor())  # type: ignore[arg-type]
        del kept, value


async def test_a_read_only_consumer_gets_read_only_arrays_and_tensors_of_its_own() -> None:
    async with linked(writable=False) as ends:
        async with ends.left.prepare(Blob(data=tensor(), more=tensor().numpy())) as prepared:
            ends.left.post(prepared)
        back: Any = await ends.next()
        assert ends.right.bulk_statistics().borrowed == 1  # the tensor is a copy
        back.data[0] = 1
        assert not back.more.flags.writeable
        del back
        await ends.until_quiet()


# --- credits ---------------------------------------------------------------------------------------


async def test_credits_go_along_with_what_is_posted() -> None:
    ours, theirs = map(Channel, socket_pair())
    left, right = (
        Link(channel, codec(), role="x", peer="y", bulk=BulkOptions(arena_bytes=ARENA), opened=True)
        for channel in (ours, theirs)
    )
    async with left.reserve(Room((LARGE,), "uint8")) as (value,):
        left.post(Blob(data=value))
    del value
    assert ours.flush_nowait()
    message = await right.receive()
    del message
    right.post(Blob(data="answer"))  # no writer runs, and nobody waits for credits
    assert theirs.flush_nowait()
    assert arena_of(left).lent == 1
    assert isinstance(await left.receive(), Blob)
    assert arena_of(left).lent == 0
    left.close()
    right.close()


async def test_credits_of_views_that_die_in_another_thread_come_at_once() -> None:
    async with linked() as ends:
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        kept = [await ends.next()]
        await anyio.to_thread.run_sync(kept.clear)
        await ends.until(lambda: arena_of(ends.left).lent == 0)


async def test_a_bell_without_a_return_is_heard_once() -> None:
    """Rung between an append and its taking, it would otherwise wake the loop for ever."""
    async with linked() as ends:
        async with ends.left.prepare(Blob(data=tensor())) as prepared:
            ends.left.post(prepared)
        await ends.next()
        await ends.until_quiet()
        borrowed = ends.right._bulk._borrowed
        assert borrowed is not None
        os.eventfd_write(borrowed.fileno(), 1)
        poll = select.poll()
        poll.register(borrowed, select.POLLIN)
        await ends.until(lambda: not poll.poll(0))


# --- being a good neighbour ------------------------------------------------------------------------


def test_every_wait_is_a_checkpoint() -> None:
    async def main() -> None:
        left, right = map(Channel, socket_pair())
        link = Link(
            left, codec(), role="left", peer="right", bulk=BulkOptions(arena_bytes=ARENA), opened=True
        )
        for message in (Blob(data=1), Blob(data=tensor())):
            with trio.testing.assert_checkpoints():
                async with link.prepare(message):
                    pass
        for room in (Room((1,)), Room((LARGE,))):
            with trio.testing.assert_checkpoints():
                await link.reserve(room).__aenter__()
        link.close()
        right.close()

    trio.run(main)
