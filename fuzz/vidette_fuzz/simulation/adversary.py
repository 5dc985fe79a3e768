"""`Adversary`: decides when what happens; `AdverseChannel`: frames that come when it pleases; `Tapped`: seen.

A link keeps its order and loses nothing while both ends live; all else is allowed. A frame may be late, a
link may stand still for a while, frames of different moments may come at once, and one frame may come in
pieces: the bytes go through the very reader that takes frames off a socket.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, NamedTuple, Self

import anyio
import anyio.lowlevel

from vidette.transport.framing import HEADER, FrameReader, LinkClosed
from vidette_fuzz.simulation.journal import Journal
from vidette_protocol.limits import Limits

LATE: Final = 0.005
"""A frame that takes longer, in seconds, counts as delayed."""


class Weather(NamedTuple):
    """How a link behaves during one history.

    Args:
        latency: mean seconds that a frame takes.
        stall: chance that a frame finds the link standing still.
        stalled: mean seconds that it then does.
        split: chance that a frame comes in pieces.
        grid: seconds; frames arrive at multiples of it only, so that some come together. 0: whenever.
    """

    latency: float
    stall: float
    stalled: float
    split: float
    grid: float


class Adversary:
    """Draws everything that a history leaves open.

    Args:
        random: of the seed; nothing else is random.
        journal: where what it does is counted.
    """

    def __init__(self, random: Random, journal: Journal) -> None:
        self.random = random
        self.journal = journal
        self._slow = random.choice([0.0, 0.0, 0.01, 0.1])
        self._step = random.choice([0.001, 0.01, 0.05])
        self._busy = random.choice([0.0, 0.0, 0.01, 0.1])

    def weather(self) -> Weather:
        """Draw how a link behaves."""
        random = self.random
        return Weather(
            latency=random.choice([0.0, 0.0001, 0.001, 0.05, 1.0]),
            stall=random.choice([0.0, 0.0, 0.02, 0.1]),
            stalled=random.choice([0.1, 2.0, 30.0]),
            split=random.choice([0.0, 0.1, 0.5]),
            grid=random.choice([0.0, 0.0, 0.01, 0.5]),
        )

    def step_seconds(self) -> float:
        """Draw how long a step is on the device."""
        if self.random.random() < self._slow:
            self.journal.harm("slow_step")
            return self.random.uniform(0.5, 3.0)
        return self.random.uniform(0.1, 1.0) * self._step

    async def keep_busy(self) -> None:
        """Keep the program that the front is part of from its loop for a while, or not."""
        if self._busy and self.chance(self._busy):
            self.journal.harm("front_stall", "the front does not read for a while")
            await anyio.sleep(self.while_(5.0))

    def chance(self, share: float) -> bool:
        """Return True in this share of cases."""
        return self.random.random() < share

    def while_(self, mean: float) -> float:
        """Draw some seconds, often much less than the mean and sometimes much more; now and then none."""
        return 0.0 if self.chance(0.1) else self.random.expovariate(1 / mean)


class _Way:
    """One direction of a link."""

    def __init__(self, name: str, adversary: Adversary) -> None:
        self.name = name
        self.unread = 0
        """Bytes that were posted and have not been taken."""
        self.taken = anyio.Event()
        """Set, and made anew, whenever something is taken."""
        self._adversary = adversary
        self._weather = adversary.weather()
        self._high_water = adversary.random.choice([64, 1024, 1 << 20])
        self._reader = FrameReader(Limits().frame_bytes)
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._last = 0.0
        self._arrived = anyio.Event()
        self._closed = False

    def put(self, frame: bytes) -> None:
        if self._closed:
            return
        data = HEADER.pack(len(frame)) + frame
        self.unread += len(data)
        adversary, weather = self._adversary, self._weather
        if weather.stall and adversary.chance(weather.stall):
            seconds = adversary.while_(weather.stalled)
            self._last = max(self._last, anyio.current_time() + seconds)
            adversary.journal.harm("stall", f"the link {self.name} stands still for {seconds:.3f} s")
        if weather.split and adversary.chance(weather.split):
            adversary.journal.harm("split")
            cut = adversary.random.randrange(1, len(data))
            self._put(data[:cut])
            self._put(data[cut:])
        else:
            self._put(data)
        self._arrived.set()

    def _put(self, piece: bytes) -> None:
        weather, now = self._weather, anyio.current_time()
        due = now + (self._adversary.random.expovariate(1 / weather.latency) if weather.latency else 0)
        if weather.grid:
            due = math.ceil(due / weather.grid) * weather.grid
        if due <= self._last and self._pieces:
            self._adversary.journal.harm("coalesce")
        if due > now + LATE:
            self._adversary.journal.harm("delay")
        self._last = max(due, self._last)
        self._pieces.append((self._last, piece))

    async def take(self) -> bytes | bytearray:
        await anyio.lowlevel.checkpoint()
        while True:
            frame = self._reader.pop()
            if frame is not None:
                self.unread -= HEADER.size + len(frame)
                self.taken.set()
                self.taken = anyio.Event()
                return frame
            if not self._feed():
                if self._closed and not self._pieces:
                    raise LinkClosed("the link was closed")
                self._arrived = anyio.Event()
                with anyio.CancelScope(deadline=self._pieces[0][0] if self._pieces else math.inf):
                    await self._arrived.wait()

    def _feed(self) -> bool:
        """Give the reader what has come; return whether that was something."""
        now, fed = anyio.current_time(), False
        while self._pieces and self._pieces[0][0] <= now:
            rest = memoryview(self._pieces.popleft()[1])
            while rest:
                with self._reader.buffer() as buffer:
                    count = min(len(buffer), len(rest))
                    buffer[:count] = rest[:count]
                self._reader.advance(count)
                rest = rest[count:]
            fed = True
        return fed

    async def wait_room(self) -> None:
        told = False
        while self.unread >= self._high_water:
            if self._closed:
                raise LinkClosed("the link was closed")
            if not told:
                self._adversary.journal.harm("full", f"the link {self.name} is full")
                told = True
            await self.taken.wait()

    def close(self) -> None:
        self._closed = True
        self._arrived.set()
        self.taken.set()


class AdverseChannel:
    """One end of a link between two tasks, in the hands of an adversary; made by `pair()`."""

    def __init__(self, outward: _Way, inward: _Way) -> None:
        self._outward = outward
        self._inward = inward

    def post(self, frame: bytes) -> None:
        """Send a frame on its way."""
        self._outward.put(frame)

    def post_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send a frame that is in pieces on its way."""
        self._outward.put(b"".join(pieces))

    async def receive(self) -> bytes | bytearray:
        """Wait for the next frame.

        Raises:
            LinkClosed: one of the ends was closed, and what was on its way has come.
        """
        return await self._inward.take()

    async def run_writer(self) -> None:
        """Do nothing: posting sends."""
        await anyio.lowlevel.checkpoint()

    @property
    def queued_bytes(self) -> int:
        """Bytes that were posted here, and that the other end has not taken."""
        return self._outward.unread

    async def wait_room(self) -> None:
        """Wait until the other end has taken all but less than the adversary leaves room for.

        Raises:
            LinkClosed: one of the ends was closed.
        """
        await self._outward.wait_room()

    @property
    def unread(self) -> int:
        """Bytes that were posted here, and that the other end has not taken."""
        return self._outward.unread

    @property
    def taken(self) -> anyio.Event:
        """Set when the other end takes something next."""
        return self._outward.taken

    def close(self) -> None:
        """Close both ends; what is on its way still comes."""
        self._outward.close()
        self._inward.close()

    @classmethod
    def pair(cls, left: str, right: str, adversary: Adversary) -> tuple[Self, Self]:
        """Return two ends that are joined.

        Args:
            left: who is at the first of them.
            right: who is at the other one.
            adversary: in whose hands it is.
        """
        there, back = _Way(f"{left} to {right}", adversary), _Way(f"{right} to {left}", adversary)
        return cls(there, back), cls(back, there)


class Tapped:
    """A channel of which somebody sees what is received, and may delay it.

    Args:
        channel: tapped.
        see: given each frame that is received.
        before: awaited before each.
    """

    def __init__(
        self,
        channel: AdverseChannel,
        see: Callable[[bytes | bytearray], None],
        *,
        before: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> None:
        self._channel = channel
        self._see = see
        self._before = before
        self.post = channel.post
        self.post_pieces = channel.post_pieces
        self.wait_room = channel.wait_room
        self.run_writer = channel.run_writer
        self.close = channel.close

    @property
    def queued_bytes(self) -> int:
        """As the channel."""
        return self._channel.queued_bytes

    async def receive(self) -> bytes | bytearray:
        """As the channel."""
        await self._before()
        frame = await self._channel.receive()
        self._see(frame)
        return frame
