"""`Peer`: the process at the other side, and what it is told."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import msgspec
import torch

from vidette.bench.messages import Done, Go, Task, control_codec, load_codec
from vidette.bench.zeromq import ZmqSockets
from vidette.errors import Error
from vidette.transport.channel import Channel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.sink import Sink
from vidette.transport.spawn import Child, describe_exit

CONTROL: Final = "control"
LINK: Final = "link"
PREPARED: Final = "prepared"
"""The same link, and messages are prepared for it: large tensors go through its arena."""
BYTES: Final = "bytes"
FRAMES: Final = "frames"

ANSWER_SECONDS: Final = 60.0
"""How long the peer may take for anything; it imports torch first of all."""


class PeerFailed(Error):  # noqa: N818  named like the engine's errors
    """The process at the other side did not do as it was told; the message says what it said last."""


class PeerConfig(msgspec.Struct, frozen=True):
    """What a peer is told at its start.

    Args:
        folder: where the sockets of the baselines lie.
    """

    folder: str


class Peer:
    """This side of the links to a peer; made by `open_peer()`.

    Attributes:
        link: messages; its writer runs.
        channel: frames, both ways; its writer runs.
        sink: frames, one way, sent when one says so.
        sockets: those of the baselines.
    """

    def __init__(
        self, control: Channel, link: Link, channel: Channel, sink: Sink, sockets: ZmqSockets
    ) -> None:
        self._tasks = control
        self._control = Link(control, control_codec(), role="bench", peer="peer", opened=True)
        self.link = link
        self.channel = channel
        self.sink = sink
        self.sockets = sockets

    async def tell(self, task: Task) -> None:
        """Tell the peer what comes next, and wait until it waits for that.

        Raises:
            PeerFailed: it does not answer.
        """
        self._control.post(task)
        assert self._tasks.flush_nowait()
        assert isinstance(await self._answer(), Go)

    async def done(self) -> Done:
        """Wait until the peer has done what it was told.

        Raises:
            PeerFailed: it does not answer.
        """
        done = await self._answer()
        assert isinstance(done, Done)
        return done

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """Read our link while the block runs: nothing comes but credits, which make room in the arena."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.link.receive)
            yield
            tasks.cancel_scope.cancel("nothing came, as it should")

    async def _answer(self) -> object:
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                return await self._control.receive()
        except TimeoutError:
            raise PeerFailed(f"the peer has not answered for {ANSWER_SECONDS:g} s") from None
        except LinkClosed:
            await anyio.sleep(ANSWER_SECONDS)  # whoever watches it says more
            raise


@asynccontextmanager
async def open_peer() -> AsyncGenerator[Peer]:
    """Start a peer on asyncio, and end it with the block.

    Raises:
        PeerFailed: it has ended before the block has; in a group.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vidette-bench-")))
        ours, theirs = {}, {}
        for name in (CONTROL, LINK, BYTES, FRAMES):
            ours[name], theirs[name] = map(stack.enter_context, socket_pair())
        child = Child(
            "peer", theirs, PeerConfig(str(folder)), backend="asyncio", module="vidette.bench._peer"
        )
        stack.callback(child.close)
        sockets = stack.enter_context(ZmqSockets(folder, serves=False))
        link = Link(Channel(ours[LINK]), load_codec(), role="bench", peer="peer", opened=True)
        stack.callback(link.release)
        channel = Channel(ours[BYTES])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.run_listener)
            tasks.start_soon(_watch, child)
            tasks.start_soon(link.run_writer)
            tasks.start_soon(channel.run_writer)
            yield Peer(Channel(ours[CONTROL]), link, channel, Sink(ours[FRAMES]), sockets)
            tasks.cancel_scope.cancel("the benchmark is over")


async def _watch(child: Child) -> None:
    status = await child.wait_exit()
    raise PeerFailed(describe_exit("peer", status, child.last_words()))


def checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of a tensor's bytes."""
    return zlib.crc32(tensor.numpy().data)
