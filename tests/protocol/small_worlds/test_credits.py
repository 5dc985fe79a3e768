"""Worlds of an arena's two ends, story by story."""

from __future__ import annotations

import pytest

from vidette_fuzz.explore import explore
from vidette_protocol.lifecycle.credits import CreditMachine, CreditState, Extent
from vidette_protocol.small_worlds.credits import (
    CreditBounds,
    CreditParts,
    CreditWorld,
    Parcel,
    Stage,
    View,
)
from vidette_protocol.small_worlds.model import Step

SINGLE = CreditBounds(arena=1, messages=((1,), (1,)))


def walk(world: CreditWorld, *lines: str) -> CreditWorld:
    """Return the world after steps that have to be enabled."""
    for line in lines:
        (step,) = (step for step in world.enabled() if str(step) == line)
        world = world.apply(step)
        assert world.check() == []
    return world


def stages(world: CreditWorld) -> list[Stage]:
    return [sending.stage for sending in world.messages]


def test_the_whole_life_of_a_message() -> None:
    world = walk(CreditWorld(bounds=SINGLE), "begin 0", "post 0", "leave the block 0", "arrive")
    assert world.views == (View(0, Extent(0, 1, 0)),)
    world = walk(world, "array dies 0", "send credits", "credits arrive")
    assert world.producer is not None
    assert (world.producer.free, len(world.consumer)) == (1, 0)
    assert stages(world) == [Stage.OVER, Stage.NEW]


def test_who_finds_no_room_holds_nothing_and_goes_by_frame() -> None:
    world = walk(CreditWorld(bounds=CreditBounds(messages=((1,), (1, 1)))), "begin 0", "begin 1")
    assert world.messages[1].extents == ()
    assert "find room 1" not in set(map(str, world.enabled()))
    frame = walk(world, "go by frame 1", "arrive")
    assert (frame.views, stages(frame)[1]) == ((), Stage.POSTED)
    room = walk(world, "give up 0", "find room 1")
    assert [extent.start for extent in room.messages[1].extents] == [0, 1]


def test_who_is_patient_does_not_go_by_frame() -> None:
    world = walk(CreditWorld(bounds=SINGLE._replace(patient=True)), "begin 0")
    world = walk(world, "begin 1")
    assert "go by frame 1" not in set(map(str, world.enabled()))


def test_what_is_too_long_goes_by_frame_at_once() -> None:
    world = walk(CreditWorld(bounds=CreditBounds(messages=((2, 1),), patient=True)), "begin 0")
    assert world.parcels == (Parcel(0, ()),)


def test_what_is_left_of_a_dropped_message_dies_late() -> None:
    world = walk(
        CreditWorld(bounds=SINGLE), "begin 0", "post 0", "arrive and drop", "send credits", "credits arrive"
    )
    assert world.views == (View(0, Extent(0, 1, 0), looked_at=False),)
    world = walk(world, "begin 1", "post 1", "arrive", "array dies 0")
    assert world.views == (View(1, Extent(0, 1, 1)),)
    assert world.consumer.due == 0


def test_an_array_and_its_slice_die_in_any_order() -> None:
    world = walk(CreditWorld(bounds=SINGLE._replace(slices=True)), "begin 0", "post 0", "arrive", "slice 0")
    for first, second in (("array", "slice"), ("slice", "array")):
        one = walk(world, f"{first} dies 0")
        assert one.consumer.due == 0
        assert walk(one, f"{second} dies 0").consumer.due == 1


def test_a_block_is_left_after_its_extent_is_another_messages() -> None:
    world = walk(
        CreditWorld(bounds=SINGLE), "begin 0", "post 0", "arrive and drop", "send credits", "credits arrive"
    )
    world = walk(world, "begin 1", "leave the block 0")
    assert world.producer is not None
    assert world.producer.state(0) is CreditState.TAKEN


def test_credits_of_the_dead_come_before_the_death_is_noted_or_after() -> None:
    world = CreditWorld(bounds=SINGLE._replace(deaths=1))
    world = walk(world, "begin 0", "post 0", "arrive and drop", "send credits", "consumer dies")
    before = walk(world, "credits arrive", "begin 1", "post 1", "death is noted")
    assert before.producer is not None
    assert before.producer.free == 1
    after = walk(world, "death is noted", "begin 1", "post 1", "credits arrive")
    assert after.producer is not None
    assert after.producer.free == 0
    assert after.parcels == (Parcel(1, ((0, 1),)),)


def test_views_outlive_a_producer_that_dies() -> None:
    world = CreditWorld(bounds=SINGLE._replace(producer_dies=True))
    world = walk(world, "begin 0", "post 0", "producer dies", "arrive", "death is noted")
    assert stages(world) == [Stage.OVER] * 2
    assert len(world.consumer) == 1
    assert len(walk(world, "array dies 0").consumer) == 0


def test_a_credit_to_a_producer_that_is_dead_goes_nowhere() -> None:
    world = CreditWorld(bounds=SINGLE._replace(producer_dies=True))
    world = walk(world, "begin 0", "post 0", "arrive", "array dies 0", "producer dies")
    world = walk(world, "send credits")
    assert world.credits == ()
    assert len(world.consumer) == 0


def test_nobody_waits_for_ever_though_nobody_gives_up_waiting() -> None:
    """All extents or none, so patience is safe: no deadlock, whatever the order."""
    bounds = CreditBounds(messages=((1, 1), (2,), (1, 1)), patient=True)
    found = explore(lambda: CreditWorld(bounds=bounds))
    assert found.complete, found.violation


# --- faults -----------------------------------------------------------------------------------------------


class _GivesTheSameTwice(CreditMachine):
    """Takes everybody to the beginning."""

    def take(self, sizes: list[int]) -> list[Extent] | None:  # type: ignore[override]
        self._extents.free = self.nbytes
        self._extents._starts, self._extents._lengths = [0], [self.nbytes]
        return super().take(sizes)


@pytest.mark.parametrize(
    ("before", "fault"),
    [
        ((), "5: messages 0 and 1 are produced in the same bytes"),
        (("post 0",), "5: message 1 is written over message 0, which is on its way"),
        (("post 0", "arrive"), "5: message 1 is written over message 0, which is looked at"),
    ],
)
def test_what_is_written_over_is_seen(before: tuple[str, ...], fault: str) -> None:
    world = walk(CreditWorld(CreditParts(_GivesTheSameTwice), SINGLE), "begin 0", *before)
    found = world.apply(Step("begin", (1,))).check()
    assert fault in found


def test_what_is_beside_it_is_not_written_over() -> None:
    bounds = CreditBounds(arena=3, messages=((1,), (1,), (1,)))
    world = walk(CreditWorld(bounds=bounds), "begin 0", "post 0", "arrive", "begin 1", "post 1", "begin 2")
    assert len(world.parcels) == len(world.views) == 1


class _Forgets(CreditMachine):
    """Loses sight of half of what is taken."""

    @property
    def used(self) -> int:
        return super().used // 2


def test_bytes_that_are_nowhere_are_seen() -> None:
    world = CreditWorld(CreditParts(_Forgets), SINGLE).apply(Step("begin", (0,)))
    assert world.check() == ["5: what is free, taken and lent is not the whole arena"]


def test_a_message_that_is_dropped_is_told() -> None:
    world = walk(CreditWorld(bounds=SINGLE), "begin 0", "post 0")
    step = Step("arrive and drop")
    told = "message 0 reaches the consumer, who drops it half decoded"
    assert world.tell(step, world.apply(step)) == told
    world = walk(CreditWorld(bounds=SINGLE), "begin 0", "begin 1")
    step = Step("go by frame", (1,))
    told = "message 1 has waited long enough, and goes by frame"
    assert world.tell(step, world.apply(step)) == told


def test_a_story_is_told() -> None:
    bounds = CreditBounds(arena=2, messages=((1, 1), (1,), (3,)), slices=True, deaths=1)
    world, story = CreditWorld(bounds=bounds), []
    steps = (
        "begin 0, post 0, arrive, slice 0, array dies 0, begin 1, leave the block 0, slice dies 0, "
        "send credits, credits arrive, find room 1, give up 1, array dies 0, send credits, begin 2, "
        "consumer dies, death is noted, credits arrive"
    )
    for line in steps.split(", "):
        after = walk(world, line)
        story.append(world.tell(next(step for step in world.enabled() if str(step) == line), after))
        world = after
    assert story == [
        "message 0 has room at 0, 1",
        "message 0 is posted",
        "message 0 reaches the consumer",
        "the consumer makes a slice of what lies at 0",
        "the array at 0 dies",
        "message 1 has room at nothing and waits",
        "the block around message 0 is left",
        "the slice at 0 dies",
        "the consumer sends a credit for 0",
        "a credit for 0 reaches the producer",
        "message 1 has room at 0",
        "message 1 is given up before it is posted",
        "the array at 1 dies",
        "the consumer sends a credit for 1",
        "message 2 is too long for the arena, and goes by frame",
        "the consumer dies",
        "the death is noted at the other end",
        "a credit for 1 reaches the producer",
    ]
