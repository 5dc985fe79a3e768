"""The detokenizer's AnyIO shell: from the scheduler, through `Detokenizer`, to the front."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import msgspec

from vidette._collector import Collector
from vidette.detokenizer.detokenizer import Detokenizer
from vidette.models.interface import TokenTable
from vidette.transport.capture import Recorder
from vidette.transport.channel import FrameChannel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette_protocol.codec import Codec
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import BatchTokenIDOutput, FreezeGCReq, HeartbeatReq, Ready, ShutdownReq
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_FRONT,
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_DETOKENIZER,
    SCHEDULER_TO_DETOKENIZER,
)


async def run_detokenizer(
    scheduler: FrameChannel,
    front: FrameChannel,
    *,
    table: TokenTable,
    role: str = "detokenizer",
    incarnation: int = 0,
    recorder: Recorder | None = None,
    make: Callable[[TokenTable], Detokenizer] = Detokenizer,
    collects: bool = True,
) -> None:
    """Serve one scheduler until it says shutdown or is gone.

    Args:
        scheduler: the link step messages come from.
        front: the link texts go to.
        table: the bytes of each token.
        role: its name, which is not the same for each of several.
        incarnation: how often a detokenizer was started before in this engine.
        recorder: records what comes from the scheduler.
        make: builds what keeps the texts.
        collects: whether the garbage collector of this process is the detokenizer's to freeze.

    Raises:
        RemoteProtocolError: one of the others broke the protocol.
    """
    inward = Link(
        scheduler,
        Codec(sends=DETOKENIZER_TO_SCHEDULER, receives=SCHEDULER_TO_DETOKENIZER),
        role=role,
        peer="scheduler",
        recorder=recorder,
    )
    outward = Link(
        front,
        Codec(sends=DETOKENIZER_TO_FRONT, receives=FRONT_TO_DETOKENIZER),
        role=role,
        peer="front",
    )
    inward.post_hello(incarnation=incarnation)
    outward.post_hello(incarnation=incarnation)
    collector = Collector() if collects else None
    async with anyio.create_task_group() as tasks:
        if collector is not None:
            tasks.start_soon(collector.run)
        tasks.start_soon(scheduler.run_writer)
        tasks.start_soon(front.run_writer)
        try:
            await inward.receive_hello()
            await outward.receive_hello()
            outward.post(Ready(role=role))
            await _pump(inward, outward, make(table), collector)
        except LinkClosed:
            pass
        finally:
            tasks.cancel_scope.cancel()


async def _pump(inward: Link, outward: Link, detokenizer: Detokenizer, collector: Collector | None) -> None:
    while True:
        # While the front lags behind, nothing is read: the scheduler parks its output, and launches no step.
        await outward.channel.wait_room()
        message = await inward.receive()
        match message:
            case BatchTokenIDOutput():
                outward.post(detokenizer.step(message, time.monotonic()))
            case HeartbeatReq():
                outward.post(msgspec.structs.replace(message, detokenizer_open=len(detokenizer)))
            case FreezeGCReq():
                state = None if collector is None else collector.apply(message)
                outward.post(msgspec.structs.replace(message, detokenizer=state))
            case ShutdownReq():
                return
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} came after the handshake")
