"""Memory that two sides share: the ledger adds up, views keep what they view, and forgeries are refused."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import select
import threading
from collections.abc import Iterator
from io import FileIO
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.transport.arena import MAX_ARENA_BYTES, SEALS, Arena, ArenaStatistics, BorrowedArena
from vidette_protocol.errors import DecodeError, LocalProtocolError, RemoteProtocolError
from vidette_protocol.lifecycle.credits import Extent
from vidette_protocol.lifecycle.extents import GRANULE, whole

PAGES = 16
SIZE = PAGES * GRANULE


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(SIZE)
    yield made
    made.close()


@pytest.fixture
def sides(arena: Arena) -> Iterator[tuple[Arena, BorrowedArena]]:
    borrowed = BorrowedArena(arena.take_file(), SIZE)
    yield arena, borrowed
    borrowed.close()


def readable(borrowed: BorrowedArena) -> bool:
    poll = select.poll()
    poll.register(borrowed, select.POLLIN)
    return bool(poll.poll(0))


def take(arena: Arena, *sizes: int) -> list[Extent]:
    taken = arena.take(sizes)
    assert taken is not None
    return taken


# --- the producer ----------------------------------------------------------------------------------


def test_the_memory_is_there_and_cannot_be_resized(arena: Arena) -> None:
    with arena.take_file() as file:
        found = os.fstat(file.fileno())
        assert found.st_size == SIZE
        assert found.st_blocks * 512 >= SIZE
        assert fcntl.fcntl(file, fcntl.F_GET_SEALS) & SEALS == SEALS
        assert not os.get_inheritable(file.fileno())
        for size in (SIZE - GRANULE, SIZE + GRANULE):
            with pytest.raises(PermissionError):
                os.ftruncate(file.fileno(), size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_what_is_given_out_is_counted(arena: Arena) -> None:
    assert arena.statistics() == ArenaStatistics(SIZE, 0, 0, 0)
    first, second, third = take(arena, 1, GRANULE, GRANULE + 1)
    assert arena.statistics() == ArenaStatistics(SIZE, 3, 0, 4 * GRANULE)
    arena.lend([first, third])
    assert arena.statistics() == ArenaStatistics(SIZE, 1, 2, 4 * GRANULE)
    assert arena.release([first, second, third])
    assert arena.statistics() == ArenaStatistics(SIZE, 0, 2, 3 * GRANULE)
    assert not arena.release([first, second, third])
    arena.credit([third.start, first.start])
    assert arena.statistics() == ArenaStatistics(SIZE, 0, 0, 0)


def test_all_of_a_message_is_taken_or_nothing(arena: Arena) -> None:
    take(arena, 10 * GRANULE)
    before = arena.statistics()
    assert arena.take([4 * GRANULE, 3 * GRANULE]) is None
    assert before == arena.statistics()
    assert arena.take([4 * GRANULE, 2 * GRANULE]) is not None


def test_a_credit_that_is_not_due_is_refused(arena: Arena) -> None:
    lent, kept = take(arena, 1, 1)
    arena.lend([lent])
    for offset in (kept.start, 5 * GRANULE, 1, -GRANULE, SIZE):
        with pytest.raises(RemoteProtocolError, match=f"a credit for byte {offset} of an arena"):
            arena.credit([offset])
    arena.credit([lent.start])
    with pytest.raises(RemoteProtocolError, match="which is not lent"):
        arena.credit([lent.start])


def test_a_view_is_the_extent(arena: Arena) -> None:
    _, extent = take(arena, GRANULE, 5)
    view = arena.view(extent)
    assert view.nbytes == 5
    assert not view.readonly
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    assert arena.offset_of(address) == extent.start == GRANULE
    assert arena.offset_of(address - GRANULE - 1) is None
    assert arena.offset_of(address - GRANULE + SIZE) is None


def test_only_what_is_taken_and_not_lent_is_found(arena: Arena) -> None:
    first, second = take(arena, GRANULE + 1, 1)
    assert arena.find(0) is arena.find(GRANULE) is first
    assert arena.find(second.start) is second
    for offset in (GRANULE + 1, second.start + 1, 5 * GRANULE):
        with pytest.raises(LocalProtocolError, match="after it was sent or given back"):
            arena.find(offset)
    arena.lend([first])
    arena.release([second])
    for offset in (0, GRANULE, second.start):
        with pytest.raises(LocalProtocolError, match="after it was sent or given back"):
            arena.find(offset)
    assert not arena.holds(first)
    assert not arena.holds(second)


def test_an_extent_is_not_its_successor(arena: Arena) -> None:
    (old,) = take(arena, 1)
    arena.release([old])
    (new,) = take(arena, 1)
    assert new.start == old.start
    assert not arena.release([old])
    assert arena.holds(new)


def test_closing_frees_all_and_leaves_views_alone(arena: Arena) -> None:
    taken = take(arena, 1, 1)
    arena.lend(taken[:1])
    view = arena.view(taken[1])
    arena.close()
    arena.close()
    assert arena.statistics().used_bytes == 0
    view[0] = 7
    assert view[0] == 7
    view.release()


def test_an_arena_that_nobody_would_accept_is_not_made() -> None:
    with pytest.raises(ValueError, match=f"{MAX_ARENA_BYTES} are allowed"):
        Arena(MAX_ARENA_BYTES + GRANULE)


# --- both ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.lists(st.integers(1, 4 * GRANULE), min_size=1, max_size=3)),
            st.tuples(st.sampled_from(["post", "drop", "die", "credit"]), st.integers(0, 9)),
        ),
        max_size=40,
    )
)
def test_bytes_arrive_and_the_ledgers_add_up(steps: list[tuple[str, Any]]) -> None:
    """Whatever the order, views show what was put there, both ledgers say so, and in the end all is free."""
    arena = Arena(SIZE)
    borrowed = BorrowedArena(arena.take_file(), SIZE)
    taken: list[Extent] = []
    lent: list[tuple[Extent, Any, int]] = []
    due = 0
    for number, (step, argument) in enumerate(steps):
        if step == "take":
            taken += arena.take(argument) or []
        elif step == "post" and taken:
            extent = taken.pop(argument % len(taken))
            arena.view(extent)[:] = bytes([number + 1]) * extent.nbytes
            arena.lend([extent])
            view, _ = borrowed.borrow(extent.start, extent.nbytes)
            lent.append((extent, torch.frombuffer(view, dtype=torch.uint8), number + 1))
            del view, _
        elif step == "drop" and taken:
            assert arena.release([taken.pop(argument % len(taken))])
        elif step == "die" and lent:
            del lent[argument % len(lent)]
            due += 1
        elif step == "credit":
            returned = borrowed.take_returned()
            assert len(returned) == due
            due = 0
            arena.credit(returned)
        assert all(tensor.shape == (extent.nbytes,) for extent, tensor, _ in lent)
        assert all(bool(torch.all(tensor == value)) for _, tensor, value in lent)
        assert borrowed.borrowed == len(lent) + due
        statistics = arena.statistics()
        assert (statistics.taken, statistics.lent) == (len(taken), len(lent) + due)
        mine = sum(whole(extent.nbytes) for extent in [*taken, *(one for one, _, _ in lent)])
        assert due or mine == statistics.used_bytes
        assert readable(borrowed) == (due > 0)
    arena.release(taken)
    lent.clear()
    arena.credit(borrowed.take_returned())
    assert arena.statistics().used_bytes == borrowed.borrowed == 0
    borrowed.close()
    arena.close()


def lend(sides: tuple[Arena, BorrowedArena], nbytes: int = 400) -> tuple[int, memoryview]:
    arena, borrowed = sides
    (extent,) = take(arena, nbytes)
    arena.lend([extent])
    return extent.start, borrowed.borrow(extent.start, nbytes)[0]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_an_extent_is_returned_when_the_last_view_dies(sides: tuple[Arena, BorrowedArena], kind: str) -> None:
    """A slice outlives its tensor, another shape outlives the slice; only then comes the credit, once."""
    offset, view = lend(sides)
    whole_one: Any = (
        torch.frombuffer(view, dtype=torch.float32) if kind == "torch" else np.frombuffer(view, np.float32)
    )
    del view
    part = whole_one[10:20]
    other = part.reshape(2, 5)
    del whole_one
    gc.collect()
    assert sides[1].take_returned() == []
    del part
    other[0, 0] = 7
    assert sides[1].take_returned() == []
    del other
    assert sides[1].take_returned() == [offset]
    assert sides[1].take_returned() == []


def test_bytes_of_bytes_keep_it_too(sides: tuple[Arena, BorrowedArena]) -> None:
    offset, view = lend(sides)
    kept = memoryview(view)[5:7].cast("B")
    storage = torch.frombuffer(view[8:], dtype=torch.uint8).untyped_storage()
    array = np.asarray(kept)
    del view, kept
    gc.collect()
    assert sides[1].take_returned() == []
    del storage
    assert sides[1].take_returned() == []
    del array
    assert sides[1].take_returned() == [offset]


def test_views_may_die_on_any_thread(sides: tuple[Arena, BorrowedArena]) -> None:
    lent = [lend(sides, 1) for _ in range(PAGES)]
    offsets = sorted(offset for offset, _ in lent)
    gate = threading.Barrier(4)

    def kill(views: list[memoryview]) -> None:
        gate.wait()
        views.clear()

    shares = [[view for _, view in lent[number::4]] for number in range(4)]
    lent.clear()
    threads = [threading.Thread(target=kill, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    poll = select.poll()
    poll.register(sides[1], select.POLLIN)
    returned: list[int] = []
    while len(returned) < PAGES:
        assert poll.poll(20_000), "nobody was told"
        sides[1].hush()
        returned += sides[1].take_returned()
    for thread in threads:
        thread.join()
    assert sorted(returned) == offsets


def test_views_that_die_in_a_collection_of_garbage_are_returned(
    sides: tuple[Arena, BorrowedArena],
) -> None:
    offset, view = lend(sides)
    circle: list[Any] = [view]
    circle.append(circle)
    del view, circle
    gc.collect()
    assert sides[1].take_returned() == [offset]


def test_what_is_given_back_early_is_returned_once(sides: tuple[Arena, BorrowedArena]) -> None:
    arena, borrowed = sides
    (extent,) = take(arena, 1)
    arena.lend([extent])
    view, loan = borrowed.borrow(extent.start, 1)
    borrowed.give_back(loan)
    borrowed.give_back(loan)
    assert borrowed.take_returned() == [extent.start]
    arena.credit([extent.start])
    # The same memory again, while a view of its first use is left in somebody's traceback.
    (again,) = take(arena, 1)
    arena.lend([again])
    assert again.start == extent.start
    second, _ = borrowed.borrow(again.start, 1)
    del view, loan
    assert borrowed.take_returned() == []
    del second, _
    assert borrowed.take_returned() == [again.start]


def test_views_outlive_everything() -> None:
    arena = Arena(SIZE)
    borrowed = BorrowedArena(arena.take_file(), SIZE)
    (extent,) = take(arena, 4)
    arena.view(extent)[:] = b"kept"
    arena.lend([extent])
    view, _ = borrowed.borrow(extent.start, 4)
    borrowed.close()
    borrowed.close()
    arena.close()
    del arena, borrowed, _
    gc.collect()
    assert bytes(view) == b"kept"
    view[0] = ord("K")


def test_views_are_read_only_if_that_was_asked_for(arena: Arena) -> None:
    borrowed = BorrowedArena(arena.take_file(), SIZE, writable=False)
    (extent,) = take(arena, 4)
    arena.lend([extent])
    view, _ = borrowed.borrow(extent.start, 4)
    assert view.readonly
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    del view, _
    assert borrowed.take_returned() == []
    del array
    assert borrowed.take_returned() == [extent.start]
    borrowed.close()


# --- forgeries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (1, 10),
        (GRANULE - 16, 16),
        (SIZE, 1),
        (SIZE - GRANULE, GRANULE + 1),
        (0, SIZE + 1),
        (0, 0),
        (0, (1 << 64) - 1),
        ((1 << 63), 1),
        ((1 << 64) - GRANULE, GRANULE),
    ],
)
def test_what_does_not_lie_in_the_arena_is_refused(
    sides: tuple[Arena, BorrowedArena], offset: int, nbytes: int
) -> None:
    with pytest.raises(DecodeError, match=f"{nbytes} bytes at {offset} of an arena"):
        sides[1].borrow(offset, nbytes)
    assert sides[1].borrowed == 0


@given(
    ranges=st.lists(st.tuples(st.integers(0, PAGES), st.integers(1, 5 * GRANULE)), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_no_byte_is_lent_twice(ranges: list[tuple[int, int]]) -> None:
    """Ranges are borrowed that share no granule with one borrowed before; others are a DecodeError."""
    arena = Arena(SIZE)
    borrowed = BorrowedArena(arena.take_file(), SIZE)
    used: set[int] = set()
    views = []
    for page, nbytes in ranges:
        pages = set(range(page, page + whole(nbytes) // GRANULE))
        if max(pages) < PAGES and not pages & used:
            views.append(borrowed.borrow(page * GRANULE, nbytes))
            used |= pages
        else:
            with pytest.raises(DecodeError):
                borrowed.borrow(page * GRANULE, nbytes)
    assert borrowed.borrowed == len(views)
    borrowed.close()
    arena.close()


def sealed(nbytes: int, seals: int = SEALS, *, there: bool = True) -> FileIO:
    file = FileIO(os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
    if there:
        os.posix_fallocate(file.fileno(), 0, nbytes)
    else:
        os.ftruncate(file.fileno(), nbytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def pipe_end() -> FileIO:
    read, write = os.pipe()
    os.close(write)
    return FileIO(read)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: sealed(SIZE - GRANULE), f"has {SIZE - GRANULE} bytes, not {SIZE}"),
        (lambda: sealed(SIZE + GRANULE), "bytes, not"),
        (lambda: sealed(SIZE, there=False), "bytes, not"),  # pages that would be taken from us
        (lambda: sealed(SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), "not sealed"),
        (lambda: sealed(SIZE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "not sealed"),
        (lambda: sealed(SIZE, SEALS | fcntl.F_SEAL_WRITE), "against writing"),
        (lambda: FileIO(__file__), "no memory"),
        (lambda: FileIO(os.open("/dev/null", os.O_RDWR)), "no memory"),
        (pipe_end, "no memory"),
    ],
)
def test_what_is_no_sealed_memory_of_this_length_is_refused(make: Any, fault: str) -> None:
    with pytest.raises(RemoteProtocolError, match=fault):
        BorrowedArena(make(), SIZE)


def test_memory_that_cannot_be_mapped_is_refused() -> None:
    with sealed(SIZE) as file:
        weaker = FileIO(os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY))
    with pytest.raises(RemoteProtocolError, match="cannot be mapped"):
        BorrowedArena(weaker, SIZE)


def test_a_length_that_nobody_would_map_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=f"{MAX_ARENA_BYTES} are allowed"):
        BorrowedArena(sealed(SIZE), MAX_ARENA_BYTES + GRANULE)


def test_both_sides_see_the_same_memory(sides: tuple[Arena, BorrowedArena]) -> None:
    arena, borrowed = sides
    (extent,) = take(arena, mmap.PAGESIZE)
    arena.lend([extent])
    view, _ = borrowed.borrow(extent.start, mmap.PAGESIZE)
    arena.view(extent)[:5] = b"there"
    assert bytes(view[:5]) == b"there"
