"""The compute thread's way out: bounded, ordered, and never in the way."""

from __future__ import annotations

import select
import socket

import pytest

from vidette.transport.framing import HEADER, LinkClosed, split
from vidette.transport.sink import Sink

FRAME = bytes(range(250)) * 4


def read_all(sock: socket.socket) -> bytes:
    """Return what a socket has ready to be read."""
    parts = []
    while select.select([sock], [], [], 0)[0] and (part := sock.recv(1 << 16)):
        parts.append(part)
    return b"".join(parts)


def test_it_is_full_from_the_high_water_mark_on(small_pair: tuple[socket.socket, socket.socket]) -> None:
    sink = Sink(small_pair[0], high_water=2 * (HEADER.size + len(FRAME)))
    sink.put(FRAME)
    assert not sink.full
    sink.put(FRAME)
    assert sink.full


def test_what_is_parked_leaves_in_order_as_the_reader_drains(
    small_pair: tuple[socket.socket, socket.socket],
) -> None:
    left, right = small_pair
    sink = Sink(left, high_water=10 * len(FRAME))
    frames = [b"%d" % number + FRAME for number in range(100)]
    for frame in frames:
        sink.put(frame)
    assert not sink.flush()
    assert sink.full
    received = bytearray()
    flushed = False
    while not flushed:
        # Whoever waits for the descriptor to be writable is woken once there is room.
        assert sink.fileno() == left.fileno()
        received += read_all(right)
        assert select.select([], [sink.fileno()], [], 20)[1]
        flushed = sink.flush()
    assert not sink.full
    received += read_all(right)
    assert frames == [bytes(frame) for frame in split(bytes(received), max_frame=1 << 20)]


def test_nothing_parked_is_nothing_to_do(small_pair: tuple[socket.socket, socket.socket]) -> None:
    sink = Sink(small_pair[0])
    assert sink.flush()
    assert not sink.full
    assert read_all(small_pair[1]) == b""


def test_closing_it_is_the_end_for_the_reader(small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    sink = Sink(left)
    sink.put(b"last")
    assert sink.flush()
    sink.close()
    sink.close()
    assert right.recv(100) == HEADER.pack(4) + b"last"
    assert right.recv(100) == b""


def test_a_reader_that_is_gone_is_told(small_pair: tuple[socket.socket, socket.socket]) -> None:
    sink = Sink(small_pair[0])
    small_pair[1].close()
    sink.put(b"")
    with pytest.raises(LinkClosed):
        sink.flush()
