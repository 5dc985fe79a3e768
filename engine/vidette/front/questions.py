"""`Questions`: what was asked of the ring and waits for its answer.

Which answer is due, and who is to hear it, the machine says; this holds what they wait on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""With so many answers due, those included for which nobody waits any more, callers may ask nothing more."""


class Questions:
    """The questions of one front; their ids are never used again, whoever is asked.

    Args:
        pulse: told of heartbeats.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._machine = CallMachine()
        self._waiting: dict[CallId, _Question] = {}
        self.ended = False
        """Whether nobody will hear any answer any more."""

    async def ask(
        self,
        make: Callable[[int], Asked],
        kind: type[Answered],
        post: Callable[[Asked], None],
        *,
        bounded: bool = True,
    ) -> Sequence[Answered]:
        """Post a question, and return what comes back: an answer of each that gives one.

        Args:
            make: makes the question of its id; it can be encoded.
            kind: class of the answer.
            post: sends it; if it raises, nothing was sent.
            bounded: whether it is refused if too many answers are due. The front's own heartbeat is not: it
                has to tell whether the ring turns just then, and there is one of it at most.

        Raises:
            Overloaded: too many answers are due.
            Error: what `fail` was given.
            LocalProtocolError: it cannot be sent.
        """
        if bounded and len(self._machine) >= MAX_QUESTIONS:
            raise Overloaded(
                f"{len(self._machine)} answers are due from the scheduler; at most {MAX_QUESTIONS} may"
            )
        call = self._machine.ask(kind.__name__)
        waiting = self._waiting[call] = _Question()
        try:
            self._post(call, make, post)
            if kind is HeartbeatReq:
                self._pulse.asked(call)
            await waiting.answered.wait()
        finally:
            del self._waiting[call]
            self._machine.leave(call)
        return waiting.answers()

    def tell(self, make: Callable[[int], Asked], kind: type[Answered], post: Callable[[Asked], None]) -> None:
        """Post a question to whose answer nobody listens; as `ask`, but it is never refused.

        It sets right what another question has left behind, so there are never many more of them than of
        those, which are bounded.
        """
        call = self._machine.ask(kind.__name__)
        try:
            self._post(call, make, post)
        finally:
            self._machine.leave(call)

    def _post(self, call: CallId, make: Callable[[int], Asked], post: Callable[[Asked], None]) -> None:
        try:
            post(make(call))
        except Exception:
            self._machine.withdraw(call)
            raise

    def settle(self, *answers: Answered) -> None:
        """Take what came back; nobody hears it if whoever asked has left.

        Args:
            answers: all answers to one question.

        Raises:
            RemoteProtocolError: nothing was asked that it answers, or that was answered before.
        """
        if self.ended:  # it goes on reading, or the ring could not end
            return
        first = answers[0]
        call = self._machine.answer(CallId(first.id), type(first).__name__)
        self._pulse.answered(first.id)
        if call is not None:
            self._waiting[call].settle(answers)

    def fail(self, failure: Callable[[], Error]) -> None:
        """Raise an error, made anew for each, for whoever waits; no answer is due any more."""
        self._pulse.lost()
        for call in self._machine.lost():
            self._waiting[call].fail(failure)

    def end(self, failure: Callable[[], Error]) -> None:
        """Do as `fail`, for good: what comes from now on is no news to anybody."""
        self.fail(failure)
        self.ended = True

    def __len__(self) -> int:
        """Return how many answers are due."""
        return len(self._machine)


class _Question:
    """Somebody who waits for an answer."""

    __slots__ = ("_answers", "_failure", "answered")

    def __init__(self) -> None:
        self._answers: Sequence[Answered] = ()
        self._failure: Callable[[], Error] | None = None
        self.answered = anyio.Event()

    def settle(self, answers: Sequence[Answered]) -> None:
        self._answers = answers
        self.answered.set()

    def fail(self, failure: Callable[[], Error]) -> None:
        self._failure = failure
        self.answered.set()

    def answers(self) -> Sequence[Answered]:
        if self._failure is not None:
            raise self._failure()
        return self._answers
