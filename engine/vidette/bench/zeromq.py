"""ZeroMQ as others use it: PUSH and PULL over ipc, tensors in five ways and a ping that comes back.

Tensors are sent and received by blocking calls, without an event loop in between, which is the quicker way;
the ping goes through `zmq.asyncio`, as it does in a front. Queues are unbounded, as SGLang has them, and
buffers of sockets as large as ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import numpy as np
import torch
import zmq
import zmq.asyncio

from vidette.bench.baselines import PickleCodec
from vidette.bench.messages import Load
from vidette.transport.channel import SEND_BUFFER_BYTES
from vidette_protocol.codec import Codec

BULK: Final = "bulk"
PING: Final = "ping"
PONG: Final = "pong"

_Head = tuple[str, tuple[int, ...]]
"""Element type and shape: what goes ahead of the bytes of a tensor."""


class ZmqSockets:
    """One side of three pairs of sockets: for tensors, for pings, and for pings that come back.

    Args:
        folder: where they lie; the same on both sides.
        serves: whether this is the side that binds: it gets tensors and pings, and sends pings back.
    """

    def __init__(self, folder: Path, *, serves: bool) -> None:
        self._context = zmq.Context()
        self._async_context = zmq.asyncio.Context()
        self.bulk: Final = self._open(self._context, folder / BULK, serves=serves, sends=not serves)
        self.ping: Final = self._open(self._async_context, folder / PING, serves=serves, sends=not serves)
        self.pong: Final = self._open(self._async_context, folder / PONG, serves=serves, sends=serves)

    @staticmethod
    def _open(context: Any, path: Path, *, serves: bool, sends: bool) -> Any:
        socket = context.socket(zmq.PUSH if sends else zmq.PULL)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDBUF, SEND_BUFFER_BYTES)
        (socket.bind if serves else socket.connect)(f"ipc://{path}")
        return socket

    def __enter__(self) -> Self:
        """Close them at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        for socket in (self.bulk, self.ping, self.pong):
            socket.close()
        self._context.term()
        self._async_context.term()


class ZmqTensors:
    """Tensors over ZeroMQ, by name of the way; one side calls what is in `send`, the other in `receive`.

    - `pickle_zmq`        the tensor pickled, as SGLang does by default
    - `numpy_pickle_zmq`  the same as a NumPy array, which pickles with fewer copies
    - `zmq_prefixed_ext`  MessagePack with the tensor as an extension, as SGLang does with msgspec
    - `zmq_zerocopy`      its bytes as a frame of their own, not copied on either side, as vLLM does

    Args:
        socket: one that blocks.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._pickle = PickleCodec()
        self._codec = Codec(sends=[Load], receives=[Load])
        self._head = msgspec.msgpack.Decoder(_Head)
        self.send: Final[dict[str, Callable[[torch.Tensor], None]]] = {
            "pickle_zmq": self._send_pickle,
            "numpy_pickle_zmq": self._send_numpy_pickle,
            "zmq_prefixed_ext": self._send_ext,
            "zmq_zerocopy": self._send_frames,
        }
        self.receive: Final[dict[str, Callable[[], torch.Tensor]]] = {
            "pickle_zmq": self._receive_pickle,
            "numpy_pickle_zmq": self._receive_numpy_pickle,
            "zmq_prefixed_ext": self._receive_ext,
            "zmq_zerocopy": self._receive_frames,
        }

    def _send_pickle(self, tensor: torch.Tensor) -> None:
        self._socket.send(self._pickle.encode(tensor))

    def _receive_pickle(self) -> torch.Tensor:
        tensor: torch.Tensor = self._pickle.decode(self._socket.recv())
        return tensor

    def _send_numpy_pickle(self, tensor: torch.Tensor) -> None:
        self._socket.send(self._pickle.encode(tensor.numpy()))

    def _receive_numpy_pickle(self) -> torch.Tensor:
        return torch.from_numpy(self._pickle.decode(self._socket.recv()))

    def _send_ext(self, tensor: torch.Tensor) -> None:
        self._socket.send(self._codec.encode(Load(body=tensor)), copy=False)

    def _receive_ext(self) -> torch.Tensor:
        load = self._codec.decode(self._socket.recv(copy=False).buffer)
        assert isinstance(load, Load)
        assert isinstance(load.body, torch.Tensor)
        return load.body

    def _send_frames(self, tensor: torch.Tensor) -> None:
        array = tensor.numpy()
        head: _Head = (array.dtype.str, array.shape)
        self._socket.send_multipart([msgspec.msgpack.encode(head), array.data], copy=False)

    def _receive_frames(self) -> torch.Tensor:
        head, raw = self._socket.recv_multipart(copy=False)
        dtype, shape = self._head.decode(head.buffer)
        return torch.from_numpy(np.frombuffer(raw.buffer, dtype)).reshape(shape)


async def echo(sockets: ZmqSockets, count: int) -> None:
    """Send so many pings back."""
    for _ in range(count):
        await sockets.pong.send(await sockets.ping.recv())
