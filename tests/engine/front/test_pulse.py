"""Whether the ring turns: heartbeats while something lives, none while nothing does, and how old they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from tests.engine.front.conftest import Front, ask

from vidette.errors import EngineBroken, Error
from vidette.front.pulse import HEARTBEAT_SECONDS, STANDSTILL_SECONDS, Pulse
from vidette.front.questions import Asked, Questions
from vidette_protocol.messages import HeartbeatReq, StrRow

HOUR = 3600.0


def killed() -> Error:
    return EngineBroken("the scheduler was killed by SIGKILL", role="scheduler", exit_status=-9)


class Beating:
    """A pulse, and the ring that it goes round: by hand."""

    def __init__(self) -> None:
        self.living = 0
        self.lost = False
        self.asked = 0
        self.posted: list[Asked] = []
        """Heartbeats that are on their way."""
        self.pulse = Pulse(self.ask, lambda: self.living)
        self.questions = Questions(self.pulse)

    async def ask(self) -> None:
        """Send a heartbeat round, and wait for it."""
        self.asked += 1
        if self.lost:
            raise killed()
        await self.questions.ask(lambda call: HeartbeatReq(id=call), HeartbeatReq, self.posted.append)

    def come_back(self) -> None:
        """Let the oldest heartbeat come back."""
        heartbeat = self.posted.pop(0)
        assert isinstance(heartbeat, HeartbeatReq)
        self.questions.settle(heartbeat)

    @classmethod
    @asynccontextmanager
    async def run(cls) -> AsyncGenerator[Beating]:
        """Run a pulse, whose first heartbeat was sent and has not come back."""
        beating = cls()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beating.pulse.run)
            while not beating.posted:
                await anyio.lowlevel.checkpoint()
            yield beating
            tasks.cancel_scope.cancel()


# --- what is known ---------------------------------------------------------------------------------


async def test_a_ring_is_asked_at_once_and_is_heard_when_it_answers() -> None:
    async with Beating.run() as beating:
        assert beating.pulse.heard_s is None
        beating.come_back()
        assert beating.pulse.heard_s is not None
        assert beating.pulse.silence_s == 0.0
        assert beating.asked == 1


async def test_tokens_are_heard_as_well() -> None:
    async with Front.serving() as front, front.manager.generate(ask()) as stream:
        assert front.manager.pulse.heard_s is None
        front.say(StrRow(stream.vid, 0, (104,), None, "h"))
        await anext(stream)
        assert front.manager.pulse.heard_s is not None


async def test_a_request_wakes_it() -> None:
    async with Front.serving() as front:
        woken = front.manager.pulse._begun
        async with front.manager.generate(ask()):
            assert woken.is_set()


async def test_a_heartbeat_that_nobody_waits_for_is_missed_all_the_same() -> None:
    async with Front.serving() as front:
        pulse = front.manager.pulse
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.manager.heartbeat)
            await front.until(lambda: bool(front.posted))
            tasks.cancel_scope.cancel()
        await front.until(lambda: pulse.silence_s > 0)
        (heartbeat,) = front.sent()
        front.detokenizer.post(heartbeat)
        await front.until(lambda: not pulse.silence_s)
        assert pulse.heard_s is not None


async def test_with_the_ring_goes_what_is_known_of_it() -> None:
    async with Front.serving() as front, anyio.create_task_group() as tasks:
        pulse = front.manager.pulse

        async def heartbeat() -> None:
            with pytest.raises(EngineBroken):
                await front.manager.heartbeat()

        tasks.start_soon(heartbeat)
        await front.until(lambda: bool(front.posted))
        await front.heard()
        assert front.manager.pulse.heard_s is not None
        front.manager.lose(killed)
        assert (pulse.silence_s, pulse.heard_s) == (0.0, None)


# --- time ------------------------------------------------------------------------------------------


def in_virtual_time(main: Callable[[trio.testing.MockClock], Awaitable[None]]) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(main, clock, clock=clock)


def test_while_nothing_lives_nobody_asks_or_wakes() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating:
            beating.come_back()
            await trio.sleep(HOUR)
            assert beating.asked == 1
            # But for this task, nobody has asked to be woken.
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline > HOUR

    in_virtual_time(main)


def test_while_a_request_lives_each_heartbeat_follows_the_answer_to_the_last() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating:
            beating.come_back()
            await trio.sleep(HOUR)
            beating.living = 1
            beating.pulse.wake()
            for number in range(5):
                await trio.sleep(HEARTBEAT_SECONDS + 0.01)
                assert beating.asked == number + 2
                beating.come_back()
            await trio.sleep(HOUR)
            assert (beating.asked, len(beating.posted)) == (7, 1)  # this one has not come back
            beating.living = 0
            beating.come_back()
            await trio.sleep(HOUR)
            assert beating.asked == 7

    in_virtual_time(main)


def test_a_request_that_is_over_before_costs_no_heartbeat() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating:
            beating.come_back()
            await trio.sleep(HOUR)
            for _ in range(3):
                beating.living = 1
                beating.pulse.wake()
                await trio.sleep(HEARTBEAT_SECONDS / 4)
                beating.living = 0
            await trio.sleep(HOUR)
            assert beating.asked == 1

    in_virtual_time(main)


def test_silence_is_the_age_of_the_oldest_heartbeat() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating, trio.open_nursery() as nursery:
            pulse = beating.pulse
            for number in range(40):
                await pulse.wait_news()
                assert pulse.silence_s == pytest.approx((number + 1) * HEARTBEAT_SECONDS)
            nursery.start_soon(beating.ask)  # a younger one
            await trio.sleep(HEARTBEAT_SECONDS)
            assert pulse.silence_s == pytest.approx(41 * HEARTBEAT_SECONDS)
            beating.come_back()
            assert pulse.silence_s == pytest.approx(HEARTBEAT_SECONDS)
            beating.come_back()
            assert pulse.silence_s == 0.0

    in_virtual_time(main)


def test_an_answer_is_news_at_once() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating, trio.open_nursery() as nursery:
            nursery.start_soon(beating.pulse.wait_news)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            beating.come_back()
        assert trio.current_time() == began

    in_virtual_time(main)


def test_time_in_which_the_loop_itself_stands_still_does_not_count() -> None:
    """The answer may have come long ago; nobody has read it."""

    async def main(clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating:
            clock.jump(HOUR)
            assert beating.pulse.silence_s <= STANDSTILL_SECONDS
            await trio.sleep(HEARTBEAT_SECONDS)
            assert beating.pulse.silence_s <= STANDSTILL_SECONDS + HEARTBEAT_SECONDS

    in_virtual_time(main)


def test_what_is_asked_of_an_idle_ring_is_followed_until_it_comes_back() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating, trio.open_nursery() as nursery:
            beating.come_back()
            await trio.sleep(HOUR)
            nursery.start_soon(beating.ask)
            await trio.sleep(60)
            assert beating.pulse.silence_s == pytest.approx(60)
            beating.come_back()
            await trio.sleep(HOUR)
            assert beating.asked == 2

    in_virtual_time(main)


def test_a_ring_that_is_gone_is_asked_in_vain_and_the_pulse_goes_on() -> None:
    async def main(_clock: trio.testing.MockClock) -> None:
        async with Beating.run() as beating:
            beating.living, beating.lost = 1, True
            beating.questions.fail(killed)
            await trio.sleep(10 * HEARTBEAT_SECONDS + 0.1)
            assert beating.asked == 11
            assert beating.pulse.silence_s == 0.0

    in_virtual_time(main)
