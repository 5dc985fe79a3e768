"""Worlds of a link's two ends, story by story."""

from __future__ import annotations

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.link import LinkMachine, LinkState
from vidette_protocol.small_worlds.handshake import (
    HELLO,
    MESSAGE,
    HandshakeBounds,
    HandshakeParts,
    HandshakeWorld,
)
from vidette_protocol.small_worlds.model import Step

MISBEHAVING = HandshakeBounds(misbehaves=True)


def walk(world: HandshakeWorld, *lines: str) -> HandshakeWorld:
    """Return the world after steps that have to be enabled."""
    for line in lines:
        (step,) = (step for step in world.enabled() if str(step) == line)
        world = world.apply(step)
        assert world.check() == []
    return world


def test_two_hellos_cross() -> None:
    world = walk(HandshakeWorld(), "say hello 0", "say hello 1", "say 0", "arrive 1", "arrive 0", "arrive 1")
    assert [end.delivered for end in world.ends] == [(HELLO,), (HELLO, MESSAGE)]
    assert [machine.state for machine in world.machines] == [LinkState.OPEN] * 2


def test_who_behaves_opens_with_hello_and_says_it_once() -> None:
    world = HandshakeWorld()
    assert {str(step) for step in world.enabled()} == {"say hello 0", "close 0", "say hello 1", "close 1"}
    world = walk(world, "say hello 0")
    assert "say hello 0" not in set(map(str, world.enabled()))


def test_what_was_said_before_the_end_still_comes() -> None:
    world = walk(HandshakeWorld(), "say hello 0", "close 0", "say hello 1", "arrive 1", "arrive 1")
    assert world.ends[1].delivered == (HELLO,)
    assert [machine.state for machine in world.machines] == [LinkState.CLOSED] * 2
    assert world.enabled() == []


def test_what_comes_out_of_turn_closes_the_link_and_is_not_delivered() -> None:
    world = walk(HandshakeWorld(bounds=MISBEHAVING), "say 0", "arrive 1")
    assert world.ends[1].delivered == ()
    assert world.ends[1].closed
    world = walk(
        HandshakeWorld(bounds=MISBEHAVING), "say hello 0", "say hello 0", "arrive 1", "arrive 1", "arrive 0"
    )
    assert world.ends[1].delivered == (HELLO,)
    assert all(end.closed for end in world.ends)


class _RefusesAll(LinkMachine):
    def receive(self, name: str, *, hello: bool) -> None:
        raise RemoteProtocolError(f"{name} came ({hello})")


def test_whoever_behaves_is_not_accused() -> None:
    world = walk(HandshakeWorld(HandshakeParts(_RefusesAll)), "say hello 0")
    assert world.apply(Step("arrive", (1,))).check() == ["RemoteProtocolError: Hello came (True)"]


class _StaysOpen(LinkMachine):
    def close(self) -> None:
        pass


def test_an_end_that_stays_open_is_a_fault() -> None:
    world = HandshakeWorld(HandshakeParts(_StaysOpen)).apply(Step("close", (0,))).apply(Step("arrive", (1,)))
    assert world.check() == [f"7: end {number} is opening after the link was closed" for number in (0, 1)]


class _TakesAll(LinkMachine):
    def receive(self, name: str, *, hello: bool) -> None:
        super().receive(name, hello=hello or self.state is LinkState.OPENING)


def test_a_message_that_is_delivered_before_hello_is_a_fault() -> None:
    world = walk(HandshakeWorld(HandshakeParts(_TakesAll), MISBEHAVING), "say 0")
    assert world.apply(Step("arrive", (1,))).check() == ["4: end 1 is told of Message after 0 messages"]


def test_a_story_is_told() -> None:
    world, story = HandshakeWorld(bounds=MISBEHAVING), []
    for line in ("say hello 0", "say 0", "arrive 1", "arrive 1", "say 0", "arrive 1", "close 0"):
        after = walk(world, line)
        story.append(world.tell(next(step for step in world.enabled() if str(step) == line), after))
        world = after
    assert story == [
        "end 0 says Hello",
        "end 0 says something",
        "Hello reaches end 1",
        "Message reaches end 1",
        "end 0 says something",
        "Message reaches end 1",
        "end 0 closes",
    ]
    assert walk(world, "arrive 1").ends[1].closed
    step = Step("arrive", (1,))
    assert world.tell(step, world.apply(step)) == "end of file reaches end 1; it closes"
