"""What the small worlds have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette_protocol.small_worlds.calls import CallBounds, CallWorld
from vidette_protocol.small_worlds.credits import CreditBounds, CreditWorld
from vidette_protocol.small_worlds.handshake import HandshakeBounds, HandshakeWorld
from vidette_protocol.small_worlds.model import Model, Step
from vidette_protocol.small_worlds.ring import RingBounds, RingWorld

WORLDS: dict[str, Callable[[], Model]] = {
    "calls": lambda: CallWorld(bounds=CallBounds(fronts=2, replicas=2, kinds=2, deaths=1)),
    "handshake": lambda: HandshakeWorld(bounds=HandshakeBounds(misbehaves=True)),
    "credits": lambda: CreditWorld(
        bounds=CreditBounds(messages=((1, 1), (2,), (3,), (1,)), slices=True, deaths=1, producer_dies=True)
    ),
    "ring": lambda: RingWorld(bounds=RingBounds(callers=3, in_turn=True)),
}


@given(name=st.sampled_from(sorted(WORLDS)), choices=st.lists(st.integers(0, 99), max_size=60))
def test_a_walk_ends_with_nothing_left(name: str, choices: list[int]) -> None:
    """Any history: no rule breaks, no world that was left behind changes, its picture is of one length and
    can be a key, each step can be told; once nothing new happens it ends, and there every rule holds."""
    world = WORLDS[name]()
    length = len(world.key())
    for choice in choices:
        enabled = world.enabled()
        if not enabled:
            break
        step = enabled[choice % len(enabled)]
        before = world.key()
        after = world.apply(step)
        assert hash(before) == hash(world.key())
        assert before == world.key()
        assert len(after.key()) == length
        assert after.copy().key() == after.key()
        assert world.tell(step, after)
        assert after.check() == []
        world = after
    for _ in range(200):
        draining = world.draining()
        if not draining:
            break
        assert set(draining) <= set(world.enabled())
        world = world.apply(draining[0])
        assert world.check() == []
    assert world.draining() == []


@pytest.mark.parametrize("make", WORLDS.values(), ids=WORLDS)
def test_a_step_that_there_is_not_is_a_fault(make: Callable[[], Model]) -> None:
    assert make().apply(Step("vanish", (0,))).check() == ["ValueError: no such step: vanish 0"]


def test_a_step_reads_as_a_line() -> None:
    assert str(Step("leave", (3,))) == "leave 3"
    assert str(Step("submit")) == "submit"
