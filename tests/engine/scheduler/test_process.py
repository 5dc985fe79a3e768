"""The scheduler's shell: what the front says reaches the step loop in order, and every end is orderly."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import anyio
import anyio.abc
import msgspec
import pytest
from tests.engine.scheduler.conftest import (
    DEADLINE,
    ENDLESS,
    TABLE,
    FakeModel,
    GatedModel,
    Heard,
    foretell,
    request,
)

from vidette._groups import sole_cause
from vidette.config import EngineConfig
from vidette.models import StepPlan, StepResult
from vidette.scheduler.build import loop_options
from vidette.scheduler.compute import ComputeThread
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.process import run_scheduler
from vidette.transport.channel import Channel, FrameChannel, socket_pair
from vidette.transport.framing import LinkClosed
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol.codec import Codec, front_codec
from vidette_protocol.errors import DecodeError, RemoteProtocolError
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    Ready,
    SchedulerLedger,
    SchedulerTotals,
    ShutdownReq,
)
from vidette_protocol.messages.catalogue import (
    DETOKENIZER_TO_SCHEDULER,
    SCHEDULER_TO_DETOKENIZER,
)

CONFIG = EngineConfig(model="toy", kv_tokens=32_000, step_tokens=64, max_running=16)

Kind = Literal["memory", "sockets"]


@pytest.fixture(params=["memory", "sockets"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """What carries the frames between front and scheduler."""
    chosen: Kind = request.param
    return chosen


class Ends:
    """A scheduler that runs, seen from its two neighbours."""

    def __init__(self, kind: Kind, make_loop: Callable[[], StepLoop]) -> None:
        ours: FrameChannel
        theirs: FrameChannel
        ours, theirs = map(Channel, socket_pair()) if kind == "sockets" else MemoryChannel.pair()
        front, below = map(Channel, socket_pair())
        self.channels: list[FrameChannel] = [ours, theirs, front, below]
        self.front = Link(ours, front_codec(), role="front", peer="scheduler")
        self.detokenizer = Link(
            below,
            Codec(sends=DETOKENIZER_TO_SCHEDULER, receives=SCHEDULER_TO_DETOKENIZER),
            role="detokenizer",
            peer="scheduler",
        )
        self.heard = Heard()
        self.ended = anyio.Event()
        self.error: BaseException | None = None
        self._run = partial(run_scheduler, theirs, {"detokenizer": front}, config=CONFIG, make_loop=make_loop)

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001  the tests look at it
            self.error = sole_cause(error)
        self.ended.set()

    async def shake_hands(self) -> Ready:
        for link in (self.front, self.detokenizer):
            link.post_hello()
            await link.receive_hello()
        ready = await self.front.receive()
        assert isinstance(ready, Ready)
        return ready

    async def receive(self) -> Message:
        """Return what goes to the detokenizer next."""
        message = await self.detokenizer.receive()
        if isinstance(message, BatchTokenIDOutput):
            self.heard.hear(message)
        return message

    async def receive_all(self) -> list[Message]:
        """Return all that goes to the detokenizer until the link closes."""
        messages = []
        try:
            while True:
                messages.append(await self.receive())
        except LinkClosed:
            return messages

    async def receive_until_end_of(self, vid: int) -> str:
        """Read on until a request has come to its end; return how."""
        while vid not in self.heard.ends:
            await self.receive()
        return self.heard.ends[vid].type

    async def ask(self, floor: int = 0) -> SchedulerLedger:
        """Return what the step loop holds by now."""
        self.front.post(HeartbeatReq(id=1, floor=floor))
        while not isinstance(message := await self.receive(), HeartbeatReq):
            pass
        assert message.scheduler is not None
        return msgspec.structs.replace(message.scheduler, totals=SchedulerTotals(), blocks_cached=0)

    async def wait_ended(self) -> BaseException | None:
        """Wait until the scheduler has ended; return what ended it, if it was not told to."""
        await self.ended.wait()
        return self.error


def make_loop_of(model: FakeModel) -> Callable[[], StepLoop]:
    return partial(StepLoop, model, loop_options(CONFIG), table=TABLE)


def any_thread_computes() -> bool:
    """Return whether the stack of some thread shows it in `ComputeThread.run`."""
    return any(
        frame.f_code is ComputeThread.run.__code__
        for top in sys._current_frames().values()
        for frame, _ in traceback.walk_stack(top)
    )


@asynccontextmanager
async def running(
    kind: Kind,
    model: FakeModel | None = None,
    *,
    make_loop: Callable[[], StepLoop] | None = None,
    hands: bool = True,
) -> AsyncGenerator[Ends]:
    """Run a scheduler until the block is left."""
    model = model if model is not None else FakeModel(context_len=20_000)
    ends = Ends(kind, make_loop or make_loop_of(model))
    try:
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ends.run)
                for link in (ends.front, ends.detokenizer):
                    tasks.start_soon(link.channel.run_writer)
                try:
                    if hands:
                        await ends.shake_hands()
                    yield ends
                finally:
                    if isinstance(model, GatedModel):
                        model.open()
                    tasks.cancel_scope.cancel()
    finally:
        for channel in ends.channels:
            channel.close()
    assert not any_thread_computes()


# --- the way up ------------------------------------------------------------------------------------


async def test_it_is_ready_once_its_loop_is(kind: Kind) -> None:
    async with running(kind, hands=False) as ends:
        ready = await ends.shake_hands()
        assert ready == Ready(
            role="scheduler", max_total_tokens=20_000, num_blocks=2000, step_tokens=64, max_running=16
        )


async def test_it_takes_part_in_the_handshake_of_both_links(kind: Kind) -> None:
    async with running(kind, hands=False) as ends:
        assert (await ends.detokenizer.receive_hello()).role == "scheduler"
        ends.detokenizer.post_hello()
        ends.front.post_hello()
        assert (await ends.front.receive_hello()).role == "scheduler"
        assert isinstance(await ends.front.receive(), Ready)


async def test_somebody_else_at_its_link_is_refused(kind: Kind) -> None:
    async with running(kind, hands=False) as ends:
        impostor = Link(ends.front.channel, front_codec(), role="detokenizer", peer="scheduler")
        impostor.post_hello()
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert "the front should be at this link" in str(error)


@pytest.mark.parametrize("gone", ["front", "detokenizer"])
async def test_whoever_is_gone_before_the_handshake_is_over_ends_it_quietly(kind: Kind, gone: str) -> None:
    async with running(kind, hands=False) as ends:
        if gone == "front":
            ends.front.channel.close()
        else:
            ends.front.post_hello()
            await ends.front.receive_hello()
            ends.detokenizer.channel.close()
        assert await ends.wait_ended() is None


# --- requests --------------------------------------------------------------------------------------


async def test_requests_are_computed_and_answered_to_the_detokenizer(kind: Kind) -> None:
    async with running(kind) as ends:
        commands = [request(vid, [vid + 1], max_new_tokens=5) for vid in range(10)]
        for command in commands:
            ends.front.post(command)
        for command in commands:
            assert await ends.receive_until_end_of(command.vid) == "length"
            assert ends.heard.tokens[command.vid] == foretell([command.vid + 1], command.sampling_params)[0]
        assert (await ends.ask()).live == 0


async def test_an_abort_right_behind_its_request_ends_it(kind: Kind) -> None:
    model = GatedModel()
    async with running(kind, model) as ends:
        for vid in range(20):
            ends.front.post(request(vid, max_new_tokens=900))
            ends.front.post(AbortReq(vid=vid, floor=vid))
        model.open()
        for vid in range(20):
            assert await ends.receive_until_end_of(vid) == "abort"
        assert await ends.ask(floor=20) == SchedulerLedger(steps=ends.heard.ledger.steps)


async def test_what_comes_behind_an_abort_is_taken_behind_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ends.front.post(AbortReq(vid=1))
        ends.front.post(HeartbeatReq(id=1))
        assert await ends.receive_until_end_of(1) == "abort"
        while not isinstance(answer := await ends.receive(), HeartbeatReq):
            pass
        assert answer.scheduler is not None
        assert answer.scheduler.live == answer.scheduler.tombstones == 0


async def test_the_floor_of_an_abort_reaches_the_step_loop_with_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(AbortReq(vid=2))
        assert (await ends.ask()).tombstones == 1
        ends.front.post(request(5, max_new_tokens=900))
        await ends.receive()
        ends.front.post(AbortReq(vid=5, floor=3))
        assert await ends.receive_until_end_of(5) == "abort"
        assert (await ends.ask()).tombstones == 0


async def test_an_abort_while_it_decodes_ends_it_with_what_was_made(kind: Kind) -> None:
    model = GatedModel()
    async with running(kind, model) as ends:
        ends.front.post(request(1, max_new_tokens=900))
        for _ in range(3):
            model.gate.release()
            await ends.receive()
        ends.front.post(AbortReq(vid=1))
        ends.front.post(AbortReq(vid=1))
        model.open()
        assert await ends.receive_until_end_of(1) == "abort"
        assert len(ends.heard.tokens[1]) >= 3
        assert (await ends.ask(floor=2)).tombstones == 0


async def test_an_abort_of_one_that_is_over_has_no_answer(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=1))
        assert await ends.receive_until_end_of(1) == "length"
        ends.front.post(AbortReq(vid=1, floor=1))
        ends.front.post(AbortReq(vid=2, floor=1))
        assert (await ends.ask(floor=1)).tombstones == 1  # that of 2, whose request may be on its way
        assert (await ends.ask(floor=3)) == SchedulerLedger(steps=1)
        assert list(ends.heard.ends) == [1]


async def test_a_vid_can_follow_the_end_of_the_one_before_at_once(kind: Kind) -> None:
    async with running(kind) as ends:
        for vid in range(60):
            ends.front.post(request(vid, floor=max(0, vid - 1), max_new_tokens=900))
            if vid:
                ends.front.post(AbortReq(vid=vid - 1, floor=max(0, vid - 1)))
        ends.front.post(AbortReq(vid=59, floor=59))
        for vid in range(60):
            await ends.receive_until_end_of(vid)
        assert await ends.ask(floor=60) == SchedulerLedger(steps=ends.heard.ledger.steps)


@pytest.mark.parametrize("between", [0, 1])
async def test_a_vid_that_lives_cannot_come_again(kind: Kind, between: int) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        for _ in range(between):
            await ends.receive()
        ends.front.post(request(1))
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "vid 1 was sent twice"


async def test_questions_go_round_through_the_step_loop(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ledger = await ends.ask()
        assert ledger.live == 1
        ends.front.post(FreezeGCReq(id=4))
        while not isinstance(message := await ends.receive(), FreezeGCReq):
            pass
        assert message == FreezeGCReq(id=4, scheduler=message.scheduler)
        assert message.scheduler is not None


# --- the way down ----------------------------------------------------------------------------------


async def test_a_shutdown_ends_what_lives_and_is_passed_on(kind: Kind) -> None:
    async with running(kind) as ends:
        for vid in range(5):
            ends.front.post(request(vid, max_new_tokens=ENDLESS))
        ends.front.post(ShutdownReq())
        assert (await ends.receive_all())[-1] == ShutdownReq()
        assert {vid: end.type for vid, end in ends.heard.ends.items()} == dict.fromkeys(range(5), "abort")
        assert await ends.wait_ended() is None


async def test_a_front_that_is_gone_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        await ends.receive()
        ends.front.channel.close()
        assert await ends.wait_ended() is None
        await ends.receive_all()
        assert ends.heard.ends == {}


async def test_a_detokenizer_that_is_gone_ends_it_quietly(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        await ends.receive()
        assert any_thread_computes()
        ends.detokenizer.channel.close()
        assert await ends.wait_ended() is None
        assert not any_thread_computes()


async def test_an_error_of_a_step_is_what_ends_it(kind: Kind) -> None:
    class Broken(FakeModel):
        def forward(self, plan: StepPlan) -> StepResult:  # noqa: ARG002
            raise FloatingPointError("the device is on fire")

    async with running(kind, Broken()) as ends:
        ends.front.post(request(1))
        assert isinstance(await ends.wait_ended(), FloatingPointError)
        with pytest.raises(LinkClosed):
            await ends.receive()


async def test_a_loop_that_cannot_be_made_is_what_ends_it(kind: Kind) -> None:
    def fail() -> StepLoop:
        raise MemoryError("no room for the weights")

    async with running(kind, make_loop=fail, hands=False) as ends:
        for link in (ends.front, ends.detokenizer):
            link.post_hello()
        assert isinstance(await ends.wait_ended(), MemoryError)


@pytest.mark.parametrize("frame", [b"\xc1", b"\x91\x03"])
async def test_what_is_no_message_ends_it(kind: Kind, frame: bytes) -> None:
    async with running(kind) as ends:
        ends.front.channel.post(frame)
        assert isinstance(await ends.wait_ended(), DecodeError)


async def test_a_second_hello_ends_it(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post_hello()
        error = await ends.wait_ended()
        assert isinstance(error, RemoteProtocolError)
        assert str(error) == "Hello came after the handshake"


@pytest.mark.parametrize("moment", ["handshake", "loading", "idle", "computing"])
async def test_it_can_be_cancelled_at_any_time_and_leaves_nothing(kind: Kind, moment: str) -> None:
    model = GatedModel()
    loading = threading.Event()
    go_on = threading.Event()

    def load() -> StepLoop:
        loading.set()
        assert go_on.wait(DEADLINE)
        return make_loop_of(model)()

    if moment != "loading":
        go_on.set()
    async with running(kind, model, make_loop=load, hands=moment in {"idle", "computing"}) as ends:
        if moment == "loading":
            for link in (ends.front, ends.detokenizer):
                link.post_hello()
            await anyio.to_thread.run_sync(loading.wait)
            go_on.set()
        if moment == "computing":
            ends.front.post(request(1, max_new_tokens=900))
            model.gate.release()
            await ends.receive()
