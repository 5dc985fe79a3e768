"""The arena: memory for large buffers that two processes share, one for each direction of a link.

Only the producer allocates. It takes extents, fills them, and names them in a message, which lends them out;
when the last view of one has died in the consumer, a credit comes back and the extent is free again. So no
lock and no counter is shared, and pages are reused that both sides have mapped already: that is the whole
win over a segment for each tensor (measured).

The memory is sealed against resizing, so that neither side can take pages away from under the other's feet.
It has no name: when both are gone, it is. A producer that is killed takes nothing from its consumer.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from io import FileIO
from typing import Final, NamedTuple

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.credits import BorrowMachine, CreditMachine, Extent

ARENA_BYTES: Final = 64 * 1024 * 1024
"""How long an arena is unless a link is told otherwise."""
MAX_ARENA_BYTES: Final = 1 << 30
"""Longest arena that is accepted from the other side."""
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaStatistics(NamedTuple):
    """What an arena's producer has given out.

    Args:
        nbytes: how long the arena is; 0: there is none yet.
        taken: extents taken and not yet lent: something is being produced in them, or they wait to be sent.
        lent: extents that the other side has views of, as far as it has said.
        used_bytes: bytes of both, in whole granules.
    """

    nbytes: int = 0
    taken: int = 0
    lent: int = 0
    used_bytes: int = 0


class Arena:
    """The producer's side, and the ledger of what its peer holds. Used by one thread.

    Args:
        nbytes: how long, a multiple of `GRANULE`. All of it is allocated here and now, which takes about a
            millisecond a MiB: off the loop.

    Raises:
        ValueError: nobody would accept it.
        OSError: the system has not so much memory.
    """

    def __init__(self, nbytes: int = ARENA_BYTES) -> None:
        if nbytes > MAX_ARENA_BYTES:
            raise ValueError(f"an arena of {nbytes} bytes; {MAX_ARENA_BYTES} are allowed")
        self._ledger = CreditMachine(nbytes)
        self._file: FileIO | None = _make_memory(nbytes)
        try:
            self._memory = mmap.mmap(
                self._file.fileno(), nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=_BOTH
            )
        except BaseException:
            self._file.close()
            raise
        self._address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory))

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return self._ledger.nbytes

    def take_file(self) -> FileIO:
        """Return the descriptor to pass to the other side, once; whoever takes it closes it."""
        assert self._file is not None
        taken, self._file = self._file, None
        return taken

    def take(self, sizes: Sequence[int]) -> list[Extent] | None:
        """Take an extent of each size, or none of them if they do not all fit just now."""
        return self._ledger.take(sizes)

    def view(self, extent: Extent) -> memoryview:
        """Return the bytes of an extent; the view keeps the memory, though not the extent."""
        return memoryview(self._memory)[extent.start : extent.start + extent.nbytes]

    def offset_of(self, address: int) -> int | None:
        """Return where an address of this process lies in the arena, or None if it lies elsewhere."""
        offset = address - self._address
        return offset if 0 <= offset < self.nbytes else None

    def find(self, offset: int) -> Extent:
        """Return the extent that an offset lies in, which has to be one that is taken and not lent.

        Raises:
            LocalProtocolError: it is not.
        """
        return self._ledger.find(offset)

    def holds(self, extent: Extent) -> bool:
        """Return whether an extent is taken and not lent."""
        return self._ledger.holds(extent)

    def lend(self, extents: Sequence[Extent]) -> None:
        """Note that a message which names these extents is being posted.

        Raises:
            LocalProtocolError: one of them was sent or given back before.
        """
        self._ledger.lend(extents)

    def release(self, extents: Iterable[Extent]) -> bool:
        """Give back those of the extents that were not lent; return whether there were any."""
        return self._ledger.release(extents)

    def credit(self, offsets: Sequence[int]) -> None:
        """Note that the other side is done with extents.

        Args:
            offsets: where they begin.

        Raises:
            RemoteProtocolError: one of them is not lent, or not any more.
        """
        self._ledger.credit(offsets, self._ledger.generation)

    def statistics(self) -> ArenaStatistics:
        """Return what is given out."""
        ledger = self._ledger
        used = ledger.nbytes - ledger.free
        return ArenaStatistics(ledger.nbytes, len(ledger) - ledger.lent, ledger.lent, used)

    def close(self) -> None:
        """Free all that the peer held, as when it is gone; idempotent. Views keep the memory they view."""
        self._ledger.close()
        if self._file is not None:
            self._file.close()
            self._file = None
        _unmap(self._memory)


_BOTH: Final = mmap.PROT_READ | mmap.PROT_WRITE


def _make_memory(nbytes: int) -> FileIO:
    file = FileIO(os.memfd_create("vidette-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
    try:
        # Allocated, not just made so long: without room this is an error, and touching a mapping is a signal.
        os.posix_fallocate(file.fileno(), 0, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        file.close()
        raise
    return file


def _unmap(memory: mmap.mmap) -> None:
    """Unmap memory without views; else it and its descriptor stay until the last of them is gone."""
    with contextlib.suppress(BufferError):
        memory.close()


# --- the consumer ----------------------------------------------------------------------------------


class Loan(weakref.ref[ctypes.Array[ctypes.c_ubyte]]):
    """An extent as the consumer sees it: a reference to what all views of its bytes hold on to."""

    __slots__ = ("extent",)
    extent: Extent


class BorrowedArena:
    """The consumer's side of an arena that the other side has offered.

    All but the deaths of views happens in one thread.

    Args:
        file: the descriptor that came with the offer; closed here, whatever comes of it.
        nbytes: how long the other side says it is.
        writable: whether views may be written to.

    Raises:
        RemoteProtocolError: it is not sealed memory of this length.
    """

    def __init__(self, file: FileIO, nbytes: int, *, writable: bool = True) -> None:
        with file:
            _check_memory(file.fileno(), nbytes)
            try:
                self._memory = mmap.mmap(
                    file.fileno(), nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=_BOTH
                )
            except OSError as error:
                raise RemoteProtocolError(f"an arena cannot be mapped: {error}") from error
        self._writable = writable
        self._returns = _Returns()
        self._held = BorrowMachine(nbytes)
        self._loans: dict[int, Loan] = {}  # kept, or nobody would hear of their ends

    def borrow(self, offset: int, nbytes: int) -> tuple[memoryview, Loan]:
        """Return the bytes of an extent that a message names, and what `give_back` takes.

        Once these and whatever was made of them are gone, the extent is returned.

        Raises:
            DecodeError: there is no such extent, or part of it is borrowed already.
        """
        extent = self._held.borrow(offset, nbytes)
        # Whatever views these bytes holds on to this object, slices of slices as well, and only to this.
        anchor = (ctypes.c_ubyte * nbytes).from_buffer(self._memory, offset)
        loan = Loan(anchor, self._returns.add)
        loan.extent = extent
        self._loans[extent.serial] = loan
        view = memoryview(anchor).cast("B")
        return view if self._writable else view.toreadonly(), loan

    def give_back(self, loan: Loan) -> None:
        """Return an extent although views of it may be left, which nobody looks at any more."""
        self._returns.add(loan)

    def take_returned(self) -> list[int]:
        """Return where the extents begin whose last view has died since the last call: credits to send."""
        for loan in self._returns.take():
            self._loans.pop(loan.extent.serial, None)
            self._held.give_back(loan.extent)
        return self._held.credits()

    @property
    def borrowed(self) -> int:
        """How many extents are viewed, or not yet taken note of as returned."""
        return len(self._held)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something is returned."""
        return self._returns.fileno()

    def hush(self) -> None:
        """Make the descriptor unreadable until something else is returned."""
        self._returns.hush()

    def close(self) -> None:
        """Give descriptors back; idempotent. Views stay valid, and nobody hears of their end."""
        self._returns.close()
        _unmap(self._memory)


def _check_memory(descriptor: int, nbytes: int) -> None:
    if nbytes > MAX_ARENA_BYTES:
        raise RemoteProtocolError(f"an arena of {nbytes} bytes; {MAX_ARENA_BYTES} are allowed")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise RemoteProtocolError("what was offered as an arena is no memory") from error
    # Unsealed, it could be shortened, and whoever then touches its end is killed.
    if seals & SEALS != SEALS or seals & fcntl.F_SEAL_WRITE:
        raise RemoteProtocolError("an arena is not sealed against resizing, or is against writing")
    found = os.fstat(descriptor)
    # Pages that are not there would be taken from us.
    if found.st_size != nbytes or found.st_blocks * 512 < nbytes:
        raise RemoteProtocolError(f"an arena has {found.st_size} bytes, not {nbytes}")


class _Returns:
    """Extents whose last view has died, on whatever thread and at whatever moment."""

    def __init__(self) -> None:
        self._loans: deque[Loan] = deque()
        self._rung = False
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Reentrant: a collection of garbage may end views while this thread holds it.
        self._lock = threading.RLock()

    def add(self, loan: Loan) -> None:
        self._loans.append(loan)
        if self._rung:  # set before our append was seen, so whoever clears it sees that
            return
        self._rung = True
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> list[Loan]:
        # In this order, whatever there is: a bell that is silent and taken for rung would never ring again.
        self.hush()
        self._rung = False
        returned = []
        while self._loans:
            returned.append(self._loans.popleft())
        return returned

    def hush(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_read(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
