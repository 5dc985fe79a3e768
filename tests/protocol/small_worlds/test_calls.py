"""Worlds of control calls, story by story."""

from __future__ import annotations

from vidette_protocol.lifecycle.control import CallId, CallMachine
from vidette_protocol.small_worlds.calls import CallBounds, CallParts, CallWorld, Wire
from vidette_protocol.small_worlds.model import Step


def walk(world: CallWorld, *names: str) -> CallWorld:
    """Return the world after steps, each the first of those enabled that begins with a name."""
    for name in names:
        world = world.apply(next(step for step in world.enabled() if str(step).startswith(name)))
        assert world.check() == []
    return world


def test_a_question_is_answered() -> None:
    world = walk(CallWorld(), "ask", "question arrives", "answer 0", "answer arrives")
    assert [caller.heard for caller in world.callers] == [1]
    assert len(world.machines[0]) == 0


def test_a_replica_answers_in_whatever_order_it_likes() -> None:
    world = walk(
        CallWorld(), "ask", "ask", "question arrives", "question arrives", "answer 0 0 2", "answer arrives"
    )
    assert [caller.heard for caller in world.callers] == [0, 1]


def test_the_answer_to_whoever_left_reaches_nobody() -> None:
    world = walk(CallWorld(), "ask", "question arrives", "leave", "answer 0")
    assert len(world.machines[0]) == 1
    world = walk(world, "answer arrives")
    assert [caller.heard for caller in world.callers] == [0]
    assert len(world.machines[0]) == 0


def test_what_a_replica_said_before_it_died_still_comes() -> None:
    world = CallWorld(bounds=CallBounds(deaths=1))
    world = walk(world, "ask", "ask", "question arrives", "question arrives", "answer 0 0 1", "die")
    assert len(world.wires[0, 0].answers) == 1
    heard = walk(world, "answer arrives", "death is noted")
    assert [caller.heard for caller in heard.callers] == [1, 1]
    told = walk(world, "death is noted")  # before the answer: it cannot come on the new link
    assert [caller.heard for caller in told.callers] == [1, 1]
    assert told.wires == {(0, 0): Wire()}


def test_who_asks_a_replica_that_is_dead_hears_of_it() -> None:
    world = walk(CallWorld(bounds=CallBounds(deaths=1)), "die", "ask")
    assert world.wires[0, 0].asked == ()
    assert [caller.heard for caller in walk(world, "death is noted").callers] == [1]


def test_each_front_notes_a_death_by_itself() -> None:
    world = walk(
        CallWorld(bounds=CallBounds(fronts=2, deaths=1)), "ask 0", "ask 1", "die", "death is noted 1"
    )
    assert [caller.heard for caller in world.callers] == [0, 1]
    world = walk(world, "ask 1", "question arrives 1", "answer 1", "answer arrives 1", "death is noted 0")
    assert [caller.heard for caller in world.callers] == [1, 1, 1]


def test_a_question_that_cannot_be_sent_leaves_nothing() -> None:
    world = walk(CallWorld(bounds=CallBounds(unsendable=1)), "ask in vain")
    assert (len(world.machines[0]), world.wires[0, 0]) == (0, Wire())
    assert not any(str(step).startswith(("ask in vain", "leave")) for step in world.enabled())
    world = walk(world, "ask", "question arrives", "answer 0", "answer arrives")
    assert [caller.heard for caller in world.callers] == [0, 1]


def test_a_story_is_told() -> None:
    world = CallWorld(bounds=CallBounds(calls=4, deaths=1, unsendable=1))
    story = []
    for name in (
        "ask",
        "question arrives",
        "answer 0",
        "answer arrives",
        "ask",
        "leave",
        "die",
        "death is noted",
        "ask in vain",
    ):
        step = next(step for step in world.enabled() if str(step).startswith(name))
        after = world.apply(step)
        story.append(world.tell(step, after))
        world = after
    assert story == [
        "caller 0 asks question 1 (Kind0) of replica 0 by front 0",
        "question 1 of front 0 reaches replica 0",
        "replica 0 answers question 1 of front 0",
        "the answer to question 1 reaches front 0; caller 0 hears of it",
        "caller 1 asks question 2 (Kind0) of replica 0 by front 0",
        "caller 1 leaves",
        "replica 0 dies",
        "front 0 notes that replica 0 is dead; nobody hears of it",
        "caller 2 would ask question 3 of replica 0 by front 0, and it cannot be sent",
    ]


class _TellsEverybody(CallMachine):
    """Tells of a death also those who left, and those who have heard."""

    def lost(self, replica: int | None = None) -> list[CallId]:
        super().lost(replica)
        return [CallId(number + 1) for number in range(self._asked)]


def test_a_second_thing_and_one_after_leaving_are_faults() -> None:
    world = CallWorld(CallParts(_TellsEverybody), CallBounds(deaths=1))
    world = walk(world, "ask", "question arrives", "answer 0", "answer arrives", "ask", "leave", "die")
    assert world.apply(Step("death is noted", (0, 0))).check() == [
        "1: caller 0 hears a second thing",
        "2: caller 1 hears something after it has left",
    ]


class _HeardByTheFirst(CallMachine):
    """Says that the first caller is to hear each answer."""

    def answer(self, call: CallId, kind: str, replica: int = 0) -> CallId | None:
        super().answer(call, kind, replica)
        return CallId(1)


def test_the_answer_to_another_is_a_fault() -> None:
    world = walk(CallWorld(CallParts(_HeardByTheFirst)), "ask", "ask", "question", "question", "answer 0 0 2")
    assert world.apply(Step("answer arrives", (0, 0))).check() == ["3: caller 0 hears the answer to caller 1"]


class _NeverLetsGo(CallMachine):
    """Tells nobody of a death, and keeps what was asked."""

    def lost(self, replica: int | None = None) -> list[CallId]:
        del replica
        return []


def test_who_waits_for_ever_and_what_is_kept_are_faults() -> None:
    world = walk(CallWorld(CallParts(_NeverLetsGo), CallBounds(deaths=1)), "ask", "die")
    assert world.apply(Step("death is noted", (0, 0))).check() == [
        "9: caller 0 waits, and nothing can happen any more",
        "7: front 0 still holds 1 questions at quiescence",
    ]
