"""The compute thread: awake when there is something to do, asleep when not, and never stuck on its reader."""

from __future__ import annotations

import gc
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import pytest
import torch
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

from vidette.models import StepPlan, StepResult
from vidette.scheduler.compute import ComputeThread, ThreadNews
from vidette.scheduler.effects import Command
from vidette.scheduler.endings import DEADLINE_GRACE, EXPIRED
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette.transport.framing import FrameReader, LinkClosed
from vidette.transport.mailbox import Bell
from vidette.transport.sink import Sink
from vidette_protocol.codec import Codec
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    FinishReason,
    FreezeGCReq,
    HeartbeatReq,
    Message,
    SchedulerLedger,
    ShutdownReq,
)
from vidette_protocol.messages.catalogue import DETOKENIZER_TO_SCHEDULER, SCHEDULER_TO_DETOKENIZER


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until another thread has got so far."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        os.sched_yield()


class Reader:
    """A detokenizer's end, read by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard = Heard()
        self._frames = FrameReader(1 << 20)
        self._codec = Codec(sends=DETOKENIZER_TO_SCHEDULER, receives=SCHEDULER_TO_DETOKENIZER)

    def next(self) -> Message | None:
        """Return the next message; None at the end of the link."""
        while (frame := self._frames.pop()) is None:
            with self._frames.buffer() as buffer:
                count = self.sock.recv_into(buffer)
            if count == 0:
                assert not self._frames.partial
                return None
            self._frames.advance(count)
        message = self._codec.decode(frame)
        if isinstance(message, BatchTokenIDOutput):
            self.heard.hear(message)
        return message

    def read_until_end_of(self, vid: int) -> FinishReason:
        """Read on until a request has come to its end."""
        while vid not in self.heard.ends:
            assert self.next() is not None, f"the link ended before {vid} did"
        return self.heard.ends[vid]

    def read_to_end(self) -> list[Message]:
        """Return all that comes until the link ends."""
        return list(iter(self.next, None))


class Running:
    """A compute thread that runs until the block is left, and whatever can be seen of it."""

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        make_loop: Callable[[], StepLoop] | None = None,
        high_water: int = 1 << 20,
        little_room: bool = False,
        collects: bool = True,
        detokenizers: int = 1,
    ) -> None:
        self.model = model if model is not None else FakeModel(context_len=20_000)
        sizes = LoopOptions(num_blocks=2000, step_tokens=64, max_running=16, detokenizers=detokenizers)
        self._make_loop = make_loop or partial(StepLoop, self.model, sizes, table=TABLE)
        self.readers: list[Reader] = []
        self.sinks: list[Sink] = []
        for _ in range(detokenizers):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            ours.setblocking(False)
            if little_room:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            theirs.settimeout(DEADLINE)
            self.readers.append(Reader(theirs))
            self.sinks.append(Sink(ours, high_water=high_water))
        self.reader = self.readers[0]
        self.loops: queue.Queue[StepLoop] = queue.Queue()
        self.over: queue.Queue[list[Vid]] = queue.Queue()
        self.steps = 0
        self._now = 0.0
        self.error: BaseException | None = None
        self.compute = ComputeThread(
            self._make_loop,
            self.sinks,
            Codec(sends=SCHEDULER_TO_DETOKENIZER, receives=DETOKENIZER_TO_SCHEDULER),
            tell=self._tell,
            clock=self._clock,
            collects=collects,
        )
        self.thread = threading.Thread(target=self._run, name="compute")

    def _tell(self, news: ThreadNews) -> None:
        if isinstance(news, StepLoop):
            self.loops.put(news)
        elif isinstance(news, list):
            self.over.put(news)

    def _clock(self) -> float:
        """Tell the time: of every step, and whenever it goes to sleep before a deadline."""
        self.steps += 1
        return self._now

    def turn_clock_to(self, now: float) -> None:
        """Let so much time have passed."""
        self._now = now

    def _run(self) -> None:
        try:
            self.compute.run()
        except Exception as error:  # noqa: BLE001  the tests look at it
            self.error = error

    def post(self, *commands: Command) -> None:
        for command in commands:
            self.compute.post(command)

    def join(self) -> BaseException | None:
        """Wait until the thread has ended; return what ended it."""
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        return self.error

    def wait_asleep(self, *, full: bool = False) -> None:
        """Wait until the thread waits for its bell, with a sink full if one should be."""
        wait_until(lambda: self._asleep() and any(sink.full for sink in self.sinks) == full)

    def _asleep(self) -> bool:
        frame = sys._current_frames().get(self.thread.ident or 0)
        return frame is not None and frame.f_code is Bell.wait.__code__

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.compute.stop()
        if isinstance(self.model, GatedModel):
            self.model.open()
        self.thread.join(DEADLINE)
        for reader in self.readers:
            reader.sock.close()
        assert not self.thread.is_alive()
        self.compute.close()
        assert all(sink.fileno() < 0 for sink in self.sinks), "the thread closes its sinks"


# --- sleeping and waking ---------------------------------------------------------------------------


def test_it_says_when_its_loop_is_ready() -> None:
    with Running() as running:
        assert running.loops.get(timeout=DEADLINE).max_total_tokens == 20_000


def test_a_post_wakes_it() -> None:
    with Running() as running:
        for number in range(50):
            running.wait_asleep()
            running.post(HeartbeatReq(id=number))
            assert running.reader.next() == HeartbeatReq(id=number, scheduler=SchedulerLedger())


def test_no_post_is_missed_while_it_goes_to_sleep() -> None:
    with Running() as running:
        for number in range(500):
            running.post(HeartbeatReq(id=number))
            assert running.reader.next() == HeartbeatReq(id=number, scheduler=SchedulerLedger())


def test_it_steps_when_asked_and_not_otherwise() -> None:
    with Running() as running:
        for number in range(100):
            running.post(HeartbeatReq(id=number))
            running.reader.next()
        # For each command at most: the step that takes it, and one for a bell that rang once too often.
        assert running.steps <= 2 * 100 + 1
        running.wait_asleep()
        steps = running.steps
        running.thread.join(0.05)
        assert running.steps - steps <= 1
        assert running._asleep()


def test_it_computes_without_being_asked_again_until_nothing_lives() -> None:
    with Running() as running:
        command = request(1, max_new_tokens=100)
        running.post(command)
        running.reader.read_until_end_of(1)
        tokens, reason = foretell([5, 6, 7], command.sampling_params)
        assert running.reader.heard.tokens == {1: tokens}
        assert running.reader.heard.ends == {1: reason}
        assert running.over.get(timeout=DEADLINE) == [1]
        running.wait_asleep()
        assert len(running.model.plans) == 100


def test_what_is_posted_during_a_step_is_applied_at_its_end() -> None:
    model = GatedModel()
    with Running(model) as running:
        running.post(request(1, max_new_tokens=ENDLESS // 20))
        for _ in range(3):
            assert model.begun.acquire(timeout=DEADLINE)
            model.gate.release()
        assert model.begun.acquire(timeout=DEADLINE)  # the fourth step is under way
        running.post(AbortReq(vid=1))
        model.gate.release()
        assert running.reader.read_until_end_of(1).type == "abort"
        assert len(running.reader.heard.tokens[1]) == 4
        assert len(model.plans) == 4
        assert running.over.get(timeout=DEADLINE) == [1]


def test_posts_of_several_threads_are_all_applied() -> None:
    with Running() as running:

        def post(first: int) -> None:
            for vid in range(first, first + 40):
                running.post(request(vid, [1 + vid % 40], max_new_tokens=2), AbortReq(vid=vid + 1000))

        threads = [threading.Thread(target=post, args=[first]) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        vids = [vid for first in (0, 100, 200) for vid in range(first, first + 40)]
        for vid in vids:
            assert running.reader.read_until_end_of(vid).type == "length"
        running.post(HeartbeatReq(id=1))
        answer = running.reader.next()
        assert isinstance(answer, HeartbeatReq)
        assert answer.scheduler is not None
        assert answer.scheduler.tombstones == 120


def test_it_computes_in_inference_mode() -> None:
    modes = []

    class Curious(FakeModel):
        def forward(self, plan: StepPlan) -> StepResult:
            modes.append(torch.is_inference_mode_enabled())
            return super().forward(plan)

    with Running(Curious()) as running:
        running.post(request(1, max_new_tokens=2))
        running.reader.read_until_end_of(1)
    assert modes == [True, True]
    assert not torch.is_inference_mode_enabled()


def test_it_freezes_what_lives_and_says_so() -> None:
    assert gc.get_freeze_count() == 0
    with Running() as running:
        running.post(FreezeGCReq(id=3))
        answer = running.reader.next()
        assert isinstance(answer, FreezeGCReq)
        assert answer.scheduler is not None
        assert answer.scheduler.seconds > 0
        assert answer.scheduler.frozen >= gc.get_freeze_count() > 0
        assert answer == FreezeGCReq(id=3, scheduler=answer.scheduler)
        running.post(FreezeGCReq(id=4, unfreeze=True))
        answer = running.reader.next()
        assert isinstance(answer, FreezeGCReq)
        assert answer.scheduler is not None
        assert answer.scheduler.frozen == gc.get_freeze_count() == 0


def test_it_unfreezes_by_itself_when_the_time_has_come() -> None:
    with Running() as running:
        running.post(FreezeGCReq(id=3, duration_s=0.01))
        assert isinstance(running.reader.next(), FreezeGCReq)
        running.wait_asleep()
        assert gc.get_freeze_count() > 0
        running.turn_clock_to(0.01)  # nobody posts anything: the clock alone wakes it
        wait_until(lambda: gc.get_freeze_count() == 0)


def test_a_collector_that_is_not_the_schedulers_is_left_alone() -> None:
    with Running(collects=False) as running:
        running.post(FreezeGCReq(id=3, duration_s=0.0), FreezeGCReq(id=4))
        assert running.reader.next() == FreezeGCReq(id=3, duration_s=0.0)
        assert running.reader.next() == FreezeGCReq(id=4)
        assert gc.get_freeze_count() == 0


# --- a slow reader ---------------------------------------------------------------------------------


def test_above_the_high_water_mark_nothing_is_computed_while_aborts_are_applied() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS), request(2, [9], max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        computed = len(running.model.plans)
        assert computed < ENDLESS // 2

        running.post(AbortReq(vid=1), HeartbeatReq(id=1))
        assert running.over.get(timeout=DEADLINE) == [1]
        # One that says nothing either: whatever wakes it, it does not compute.
        steps = running.steps
        running.post(AbortReq(vid=77))
        wait_until(lambda: running.steps > steps)
        running.wait_asleep(full=True)
        assert len(running.model.plans) == computed

        # Once the reader catches up all of it comes, in order, and computing goes on.
        assert running.reader.read_until_end_of(1).type == "abort"
        assert len(running.reader.heard.tokens[1]) == computed
        assert isinstance(running.reader.next(), HeartbeatReq)
        while len(running.reader.heard.tokens[2]) <= computed:
            running.reader.next()
        running.post(AbortReq(vid=2))
        assert running.reader.read_until_end_of(2).type == "abort"
        assert running.reader.heard.ledger.live == 0


def test_what_is_parked_leaves_when_the_reader_drains_with_nothing_asked() -> None:
    with Running(little_room=True) as running:
        running.post(request(1, max_new_tokens=500))
        assert running.over.get(timeout=DEADLINE) == [1]
        running.wait_asleep()  # with nothing to compute, and most of it parked
        assert running.reader.read_until_end_of(1).type == "length"
        assert len(running.reader.heard.tokens[1]) == 500


def test_a_full_sink_does_not_make_it_spin() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        steps = running.steps
        running.thread.join(0.05)
        assert running.steps - steps <= 1


# --- several detokenizers --------------------------------------------------------------------------


def test_each_vid_is_told_to_one_detokenizer_and_questions_to_all() -> None:
    with Running(detokenizers=2) as running:
        running.post(*(request(vid, [vid], max_new_tokens=20) for vid in range(1, 7)))
        for vid in range(1, 7):
            assert running.readers[vid % 2].read_until_end_of(vid).type == "length"
        for place, reader in enumerate(running.readers):
            assert {vid % 2 for vid in reader.heard.tokens} == {place}
            assert {len(tokens) for tokens in reader.heard.tokens.values()} == {20}
        running.post(HeartbeatReq(id=5))
        first, second = (reader.next() for reader in running.readers)
        assert isinstance(first, HeartbeatReq)
        assert first == second
        running.post(ShutdownReq())
        assert [reader.read_to_end() for reader in running.readers] == [[ShutdownReq()], [ShutdownReq()]]
        assert running.join() is None


def test_while_one_of_two_lags_behind_nothing_is_computed_and_the_other_hears_all() -> None:
    with Running(little_room=True, high_water=3000, detokenizers=2) as running:
        slow, quick = running.readers
        running.post(request(2, max_new_tokens=ENDLESS), request(3, [9], max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        computed = len(running.model.plans)
        while len(quick.heard.tokens.get(3, ())) < computed - 1:  # it may have been begun a step later
            assert quick.next() is not None
        wait_until(lambda: not running.sinks[1].full)
        # Whatever wakes it, it does not compute; and what it has to say to the other goes out.
        running.post(AbortReq(vid=3))
        assert quick.read_until_end_of(3).type == "abort"
        running.wait_asleep(full=True)
        steps = running.steps
        running.thread.join(0.05)
        assert running.steps - steps <= 1
        assert len(running.model.plans) == computed
        # Once the slow one catches up it goes on.
        while len(slow.heard.tokens.get(2, ())) <= computed:
            assert slow.next() is not None
        running.post(AbortReq(vid=2))
        assert slow.read_until_end_of(2).type == "abort"


@pytest.mark.parametrize("first", [2, 3])
def test_what_is_parked_for_either_leaves_when_it_is_read_with_nothing_asked(first: int) -> None:
    with Running(little_room=True, detokenizers=2) as running:
        running.post(*(request(vid, max_new_tokens=500) for vid in (2, 3)))
        over: list[Vid] = []
        while len(over) < 2:
            over += running.over.get(timeout=DEADLINE)
        running.wait_asleep()  # with nothing to compute, and most of it parked
        for vid in (first, 5 - first):
            assert running.readers[vid % 2].read_until_end_of(vid).type == "length"


@pytest.mark.parametrize("place", [0, 1])
def test_either_of_two_readers_that_goes_ends_it_and_the_other_link(place: int) -> None:
    with Running(little_room=True, high_water=3000, detokenizers=2) as running:
        running.post(request(2, max_new_tokens=ENDLESS), request(3, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        running.readers[place].sock.close()
        assert isinstance(running.join(), LinkClosed)
        while running.readers[1 - place].sock.recv(1 << 16):
            pass


# --- how it ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["asleep", "busy", "full", "before it runs"])
def test_it_stops_at_the_next_boundary_when_told_to(moment: str) -> None:
    running = Running(little_room=moment == "full", high_water=3000 if moment == "full" else 1 << 30)
    if moment == "before it runs":
        running.compute.stop()
    with running:
        if moment == "asleep":
            running.wait_asleep()
        elif moment in {"busy", "full"}:
            running.post(request(1, max_new_tokens=ENDLESS))
            wait_until(lambda: len(running.model.plans) > 3)
        if moment == "full":
            running.wait_asleep(full=True)
        for _ in range(2):
            running.compute.stop()
        assert running.join() is None
        assert 1 not in running.reader.heard.ends


def test_it_ends_when_a_shutdown_has_been_answered() -> None:
    with Running() as running:
        running.post(request(1, max_new_tokens=ENDLESS), ShutdownReq())
        *_, rows, last = running.reader.read_to_end()
        assert isinstance(rows, BatchTokenIDOutput)
        assert last == ShutdownReq()
        assert running.reader.heard.ends[1].type == "abort"
        assert running.join() is None
        assert running.over.get(timeout=DEADLINE) == [1]


def test_the_answer_to_a_shutdown_waits_for_a_slow_reader() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        running.post(ShutdownReq())
        assert running.over.get(timeout=DEADLINE) == [1]
        running.wait_asleep(full=True)
        assert running.reader.read_to_end()[-1] == ShutdownReq()
        assert running.join() is None


def test_it_can_be_stopped_while_the_answer_to_a_shutdown_waits() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        running.post(ShutdownReq())
        running.over.get(timeout=DEADLINE)
        running.compute.stop()
        assert running.join() is None


def test_an_error_of_a_step_ends_it_and_the_link() -> None:
    class Broken(FakeModel):
        def forward(self, plan: StepPlan) -> StepResult:
            if len(self.plans) == 2:
                raise FloatingPointError("the device is on fire")
            return super().forward(plan)

    with Running(Broken()) as running:
        running.post(request(1, max_new_tokens=9))
        error = running.join()
        assert isinstance(error, FloatingPointError)
        running.reader.read_to_end()
        assert len(running.reader.heard.tokens[1]) == 2
        assert running.reader.heard.ends == {}
        assert running.over.empty()


def test_a_loop_that_cannot_be_made_ends_it_and_the_link() -> None:
    def fail() -> StepLoop:
        raise MemoryError("no room for the weights")

    with Running(make_loop=fail) as running:
        assert isinstance(running.join(), MemoryError)
        assert running.reader.read_to_end() == []
        assert running.loops.empty()


def test_a_reader_that_is_gone_ends_it_with_the_next_thing_to_say() -> None:
    with Running() as running:
        running.wait_asleep()
        running.reader.sock.close()
        running.post(HeartbeatReq(id=1))
        assert isinstance(running.join(), LinkClosed)


def test_a_reader_that_goes_while_something_is_parked_ends_it_at_once() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        running.reader.sock.close()
        assert isinstance(running.join(), LinkClosed)


# --- deadlines -------------------------------------------------------------------------------------


def test_one_expires_although_the_reader_of_the_output_is_stuck() -> None:
    """The clock alone makes it end: nobody reads, nobody posts, and nothing may be computed."""
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS, deadline_s=0.0))
        running.wait_asleep(full=True)
        running.turn_clock_to(DEADLINE_GRACE)  # the wait has a limit, and the time of that has come
        assert running.over.get(timeout=DEADLINE) == [1]
        running.wait_asleep(full=True)
        assert running.loops.get().ledger().blocks_used == 0
        assert running.reader.read_until_end_of(1) == EXPIRED


def test_one_that_waits_expires_while_nothing_can_be_read() -> None:
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        running.post(request(2, deadline_s=0.0))
        wait_until(lambda: running.loops.queue[0].ledger().live == 2)
        running.turn_clock_to(DEADLINE_GRACE)
        assert running.over.get(timeout=DEADLINE) == [2]
        assert running.reader.read_until_end_of(2) == EXPIRED


def test_a_deadline_far_away_lets_it_sleep() -> None:
    """So far that poll(2) knows no such time."""
    with Running(little_room=True, high_water=3000) as running:
        running.post(request(1, max_new_tokens=ENDLESS, deadline_s=1e300))
        running.wait_asleep(full=True)
        steps = running.steps
        running.thread.join(0.05)
        assert running.steps - steps <= 1
        running.post(AbortReq(vid=1))
        assert running.reader.read_until_end_of(1).type == "abort"


def test_an_end_before_the_deadline_leaves_no_alarm() -> None:
    with Running() as running:
        running.post(request(1, max_new_tokens=3, deadline_s=0.0))
        running.reader.read_until_end_of(1)
        running.wait_asleep()
        steps = running.steps
        running.turn_clock_to(DEADLINE_GRACE)
        running.thread.join(0.05)
        assert running.steps == steps
