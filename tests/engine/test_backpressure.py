"""A front that does not read stops the ring, place by place; when it reads again, all goes on."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from vidette.config import EngineConfig
from vidette.detokenizer.process import run_detokenizer
from vidette.models.toy_tokenizer import toy_token_table
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.process import run_scheduler
from vidette.transport.channel import Channel, FrameChannel, socket_pair
from vidette.transport.link import Link
from vidette.transport.mailbox import Mailbox
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    BatchStrOutput,
    BatchTokenIDOutput,
    FinishReason,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartbeatReq,
    Message,
    Ready,
    SamplingParams,
    SchedulerLedger,
    ShutdownReq,
    TokenizedGenerateReqInput,
    TokenRow,
)
from vidette_protocol.messages.catalogue import DETOKENIZER_TO_FRONT, FRONT_TO_DETOKENIZER
from vidette_protocol.messages.columns import pack_i32

DEADLINE = 30.0
MARK = 4096
REQUESTS = 4
STEP = 1000
TOKENS = 100 * STEP
"""Together more than the links and the readers at their ends hold."""
CONFIG = EngineConfig(model="toy")


PROBE = AbortReq(vid=0, floor=1)
"""Of a request that never was."""


class PouringLoop(StepLoop):
    """Makes many tokens in each step, and says when it may launch nothing.

    Args:
        told: told so.
    """

    def __init__(self, told: Mailbox[bool]) -> None:
        self.max_total_tokens = 2 * TOKENS
        self._told = told
        self._made: dict[int, int] = {}

    def wait(self) -> None:
        """Return: nothing is ever in flight."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:  # noqa: ARG002
        rows: list[TokenRow] = []
        messages: list[Message] = []
        for command in commands:
            match command:
                case TokenizedGenerateReqInput():
                    self._made[command.vid] = 0
                case AbortReq() if command.vid in self._made:
                    rows.append(TokenRow(command.vid, self._made.pop(command.vid), (), FinishReason("abort")))
                case HeartbeatReq() | ShutdownReq():
                    messages.append(command)
        if not launch:
            self._told.post(launch)
        elif not (rows or messages):
            for vid, made in list(self._made.items()):
                last = made + STEP == TOKENS
                rows.append(TokenRow(vid, made, (65,) * STEP, FinishReason("length") if last else None))
                self._made[vid] = made + STEP
                if last:
                    del self._made[vid]
        if rows:
            messages.insert(0, BatchTokenIDOutput.from_rows(rows, SchedulerLedger()))
        over = [Vid(row.vid) for row in rows if row.reason is not None]
        stop = any(isinstance(message, ShutdownReq) for message in messages)
        return Effects(messages, over, busy=bool(self._made), stop=stop)


class Ring:
    """Scheduler and detokenizer, seen by a front that does what the test wants."""

    def __init__(
        self, scheduler: FrameChannel, detokenizer: FrameChannel, queue: FrameChannel, told: Mailbox[bool]
    ) -> None:
        self.scheduler = Link(scheduler, front_codec(), role="front", peer="scheduler")
        texts = Codec(sends=FRONT_TO_DETOKENIZER, receives=DETOKENIZER_TO_FRONT)
        self.detokenizer = Link(detokenizer, texts, role="front", peer="detokenizer")
        self._queue = queue
        self.answers: FrameChannel = queue
        self._told = told

    async def wait_full(self) -> None:
        """Wait until no step is launched any more, and check how much waits for the front then."""
        while self._queue.queued_bytes < MARK:
            await self._wait_told()
        await self._wait_told()
        await anyio.wait_all_tasks_blocked()
        assert self._queue.queued_bytes < MARK + REQUESTS * STEP * 6

    async def _wait_told(self) -> None:
        while True:
            self.scheduler.post(PROBE)  # the thread looks whether it may launch when it is woken
            with anyio.move_on_after(0.05):
                await self._told.receive()
                return

    async def read(
        self, until: Callable[[], bool], heard: dict[int, list[int]], ends: dict[int, str]
    ) -> None:
        """Read until something is so, and check that what comes fits together."""
        while not until():
            message = await self.detokenizer.receive()
            if isinstance(message, HeartbeatReq):
                ends[0] = "heartbeat"
                continue
            assert isinstance(message, BatchStrOutput)
            for row in message.rows():
                tokens = heard.setdefault(row.vid, [])
                assert row.offset == len(tokens)
                assert row.vid not in ends
                tokens += row.token_ids
                if row.reason is not None:
                    ends[row.vid] = row.reason.type


@asynccontextmanager
async def running(kind: str) -> AsyncGenerator[Ring]:
    """Run scheduler and detokenizer, joined by links that hold little."""
    told: Mailbox[bool] = Mailbox()
    with ExitStack() as stack:
        stack.callback(told.close)

        def sockets() -> tuple[Channel, Channel]:
            pair = socket_pair()
            ends = tuple(Channel(sock, high_water=MARK) for sock in pair)
            for sock, end in zip(pair, ends, strict=True):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MARK)
                stack.callback(end.close)
            return ends[0], ends[1]

        def front_link() -> tuple[FrameChannel, FrameChannel]:
            return sockets() if kind == "sockets" else MemoryChannel.pair(high_water=MARK)

        front_scheduler, scheduler_front = front_link()
        front_detokenizer, detokenizer_front = front_link()
        scheduler_detokenizer, detokenizer_scheduler = sockets()
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                ring = Ring(front_scheduler, front_detokenizer, detokenizer_front, told)
                ring.answers = scheduler_front
                tasks.start_soon(front_scheduler.run_writer)
                tasks.start_soon(front_detokenizer.run_writer)

                async def scheduler() -> None:
                    await run_scheduler(
                        scheduler_front,
                        {"detokenizer": scheduler_detokenizer},
                        config=CONFIG,
                        make_loop=lambda: PouringLoop(told),
                    )

                async def detokenizer() -> None:
                    await run_detokenizer(detokenizer_scheduler, detokenizer_front, table=toy_token_table())

                roles = (anyio.Event(), anyio.Event())
                tasks.start_soon(_run, scheduler, roles[0])
                tasks.start_soon(_run, detokenizer, roles[1])
                for link in (ring.scheduler, ring.detokenizer):
                    link.post_hello()
                    await link.receive_hello()
                    assert isinstance(await link.receive(), Ready)
                yield ring
                ring.scheduler.post(ShutdownReq())
                for ended in roles:
                    await ended.wait()
                tasks.cancel_scope.cancel()


async def _run(role: Callable[[], Awaitable[None]], ended: anyio.Event) -> None:
    await role()
    ended.set()


def _has_heard(heard: dict[int, list[int]], tokens: int) -> Callable[[], bool]:
    return lambda: len(heard.get(1, ())) > tokens


def request(vid: int) -> TokenizedGenerateReqInput:
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True, sampling_seed=vid, stream_interval=None)
    return TokenizedGenerateReqInput(
        vid=vid, rid=str(vid), input_ids=pack_i32([65, 66]), sampling_params=params
    )


@pytest.mark.parametrize("kind", ["memory", "sockets"])
async def test_a_front_that_does_not_read_stops_the_ring_and_all_goes_on_when_it_does(kind: str) -> None:
    heard: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    async with running(kind) as ring:
        for vid in range(1, REQUESTS + 1):
            ring.scheduler.post(request(vid))
        await ring.wait_full()
        # What is on its way is small, and the abort and the question get through although nothing else does.
        ring.scheduler.post(AbortReq(vid=1))
        ring.scheduler.post(HeartbeatReq(id=7))
        await ring.read(lambda: len(ends) == REQUESTS + 1, heard, ends)
    assert ends == {0: "heartbeat", 1: "abort"} | dict.fromkeys(range(2, REQUESTS + 1), "length")
    assert len(heard[1]) < TOKENS
    assert [len(heard[vid]) for vid in range(2, REQUESTS + 1)] == [TOKENS] * (REQUESTS - 1)


@pytest.mark.parametrize("kind", ["memory", "sockets"])
async def test_a_front_that_stops_again_and_again_hears_the_same(kind: str) -> None:
    heard: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    async with running(kind) as ring:
        for vid in range(1, REQUESTS + 1):
            ring.scheduler.post(request(vid))
        for share in range(1, 4):
            await ring.wait_full()
            await ring.read(_has_heard(heard, TOKENS // 5 * share), heard, ends)
        await ring.read(lambda: len(ends) == REQUESTS, heard, ends)
    assert [len(heard[vid]) for vid in range(1, REQUESTS + 1)] == [TOKENS] * REQUESTS


@pytest.mark.parametrize("kind", ["memory", "sockets"])
async def test_a_front_that_asks_and_does_not_listen_is_not_asked_further(kind: str) -> None:
    count = 5000
    async with running(kind) as ring:
        for call in range(count):
            ring.scheduler.post(GetInternalStateReq(id=call))
        while ring.answers.queued_bytes < MARK:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert ring.answers.queued_bytes < MARK + 1000
        for call in range(count):
            answer = await ring.scheduler.receive()
            assert isinstance(answer, GetInternalStateReqOutput)
            assert answer.id == call
