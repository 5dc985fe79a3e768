"""Posting between threads and loops: everything arrives, whoever waits is woken, and nobody polls."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from vidette.transport.mailbox import Bell, Mailbox

DEADLINE = 20.0

WaitBlocked = Callable[[threading.Thread, Any], None]


@pytest.fixture
def mailbox() -> Iterator[Mailbox[tuple[int, int]]]:
    box: Mailbox[tuple[int, int]] = Mailbox()
    yield box
    box.close()


@pytest.fixture
def bell() -> Iterator[Bell]:
    ringer = Bell()
    yield ringer
    ringer.close()


# --- Mailbox ---------------------------------------------------------------------------------------


async def test_posts_of_several_threads_arrive_each_in_its_order(mailbox: Mailbox[tuple[int, int]]) -> None:
    count, threads = 400, 3

    def post(thread: int) -> None:
        for number in range(count):
            mailbox.post((thread, number))

    received: list[tuple[int, int]] = []
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            for thread in range(threads):
                tasks.start_soon(to_thread.run_sync, post, thread)
            while len(received) < count * threads:
                received.append(await mailbox.receive())
    for thread in range(threads):
        assert [number for sender, number in received if sender == thread] == list(range(count))


@pytest.mark.parametrize("seed", range(3))
async def test_a_receive_that_is_cancelled_loses_nothing(
    mailbox: Mailbox[tuple[int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    count, cancelled = 300, 0
    received: list[tuple[int, int]] = []
    turn = threading.Semaphore(1)

    def post() -> None:
        for number in range(count):
            turn.acquire(timeout=DEADLINE)
            mailbox.post((0, number))

    async def cancel_later(scope: anyio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, post)
            while len(received) < count:
                turn.release()  # so that posting and giving up race all the time
                async with anyio.create_task_group() as attempt:
                    attempt.start_soon(cancel_later, attempt.cancel_scope, rng.randrange(5))
                    received.append(await mailbox.receive())
                    attempt.cancel_scope.cancel()
                cancelled += attempt.cancel_scope.cancelled_caught
    assert received == [(0, number) for number in range(count)]
    assert cancelled > 0


async def test_a_reader_that_waits_is_woken_each_time(mailbox: Mailbox[tuple[int, int]]) -> None:
    taken = threading.Semaphore(0)

    def post() -> None:
        for number in range(200):
            mailbox.post((1, number))
            assert taken.acquire(timeout=DEADLINE)

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, post)
            for number in range(200):
                assert await mailbox.receive() == (1, number)
                taken.release()


async def test_all_that_has_come_is_taken_at_once_in_its_order(mailbox: Mailbox[tuple[int, int]]) -> None:
    def post() -> None:
        for number in range(2000):
            mailbox.post((0, number))

    received: list[tuple[int, int]] = []
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, post)
            while len(received) < 2000:
                received += await mailbox.receive_all()
        mailbox.post((1, 0))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await mailbox.receive_all()
        assert scope.cancelled_caught
        assert await mailbox.receive_all() == [(1, 0)]
    assert received == [(0, number) for number in range(2000)]


def test_a_reader_is_told_once_of_what_comes_before_it_looks(mailbox: Mailbox[tuple[int, int]]) -> None:
    for number in range(5):
        mailbox.post((0, number))
    assert os.eventfd_read(mailbox._fd) == 1


async def test_what_was_posted_before_anyone_waits_is_there(mailbox: Mailbox[tuple[int, int]]) -> None:
    mailbox.post((0, 0))
    mailbox.post((0, 1))
    with anyio.fail_after(DEADLINE):
        assert await mailbox.receive() == (0, 0)
        assert await mailbox.receive() == (0, 1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            mailbox.post((0, 2))
            await mailbox.receive()
        assert scope.cancelled_caught
        assert await mailbox.receive() == (0, 2)


async def test_it_stays_quiet_once_it_is_empty(mailbox: Mailbox[tuple[int, int]]) -> None:
    for number in range(3):
        mailbox.post((0, number))
        await mailbox.receive()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.receive)
        await anyio.wait_all_tasks_blocked()  # the posts that were taken do not keep it awake
        tasks.cancel_scope.cancel()


async def test_a_full_mailbox_does_not_starve_others(mailbox: Mailbox[tuple[int, int]]) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    for number in range(50):
        mailbox.post((0, number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        for number in range(50):
            assert await mailbox.receive() == (0, number)
        tasks.cancel_scope.cancel()
    assert turns >= 40


def test_it_is_closed_once(bell: Bell) -> None:
    box: Mailbox[int] = Mailbox()
    for thing in (box, bell):
        thing.close()
        thing.close()
    # What had its number may be somebody else's by now: it is not written to.
    with pytest.raises(ValueError, match="-1"):
        box.post(1)
    with pytest.raises(ValueError, match="-1"):
        bell.ring()


# --- Bell ------------------------------------------------------------------------------------------


def test_a_bell_wakes_a_thread_that_waits(bell: Bell, wait_blocked: WaitBlocked) -> None:
    thread = threading.Thread(target=bell.wait)
    thread.start()
    wait_blocked(thread, Bell.wait)
    bell.ring()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_bell_that_rang_before_is_not_waited_for_and_rings_merge(
    bell: Bell, wait_blocked: WaitBlocked
) -> None:
    for _ in range(3):
        bell.ring()
    bell.wait()
    thread = threading.Thread(target=bell.wait)  # the three rings are used up
    thread.start()
    wait_blocked(thread, Bell.wait)
    bell.ring()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_no_ring_is_lost_between_two_threads(bell: Bell) -> None:
    """Whoever looks after each wait at what was left for it finds all of it: the compute thread's loop."""
    left: list[int] = []
    found: list[int] = []

    def find() -> None:
        while len(found) < 2000:
            bell.wait()
            while left:
                found.append(left.pop(0))

    thread = threading.Thread(target=find)
    thread.start()
    for number in range(2000):
        left.append(number)
        bell.ring()
    thread.join(DEADLINE)
    assert found == list(range(2000))


def test_it_waits_for_a_descriptor_as_well(
    bell: Bell, small_pair: tuple[socket.socket, socket.socket], wait_blocked: WaitBlocked
) -> None:
    left, right = small_pair
    _fill(left)
    thread = threading.Thread(target=bell.wait, args=[[left.fileno()]])
    thread.start()
    wait_blocked(thread, Bell.wait)
    while thread.is_alive():
        right.recv(1 << 16)
        thread.join(0.001)
    # Nobody rang, so the next wait is for a ring.
    other = threading.Thread(target=bell.wait)
    other.start()
    wait_blocked(other, Bell.wait)
    bell.ring()
    other.join(DEADLINE)
    assert not other.is_alive()


@pytest.mark.parametrize("place", [0, 1])
def test_it_waits_for_any_of_several_descriptors(bell: Bell, wait_blocked: WaitBlocked, place: int) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    for left, _ in pairs:
        left.setblocking(False)
        _fill(left)
    thread = threading.Thread(target=bell.wait, args=[[left.fileno() for left, _ in pairs]])
    thread.start()
    wait_blocked(thread, Bell.wait)
    while thread.is_alive():
        pairs[place][1].recv(1 << 16)
        thread.join(0.001)
    for sock in (sock for pair in pairs for sock in pair):
        sock.close()


def test_a_ring_wakes_it_while_the_descriptor_is_full(
    bell: Bell, small_pair: tuple[socket.socket, socket.socket], wait_blocked: WaitBlocked
) -> None:
    left, _ = small_pair
    _fill(left)
    thread = threading.Thread(target=bell.wait, args=[[left.fileno()]])
    thread.start()
    wait_blocked(thread, Bell.wait)
    bell.ring()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_ring_that_comes_with_the_descriptor_is_used_up(
    bell: Bell, small_pair: tuple[socket.socket, socket.socket], wait_blocked: WaitBlocked
) -> None:
    left, _ = small_pair
    bell.ring()
    bell.wait([left.fileno()])
    thread = threading.Thread(target=bell.wait)
    thread.start()
    wait_blocked(thread, Bell.wait)
    bell.ring()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_reader_that_goes_wakes_who_waits_for_its_room(
    bell: Bell, small_pair: tuple[socket.socket, socket.socket], wait_blocked: WaitBlocked
) -> None:
    left, right = small_pair
    _fill(left)
    thread = threading.Thread(target=bell.wait, args=[[left.fileno()]])
    thread.start()
    wait_blocked(thread, Bell.wait)
    right.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.01])
def test_a_wait_ends_with_its_time_and_not_before(bell: Bell, seconds: float) -> None:
    before = time.monotonic()
    bell.wait(seconds=seconds)  # nobody rings
    assert time.monotonic() - before >= seconds
    bell.ring()
    bell.wait()  # and nothing of the ring was used up


def test_a_wait_ends_with_its_time_while_the_descriptor_is_full(
    bell: Bell, small_pair: tuple[socket.socket, socket.socket]
) -> None:
    left, _ = small_pair
    _fill(left)
    bell.wait([left.fileno()], seconds=0.01)


@pytest.mark.parametrize("seconds", [DEADLINE, 1e7, 1e300])
def test_a_ring_ends_a_wait_before_its_time_however_long_that_is(
    bell: Bell, wait_blocked: WaitBlocked, seconds: float
) -> None:
    thread = threading.Thread(target=bell.wait, kwargs={"seconds": seconds})
    thread.start()
    wait_blocked(thread, Bell.wait)
    bell.ring()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    bell.wait(seconds=0)  # the ring is used up: this one ends with its time


def _fill(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1024))
