"""`Link`: messages over a channel, opened by a handshake."""

from __future__ import annotations

import os

from vidette.transport.channel import FrameChannel
from vidette_protocol.codec import Codec
from vidette_protocol.messages import PROTOCOL_VERSION, Hello, Message


class Link:
    """Messages both ways between two roles.

    Args:
        channel: what carries the frames.
        codec: what may travel, each way.
        role: who is at this end.
        peer: who has to be at the other end.
    """

    def __init__(self, channel: FrameChannel, codec: Codec, *, role: str, peer: str) -> None:
        self.channel = channel
        self._codec = codec
        self._role = role
        self.peer = peer

    def post(self, message: Message) -> None:
        """Queue a message for sending; synchronous, never blocks.

        Raises:
            LocalProtocolError: this end does not send such messages.
        """
        self.channel.post(self._codec.encode(message))

    async def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            LinkClosed: none will come any more.
            DecodeError: what came is no message of this link.
        """
        return self._codec.decode(await self.channel.receive())

    def post_hello(self, *, incarnation: int = 0) -> None:
        """Say who is at this end; the first thing posted."""
        self.post(
            Hello(
                version=PROTOCOL_VERSION,
                fingerprint=self._codec.fingerprint,
                role=self._role,
                pid=os.getpid(),
                incarnation=incarnation,
            )
        )

    async def receive_hello(self) -> Hello:
        """Wait for the other end to say who it is; the first thing received.

        Raises:
            RemoteProtocolError: it is somebody else, or of another version.
        """
        return self.check_hello(await self.receive())

    def check_hello(self, message: Message) -> Hello:
        """Return the first message if it is the Hello of whoever should be at the other end.

        Raises:
            RemoteProtocolError: it is somebody else, or of another version, or no Hello.
        """
        return self._codec.check_hello(message, role=self.peer)
