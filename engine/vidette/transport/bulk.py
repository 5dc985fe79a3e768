"""How a link carries large buffers: in its arena if there is room, else beside the message in its frame.

A producer that knows what it will make asks for room first and makes it in place. A message that is made
already is prepared: its large buffers are copied into the arena, all of them or none. Both wait, with a
deadline, before anything is posted, and hold nothing while they wait; posting never waits. What there is no
room for travels in the frame, and so does what is posted without being prepared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, assert_never

import anyio
import anyio.lowlevel
from anyio import to_thread

from vidette.transport.arena import ARENA_BYTES, Arena, ArenaStatistics, BorrowedArena, Loan
from vidette.transport.channel import Channel, FrameChannel
from vidette_protocol.codec import Codec
from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError
from vidette_protocol.ext import new_array
from vidette_protocol.ext.bundle import Part, is_bundle, join_bundle, length_of, split_bundle
from vidette_protocol.ext.dtypes import TORCH_DTYPES
from vidette_protocol.ext.layout import nbytes_of
from vidette_protocol.ext.outside import OUTSIDE_BYTES
from vidette_protocol.lifecycle.credits import Extent
from vidette_protocol.lifecycle.extents import whole
from vidette_protocol.limits import Limits
from vidette_protocol.messages import Message
from vidette_protocol.messages.bulk import ArenaCredit, ArenaOffer
from vidette_protocol.messages.columns import pack_i64, view_i64

THRESHOLD_BYTES: Final = 256 * 1024
"""Buffers from this length on are copied into the arena; for shorter ones the copy saves nothing."""
WAIT_SECONDS: Final = 0.25
"""How long a producer waits for room before its buffers travel in a frame."""
COPY_BYTES: Final = 4 * 1024 * 1024
"""More than this is copied off the loop."""


class BulkOptions(NamedTuple):
    """How one end of a link carries large buffers.

    Args:
        arena_bytes: how long the arena is that this end produces in, a multiple of 4096; 0: it has none.
        writable: whether views of what comes may be written to. If not, arrays are read-only, and tensors,
            which cannot be, are copies.
        threshold: bytes from which on a buffer is copied into the arena.
        frame_bytes: longest frame that the other end accepts.
    """

    arena_bytes: int = ARENA_BYTES
    writable: bool = True
    threshold: int = THRESHOLD_BYTES
    frame_bytes: int = Limits().frame_bytes


class Room(NamedTuple):
    """What is to be produced in place.

    Args:
        shape: its dimensions.
        dtype: its element type, by torch's name without `torch.`.
        kind: whether it is a tensor or an array.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: Literal["torch", "numpy"] = "torch"

    @property
    def nbytes(self) -> int:
        """How long it is.

        Raises:
            LocalProtocolError: such elements do not travel.
        """
        if self.dtype not in TORCH_DTYPES:
            raise LocalProtocolError(f"dtype {self.dtype!r} does not travel")
        return nbytes_of(self.shape, TORCH_DTYPES[self.dtype])


class BulkStatistics(NamedTuple):
    """What large buffers a link has on its way just now.

    Args:
        arena: what this end has given out of its own.
        borrowed: how many buffers of the other end's arena are viewed here.
    """

    arena: ArenaStatistics
    borrowed: int

    @property
    def held(self) -> int:
        """How many extents are held, at either end."""
        return self.arena.taken + self.arena.lent + self.borrowed


class Prepared:
    """A message that is encoded and has its large buffers where they can be sent from."""

    __slots__ = ("extents", "own", "pieces", "posted")

    def __init__(
        self, pieces: Sequence[bytes | memoryview], extents: list[Extent], own: list[Extent]
    ) -> None:
        self.pieces: Final = pieces
        """The frame; a single one of a message that has no large buffers."""
        self.extents: Final = extents
        """What of the arena it names."""
        self.own: Final = own
        """Which of them hold copies that were made for it."""
        self.posted = False


class Bulk:
    """The large buffers of one end of a link, both ways.

    Args:
        channel: what carries the frames; only sockets carry an arena as well.
        codec: what may travel.
        options: how large buffers are carried, if the codec allows them.
    """

    def __init__(self, channel: FrameChannel, codec: Codec, options: BulkOptions) -> None:
        self._channel = channel
        self._codec = codec
        self._options = options
        self._sockets = channel if isinstance(channel, Channel) and codec.bulk else None
        self._arena: Arena | None = None
        self._arena_bytes = options.arena_bytes if self._sockets is not None else 0
        self._ended = False
        self._turn = anyio.Lock()
        self._freed = anyio.Event()
        self.offer: ArenaOffer | None = None
        """What the other end has offered, until it is mapped."""
        self._borrowed: BorrowedArena | None = None
        self._mapped = anyio.Event()
        if self._sockets is not None:
            self._sockets.expect_descriptor()

    # --- sending -----------------------------------------------------------------------------------

    def post(self, message: Message | Prepared) -> None:
        """Queue a message, and the credits that are due; synchronous, never blocks.

        Raises:
            LocalProtocolError: as for `Link.post`.
        """
        self.post_credits()
        if isinstance(message, Prepared):
            self._post_prepared(message)
            return
        encoded, buffers = self._codec.encode_parts(message)
        if not buffers and len(encoded) <= self._options.frame_bytes:
            self._channel.post(encoded)
        else:
            self._post_prepared(Prepared(*self._lay_out(encoded, *self._find(buffers)), []))

    def _post_prepared(self, prepared: Prepared) -> None:
        if prepared.posted:
            raise LocalProtocolError("a message that was prepared once is posted twice")
        if self._ended:
            return
        if self._arena is not None:
            if not all(map(self._arena.holds, prepared.extents)):
                raise LocalProtocolError("memory of an arena is sent after it was sent or given back")
            self._arena.lend(prepared.extents)
        prepared.posted = True
        match prepared.pieces:
            case [bytes(frame)]:
                self._channel.post(frame)
            case pieces:
                self._channel.post_pieces(pieces)

    async def prepare(self, message: Message, wait_seconds: float) -> Prepared:
        """Encode a message and copy its large buffers into the arena, if there is or will be room for them.

        Raises:
            LocalProtocolError: as for `Link.post`.
        """
        await anyio.lowlevel.checkpoint()
        encoded, buffers = self._codec.encode_parts(message)
        parts, extents = self._find(buffers)
        large = [
            number
            for number, part in enumerate(parts)
            if part.raw is not None and part.nbytes >= self._options.threshold
        ]
        own = await self.take([parts[number].nbytes for number in large], wait_seconds) if large else []
        try:
            if own:
                await self._copy([parts[number].raw for number in large], own)
                for number, extent in zip(large, own, strict=True):
                    parts[number] = Part(extent.nbytes, place=extent.start)
            return Prepared(*self._lay_out(encoded, parts, extents + own), own)
        except BaseException:
            self.release(own)
            raise

    async def take(self, sizes: Sequence[int], wait_seconds: float) -> list[Extent]:
        """Return an extent of each size; an empty list if they do not all fit before the deadline."""
        needed = sum(map(whole, sizes))
        if not needed or needed > self._arena_bytes:
            return []
        taken: list[Extent] | None = None
        if self._arena is not None and not self._turn.locked():
            taken = self._arena.take(sizes)
        if taken is None:
            with anyio.move_on_after(wait_seconds):
                async with self._turn:  # whoever waits longest is served first, however much it wants
                    arena = await self._open()
                    while arena is not None and (taken := arena.take(sizes)) is None:
                        self._freed = anyio.Event()
                        await self._freed.wait()
                        if needed > self._arena_bytes:  # the other end is gone
                            break
        return taken or []

    def release(self, extents: list[Extent]) -> None:
        """Give back those of the extents that were not posted."""
        if self._arena is not None and self._arena.release(extents):
            self._freed.set()

    def make(self, rooms: Sequence[Room], extents: list[Extent]) -> tuple[Any, ...]:
        """Return a tensor or array for each room, in an extent if there is one for it."""
        views = iter([] if self._arena is None else map(self._arena.view, extents))
        return tuple(
            new_array(
                room.kind, room.shape, room.dtype, next(views, None) if room.nbytes >= OUTSIDE_BYTES else None
            )
            for room in rooms
        )

    async def _open(self) -> Arena | None:
        """Return the arena, which is made and offered when it is first needed; None if it cannot be."""
        if self._arena is None and self._arena_bytes and self._sockets is not None:
            try:
                arena = await _off_the_loop(Arena, self._arena_bytes)
            except OSError:  # no memory for it: frames do as well
                self._arena_bytes = 0
                return None
            if not self._arena_bytes:  # the other end is gone meanwhile
                arena.close()
                return None
            self._arena = arena
            offer = self._codec.encode(ArenaOffer(nbytes=arena.nbytes))
            self._sockets.post_with_descriptor(offer, arena.take_file())
        return self._arena

    def _find(self, buffers: list[memoryview]) -> tuple[list[Part], list[Extent]]:
        """Return how each buffer travels: by its place if it was produced in the arena, else in the frame."""
        parts: list[Part] = []
        extents: list[Extent] = []
        for raw in buffers:
            offset = None
            if self._arena is not None and not self._ended:
                offset = self._arena.offset_of(_address_of(raw))
            if offset is None or self._arena is None:
                parts.append(Part(raw.nbytes, raw=raw))
                continue
            extent = self._arena.find(offset)
            if extent.start == offset and extent not in extents:
                parts.append(Part(raw.nbytes, place=offset))
                extents.append(extent)
            else:
                # Part of an extent, or one that this message names already: its memory may soon be another's.
                parts.append(Part(raw.nbytes, raw=memoryview(bytes(raw))))
        return parts, extents

    def _lay_out(
        self, encoded: bytes, parts: list[Part], extents: list[Extent]
    ) -> tuple[Sequence[bytes | memoryview], list[Extent]]:
        pieces = join_bundle(encoded, parts) if parts else [encoded]
        length = length_of(pieces)
        if length > self._options.frame_bytes:
            raise LocalProtocolError(f"a frame of {length} bytes; {self._options.frame_bytes} is the limit")
        return pieces, extents

    async def _copy(self, sources: Sequence[memoryview | None], extents: list[Extent]) -> None:
        assert self._arena is not None
        arena = self._arena
        pairs = [
            (arena.view(extent), raw) for extent, raw in zip(extents, sources, strict=True) if raw is not None
        ]
        try:
            if sum(raw.nbytes for _, raw in pairs) > COPY_BYTES:
                await _off_the_loop(_copy_all, pairs)
            else:
                _copy_all(pairs)
        finally:
            pairs.clear()  # tracebacks keep no views

    # --- receiving ---------------------------------------------------------------------------------

    def decode(self, frame: bytes | bytearray) -> Message:
        """Turn a frame into a message whose large arrays and tensors are views of the frame or the arena.

        Raises:
            DecodeError: it is no message of this link; what it names of the arena is returned.
        """
        if not (self._codec.bulk and is_bundle(frame)):
            return self._codec.decode(frame)
        encoded, parts = split_bundle(frame)
        loans: list[Loan] = []
        try:
            buffers = [self._read(part, loans) for part in parts]
            return self._codec.decode_parts(encoded, buffers)
        except BaseException:
            # The exception keeps half-made views, which nobody will ever look at.
            for loan in loans:
                assert self._borrowed is not None
                self._borrowed.give_back(loan)
            raise

    async def settle(self, message: ArenaOffer | ArenaCredit) -> None:
        """Take note of what the other end says about its arena, or about ours.

        Raises:
            RemoteProtocolError: it says what is not so.
        """
        match message:
            case ArenaOffer():
                if self.offer is not None or self._borrowed is not None:
                    raise RemoteProtocolError("a second arena was offered")
                self.offer = message
                await self.open_offered()
            case ArenaCredit():
                if self._arena is None:
                    raise RemoteProtocolError("a credit came, and there is no arena")
                self._arena.credit(view_i64(message.packed_places).tolist())
                self._freed.set()
            case _:
                assert_never(message)

    async def open_offered(self) -> None:
        """Map the arena that was offered, if one was and is not yet mapped.

        Raises:
            RemoteProtocolError: it is none.
        """
        if self.offer is not None:
            # Cancelled before the thread begins, this is done by the next `receive()`.
            self._borrowed = await _off_the_loop(self._map, self.offer.nbytes)
            self.offer = None
            self._mapped.set()

    def _map(self, nbytes: int) -> BorrowedArena:
        file = None if self._sockets is None else self._sockets.take_descriptor()
        if file is None:
            raise RemoteProtocolError("an arena was offered, but no descriptor came with it")
        return BorrowedArena(file, nbytes, writable=self._options.writable)

    def _read(self, part: Part, loans: list[Loan]) -> memoryview:
        if part.place is None:
            assert part.raw is not None
            return part.raw if self._options.writable else part.raw.toreadonly()
        if self._borrowed is None:
            raise RemoteProtocolError("a buffer in an arena, and none was offered")
        view, loan = self._borrowed.borrow(part.place, part.nbytes)
        loans.append(loan)
        return view

    def post_credits(self) -> None:
        """Queue a credit for what has been returned since the last one."""
        if self._borrowed is not None:
            returned = self._borrowed.take_returned()
            if returned and not self._ended:
                credit = ArenaCredit(packed_places=pack_i64(returned))
                self._channel.post(self._codec.encode(credit))

    async def run_credits(self) -> None:
        """Post credits when nothing else is posted that they could go along with, until cancelled."""
        await self._mapped.wait()
        while self._borrowed is not None:
            await anyio.wait_readable(self._borrowed)
            self._borrowed.hush()
            self.post_credits()

    # --- the end -----------------------------------------------------------------------------------

    def end(self) -> None:
        """Free all that the other end held, since it is gone, and let go of whoever waits for it."""
        self._ended = True
        self._arena_bytes = 0
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._freed.set()

    def close(self) -> None:
        """End, and give every descriptor back; idempotent. Views that are left stay valid."""
        self.end()
        if self._borrowed is not None:
            self._borrowed.close()
            self._borrowed = None

    def statistics(self) -> BulkStatistics:
        """Return what is on its way."""
        if self._borrowed is not None:
            self.post_credits()
        return BulkStatistics(
            ArenaStatistics() if self._arena is None else self._arena.statistics(),
            0 if self._borrowed is None else self._borrowed.borrowed,
        )


class Preparation:
    """`async with` it: the message is prepared inside, and what was not posted is returned behind it."""

    def __init__(self, bulk: Bulk, message: Message, wait_seconds: float) -> None:
        self._bulk = bulk
        self._message = message
        self._wait_seconds = wait_seconds
        self._own: list[Extent] = []

    async def __aenter__(self) -> Prepared:
        prepared = await self._bulk.prepare(self._message, self._wait_seconds)
        self._own = prepared.own
        return prepared

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bulk.release(self._own)


class Reservation:
    """`async with` it: there is room inside, and what was not posted of it is returned behind it."""

    def __init__(self, bulk: Bulk, rooms: Sequence[Room], wait_seconds: float) -> None:
        self._bulk = bulk
        self._rooms = rooms
        self._wait_seconds = wait_seconds
        self._extents: list[Extent] = []

    async def __aenter__(self) -> tuple[Any, ...]:
        sizes = [room.nbytes for room in self._rooms]
        await anyio.lowlevel.checkpoint()
        large = [size for size in sizes if size >= OUTSIDE_BYTES]
        self._extents = await self._bulk.take(large, self._wait_seconds)
        try:
            return self._bulk.make(self._rooms, self._extents)
        except BaseException:
            self._bulk.release(self._extents)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bulk.release(self._extents)


async def _off_the_loop(function: Any, *args: Any) -> Any:
    # A limiter of its own: the default one is shared, and whoever holds it could wait for us.
    return await to_thread.run_sync(function, *args, limiter=anyio.CapacityLimiter(1))


def _copy_all(pairs: list[tuple[memoryview, memoryview]]) -> None:
    import numpy as np  # noqa: PLC0415  the buffers are its own

    while pairs:  # emptied, since a thread may hold its arguments for a moment longer
        target, raw = pairs.pop()
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(raw, np.uint8))  # lets go of the interpreter


def _address_of(raw: memoryview) -> int:
    if not raw.readonly:
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(raw))
    import numpy as np  # noqa: PLC0415

    address: int = np.frombuffer(raw, np.uint8).__array_interface__["data"][0]
    return address
