"""`Questions`: what was asked of the ring and waits for its answer."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from vidette.errors import Error
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import ControlOutput, ControlReq, FreezeGCReq, HeartbeatReq

Asked = HeartbeatReq | FreezeGCReq | ControlReq
"""What somebody may ask; the first two come back round the ring, the others are answered straight away."""
Answered = HeartbeatReq | FreezeGCReq | ControlOutput
"""What comes back."""


class Questions:
    """The questions of one front; their ids are never used again, whoever is asked."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Question] = {}
        self._asked = 0

    def next_id(self) -> int:
        """Return the id of the next question."""
        self._asked += 1
        return self._asked

    async def ask(self, question: Asked, kind: type[Answered], post: Callable[[Asked], None]) -> Answered:
        """Post a question, and return what comes back.

        Raises:
            Error: what `fail` was given.
        """
        waiting = _Question(kind)
        self._waiting[question.id] = waiting
        try:
            post(question)
            await waiting.answered.wait()
        finally:
            del self._waiting[question.id]
        return waiting.answer()

    def settle(self, answer: Answered) -> None:
        """Take what came back; nothing happens if whoever asked has left.

        Raises:
            RemoteProtocolError: it is of another kind than was asked for.
        """
        question = self._waiting.get(answer.id)
        if question is not None:
            question.settle(answer)

    def fail(self, failure: Callable[[], Error]) -> None:
        """Raise an error, made anew for each, for whoever waits."""
        for question in self._waiting.values():
            question.failure = failure
            question.answered.set()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)


class _Question:
    """A question that waits for its answer."""

    __slots__ = ("_answer", "_kind", "answered", "failure")

    def __init__(self, kind: type[Answered]) -> None:
        self._kind = kind
        self._answer: Answered | None = None
        self.answered = anyio.Event()
        self.failure: Callable[[], Error] | None = None

    def settle(self, answer: Answered) -> None:
        if type(answer) is not self._kind:
            raise RemoteProtocolError(
                f"{type(answer).__name__} {answer.id} came back, but {self._kind.__name__} was expected"
            )
        self._answer = answer
        self.answered.set()

    def answer(self) -> Answered:
        if self.failure is not None:
            raise self.failure()
        assert self._answer is not None
        return self._answer
