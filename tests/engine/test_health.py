"""What is said of an engine, and what is done about a ring that hangs; all in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from vidette._health import COMPUTING_TIMES, Health, Watchdog, take_health
from vidette._ring import Breakdown
from vidette.config import EngineConfig
from vidette.front.pulse import HEARTBEAT_SECONDS, Pulse
from vidette.transport.spawn import Look
from vidette_protocol.messages import SchedulerLedger

STALL, HANG = 4.0, 30.0


class FakeChild:
    """A process that uses a share of a core, or is stopped."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.state = "S"
        self.share = 0.0
        self._used, self._since = 0.0, 0.0

    def use(self, share: float) -> None:
        """Use so much of a core from now on."""
        self._used, self._since, self.share = self.look().cpu_s, trio.current_time(), share

    def look(self) -> Look:
        return Look(self.state, self._used + self.share * (trio.current_time() - self._since))


class FakeRing:
    """A ring whose heartbeats come back if they are let."""

    def __init__(self, *roles: str) -> None:
        self.children = [FakeChild(role) for role in roles]
        self.breakdown: Breakdown | None = None
        self.broken_at = 0.0
        self.turns = trio.Event()
        self.turns.set()

    def break_down(self, breakdown: Breakdown) -> None:
        self.breakdown, self.broken_at = breakdown, trio.current_time()


class Watched(NamedTuple):
    pulse: Pulse
    ring: FakeRing


def run_watched(main: Callable[[Watched], Awaitable[None]], *roles: str, **options: Any) -> FakeRing:
    """Run a pulse with a request that lives, and a watchdog over it, until `main` returns."""

    async def run() -> FakeRing:
        ring: Any = FakeRing(*roles)
        calls = 0

        async def ask() -> None:
            nonlocal calls
            calls += 1
            call = calls
            pulse.asked(call)
            await ring.turns.wait()
            pulse.answered(call)

        pulse = Pulse(ask, lambda: 1)
        config = EngineConfig(**{"stall_timeout": STALL, "hang_timeout": HANG, **options})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Watchdog(config, ring, pulse).run)
            nursery.start_soon(pulse.run)
            await trio.sleep(100)
            await main(Watched(pulse, ring))
            nursery.cancel_scope.cancel()
        found: FakeRing = ring
        return found

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


BOTH = ("detokenizer", "scheduler")


def silence_until_death(ring: FakeRing) -> float:
    """Return after how long a silence, which began about 100 s after the start, a ring was ended."""
    assert ring.breakdown is not None
    return ring.broken_at - 100


def test_a_ring_that_turns_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main(watched: Watched) -> None:
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert ring.breakdown is None
    assert caplog.records == []


@pytest.mark.parametrize(("roles", "watchdog"), [(BOTH, "report"), ((), "restart"), ((), "report")])
def test_a_report_is_all_there_is(roles: tuple[str, ...], watchdog: str, caplog: Any) -> None:
    """Also if it is to be ended, and cannot: there is no process of its own."""

    async def main(watched: Watched) -> None:
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)
        watched.ring.turns.set()
        await trio.sleep(10)

    with caplog.at_level(logging.WARNING):
        ring = run_watched(main, *roles, watchdog=watchdog)
    assert ring.breakdown is None
    overdue, back = (record.getMessage() for record in caplog.records)
    states = " (detokenizer: sleeping, scheduler: sleeping)" if roles else ""
    assert overdue == f"no heartbeat has come back for {STALL} s{states}"
    assert back == "heartbeats come back again"


def test_one_that_does_nothing_is_ended_after_a_while() -> None:
    async def main(watched: Watched) -> None:
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert HANG <= silence_until_death(ring) <= HANG + 2 * HEARTBEAT_SECONDS
    assert ring.breakdown is not None
    assert ring.breakdown.message == (
        "the engine hung: no heartbeat came back for 30.0 s (detokenizer: sleeping, scheduler: sleeping)"
    )
    assert ring.breakdown.role is None


def test_one_that_computes_has_more_time() -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[1].use(1.0)
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    most = HANG * COMPUTING_TIMES
    assert most <= silence_until_death(ring) <= most + 2 * HEARTBEAT_SECONDS


def test_a_long_step_is_none_of_its_business() -> None:
    async def main(watched: Watched) -> None:
        for _ in range(3):
            watched.ring.children[1].use(1.0)
            watched.ring.turns = trio.Event()
            await trio.sleep(HANG * (COMPUTING_TIMES - 1))
            watched.ring.turns.set()
            watched.ring.children[1].use(0.0)
            await trio.sleep(2 * HEARTBEAT_SECONDS)

    assert run_watched(main, *BOTH, watchdog="restart").breakdown is None


def test_one_that_ceases_to_compute_has_the_usual_time_from_then_on() -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[1].use(1.0)
        watched.ring.turns = trio.Event()
        await trio.sleep(50)
        watched.ring.children[1].use(0.0)
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert 50 + HANG - 1 <= silence_until_death(ring) <= 50 + HANG + 1


def test_what_was_computed_before_the_silence_is_no_excuse() -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[1].use(1.0)
        await trio.sleep(500)
        watched.ring.children[1].use(0.0)
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert HANG <= ring.broken_at - 600 <= HANG + 2 * HEARTBEAT_SECONDS


def test_one_that_is_stopped_does_not_compute_whatever_the_others_do() -> None:
    async def main(watched: Watched) -> None:
        detokenizer, scheduler = watched.ring.children
        scheduler.use(1.0)
        detokenizer.state = "T"
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert HANG <= silence_until_death(ring) <= HANG + 2 * HEARTBEAT_SECONDS
    assert ring.breakdown is not None
    assert ring.breakdown.role == "detokenizer"


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_waits_for_a_device_has_as_much_time_as_one_that_computes(place: int) -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[place].state = "D"
        watched.ring.turns = trio.Event()
        await trio.sleep(50)
        assert watched.ring.breakdown is None
        watched.ring.children[place].state = "S"
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    assert 50 + HANG - 1 <= silence_until_death(ring) <= 50 + HANG + 1


@pytest.mark.parametrize(("share", "times"), [(0.0, 1), (1.0, COMPUTING_TIMES)])
def test_one_that_computes_has_more_time_also_if_it_may_hang_no_longer_than_it_may_stall(
    share: float, times: int
) -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[1].use(share)
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart", hang_timeout=STALL)
    assert STALL * times <= silence_until_death(ring) <= STALL * times + 3 * HEARTBEAT_SECONDS


def test_one_that_waits_for_a_device_for_ever_is_ended() -> None:
    async def main(watched: Watched) -> None:
        watched.ring.children[1].state = "D"
        watched.ring.turns = trio.Event()
        await trio.sleep(1000)

    ring = run_watched(main, *BOTH, watchdog="restart")
    most = HANG * COMPUTING_TIMES
    assert most <= silence_until_death(ring) <= most + 2 * HEARTBEAT_SECONDS


def test_heartbeats_of_a_ring_that_is_gone_do_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    async def main(watched: Watched) -> None:
        watched.ring.turns = trio.Event()
        await trio.sleep(10)
        watched.pulse.lost()
        await trio.sleep(0.1)

    run_watched(main, *BOTH, watchdog="report")
    (overdue,) = (record.getMessage() for record in caplog.records)
    assert overdue.startswith("no heartbeat has come back for")


# --- what is said ------------------------------------------------------------------------------------


class FakePulse(NamedTuple):
    silence_s: float = 0.0
    heard_s: float | None = 1.0


@pytest.mark.parametrize(
    ("ended", "turning", "pulse", "answers", "reason"),
    [
        (None, True, FakePulse(), (True, True, True), None),
        (None, True, FakePulse(silence_s=3.9), (True, True, True), None),
        (None, True, FakePulse(silence_s=4.0), (True, False, False), "no heartbeat has come back for 4.0 s"),
        (
            None,
            True,
            FakePulse(heard_s=None),
            (True, True, False),
            "nothing has come round the ring yet",
        ),
        (
            None,
            False,
            FakePulse(heard_s=None),
            (True, False, False),
            "scheduler and detokenizer are being started again",
        ),
        ("it broke", False, FakePulse(), (False, False, False), "it broke"),
        ("it was closed", True, FakePulse(), (False, False, False), "it was closed"),
    ],
)
def test_three_answers(
    ended: str | None, turning: bool, pulse: Any, answers: tuple[bool, bool, bool], reason: str | None
) -> None:
    ledger = SchedulerLedger(queue_age_s=7.0, step_s=0.5)
    health = take_health(
        ended, turning=turning, draining=False, pulse=pulse, ledger=ledger, stall_timeout=STALL
    )
    assert health == Health(
        *answers,
        reason=reason,
        silence_s=pulse.silence_s,
        heard_s=pulse.heard_s,
        queue_age_s=7.0,
        step_s=0.5,
    )


def test_one_that_is_being_closed_is_not_ready_whatever_else() -> None:
    pulse: Any = FakePulse()
    health = take_health(
        None, turning=True, draining=True, pulse=pulse, ledger=SchedulerLedger(), stall_timeout=STALL
    )
    assert (health.live, health.progress, health.ready) == (True, True, False)
    assert health.reason == "the engine is being closed, and takes no more requests"
