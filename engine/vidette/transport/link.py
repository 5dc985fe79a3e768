"""`Link`: messages over a channel, opened by a handshake.

What may come when is judged by the machine of the protocol, `LinkMachine`. Once the link is open, a message
that is no part of the handshake is not brought before it: nothing could be wrong with its order.
"""

from __future__ import annotations

import os
from typing import Final

import anyio
from msgspec import Struct

from vidette.transport.bulk import (
    WAIT_SECONDS,
    Bulk,
    BulkOptions,
    BulkStatistics,
    Preparation,
    Prepared,
    Reservation,
    Room,
)
from vidette.transport.capture import Recorder
from vidette.transport.channel import FrameChannel
from vidette.transport.framing import LinkClosed
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.lifecycle import LinkEvent, LinkMachine, LinkState
from vidette_protocol.messages import PROTOCOL_VERSION, Failed, Hello, Message, Ready
from vidette_protocol.messages.bulk import ArenaCredit, ArenaOffer
from vidette_protocol.schema import Schema, unknown_there

OPEN: Final = LinkState.OPEN
TURNS: Final[dict[type[Message], LinkEvent]] = {
    Hello: LinkEvent.HELLO,
    Ready: LinkEvent.READY,
    Failed: LinkEvent.FAILED,
    ArenaOffer: LinkEvent.MESSAGE,
    ArenaCredit: LinkEvent.MESSAGE,
}
"""Messages that are looked at before they are handed on, and what each is to the machine."""


class Link:
    """Messages both ways between two roles.

    Args:
        channel: what carries the frames.
        codec: what may travel, each way.
        role: who is at this end.
        peer: who has to be at the other end.
        bulk: how large arrays and tensors are carried, if the codec allows bulk.
        recorder: writes every frame that is received; whoever opened it closes it.
        opened: whether both ends know each other, and messages come without a handshake. If not, the other
            end says Hello first, and Ready next if the codec receives that.
    """

    def __init__(
        self,
        channel: FrameChannel,
        codec: Codec,
        *,
        role: str,
        peer: str,
        bulk: BulkOptions | None = None,
        recorder: Recorder | None = None,
        opened: bool = False,
    ) -> None:
        self.channel = channel
        self._codec = codec
        self._role = role
        self.peer = peer
        self._recorder = recorder
        self._other_end: Codec | None = None  # made when it is first needed
        self._other_schema: Schema | None = None  # of an end that describes its messages otherwise
        self._bulk = Bulk(channel, codec, BulkOptions() if bulk is None else bulk)
        closed = LinkState.STARTING if Ready in codec.receives else LinkState.OPENING
        self._machine = LinkMachine(OPEN if opened else closed)

    def post(self, message: Message | Prepared) -> None:
        """Queue a message for sending; synchronous, never blocks.

        Large arrays and tensors in it are not copied: they may not change until they are sent, and what was
        reserved or prepared is the other end's from now on.

        Args:
            message: as it is, or prepared.

        Raises:
            LocalProtocolError: this end does not send such messages, or it is longer than a frame may be, or
                it names memory of the arena that was sent or given back.
        """
        if self._codec.bulk or isinstance(message, Prepared):
            self._bulk.post(message)
        else:
            self.channel.post(self._codec.encode(message))

    def check(self, message: Message) -> None:
        """Check that the other end can read a message, before it is posted: types, ranges, columns.

        What the engine makes is right by construction. What a caller made may be anything, and a message that
        cannot be read ends the link.

        Raises:
            ProtocolError: it cannot.
        """
        if self._other_end is None:
            self._other_end = self._codec.mirrored()
        self._other_end.decode(self._codec.encode(message))

    def prepare(self, message: Message, *, wait_seconds: float = WAIT_SECONDS) -> Preparation:
        """Copy the large arrays and tensors of a message into the arena, before it is posted.

            async with link.prepare(message) as prepared:
                link.post(prepared)

        What was not posted when the block is left is returned. If there is no room in time, or no arena, the
        message is posted with all of them in its frame.

        Args:
            message: what will be posted.
            wait_seconds: how long to wait for room.

        Raises:
            LocalProtocolError: as for `post`.
        """
        return Preparation(self._bulk, message, wait_seconds)

    def reserve(self, *rooms: Room, wait_seconds: float = WAIT_SECONDS) -> Reservation:
        """Make room for tensors and arrays that will be produced in place, for all of them or none.

            async with link.reserve(Room((1024, 2048)), Room((7,), "int64", "numpy")) as (pixels, ids):
                fill(pixels, ids)
                link.post(Pixels(pixels=pixels, ids=ids))

        They are uninitialised. What was not posted when the block is left is returned, and nobody may touch
        it any more; what was posted is the other end's. If there is no room in time, or no arena, they are
        ordinary ones, and all else is the same.

        Args:
            rooms: what will be produced.
            wait_seconds: how long to wait for room.

        Raises:
            LocalProtocolError: such elements do not travel.
        """
        return Reservation(self._bulk, rooms, wait_seconds)

    async def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            LinkClosed: none will come any more.
            DecodeError: what came is no message of this link.
            RemoteProtocolError: the other end does what it may not.
        """
        bulk, machine = self._bulk, self._machine
        try:
            if bulk.offer is not None:
                await bulk.open_offered()
            while True:
                frame = await self.channel.receive()
                if self._recorder is not None:
                    self._recorder.record(frame)
                message = bulk.decode(frame)
                if type(message) not in TURNS and machine.state is OPEN:
                    return message
                machine.receive(type(message).__name__, TURNS.get(type(message), LinkEvent.MESSAGE))
                if not isinstance(message, ArenaOffer | ArenaCredit):
                    return message
                await bulk.settle(message)
        except LinkClosed:
            machine.close()
            bulk.end()
            raise

    async def run_writer(self) -> None:
        """Send what is posted, and return what is read, until cancelled or until the other side is gone."""
        if not self._codec.bulk:
            await self.channel.run_writer()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._bulk.run_credits)
            await self.channel.run_writer()
            tasks.cancel_scope.cancel()

    def bulk_statistics(self) -> BulkStatistics:
        """Return what large arrays and tensors are on their way."""
        return self._bulk.statistics()

    def release(self) -> None:
        """Give back what the link holds, but for its channel; idempotent. Nobody may use it any more."""
        self._machine.close()
        self._bulk.close()

    def close(self) -> None:
        """Give back what the link holds, and close its channel; idempotent. Nobody may use it any more."""
        self.release()
        self.channel.close()

    def post_hello(self, *, incarnation: int = 0) -> None:
        """Say who is at this end; the first thing posted."""
        self.post(
            Hello(
                version=PROTOCOL_VERSION,
                fingerprint=self._codec.fingerprint,
                role=self._role,
                pid=os.getpid(),
                incarnation=incarnation,
                schema=self._codec.schema,
            )
        )

    async def receive_hello(self) -> Hello:
        """Wait for the other end to say who it is; the first thing received.

        Raises:
            LinkClosed: none will come any more.
            RemoteProtocolError: it is somebody else, or of another version, or something else came.
        """
        return self.check_hello(await self.receive_first())

    async def receive_first(self) -> Message:
        """Wait for the first message, which should be a Hello; see `check_hello`.

        Raises:
            LinkClosed: none will come any more.
            RemoteProtocolError: what came is no message of this link.
        """
        try:
            return await self.receive()
        except DecodeError as error:
            raise RemoteProtocolError(f"the {self.peer} did not open the link with Hello: {error}") from error

    def check_hello(self, message: Message) -> Hello:
        """Return the first message if it is the Hello of whoever should be at the other end.

        Raises:
            RemoteProtocolError: it is somebody else, or of another version, or no Hello.
        """
        hello = self._codec.check_hello(message, role=self.peer)
        if hello.fingerprint != self._codec.fingerprint:
            self._other_schema = hello.schema
        return hello

    def unknown_there(self, part: type[Struct]) -> frozenset[str]:
        """Return the fields of a struct inside of messages that the other end, if older, does not know."""
        return frozenset() if self._other_schema is None else unknown_there(self._other_schema, part)


class RoleFailed(Exception):  # noqa: N818  what one is told of the other end, not an error of one's own
    """A role says that it ends by a fault of its own; its exit will follow.

    Args:
        role: which.
        failed: what it said.
    """

    def __init__(self, role: str, failed: Failed) -> None:
        super().__init__(failed.message)
        self.role = role
