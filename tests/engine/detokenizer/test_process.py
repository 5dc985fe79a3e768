"""The detokenizer's shell: what comes from the scheduler goes on to the front, in order, until it ends."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import anyio
import pytest

from vidette._groups import sole_cause
from vidette.detokenizer.process import run_detokenizer
from vidette.models.toy_tokenizer import toy_token_table
from vidette.transport.channel import Channel, FrameChannel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.messages import (
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    Ready,
    SchedulerLedger,
    ShutdownReq,
    TokenRow,
)
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_FRONT,
    DETOKENIZER_TO_SCHEDULER,
    FRONT_TO_DETOKENIZER,
    SCHEDULER_TO_DETOKENIZER,
)

DEADLINE = 20.0
STOP = FinishReason("stop", matched=256)

Kind = Literal["memory", "sockets"]


@pytest.fixture(params=["memory", "sockets"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """What carries the frames of both links."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test that leaves a descriptor open; give the garbage collector back what was frozen."""
    before = _descriptors()
    yield
    gc.unfreeze()
    assert before == _descriptors()


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  names, not paths
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return found


class Ends:
    """A detokenizer that runs, seen from its two neighbours."""

    def __init__(self, kind: Kind) -> None:
        self.channels: list[FrameChannel] = []
        above, front = self._pair(kind)
        before, scheduler = self._pair(kind)
        self.front = Link(
            front,
            Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT),
            role="front",
            peer="detokenizer",
        )
        self.scheduler = Link(
            scheduler,
            Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=DETOKENIZER_TO_SCHEDULER),
            role="scheduler",
            peer="detokenizer",
        )
        self.ended = anyio.Event()
        self.error: BaseException | None = None
        self._run = partial(run_detokenizer, before, above, table=toy_token_table())

    def _pair(self, kind: Kind) -> tuple[FrameChannel, FrameChannel]:
        ends: tuple[FrameChannel, FrameChannel]
        if kind == "sockets":
            left, right = socket_pair()
            ends = Channel(left), Channel(right)
        else:
            ends = MemoryChannel.pair()
        self.channels += ends
        return ends

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001  the tests look at it
            self.error = sole_cause(error)
        self.ended.set()

    async def shake_hands(self) -> Message:
        for link in (self.front, self.scheduler):
            link.post_hello()
            await link.receive_hello()
        return await self.front.receive()

    async def wait_ended(self) -> BaseException | None:
        """Wait until the detokenizer has ended; return what ended it, if it was not told to."""
        await self.ended.wait()
        return self.error


@asynccontextmanager
async def running(kind: Kind, *, hands: bool = True) -> AsyncGenerator[Ends]:
    """Run a detokenizer until the block is left."""
    ends = Ends(kind)
    try:
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ends.run)
                for link in (ends.front, ends.scheduler):
                    tasks.start_soon(link.channel.run_writer)
                if hands:
                    await ends.shake_hands()
                yield ends
                tasks.cancel_scope.cancel()
    finally:
        for channel in ends.channels:
            channel.close()


def tokens(*rows: TokenRow) -> BatchTokenIDOutput:
    return BatchTokenIDOutput.from_rows(list(rows), SchedulerLedger(live=1))


async def test_it_is_ready_once_both_links_are_open(kind: Kind) -> None:
    async with running(kind, hands=False) as ends:
        assert await ends.shake_hands() == Ready(role="detokenizer")


async def test_steps_go_on_to_the_front_in_order(kind: Kind) -> None:
    async with running(kind) as ends:
        for offset in range(200):
            ends.scheduler.post(tokens(TokenRow(1, offset, (ord("a") + offset % 26,))))
        ends.scheduler.post(tokens(TokenRow(1, 200, (256,), STOP)))
        messages = [await ends.front.receive() for _ in range(201)]
        rows = []
        for message in messages:
            assert isinstance(message, BatchStrOutput)
            assert message.ledger == SchedulerLedger(live=1)
            assert message.detokenizer_open == (message is not messages[-1])
            rows += message.rows()
        assert [row.offset for row in rows] == list(range(201))
        assert [row.reason for row in rows] == [None] * 200 + [STOP]
        assert "".join(row.text for row in rows) == "".join(chr(ord("a") + i % 26) for i in range(200))


async def test_questions_go_on_behind_what_came_before_them(kind: Kind) -> None:
    async with running(kind) as ends:
        asked = HeartbeatReq(id=4, floor=2, scheduler=SchedulerLedger(live=2, steps=7))
        ends.scheduler.post(tokens(TokenRow(1, 0, (65,)), TokenRow(2, 0, (66,))))
        ends.scheduler.post(asked)
        ends.scheduler.post(FreezeGCReq(id=5))
        assert isinstance(await ends.front.receive(), BatchStrOutput)
        answer = HeartbeatReq(id=4, floor=2, scheduler=SchedulerLedger(live=2, steps=7), detokenizer_open=2)
        assert await ends.front.receive() == answer
        frozen = await ends.front.receive()
        assert isinstance(frozen, FreezeGCReq)
        assert frozen.detokenizer is not None
        assert frozen.detokenizer.frozen >= gc.get_freeze_count() > 0
        assert frozen == FreezeGCReq(id=5, detokenizer=frozen.detokenizer)


async def test_it_unfreezes_by_itself_when_the_time_has_come(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post(FreezeGCReq(id=5, duration_s=0.02))
        assert isinstance(await ends.front.receive(), FreezeGCReq)
        while gc.get_freeze_count():
            await anyio.lowlevel.checkpoint()


async def test_a_shutdown_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post(tokens(TokenRow(1, 0, (65,))))
        ends.scheduler.post(ShutdownReq())
        assert await ends.wait_ended() is None


async def test_a_scheduler_that_is_gone_ends_it_behind_its_last_words(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post(tokens(TokenRow(1, 0, (65,))))
        assert isinstance(await ends.front.receive(), BatchStrOutput)
        ends.scheduler.channel.close()
        assert await ends.wait_ended() is None


@pytest.mark.parametrize("gone", ["scheduler", "front"])
async def test_whoever_is_gone_before_the_handshake_is_over_ends_it_quietly(kind: Kind, gone: str) -> None:
    async with running(kind, hands=False) as ends:
        if gone == "front":
            ends.scheduler.post_hello()
            await ends.scheduler.receive_hello()
            ends.front.channel.close()
        else:
            ends.scheduler.channel.close()
        assert await ends.wait_ended() is None


@pytest.mark.parametrize("link", ["scheduler", "front"])
async def test_somebody_else_at_a_link_is_refused(kind: Kind, link: str) -> None:
    async with running(kind, hands=False) as ends:
        if link == "front":
            ends.scheduler.post_hello()
        channel, sends, receives = (
            (ends.front.channel, FRONT_TO_DETOKENIZER, DETOKENIZER_TO_FRONT)
            if link == "front"
            else (ends.scheduler.channel, SCHEDULER_TO_DETOKENIZER, DETOKENIZER_TO_SCHEDULER)
        )
        codec = Codec(sends=sends, receives=receives)
        impostor = Link(channel, codec, role="janitor", peer="detokenizer")
        impostor.post_hello()
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert f"the {link} should be at this link, but 'janitor' is" in str(error)


async def test_a_side_of_another_link_is_refused_for_what_it_speaks(kind: Kind) -> None:
    async with running(kind, hands=False) as ends:
        codec = Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT)
        Link(ends.scheduler.channel, codec, role="front", peer="detokenizer").post_hello()
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert "(BatchTokenIDOutput, ShutdownReq are not known there)" in str(error)


async def test_a_row_that_does_not_fit_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post(tokens(TokenRow(1, 5, (65,))))
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert "vid 1 is not open" in str(error)


async def test_what_is_no_message_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.channel.post(b"\xc1")
        assert isinstance(await ends.wait_ended(), DecodeError)


async def test_a_second_hello_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post_hello()
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "Hello came after the handshake"


async def test_nothing_more_is_said_after_its_end(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.scheduler.post(ShutdownReq())
        ends.scheduler.post(tokens(TokenRow(1, 0, (65,))))
        await ends.wait_ended()
        for channel in ends.channels:
            if channel not in {ends.front.channel, ends.scheduler.channel}:
                channel.close()
        with pytest.raises(LinkClosed):
            await ends.front.receive()
