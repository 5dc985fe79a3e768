"""The front's machine of control calls: who waits for which answer.

States of one question:

    WAITING  asked; its caller waits
    LEFT     its caller is gone, or its deadline has passed; the answer is still due, and reaches nobody
    (over)   answered, or whoever was to answer has died; or it could not be sent, and is withdrawn

The answer is found by the id of the question alone. Each question is answered once, so an answer that is not
due is an error of the other side. A caller is told at once when a replica dies that it waits for.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, NewType, Self

from vidette_protocol.errors import RemoteProtocolError

CallId = NewType("CallId", int)


class CallState(Enum):
    """Where one question stands."""

    WAITING = "waiting"
    LEFT = "left"
    OVER = "over"


class CallEvent(Enum):
    """What can happen to one question."""

    ANSWER = "answer"
    LEAVE = "leave"
    WITHDRAW = "withdraw"
    LOST = "lost"


CALL_TABLE: Final[dict[tuple[CallState, CallEvent], CallState]] = {
    (CallState.WAITING, CallEvent.ANSWER): CallState.OVER,
    (CallState.WAITING, CallEvent.LEAVE): CallState.LEFT,
    (CallState.WAITING, CallEvent.WITHDRAW): CallState.OVER,
    (CallState.WAITING, CallEvent.LOST): CallState.OVER,
    (CallState.LEFT, CallEvent.ANSWER): CallState.OVER,
    (CallState.LEFT, CallEvent.LOST): CallState.OVER,
}


class _Call(NamedTuple):
    state: CallState
    kind: str
    replica: int


class CallMachine:
    """The front's table of questions whose answers are due."""

    __slots__ = ("_asked", "_due")

    def __init__(self) -> None:
        self._asked = 0
        self._due: dict[CallId, _Call] = {}

    def ask(self, kind: str, replica: int = 0) -> CallId:
        """Note a question that is being sent; return its id.

        Args:
            kind: name of the class that answers it.
            replica: who has to answer.
        """
        self._asked += 1
        call = CallId(self._asked)
        self._due[call] = _Call(CallState.WAITING, kind, replica)
        return call

    def leave(self, call: CallId) -> None:
        """Note that the caller waits no more; idempotent, and nothing if it was answered."""
        due = self._due.get(call)
        if due is not None and due.state is CallState.WAITING:
            self._move(call, due, CallEvent.LEAVE)

    def withdraw(self, call: CallId) -> None:
        """Note that a question was not sent, so that no answer is due; idempotent, and nothing if it is over.

        One whose caller has left is none of these: it was sent.
        """
        due = self._due.get(call)
        if due is not None and due.state is CallState.WAITING:
            self._move(call, due, CallEvent.WITHDRAW)

    def answer(self, call: CallId, kind: str, replica: int = 0) -> CallId | None:
        """Judge an answer.

        Returns:
            The question whose caller is to hear it, or None if nobody waits for it any more.

        Raises:
            RemoteProtocolError: it answers nothing that is due: never asked, answered before, asked of
                another replica, or a question of another kind.
        """
        due = self._due.get(call)
        if due is None or due.replica != replica:
            raise RemoteProtocolError(f"{kind} {call} answers nothing that is due")
        if due.kind != kind:
            raise RemoteProtocolError(f"{kind} {call} came back, but {due.kind} was expected")
        self._move(call, due, CallEvent.ANSWER)
        return call if due.state is CallState.WAITING else None

    def lost(self, replica: int | None = None) -> list[CallId]:
        """Note that a replica has died.

        Args:
            replica: which; None: all.

        Returns:
            The questions whose callers have to be told.
        """
        told = []
        for call, due in list(self._due.items()):
            if replica is None or due.replica == replica:
                if due.state is CallState.WAITING:
                    told.append(call)
                self._move(call, due, CallEvent.LOST)
        return told

    def state(self, call: CallId) -> CallState:
        """Where a question stands."""
        due = self._due.get(call)
        return CallState.OVER if due is None else due.state

    def __len__(self) -> int:
        """Return how many answers are due."""
        return len(self._due)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self)()
        twin._asked = self._asked
        twin._due = self._due.copy()
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for machines that behave alike from here on."""
        return (self._asked, *self._due.items())

    def _move(self, call: CallId, due: _Call, event: CallEvent) -> None:
        state = CALL_TABLE[due.state, event]
        if state is CallState.OVER:
            del self._due[call]
        else:
            self._due[call] = due._replace(state=state)
