"""Frames and bytes: any splitting gives the same frames, and an announced length costs nothing."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import termios
import tracemalloc
from collections import deque
from io import FileIO
from itertools import cycle, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.transport.framing import (
    BUFFERS_PER_SEND,
    GROW_BYTES,
    HEADER,
    RECEIVE_BYTES,
    FrameReader,
    Outbox,
    split,
)
from vidette_protocol.errors import RemoteProtocolError

MAX_FRAME = 64 * 1024 * 1024
BOUNDARY = RECEIVE_BYTES - HEADER.size
"""The longest frame that shares the buffer."""


def encode(*frames: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Put bytes into a reader, in as many rounds as its buffers ask for; return the frames it makes."""
    frames, rest = [], memoryview(data)
    while rest:
        with reader.buffer() as buffer:
            count = min(len(buffer), len(rest))
            assert count > 0
            buffer[:count] = rest[:count]
        reader.advance(count)
        rest = rest[count:]
        while (frame := reader.pop()) is not None:
            frames.append(bytes(frame))
    return frames


def pattern(length: int, start: int = 0) -> bytes:
    """Return bytes in which every stretch tells where it is from."""
    numbers = array.array("I", range(start, start + length // 4 + 1))
    return numbers.tobytes()[:length]


SMALL = st.binary(max_size=30)
LARGE = st.builds(
    pattern,
    st.one_of(st.integers(BOUNDARY - 3, BOUNDARY + 3), st.integers(0, 3 * RECEIVE_BYTES)),
    st.integers(0, 1000),
)
FRAMES = st.lists(st.one_of(SMALL, SMALL, LARGE), max_size=8)


@settings(deadline=None)
@given(frames=FRAMES, data=st.data())
def test_any_splitting_of_the_bytes_gives_the_same_frames(frames: list[bytes], data: st.DataObject) -> None:
    """Frames that are encoded and received in whatever pieces come out equal, in order, and alone."""
    encoded = encode(*frames)
    cuts = data.draw(st.lists(st.integers(0, len(encoded)), max_size=30).map(sorted))
    reader, received = FrameReader(MAX_FRAME), []
    for start, end in pairwise([0, *cuts, len(encoded)]):
        received += feed(reader, encoded[start:end])
    assert frames == received
    assert not reader.partial


@given(frames=st.lists(SMALL, max_size=8))
def test_bytes_that_come_one_by_one_give_the_same_frames(frames: list[bytes]) -> None:
    """Each frame is complete with its last byte, not before and not later."""
    reader = FrameReader(MAX_FRAME)
    for frame in frames:
        *before, last = (feed(reader, bytes([value])) for value in encode(frame))
        assert not any(before)
        assert last == [frame]
        assert not reader.partial


@given(frames=FRAMES)
@settings(max_examples=20, deadline=None)
def test_a_captured_link_is_split_into_its_frames(frames: list[bytes]) -> None:
    """`split` undoes the encoding."""
    assert frames == [bytes(frame) for frame in split(encode(*frames), max_frame=MAX_FRAME)]


@given(
    good=st.lists(SMALL, max_size=4),
    garbage=st.one_of(st.binary(max_size=100), st.integers(31, 2**32 - 1).map(HEADER.pack)),
    step=st.integers(1, 50),
)
def test_any_bytes_are_frames_or_a_fault_of_the_other_side(
    good: list[bytes], garbage: bytes, step: int
) -> None:
    """In whatever pieces: all frames before the first that is too long, then RemoteProtocolError."""
    data = encode(*good) + garbage
    reader, frames = FrameReader(max_frame=30), []
    faulty = False
    for start in range(0, len(data), step):
        with reader.buffer() as buffer:
            piece = data[start : start + step]
            buffer[: len(piece)] = piece
        reader.advance(len(piece))
        try:
            while (frame := reader.pop()) is not None:
                frames.append(bytes(frame))
        except RemoteProtocolError:
            faulty = True
            break
    assert good == frames[: len(good)]
    assert data.startswith(encode(*frames))
    rest = data[len(encode(*frames)) :]
    assert faulty == (len(rest) >= HEADER.size and HEADER.unpack_from(rest)[0] > 30)


def test_a_fault_is_told_after_the_frames_before_it_and_stays() -> None:
    reader = FrameReader(max_frame=3)
    data = encode(b"one", b"four")
    with reader.buffer() as buffer:
        buffer[: len(data)] = data
    reader.advance(len(data))
    assert reader.pop() == b"one"
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="a frame of 4 bytes"):
            reader.pop()


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5, 9])
def test_it_knows_whether_a_frame_has_begun(cut: int) -> None:
    reader = FrameReader(MAX_FRAME)
    assert not reader.partial
    feed(reader, encode(b"first") + encode(b"second")[:cut])
    assert (cut > 0) == reader.partial


def test_it_knows_whether_a_large_frame_has_begun() -> None:
    reader = FrameReader(MAX_FRAME)
    encoded = encode(pattern(BOUNDARY + 1))
    assert feed(reader, encoded[:-1]) == []
    assert reader.partial
    assert feed(reader, encoded[-1:]) == [encoded[HEADER.size :]]
    assert not reader.partial


def test_frames_are_their_own_memory() -> None:
    reader = FrameReader(MAX_FRAME)
    for frame in (b"kept", pattern(BOUNDARY + 1)):
        feed(reader, encode(frame)[:-1])
        with reader.buffer() as buffer:
            buffer[0] = frame[-1]
        reader.advance(1)
        kept = reader.pop()
        feed(reader, encode(bytes(len(frame))))
        assert kept == frame


# --- lengths ---------------------------------------------------------------------------------------


def test_the_longest_frame_is_accepted_and_a_longer_one_refused() -> None:
    assert feed(FrameReader(10), encode(bytes(10))) == [bytes(10)]
    with pytest.raises(RemoteProtocolError, match=r"^a frame of 11 bytes is announced; 10 is the limit$"):
        feed(FrameReader(10), encode(bytes(11)))


def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated() -> None:
    reader = FrameReader(MAX_FRAME)
    header = HEADER.pack(2**32 - 1)
    with reader.buffer() as buffer:
        buffer[: len(header)] = header
    tracemalloc.start()
    try:
        reader.advance(len(header))
        with pytest.raises(RemoteProtocolError, match="4294967295 bytes"):
            reader.pop()
        assert tracemalloc.get_traced_memory()[1] < GROW_BYTES
    finally:
        tracemalloc.stop()


def test_a_length_within_the_limit_allocates_next_to_nothing() -> None:
    reader = FrameReader(MAX_FRAME)
    tracemalloc.start()
    try:
        assert feed(reader, HEADER.pack(MAX_FRAME)) == []
        buffer = reader.buffer()
        assert len(buffer) == GROW_BYTES
        # What it has taken, and what it needed for a moment to take it.
        kept, peak = tracemalloc.get_traced_memory()
        assert kept < 1.25 * GROW_BYTES
        assert peak < 2.5 * GROW_BYTES
        buffer.release()
    finally:
        tracemalloc.stop()


@given(
    length=st.integers(RECEIVE_BYTES, 40 * RECEIVE_BYTES),
    pieces=st.lists(st.integers(1, 400_000), min_size=1),
)
@settings(max_examples=30, deadline=None)
def test_memory_for_a_large_frame_is_never_more_than_twice_what_has_come(
    length: int, pieces: list[int]
) -> None:
    """The room for what is still to come is at most what has come, or the least amount."""
    reader, come = FrameReader(40 * RECEIVE_BYTES), 0
    feed(reader, HEADER.pack(length))
    for piece in pieces:
        with reader.buffer() as buffer:
            assert 0 < len(buffer) <= min(max(come, GROW_BYTES), length - come)
            count = min(piece, len(buffer))
        reader.advance(count)
        come += count
        if come == length:
            break
    assert (come == length) == (reader.pop() is not None)


# --- the way out -----------------------------------------------------------------------------------


def unread(sock: socket.socket) -> int:
    """Return how many bytes a socket has ready to be read."""
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, count)
    return count[0]


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(st.one_of(SMALL, st.builds(pattern, st.integers(0, 20_000))), max_size=8),
    puts=st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any),
    reads=st.lists(st.integers(1, 100_000), min_size=1, max_size=8),
)
def test_partial_sends_keep_order_bytes_and_the_account(
    frames: list[bytes], puts: list[int], reads: list[int]
) -> None:
    """Through a socket that is mostly full: what arrives is the frames, and what waits is accounted for."""
    outbox, put, received = Outbox(), 0, bytearray()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        left.setblocking(False)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        waiting = deque(frames)
        for count, most in zip(cycle(puts), cycle(reads), strict=False):
            for _ in range(min(count, len(waiting))):
                frame = waiting.popleft()
                outbox.put(frame)
                put += HEADER.size + len(frame)
            assert put == len(received) + unread(right) + outbox.nbytes
            empty = outbox.flush(left)
            assert empty == (outbox.nbytes == 0)
            assert put == len(received) + unread(right) + outbox.nbytes
            if unread(right):
                received += right.recv(max(most, len(encode(*frames)) // 100))
            elif empty and not waiting:
                break
    assert encode(*frames) == received


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("I")])
def test_whatever_holds_bytes_is_sent(kind: type, small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    outbox, frame = Outbox(), pattern(64)
    outbox.put(kind(frame))
    assert outbox.nbytes == HEADER.size + 64
    assert outbox.flush(left)
    assert right.recv(1000) == encode(frame)


def test_more_frames_than_one_send_takes_go_out_in_order() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    frames = [pattern(4, number) for number in range(3 * BUFFERS_PER_SEND + 1)]
    outbox = Outbox()
    for frame in frames:
        outbox.put(frame)
    with left, right:
        left.setblocking(False)
        assert outbox.flush(left)
        left.close()
        received = b"".join(iter(lambda: right.recv(1 << 16), b""))
    assert encode(*frames) == received


def test_an_empty_outbox_has_nothing_to_flush(small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    assert Outbox().flush(left)
    assert unread(right) == 0


def test_a_reader_that_is_gone_is_an_os_error(small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    outbox = Outbox()
    outbox.put(b"too late")
    right.close()
    with pytest.raises(BrokenPipeError):
        outbox.flush(left)


# --- in pieces, and with descriptors ---------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(
        st.lists(st.one_of(SMALL, st.builds(pattern, st.integers(0, 20_000))), max_size=4), max_size=6
    ),
    reads=st.lists(st.integers(1, 100_000), min_size=1, max_size=8),
)
def test_a_frame_in_pieces_arrives_as_one(frames: list[list[bytes]], reads: list[int]) -> None:
    """Whatever the pieces, and however much the socket takes at once, the same frames are read."""
    outbox, received = Outbox(), bytearray()
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        left.setblocking(False)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for number, pieces in enumerate(frames):
            kind = memoryview if number % 2 else bytes
            outbox.put_pieces([kind(piece) for piece in pieces])
        whole = encode(*map(b"".join, frames))
        assert outbox.nbytes == len(whole)
        for most in cycle(reads):
            empty = outbox.flush(left)
            assert len(whole) == len(received) + unread(right) + outbox.nbytes
            if unread(right):
                received += right.recv(max(most, len(whole) // 100))
            elif empty:
                break
    assert whole == received


def test_pieces_are_not_copied() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    memory = bytearray(b"before")
    outbox = Outbox()
    outbox.put_pieces([b"head ", memoryview(memory)])
    memory[:] = b"behind"
    with left, right:
        assert outbox.flush(left)
        assert right.recv(100) == encode(b"head behind")


def test_frames_of_several_parts_are_writable_whatever_their_length() -> None:
    for length in (1, 100, BOUNDARY, BOUNDARY + 1):
        frame = bytes([0xC1]) + bytes(length - 1)
        (back,) = split(encode(frame), max_frame=MAX_FRAME)
        assert isinstance(back, bytearray)
        assert back == frame
        (plain,) = split(encode(frame[1:]), max_frame=MAX_FRAME)
        assert plain == frame[1:]


def descriptors_of(sock: socket.socket, nbytes: int) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(sock, nbytes, 10)
    return data, descriptors


@pytest.mark.parametrize("before", [0, 1, 3 * BUFFERS_PER_SEND])
def test_a_descriptor_goes_with_its_frame(before: int) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    outbox = Outbox()
    for _ in range(before):
        outbox.put(b"before")
    files = [FileIO(os.memfd_create(name), "r+") for name in ("first", "second")]
    for file in files:
        file.write(b"contents")
        outbox.put_with_descriptor(b"offer", file)
        outbox.put(b"behind")
    expected = encode(*[b"before"] * before, b"offer", b"behind", b"offer", b"behind")
    assert outbox.nbytes == len(expected)
    offers = [at for at in range(len(expected)) if expected.startswith(encode(b"offer"), at)]
    with left, right:
        left.setblocking(False)
        assert outbox.flush(left)
        assert all(file.closed for file in files)
        received, places = b"", []
        while len(received) < len(expected):
            data, descriptors = descriptors_of(right, 1 << 20)
            for descriptor in descriptors:
                # It has come with its frame, or with what is before that, never behind.
                places.append(len(received) + len(data))
                assert os.pread(descriptor, 100, 0) == b"contents"
                os.close(descriptor)
            received += data
    assert received == expected
    assert len(places) == 2
    assert all(end > offer for end, offer in zip(places, offers, strict=True))


def test_a_descriptor_waits_while_the_socket_is_full(small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    outbox = Outbox()
    outbox.put(pattern(100_000))
    outbox.put_with_descriptor(b"offer", FileIO(os.memfd_create("passed"), "r+"))
    received, came = b"", []
    while not outbox.flush(left):
        data, descriptors = descriptors_of(right, 1 << 20)
        received += data
        came += descriptors
    while unread(right):
        data, descriptors = descriptors_of(right, 1 << 20)
        received += data
        came += descriptors
    assert received == encode(pattern(100_000), b"offer")
    (descriptor,) = came
    os.close(descriptor)


def test_a_descriptor_that_was_not_sent_is_closed(small_pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = small_pair
    outbox = Outbox()
    outbox.put(pattern(100_000))
    file = FileIO(os.memfd_create("never passed"), "r+")
    outbox.put_with_descriptor(b"offer", file)
    assert not outbox.flush(left)
    right.close()
    with pytest.raises(OSError, match=r"."):
        outbox.flush(left)
    outbox.close()
    outbox.close()
    assert file.closed
