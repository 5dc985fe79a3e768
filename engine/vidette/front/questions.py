"""`Questions`: what was asked of the ring and waits for its answer.

Which answer is due, and who is to hear it, the machine says; this holds what they wait on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from vidette.errors import Error, Overloaded
from vidette.front.pulse import Pulse
from vidette_protocol.lifecycle import CallId, CallMachine
from vidette_protocol.messages import ControlOutput, ControlReq, FreezeGCReq, HeartbeatReq

Asked = HeartbeatReq | FreezeGCReq | ControlReq
"""What somebody may ask; the first two come back round the ring, the others are answered straight away."""
Answered = HeartbeatReq | FreezeGCReq | ControlOutput
"""What comes back."""
MAX_QUESTIONS: Final = 1024
"""Most answers that may be due, those included for which nobody waits any more."""


class Questions:
    """The questions of one front; their ids are never used again, whoever is asked.

    Args:
        pulse: told of heartbeats.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
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
            Overloaded: too many answers are due.
            Error: what `fail` was given.
        """
        if len(self._machine) >= MAX_QUESTIONS:
            raise Overloaded(
                f"{len(self._machine)} answers are due from the scheduler; at most {MAX_QUESTIONS} may"
            )
        call = self._machine.ask(kind.__name__)
        waiting = self._waiting[call] = _Question()
        try:
            post(make(call))
            if kind is HeartbeatReq:
                self._pulse.asked(call)
            await waiting.answered.wait()
        finally:
            del self._waiting[call]
            self._machine.leave(call)
        return waiting.answer()

    def tell(self, make: Callable[[int], Asked], kind: type[Answered], post: Callable[[Asked], None]) -> None:
        """Post a question to whose answer nobody listens; as `ask`."""
        call = self._machine.ask(kind.__name__)
        self._machine.leave(call)
        post(make(call))

    def settle(self, answer: Answered) -> None:
        """Take what came back; nobody hears it if whoever asked has left.

        Raises:
            RemoteProtocolError: nothing was asked that it answers, or that was answered before.
        """
        call = self._machine.answer(CallId(answer.id), type(answer).__name__)
        self._pulse.answered(answer.id)
        if call is not None:
            self._waiting[call].settle(answer)

    def fail(self, failure: Callable[[], Error]) -> None:
        """Raise an error, made anew for each, for whoever waits; no answer is due any more."""
        self._pulse.lost()
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
