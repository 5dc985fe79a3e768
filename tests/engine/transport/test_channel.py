"""Frames over sockets: nothing is lost, torn or reordered, whoever is cancelled and whenever."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from io import FileIO
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from vidette.transport.channel import (
    FRAMES_PER_CHECKPOINT,
    FRAMES_PER_READ,
    SEND_BUFFER_BYTES,
    Channel,
    socket_pair,
)
from vidette.transport.framing import HEADER, RECEIVE_BYTES, LinkClosed
from vidette_protocol.errors import RemoteProtocolError

DEADLINE = 20.0
LARGE = 8 * 1024 * 1024
"""More than both sockets hold together."""


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket_pair()
    with left, right:
        yield left, right


@pytest.fixture
def channels(sockets: tuple[socket.socket, socket.socket]) -> tuple[Channel, Channel]:
    left, right = sockets
    return Channel(left), Channel(right)


async def receive_all(channel: Channel) -> list[bytes]:
    """Return what comes until the other side is gone."""
    frames = []
    while True:
        try:
            frames.append(bytes(await channel.receive()))
        except LinkClosed:
            return frames


async def cancel_later(scope: anyio.CancelScope, turns: int) -> None:
    """Cancel a scope after others have had so many turns."""
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def count_turns(turns: list[None]) -> None:
    while True:
        await anyio.lowlevel.checkpoint()
        turns.append(None)


# --- what is sent arrives --------------------------------------------------------------------------


async def test_many_small_frames_arrive_in_order_both_ways(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    count = 3000
    received: dict[Channel, list[int]] = {left: [], right: []}

    async def receive(channel: Channel) -> None:
        while len(received[channel]) < count:
            received[channel].append(int(await channel.receive()))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as writers:
            for channel in channels:
                writers.start_soon(channel.run_writer)
            async with anyio.create_task_group() as readers:
                for channel in channels:
                    readers.start_soon(receive, channel)
                for number in range(count):
                    left.post(str(number).encode())
                    right.post(str(-number).encode())
                    if number % 100 == 0:
                        await anyio.lowlevel.checkpoint()
            writers.cancel_scope.cancel()
    assert received[right] == list(range(count))
    assert received[left] == [-number for number in range(count)]


@pytest.mark.parametrize("size", [0, 1, RECEIVE_BYTES - HEADER.size, RECEIVE_BYTES, LARGE])
async def test_a_frame_of_any_size_arrives(channels: tuple[Channel, Channel], size: int) -> None:
    left, right = channels
    frame = random.Random(size).randbytes(size)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            left.post(frame)
            left.post(b"behind it")
            behind = HEADER.size + len(b"behind it")
            assert (
                behind <= left.queued_bytes < HEADER.size + size + behind
            )  # the first has gone, or begun to
            assert await right.receive() == frame
            assert await right.receive() == b"behind it"
            tasks.cancel_scope.cancel()
    assert left.queued_bytes == 0


async def test_a_writer_that_waits_is_woken_by_every_post(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            for number in range(300):
                left.post(b"%d" % number)
                assert await right.receive() == b"%d" % number
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(5))
async def test_posts_at_any_moment_of_the_writer_arrive(channels: tuple[Channel, Channel], seed: int) -> None:
    left, right = channels
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice([0, 10, 300_000])) for _ in range(60)]

    async def post() -> None:
        for frame in frames:
            left.post(frame)
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            tasks.start_soon(post)
            assert frames == [bytes(await right.receive()) for _ in frames]
            tasks.cancel_scope.cancel()


def test_it_can_be_made_and_posted_to_before_there_is_a_loop(
    channels: tuple[Channel, Channel], anyio_backend: str
) -> None:
    left, right = channels
    left.post(b"early")

    async def main() -> None:
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(left.run_writer)
                assert await right.receive() == b"early"
                tasks.cancel_scope.cancel()

    anyio.run(main, backend=anyio_backend)


# --- the other side ends ---------------------------------------------------------------------------


async def test_an_end_between_frames_is_told_behind_them(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    left.post(b"last words")
    assert left.flush_nowait()
    left.close()
    left.close()
    assert await right.receive() == b"last words"
    for _ in range(2):
        with pytest.raises(LinkClosed, match=r"^the other side closed the link$"):
            await right.receive()


@pytest.mark.parametrize("sent", [1, 3, 4, 7, 300_000])
async def test_an_end_in_the_middle_of_a_frame_is_an_end_and_says_so(
    sockets: tuple[socket.socket, socket.socket], sent: int
) -> None:
    left, right = sockets
    channel = Channel(right)
    encoded = HEADER.pack(5) + b"whole" + HEADER.pack(400_000) + bytes(sent)

    async def send() -> None:
        stream = await anyio.abc.SocketStream.from_socket(left)
        async with stream:
            await stream.send(encoded[: 9 + sent])

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            assert await channel.receive() == b"whole"
            with pytest.raises(LinkClosed, match=r"closed the link, in the middle of a frame$"):
                await channel.receive()


async def test_a_waiting_reader_learns_of_the_end(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(LinkClosed):
                    await right.receive()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            left.close()


async def test_a_link_that_was_reset_is_closed_like_any_other(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    right.post(b"never read")
    assert right.flush_nowait()
    left.close()  # with bytes unread: the kernel resets the link
    with pytest.raises(LinkClosed) as caught:
        await right.receive()
    assert isinstance(caught.value.__cause__, ConnectionResetError)


async def test_a_frame_beyond_the_limit_is_refused_behind_those_before_it(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    left, right = sockets
    sender, receiver = Channel(left), Channel(right, max_frame=10)
    sender.post(b"small")
    sender.post(bytes(11))
    assert sender.flush_nowait()
    assert await receiver.receive() == b"small"
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="a frame of 11 bytes is announced; 10 is the limit"):
            await receiver.receive()


async def test_posting_goes_on_when_the_other_side_is_gone(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            await anyio.wait_all_tasks_blocked()
            right.close()
            left.post(b"to nobody")
        # The writer has returned.
        left.post(b"to nobody either")
        with pytest.raises(LinkClosed):
            left.flush_nowait()
        with pytest.raises(LinkClosed):
            await left.receive()


async def test_a_writer_that_waits_for_room_returns_when_the_other_side_is_gone(
    channels: tuple[Channel, Channel],
) -> None:
    left, right = channels
    left.post(bytes(LARGE))
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            await anyio.wait_all_tasks_blocked()
            assert left.queued_bytes > 0
            right.close()


async def test_one_that_was_closed_receives_nothing(channels: tuple[Channel, Channel]) -> None:
    channels[0].close()
    with pytest.raises(LinkClosed):
        await channels[0].receive()


# --- cancellation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_a_receive_that_is_cancelled_loses_nothing(
    channels: tuple[Channel, Channel], seed: int
) -> None:
    left, right = channels
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice([0, 5, 5, 5, 200_000, 700_000])) for _ in range(80)]
    received: list[bytes] = []
    cancelled = 0

    async def post() -> None:
        for frame in frames:
            left.post(frame)
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            tasks.start_soon(post)
            while len(received) < len(frames):
                async with anyio.create_task_group() as attempt:
                    attempt.start_soon(cancel_later, attempt.cancel_scope, rng.randrange(6))
                    received.append(bytes(await right.receive()))
                    attempt.cancel_scope.cancel()
                cancelled += attempt.cancel_scope.cancelled_caught
            tasks.cancel_scope.cancel()
    assert frames == received
    assert cancelled > 0


async def test_what_a_cancelled_writer_left_goes_out_when_it_runs_again(
    channels: tuple[Channel, Channel],
) -> None:
    left, right = channels
    frame = random.Random(0).randbytes(LARGE)
    left.post(frame)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert 0 < left.queued_bytes < LARGE  # half of the frame is on its way
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)  # with nothing posted since
            assert await right.receive() == frame
            left.post(b"behind it")
            assert await right.receive() == b"behind it"
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(4))
async def test_writers_that_are_cancelled_at_any_moment_tear_no_frame(
    channels: tuple[Channel, Channel], seed: int
) -> None:
    left, right = channels
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice([0, 5, 900_000])) for _ in range(40)]
    received: list[bytes] = []

    async def write() -> None:
        while True:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as attempt:
                    attempt.start_soon(cancel_later, scope, rng.randrange(5))
                    await left.run_writer()
            await anyio.lowlevel.checkpoint()

    async def post() -> None:
        for frame in frames:
            left.post(frame)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(post)
            for _ in frames:
                received.append(bytes(await right.receive()))  # noqa: PERF401  a failure shows how far it got
            tasks.cancel_scope.cancel()
    assert frames == received


# --- a peer that floods us -------------------------------------------------------------------------


class FloodedSocket(socket.socket):
    """A socket that always has more: frames of one size, at most so many bytes a read."""

    def flood(self, frame_size: int, most: int) -> None:
        self._stream = memoryview(HEADER.pack(frame_size) + bytes(frame_size))
        self._place = 0
        self._most = most

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:  # noqa: ARG002
        count = min(len(buffer), len(self._stream) - self._place, self._most)
        buffer[:count] = self._stream[self._place : self._place + count]
        self._place = (self._place + count) % len(self._stream)
        return count


@pytest.mark.parametrize(
    ("frame_size", "most", "frames", "reads"),
    [(10, 1 << 20, 640, 640), (3 * 1024 * 1024, 64 * 1024, 1, 48), (3 * 1024 * 1024, 64 * 1024, 3, 144)],
)
async def test_others_get_their_turn_while_a_peer_floods_us(
    frame_size: int, most: int, frames: int, reads: int
) -> None:
    turns: list[None] = []
    with FloodedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.flood(frame_size, most)
        channel = Channel(sock)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns, turns)
            await anyio.lowlevel.checkpoint()
            turns.clear()
            for _ in range(frames):
                assert len(await channel.receive()) == frame_size
            got = len(turns)
            tasks.cancel_scope.cancel()
    assert got >= reads // (FRAMES_PER_CHECKPOINT // FRAMES_PER_READ) - 1


# --- without a writer ------------------------------------------------------------------------------


async def test_it_can_be_flushed_without_a_writer(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    assert left.flush_nowait()
    left.post(bytes(LARGE))
    assert not left.flush_nowait()
    waiting = left.queued_bytes
    assert waiting > 0
    async with anyio.create_task_group() as tasks:

        async def flush() -> None:
            while not left.flush_nowait():
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(flush)
        assert await right.receive() == bytes(LARGE)
    assert left.queued_bytes == 0


async def test_what_comes_alone_is_sent_without_the_writer(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    with anyio.fail_after(DEADLINE):
        for number in range(3):
            left.post(b"there %d" % number)
            assert left.queued_bytes == 0
            assert await right.receive() == b"there %d" % number
            right.post(b"back %d" % number)
            assert right.queued_bytes == 0
            assert await left.receive() == b"back %d" % number  # and what comes next is alone again


async def test_what_is_posted_behind_it_leaves_together(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    frames = [b"%d" % number for number in range(10)]
    for frame in frames:
        left.post(frame)
    assert left.queued_bytes == 9 * (HEADER.size + 1)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            assert [await right.receive() for _ in frames] == frames
            left.post(b"alone")
            assert left.queued_bytes == 0
            tasks.cancel_scope.cancel()


async def test_a_reader_sends_what_was_posted_before_it_waits(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    left.post(b"first")
    left.post(b"second")
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.receive)
            assert await right.receive() == b"first"
            assert await right.receive() == b"second"
            tasks.cancel_scope.cancel()
    assert left.queued_bytes == 0


async def test_who_posts_to_nobody_does_not_learn_of_it(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    right.close()
    left.post(b"alone")
    left.post(b"behind it")
    with anyio.fail_after(DEADLINE), pytest.raises(LinkClosed):
        await left.receive()


async def test_its_socket_can_be_given_away(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    left.post(b"by the channel")
    assert left.flush_nowait()
    sock = left.detach()
    sock.sendall(HEADER.pack(8) + b"by hand!")
    assert await right.receive() == b"by the channel"
    assert await right.receive() == b"by hand!"


# --- in pieces, and with descriptors ---------------------------------------------------------------


async def test_a_frame_in_pieces_arrives_whole(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    large = random.Random(0).randbytes(LARGE)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            left.post_pieces([b"head", memoryview(large), b"", b"tail"])
            left.post(b"behind it")
            assert await right.receive() == b"head" + large + b"tail"
            assert await right.receive() == b"behind it"
            tasks.cancel_scope.cancel()


def passed(contents: bytes = b"") -> FileIO:
    file = FileIO(os.memfd_create("passed"), "r+")
    file.write(contents)
    return file


async def test_a_descriptor_comes_with_its_frame(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    right.expect_descriptor()
    left.post(b"before")
    left.post_with_descriptor(b"offer", passed(b"contents"))
    left.post(b"behind")
    assert left.flush_nowait()
    assert [await right.receive() for _ in range(3)] == [b"before", b"offer", b"behind"]
    file = right.take_descriptor()
    assert file is not None
    with file:
        assert os.pread(file.fileno(), 100, 0) == b"contents"
        assert not os.get_inheritable(file.fileno())
    assert right.take_descriptor() is None


async def test_a_descriptor_that_nobody_expects_is_dropped(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    left.post_with_descriptor(b"offer", passed())
    assert left.flush_nowait()
    assert await right.receive() == b"offer"
    assert right.take_descriptor() is None


async def test_a_descriptor_that_nobody_takes_is_closed(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    right.expect_descriptor()
    left.post_with_descriptor(b"offer", passed())
    left.post_with_descriptor(b"never sent", passed())
    left.close()  # what was not sent is closed as well
    right.close()


async def test_a_second_descriptor_is_refused(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    right.expect_descriptor()
    for _ in range(2):
        left.post_with_descriptor(b"offer", passed())
    assert left.flush_nowait()
    with pytest.raises(RemoteProtocolError, match="other descriptors came than the one file"):
        for _ in range(2):
            await right.receive()
    right.close()


@pytest.mark.parametrize("count", [2, 3, 40])
async def test_more_descriptors_than_one_are_refused_and_closed(
    sockets: tuple[socket.socket, socket.socket], count: int
) -> None:
    left, right = sockets
    channel = Channel(right)
    channel.expect_descriptor()
    files = [passed() for _ in range(count)]
    socket.send_fds(left, [HEADER.pack(5) + b"offer"], [file.fileno() for file in files])
    for file in files:
        file.close()
    with pytest.raises(RemoteProtocolError, match="other descriptors came than the one file"):
        await channel.receive()


async def test_a_descriptor_of_a_directory_is_refused_and_closed(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    left, right = sockets
    channel = Channel(right)
    channel.expect_descriptor()
    directory = os.open("/", os.O_RDONLY)
    socket.send_fds(left, [HEADER.pack(5) + b"offer"], [directory])
    os.close(directory)
    with pytest.raises(RemoteProtocolError, match="other descriptors came than the one file"):
        await channel.receive()


# --- room ------------------------------------------------------------------------------------------


async def test_whoever_makes_more_than_is_read_waits_for_room() -> None:
    left, right = (Channel(sock, high_water=1000) for sock in socket_pair())
    frame = b"x" * SEND_BUFFER_BYTES
    sent = 0

    async def make() -> None:
        nonlocal sent
        for _ in range(20):
            await left.wait_room()
            left.post(frame)
            sent += 1

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            tasks.start_soon(make)
            await anyio.wait_all_tasks_blocked()
            assert sent < 5
            assert 1000 <= left.queued_bytes <= len(frame) + HEADER.size
            for _ in range(20):
                assert await right.receive() == frame
            await left.wait_room()
            assert (sent, left.queued_bytes) == (20, 0)
            tasks.cancel_scope.cancel()
    left.close()
    right.close()


async def test_whoever_waits_for_room_is_told_when_the_other_side_is_gone() -> None:
    left, right = (Channel(sock, high_water=1) for sock in socket_pair())
    left.post(b"x" * 10 * SEND_BUFFER_BYTES)

    async def wait() -> None:
        with pytest.raises(LinkClosed):
            await left.wait_room()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run_writer)
            for _ in range(2):
                tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            right.close()
        await wait()
    left.close()
