from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_fuzz.stepping.loop import ExploredLoop, LoopParts
from vidette_fuzz.stepping.world import LoopReplica, LoopWorld
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import End, Row
from vidette_protocol.world import Action, Bounds

A, B = Vid(0), Vid(1)
ASK = ("submit", "send", "request arrives")
HOME = ("row arrives", "text arrives")
HEAVY = [each for each in CONFIGURATIONS.values() if each.heavy]


def made(loop_bounds: LoopBounds, **bounds: Any) -> LoopWorld:
    return LoopWorld(LoopParts(ExploredLoop), loop_bounds, Bounds(**bounds))


def walk(world: LoopWorld, *actions: str | Action) -> LoopWorld:
    """Return the world after actions; a bare name is the first enabled action of that name."""
    for action in actions:
        world = world.apply(next(each for each in world.enabled() if action in {each, each.name}))
        assert world.check() == []
    return world


def at(world: LoopWorld) -> LoopReplica:
    replica = world.replicas[0]
    assert isinstance(replica, LoopReplica)
    return replica


def test_the_whole_life_of_a_request() -> None:
    world = walk(made(LoopBounds(prompt=17, chunk=12), rids=1, uses=1, tokens=2), *ASK, "step")
    assert world.replicas[0].rows == ()  # a chunk of its prefill
    assert world.replicas[0].holding == {A}
    world = walk(world, "step", *HOME, "step")
    assert world.replicas[0].rows == (Row(A, 1, 1, End.FINISH),)
    world = walk(world, *HOME)
    assert world.streams[A].heard == 2
    assert at(world).loop.blocks.cached == 1
    assert walk(world, "leave").enabled() == []


def test_several_tokens_land_in_one_step() -> None:
    world = walk(made(LoopBounds(prompt=17, chunk=32, drafts=2), rids=1, uses=1, tokens=5), *ASK, "step")
    counts = [action.counts for action in world.enabled() if action.name == "step"]
    assert counts == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (0, 1)]
    for chosen, row in (
        ((0, 0), Row(A, 1, 1, None)),
        ((2, 0), Row(A, 1, 3, None)),
        ((2, 1), Row(A, 1, 1, End.FINISH)),
        ((2, 3), Row(A, 1, 3, End.FINISH)),
    ):
        after = walk(world, Action("step", (A,), counts=chosen))
        assert after.replicas[0].rows[1:] == (row,)


def test_what_nobody_uses_is_evicted_at_any_moment() -> None:
    world = made(LoopBounds(prompt=17, chunk=32, flushes=True), rids=1, uses=1, tokens=2)
    world = walk(world, *ASK, "step")
    assert "flush" not in {action.name for action in world.enabled()}
    world = walk(world, "step", "flush")
    assert len(at(world).loop.blocks.free()) == 8


def test_one_of_those_that_wait_for_each_other_gives_its_blocks_up() -> None:
    world = made(LoopBounds(blocks=3, prompt=16, prompts=2, chunk=32), rids=2, uses=2, tokens=3)
    world = walk(world, *ASK, *ASK)
    both = Action("step", (A, B), counts=(0, 0, 0, 0))
    world = walk(world, both, Action("step", (A,), counts=(0, 0)))
    assert {action.name for action in world.enabled() if action.vids == (B,)} == {"leave"}
    while left := world.draining():
        world = world.apply(left[0])
        assert world.check() == []
    assert [stream.ends for stream in world.streams.values()] == [1, 1]


def test_turns_go_on_behind_others_or_in_their_place() -> None:
    world = made(LoopBounds(session=True), rids=2, uses=3, tokens=1)
    world = walk(world, *ASK, "step")
    world = walk(world, *HOME)
    assert {action.counts for action in world.enabled() if action.name == "submit"} == {(0,), (1, A), (2, A)}
    named = next(each for each in world.enabled() if each.counts == (1, A))
    world = walk(world, named, "send", "request arrives")
    assert at(world).loop.prompt(B) == (400, 100, 401)
    assert at(world).loop.turns == {B}
    line = world.tell(named, world)
    assert line.endswith(", a turn behind vid 0")


def test_a_session_is_closed_or_ends_with_its_time_or_its_process() -> None:
    bounds = LoopBounds(session=True, closes=True, waits=1)
    for ends in (
        ("close session", "request arrives"),
        ("time passes",),
        ("replica is lost", "loss is noticed"),
    ):
        world = walk(made(bounds, rids=1, uses=1, tokens=1, losses=1), *ends)
        assert len(at(world).loop.sessions) == 0
        world = walk(world, *ASK)
        assert world.replicas[0].rows == (Row(A, 0, 0, End.FINISH),)  # it is refused


@pytest.mark.parametrize("configuration", HEAVY, ids=lambda each: each.name)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=5, deadline=None)
def test_what_happens_in_a_copy_changes_nothing_else(configuration: Any, seed: int) -> None:
    """A world stays what it was, whatever follows it; and each action is told in a line."""
    random, world = Random(seed), configuration.large()
    for _ in range(25):
        enabled = world.enabled()
        if not enabled:
            return
        before = world.key()
        action = random.choice(enabled)
        after = world.apply(action)
        assert world.key() == before
        assert world.enabled() == enabled
        assert world.tell(action, after)
        assert after.check() == []
        world = after
