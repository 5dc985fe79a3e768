from __future__ import annotations

from typing import Any, ClassVar

import anyio
import pytest

from vidette.scheduler.handlers import Answering
from vidette.transport.link import Link
from vidette.transport.memory import MemoryChannel
from vidette_protocol import front_codec, hook_custom_types
from vidette_protocol.messages import ControlOutput, ControlReq, GetInternalStateReq, Message


class AskOutput(ControlOutput, tag=401, kw_only=True, frozen=True):
    """An answer."""

    value: int = 0


class Ask(ControlReq, tag=400, kw_only=True, frozen=True):
    """A question."""

    output: ClassVar = AskOutput

    value: int = 0


CODEC = hook_custom_types(front_codec(), Ask)


async def ask(handler: Any, *questions: Ask) -> list[Message]:
    """Return the answers to questions, in the order in which they come."""
    ours, theirs = MemoryChannel.pair()
    front = Link(ours, CODEC, role="front", peer="scheduler", opened=True)
    scheduler = Link(theirs, CODEC.mirrored(), role="scheduler", peer="front", opened=True)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            answering = Answering({Ask: handler}, scheduler, tasks)
            assert all(answering.begin(question) for question in questions)
        answers: list[Message] = []
        while len(answers) < len(questions):
            answers.append(await front.receive())
    return answers


async def test_the_answer_carries_the_number_of_the_question() -> None:
    async def handler(question: Ask) -> AskOutput:
        return AskOutput(id=99, value=2 * question.value)

    assert await ask(handler, Ask(id=5, value=3)) == [AskOutput(id=5, value=6)]


async def test_questions_do_not_wait_for_each_other() -> None:
    second = anyio.Event()

    async def handler(question: Ask) -> AskOutput:
        if question.id == 1:
            await second.wait()
        second.set()
        return AskOutput(id=0)

    assert await ask(handler, Ask(id=1), Ask(id=2)) == [AskOutput(id=2), AskOutput(id=1)]


async def raises(question: Ask) -> AskOutput:
    raise LookupError("no such thing")


async def returns_none(question: Ask) -> None:
    return None


async def cannot_travel(question: Ask) -> AskOutput:
    return AskOutput(id=0, value=1 << 70)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (raises, "Ask failed: LookupError: no such thing"),
        (returns_none, "Ask failed: TypeError: its handler returned a NoneType, not a AskOutput"),
        (cannot_travel, "Ask failed: LocalProtocolError: AskOutput cannot be encoded: "),
    ],
)
async def test_a_fault_of_the_handler_is_the_answer(handler: Any, said: str) -> None:
    (answer,) = await ask(handler, Ask(id=7))
    assert isinstance(answer, AskOutput)
    assert (answer.id, answer.success) == (7, False)
    assert answer.message.startswith(said)


async def test_a_handler_that_is_late_is_cancelled() -> None:
    ended = []

    async def handler(question: Ask) -> AskOutput:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(question.id)
        raise AssertionError("it slept for ever, and woke up")

    _, theirs = MemoryChannel.pair()
    scheduler = Link(theirs, CODEC.mirrored(), role="scheduler", peer="front", opened=True)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            assert Answering({Ask: handler}, scheduler, tasks).begin(Ask(id=3, deadline_s=0.0))
    assert ended == [3]


async def test_what_has_no_handler_is_left_to_others() -> None:
    _, theirs = MemoryChannel.pair()
    scheduler = Link(theirs, CODEC.mirrored(), role="scheduler", peer="front", opened=True)
    async with anyio.create_task_group() as tasks:
        assert not Answering({}, scheduler, tasks).begin(GetInternalStateReq(id=1))
