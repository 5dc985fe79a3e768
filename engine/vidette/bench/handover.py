"""A tensor for another process: from the call that sends it until it can be read there.

Each transfer carries other data than the one before, written just before the clock starts. In a run that is
not counted the other side reports a checksum of what has come. `inplace` is what a producer does that asks
the arena for room first and makes its tensor there; the others have one in memory of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import torch

from vidette.bench.interleave import Effort, time_trips
from vidette.bench.messages import Load, Task
from vidette.bench.peer import LINK, Peer, PeerFailed, checksum
from vidette.bench.results import OURS, Results, compare
from vidette.bench.zeromq import ZmqTensors
from vidette.transport.bulk import Room

MEBIBYTE: Final = 1024 * 1024
COPY: Final = "copy"
IN_PLACE: Final = "inplace"
SHARE: Final = 8
"""One turn for so many of those of small things, which take a thousandth of the time."""


class Transfer(Protocol):
    """One way to hand over a tensor."""

    async def __call__(self, *, verify: bool) -> float:
        """Hand over, and return how many seconds it took."""
        ...


class Handover:
    """Transfers of one tensor by all ways.

    Args:
        peer: whom to.
        tensor: of float32; changed before each transfer.
    """

    def __init__(self, peer: Peer, tensor: torch.Tensor) -> None:
        self._peer = peer
        self._tensor = tensor
        self._bits = tensor.view(torch.int32)
        baselines = ZmqTensors(peer.sockets.bulk)
        self.ways: Final[dict[str, Transfer]] = {
            COPY: self._copy,
            IN_PLACE: self._in_place,
        }
        for name, send in baselines.send.items():
            self.ways[name] = self._by(name, send)
        self.framed = 0
        """How many of ours found no room in the arena and travelled in a frame."""

    def _by(self, way: str, send: Callable[[torch.Tensor], None]) -> Transfer:
        async def transfer(*, verify: bool) -> float:
            self._bits.add_(1)
            await self._peer.tell(Task(kind="take", way=way, verify=verify))
            started = time.monotonic_ns()
            send(self._tensor)
            return await self._finish(started, self._tensor, verify=verify)

        return transfer

    async def _copy(self, *, verify: bool) -> float:
        self._bits.add_(1)
        await self._peer.tell(Task(kind="take", way=LINK, verify=verify))
        started = time.monotonic_ns()
        async with self._peer.link.prepare(Load(body=self._tensor)) as prepared:
            self.framed += not prepared.extents
            self._peer.link.post(prepared)
        return await self._finish(started, self._tensor, verify=verify)

    async def _in_place(self, *, verify: bool) -> float:
        self._bits.add_(1)
        await self._peer.tell(Task(kind="take", way=LINK, verify=verify))
        async with self._peer.link.reserve(Room(tuple(self._tensor.shape))) as (made,):
            made.copy_(self._tensor)
            self.framed += not self._peer.link.bulk_statistics().arena.taken
            started = time.monotonic_ns()
            self._peer.link.post(Load(body=made))
        return await self._finish(started, self._tensor, verify=verify)

    async def _finish(self, started: int, tensor: torch.Tensor, *, verify: bool) -> float:
        done = await self._peer.done()
        if verify and done.checksum != checksum(tensor):
            raise PeerFailed("what came at the other side was not what was sent")
        return (done.at - started) * 1e-9


async def bench_handover(peer: Peer, effort: Effort, nbytes: int) -> Results:
    """Time tensors of float32 by our ways and by those of others.

    Args:
        peer: whom to.
        effort: how much.
        nbytes: how large; whole MiB.

    Raises:
        PeerFailed: something else came than was sent.
    """
    generator = torch.Generator().manual_seed(effort.rng.getrandbits(32))
    handover = Handover(peer, torch.rand(nbytes // 4, generator=generator))
    turns = {way: partial(transfer, verify=False) for way, transfer in handover.ways.items()}
    async with peer.reading():
        for transfer in handover.ways.values():
            await transfer(verify=True)
        seconds = await time_trips(turns, effort.share(SHARE))
    what = f"handover_{nbytes // MEBIBYTE}mib"
    theirs = {way: values for way, values in seconds.items() if way not in (COPY, IN_PLACE)}
    results = Results([], [])
    for ours in (COPY, IN_PLACE):
        results += compare(f"{what}_{ours}", {OURS: seconds[ours]} | theirs)
    if handover.framed:
        results.notes.append(f"{what}: {handover.framed} found no room in the arena and travelled in a frame")
    return results
