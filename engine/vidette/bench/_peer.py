"""The other side of the benchmark: `python -m vidette.bench._peer ROLE SPEC`. Not for people."""

from __future__ import annotations

import signal
import socket
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import anyio
import msgspec
import torch

from vidette.bench.messages import Done, Go, Load, Task, control_codec, load_codec
from vidette.bench.peer import BYTES, CONTROL, FRAMES, LINK, PREPARED, PeerConfig, checksum
from vidette.bench.zeromq import ZmqSockets, ZmqTensors
from vidette.transport.channel import Channel
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.spawn import ChildSpec, guard
from vidette_protocol.messages import Message


class Worker:
    """Does what it is told on one link, with what comes on another or from a baseline."""

    def __init__(self, channels: dict[str, Channel], sockets: ZmqSockets) -> None:
        self._answers = channels[CONTROL]
        self._control = Link(self._answers, control_codec(), role="peer", peer="bench", opened=True)
        self._link = Link(channels[LINK], load_codec(), role="peer", peer="bench", opened=True)
        self._bytes = channels[BYTES]
        self._frames = channels[FRAMES]
        self._sockets = sockets
        self._tensors = ZmqTensors(sockets.bulk)

    async def run(self) -> None:
        """Do what comes until the other side is gone."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._link.run_writer)
            tasks.start_soon(self._bytes.run_writer)
            try:
                while True:
                    task = await self._control.receive()
                    assert isinstance(task, Task)
                    self._answer(Go())
                    self._answer(await self._do(task))
            except LinkClosed:
                tasks.cancel_scope.cancel("the benchmark is over")

    def _answer(self, message: Message) -> None:
        """Answer at once, since a baseline may then block the loop."""
        self._control.post(message)
        assert self._answers.flush_nowait()

    async def _do(self, task: Task) -> Done:
        match task.kind:
            case "take":
                tensor = await self._take(task.way)
                tensor.view(-1)[-1].item()  # usable is what can be read
                at = time.monotonic_ns()
                return Done(at=at, checksum=checksum(tensor) if task.verify else 0)
            case "echo" if task.way == LINK:
                for _ in range(task.count):
                    self._link.post(await self._link.receive())
            case "echo" if task.way == PREPARED:
                for _ in range(task.count):
                    async with self._link.prepare(await self._link.receive()) as prepared:
                        self._link.post(prepared)
            case "echo" if task.way == BYTES:
                for _ in range(task.count):
                    frame = await self._bytes.receive()
                    assert isinstance(frame, bytes)
                    self._bytes.post(frame)
            case "echo":
                for _ in range(task.count):
                    await self._sockets.pong.send(await self._sockets.ping.recv())
            case "count":
                for _ in range(task.count):
                    await self._frames.receive()
        return Done(at=time.monotonic_ns())

    async def _take(self, way: str) -> torch.Tensor:
        if way != LINK:
            return self._tensors.receive[way]()
        load = await self._link.receive()
        assert isinstance(load, Load)
        assert isinstance(load.body, torch.Tensor)
        return load.body


async def _main(spec: ChildSpec) -> None:
    channels = {name: Channel(socket.socket(fileno=fd)) for name, fd in spec.links.items()}
    config = msgspec.json.decode(spec.config, type=PeerConfig)
    with ZmqSockets(Path(config.folder), serves=True) as sockets:
        await Worker(channels, sockets).run()


def main(argv: list[str]) -> int:
    """Work until the parent is gone; return the exit status."""
    spec = msgspec.json.decode(argv[1], type=ChildSpec)
    guard(spec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # What comes without a copy is read-only, and nobody writes to it here.
    warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
    anyio.run(partial(_main, spec), backend=spec.backend)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
