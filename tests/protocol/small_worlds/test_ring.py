"""Worlds of bounded links in a ring: what keeps them from standing still."""

from __future__ import annotations

import pytest

from vidette_fuzz.explore import explore
from vidette_protocol.lifecycle.pending import PendingDelta, Taken
from vidette_protocol.small_worlds.model import Step
from vidette_protocol.small_worlds.ring import (
    FrontPolicy,
    RingBounds,
    RingParts,
    RingWorld,
    SchedulerPolicy,
)


def walk(world: RingWorld, *lines: str) -> RingWorld:
    """Return the world after steps that have to be enabled."""
    for line in lines:
        (step,) = (step for step in world.enabled() if str(step) == line)
        world = world.apply(step)
        assert world.check() == []
    return world


TOKEN = ("make 0", "thread sends", "detokenizer passes on", "front reads")
START = ("submit", "front sends", "scheduler takes")


def test_a_caller_who_is_slow_reads_all_at_once() -> None:
    world = walk(RingWorld(bounds=RingBounds(callers=1)), *START, *TOKEN, *TOKEN)
    assert (world.heard, world.pending[0].deltas) == ([()], 1)
    world = walk(world, "caller reads 0")
    assert world.heard == [(0, 1)]
    assert world.enabled() == []


def test_one_task_that_reads_all_streams_reads_them_in_turn() -> None:
    world = walk(RingWorld(bounds=RingBounds(callers=2, in_turn=True)), *START, *START)
    for line in ("make 1", *TOKEN[1:], "make 0", *TOKEN[1:]):
        world = walk(world, line)
    readers = [step for step in world.enabled() if step.name == "caller reads"]
    assert readers == [Step("caller reads", (0,))]


def test_above_the_high_water_mark_nothing_is_made_or_taken() -> None:
    world = walk(RingWorld(bounds=RingBounds(callers=2)), *START, "make 0", "submit", "front sends")
    names = {step.name for step in world.enabled()}
    assert names == {"thread sends"}


class _StopsReadingToSend(FrontPolicy):
    def reads(self, *, stuck: bool, unread: bool) -> bool:
        del unread
        return not stuck


class _TakesAll(SchedulerPolicy):
    """Takes whatever comes, however much is parked: its memory has no bound."""

    def takes(self, *, full: bool) -> bool:
        del full
        return True


@pytest.mark.parametrize(
    ("front", "scheduler", "goes_on"),
    [
        (FrontPolicy, SchedulerPolicy, True),
        (FrontPolicy, _TakesAll, True),
        (_StopsReadingToSend, SchedulerPolicy, False),
        (_StopsReadingToSend, _TakesAll, True),
    ],
)
def test_the_ring_goes_on_if_the_front_never_stops_reading(
    front: type[FrontPolicy], scheduler: type[SchedulerPolicy], *, goes_on: bool
) -> None:
    """A front that stops may do so only where another place has no bound."""
    bounds = RingBounds(callers=3, tokens=3)
    found = explore(lambda: RingWorld(RingParts(front, scheduler), bounds))
    assert found.complete is goes_on
    if not goes_on:
        assert found.violation is not None
        assert found.violation.rules[0].startswith("8: caller 0 waits")


class _Garbles(PendingDelta[bool]):
    def take(self) -> Taken[bool] | None:
        taken = super().take()
        return taken and taken._replace(text="?")


class _EndsAtOnce(PendingDelta[bool]):
    def take(self) -> Taken[bool] | None:
        taken = super().take()
        return taken and taken._replace(end=True)


def test_text_and_ends_that_do_not_fit_are_faults() -> None:
    for pending, fault in (
        (_Garbles, "4: caller 0 has read tokens (0,), the last as '?'"),
        (_EndsAtOnce, "1: caller 0 has read 1 tokens when its end comes, or does not"),
    ):
        world = walk(RingWorld(RingParts(pending=pending)), *START, *TOKEN)
        assert world.apply(Step("caller reads", (0,))).check() == [fault]


class _Queues(PendingDelta[bool]):
    @property
    def deltas(self) -> int:
        return 2


def test_more_than_one_delta_for_a_caller_is_a_fault() -> None:
    world = RingWorld(RingParts(pending=_Queues)).apply(Step("submit"))
    assert world.check() == ["7: 2 deltas wait for caller 0, who is slow"]


def test_a_story_is_told() -> None:
    world, story = RingWorld(bounds=RingBounds(callers=1)), []
    for line in (*START, *TOKEN, "caller reads 0"):
        after = walk(world, line)
        story.append(world.tell(next(step for step in world.enabled() if str(step) == line), after))
        world = after
    assert story == [
        "caller 0 submits a request",
        "the front sends the request of caller 0",
        "the scheduler takes the request of caller 0",
        "the scheduler makes token 0 for caller 0",
        "the compute thread sends token 0 for caller 0",
        "the detokenizer passes on token 0 for caller 0",
        "the front reads token 0 for caller 0",
        "caller 0 has now read 1 tokens",
    ]
