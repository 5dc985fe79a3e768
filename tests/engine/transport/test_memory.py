"""Frames over memory: the interface of `Channel`, with an end that can be seen from both sides."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest
import trio.testing

from vidette.transport.framing import LinkClosed
from vidette.transport.memory import MemoryChannel

DEADLINE = 20.0


async def test_frames_arrive_in_order_both_ways() -> None:
    left, right = MemoryChannel.pair()
    for number in range(100):
        left.post(b"%d" % number)
        right.post(b"-%d" % number)
    assert [await right.receive() for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert [await left.receive() for _ in range(100)] == [b"-%d" % number for number in range(100)]


async def test_a_reader_that_waits_is_woken() -> None:
    left, right = MemoryChannel.pair()

    async def post() -> None:
        await anyio.wait_all_tasks_blocked()
        left.post(b"news")

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post)
            assert await right.receive() == b"news"


async def test_posting_needs_no_writer() -> None:
    left, right = MemoryChannel.pair()
    left.post(b"gone already")
    await left.run_writer()
    assert await right.receive() == b"gone already"


@pytest.mark.parametrize("closer", ["reader", "writer"])
async def test_what_has_arrived_can_be_read_after_the_end(closer: str) -> None:
    left, right = MemoryChannel.pair()
    left.post(b"arrived")
    (right if closer == "reader" else left).close()
    left.post(b"too late")
    assert await right.receive() == b"arrived"
    for end in (left, right, right):
        with pytest.raises(LinkClosed, match=r"^the link was closed$"):
            await end.receive()


async def test_both_ends_learn_that_one_was_closed() -> None:
    left, right = MemoryChannel.pair()

    async def wait(end: MemoryChannel) -> None:
        with pytest.raises(LinkClosed):
            await end.receive()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, left)
            tasks.start_soon(wait, right)
            await anyio.wait_all_tasks_blocked()
            left.close()
            left.close()


@pytest.mark.parametrize("seed", range(4))
async def test_a_receive_that_is_cancelled_loses_nothing(seed: int) -> None:
    left, right = MemoryChannel.pair()
    rng = random.Random(seed)
    count, cancelled = 100, 0
    received: list[bytes] = []

    async def post() -> None:
        for number in range(count):
            left.post(b"%d" % number)
            for _ in range(rng.randrange(4)):
                await anyio.lowlevel.checkpoint()

    async def cancel_later(scope: anyio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post)
            while len(received) < count:
                async with anyio.create_task_group() as attempt:
                    attempt.start_soon(cancel_later, attempt.cancel_scope, rng.randrange(5))
                    received.append(bytes(await right.receive()))
                    attempt.cancel_scope.cancel()
                cancelled += attempt.cancel_scope.cancelled_caught
    assert received == [b"%d" % number for number in range(count)]
    assert cancelled > 0


def test_every_wait_is_a_checkpoint() -> None:
    async def main() -> None:
        left, right = MemoryChannel.pair()
        left.post(b"at once")
        with trio.testing.assert_checkpoints():
            await right.receive()
        with trio.testing.assert_checkpoints():
            await left.run_writer()
        left.close()
        with trio.testing.assert_checkpoints(), pytest.raises(LinkClosed):
            await right.receive()

    trio.run(main)


async def test_a_frame_in_pieces_is_memory_of_its_own() -> None:
    left, right = MemoryChannel.pair()
    memory = bytearray(b"memory")
    left.post_pieces([b"head ", memoryview(memory)])
    memory[:] = b"change"
    frame = await right.receive()
    assert frame == b"head memory"
    assert isinstance(frame, bytearray)


async def test_whoever_makes_more_than_is_read_waits_for_room() -> None:
    left, right = MemoryChannel.pair(high_water=100)
    sent = 0

    async def make() -> None:
        nonlocal sent
        for _ in range(20):
            await left.wait_room()
            left.post(b"x" * 60)
            sent += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(make)
        await anyio.wait_all_tasks_blocked()
        assert (sent, left.queued_bytes) == (2, 120)
        for _ in range(20):
            await right.receive()
    assert (sent, left.queued_bytes, right.queued_bytes) == (20, 0, 0)


@pytest.mark.parametrize("end", [0, 1])
async def test_whoever_waits_for_room_is_told_when_an_end_is_closed(end: int) -> None:
    ends = MemoryChannel.pair(high_water=1)

    async def wait() -> None:
        with pytest.raises(LinkClosed):
            await ends[0].wait_room()

    ends[0].post(b"x")
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        ends[end].close()
    await wait()
