"""`Questions`: what was asked of the ring and waits for its answer.

Which answer is due, and who is to hear it, the machine says; this holds what they wait on.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from vidette.errors import Error
from vidette_protocol.lifecycle import CallId, CallMachine
from vidette_protocol.messages import ControlOutput, ControlReq, FreezeGCReq, HeartbeatReq

Asked = HeartbeatReq | FreezeGCReq | ControlReq
"""What somebody may ask; the first two come back round the ring, the others are answered straight away."""
Answered = HeartbeatReq | FreezeGCReq | ControlOutput
"""What comes back."""


class Questions:
    """The questions of one front; their ids are never used again, whoever is asked."""

    def __init__(self) -> None:
        self._machine = CallMachine()
        self._waiting: dict[CallId, _Question] = {}

    async def ask(
        self, make: Callable[[int], Asked], kind: type[Answered], post: Callable[[Asked], None]
    ) -> Answered:
        """Post a question, and return what comes back.

        Args:
            make: makes the question of its id; it can be encoded.
            kind: class of the answer.
            post: sends it.

        Raises:
            Error: what `fail` was given.
        """
        call = self._machine.ask(kind.__name__)
        waiting = self._waiting[call] = _Question()
        try:
            post(make(call))
            await waiting.answered.wait()
        finally:
            del self._waiting[call]
            self._machine.leave(call)
        return waiting.answer()

    def settle(self, answer: Answered) -> None:
        """Take what came back; nobody hears it if whoever asked has left.

        Raises:
            RemoteProtocolError: nothing was asked that it answers, or that was answered before.
        """
        call = self._machine.answer(CallId(answer.id), type(answer).__name__)
        if call is not None:
            self._waiting[call].settle(answer)

    def fail(self, failure: Callable[[], Error]) -> None:
        """Raise an error, made anew for each, for whoever waits; no answer is due any more."""
        for call in self._machine.lost():
            self._waiting[call].fail(failure)

    def __len__(self) -> int:
        """Return how many answers are due."""
        return len(self._machine)


class _Question:
    """Somebody who waits for an answer."""

    __slots__ = ("_answer", "_failure", "answered")

    def __init__(self) -> None:
        self._answer: Answered | None = None
        self._failure: Callable[[], Error] | None = None
        self.answered = anyio.Event()

    def settle(self, answer: Answered) -> None:
        self._answer = answer
        self.answered.set()

    def fail(self, failure: Callable[[], Error]) -> None:
        self._failure = failure
        self.answered.set()

    def answer(self) -> Answered:
        if self._failure is not None:
            raise self._failure()
        assert self._answer is not None
        return self._answer
