"""The compute thread over a device: what it does while a batch is in flight, and what it puts off."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from tests.engine.scheduler.conftest import DEADLINE, ENDLESS, TABLE, FakeModel, request
from tests.engine.scheduler.test_compute import Running

from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette_fuzz.overlapping import Overlapping
from vidette_protocol.messages import AbortReq, HeartbeatReq, ShutdownReq


class Device:
    """A device that is done with a batch when the test says so; open once the block is left."""

    def __init__(self) -> None:
        self.model = FakeModel(context_len=20_000)
        self.waited_for = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.fault: Exception | None = None

    def make_loop(self) -> StepLoop:
        device, model = self, Overlapping(self.model)

        class Loop(StepLoop):
            def wait(self) -> None:
                if self._flight is not None:
                    device.waited_for.release()
                    assert device.gate.acquire(timeout=DEADLINE)
                    if device.fault is not None:
                        raise device.fault
                    model.finish()
                super().wait()

        return Loop(model, LoopOptions(num_blocks=2000, step_tokens=64, max_running=16), table=TABLE)

    def run(self, **options: Any) -> Running:
        return Running(self.model, make_loop=self.make_loop, **options)

    def wait_in_flight(self) -> None:
        """Wait until a batch is in flight that the thread has nothing to do beside."""
        assert self.waited_for.acquire(timeout=DEADLINE)

    def land(self) -> None:
        self.gate.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.release(ENDLESS)


def test_what_was_made_is_read_while_the_next_batch_is_in_flight() -> None:
    with (device := Device()).run() as running, device:
        running.post(request(1, max_new_tokens=ENDLESS))
        for made in range(1, 5):
            device.wait_in_flight()
            device.land()
            device.wait_in_flight()
            running.reader.next()
            assert len(running.reader.heard.tokens[1]) == made
            device.waited_for.release()


def test_what_is_posted_while_a_batch_is_in_flight_is_applied_when_it_has_landed() -> None:
    with (device := Device()).run() as running, device:
        running.post(request(1, max_new_tokens=ENDLESS), request(2, max_new_tokens=ENDLESS))
        device.wait_in_flight()
        running.post(AbortReq(vid=1))
        device.land()
        assert running.reader.read_until_end_of(1).type == "abort"
        assert running.over.get(timeout=DEADLINE) == [1]
        made = {vid: len(tokens) for vid, tokens in running.reader.heard.tokens.items()}
        assert made in ({1: 1, 2: 1}, {1: 1})  # the second may have come too late for the batch
        device.wait_in_flight()
        assert len(device.model.plans) == 1  # that of the second batch comes when it is done


def test_it_does_not_sleep_over_a_batch_in_flight_although_its_reader_lags_behind() -> None:
    with (device := Device()).run(little_room=True, high_water=3000) as running, device:
        device.gate.release(ENDLESS)
        running.wait_asleep()  # so that no ring is left to wake it
        running.post(request(1, max_new_tokens=ENDLESS))
        running.wait_asleep(full=True)
        loop = running.loops.get(timeout=DEADLINE)
        assert loop.ledger().steps == len(device.model.plans)
        running.post(AbortReq(vid=1))
        assert running.reader.read_until_end_of(1).type == "abort"


def test_a_shutdown_comes_behind_the_batch_in_flight() -> None:
    with (device := Device()).run() as running, device:
        running.post(request(1, max_new_tokens=ENDLESS))
        device.wait_in_flight()
        running.post(ShutdownReq())
        device.land()
        assert running.reader.read_to_end()[-1] == ShutdownReq()
        assert running.reader.heard.ends[1].type == "abort"
        assert len(running.reader.heard.tokens[1]) == 1
        assert running.join() is None


def test_it_sleeps_once_nothing_is_in_flight() -> None:
    with (device := Device()).run() as running, device:
        device.gate.release(ENDLESS)
        running.post(request(1, max_new_tokens=5))
        assert running.reader.read_until_end_of(1).type == "length"
        running.wait_asleep()
        running.post(HeartbeatReq(id=1))
        assert isinstance(running.reader.next(), HeartbeatReq)


def test_a_device_that_fails_ends_it_and_the_link() -> None:
    with (device := Device()).run() as running, device:
        running.post(request(1, max_new_tokens=ENDLESS))
        device.wait_in_flight()
        device.fault = FloatingPointError("the device is on fire")
        device.land()
        assert isinstance(running.join(), FloatingPointError)
        assert running.reader.read_to_end() == []
        assert running.over.empty()
