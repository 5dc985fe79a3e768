"""Worlds of a link's two ends, story by story."""

from __future__ import annotations

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.link import LinkEvent, LinkMachine, LinkState
from vidette_protocol.small_worlds.handshake import (
    FAILED,
    HELLO,
    MESSAGE,
    READY,
    HandshakeBounds,
    HandshakeParts,
    HandshakeWorld,
)
from vidette_protocol.small_worlds.model import Step

MISBEHAVING = HandshakeBounds(misbehaves=True)
STARTED = HandshakeBounds(messages=4, loads=True)


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


def says(world: HandshakeWorld, number: int) -> set[str]:
    return {step.name for step in world.enabled() if step.name.startswith("say") and step.of == (number,)}


def test_whoever_is_started_says_what_becomes_of_it() -> None:
    world = HandshakeWorld(bounds=STARTED)
    assert says(world, 0) == {"say hello", "say failed"}
    world = walk(world, "say hello 0")
    assert says(world, 0) == {"say ready", "say failed"}
    world = walk(world, "say ready 0", "say 0")
    assert says(world, 0) == {"say", "say failed"}
    world = walk(world, "say failed 0", *["arrive 1"] * 4)
    assert says(world, 0) == set()
    assert world.ends[1].delivered == (HELLO, READY, MESSAGE, FAILED)
    assert [machine.state for machine in world.machines] == [LinkState.OPENING, LinkState.FAILED]


def test_one_that_cannot_say_hello_says_that_it_failed() -> None:
    world = walk(HandshakeWorld(bounds=STARTED), "say failed 0", "close 0", "arrive 1")
    assert world.ends[1].delivered == (FAILED,)
    assert walk(world, "arrive 1").ends[1].closed


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
    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        raise RemoteProtocolError(f"{name} came ({event.value})")


def test_whoever_behaves_is_not_accused() -> None:
    world = walk(HandshakeWorld(HandshakeParts(_RefusesAll)), "say hello 0")
    assert world.apply(Step("arrive", (1,))).check() == ["RemoteProtocolError: Hello came (hello)"]


class _StaysOpen(LinkMachine):
    def close(self) -> None:
        pass


def test_an_end_that_stays_open_is_a_fault() -> None:
    world = HandshakeWorld(HandshakeParts(_StaysOpen)).apply(Step("close", (0,))).apply(Step("arrive", (1,)))
    assert world.check() == [f"7: end {number} is opening after the link was closed" for number in (0, 1)]


class _TakesAll(LinkMachine):
    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        super().receive(name, LinkEvent.HELLO if self.state is LinkState.OPENING else event)


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
