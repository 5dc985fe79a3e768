"""Faults of control calls and of handshakes; `mutants` joins them with the others."""

from __future__ import annotations

from typing import Final

from vidette_fuzz.configurations import Maker, calls, handshake
from vidette_fuzz.mutant import Mutant
from vidette_protocol.lifecycle.control import CallId, CallMachine, CallState
from vidette_protocol.lifecycle.link import LinkEvent, LinkMachine, LinkState
from vidette_protocol.small_worlds.calls import CallBounds, CallParts
from vidette_protocol.small_worlds.handshake import HandshakeBounds, HandshakeParts


class _MatchesByKind(CallMachine):
    """Gives an answer to whoever waits longest for one of its kind."""

    def answer(self, call: CallId, kind: str, replica: int = 0) -> CallId | None:
        first = next(
            (one for one, due in self._due.items() if (due.kind, due.replica) == (kind, replica)), call
        )
        return super().answer(first, kind, replica)


class _PassesOnTheUnwanted(CallMachine):
    """Gives the answer that a caller did not wait for to the next one of the same kind."""

    def answer(self, call: CallId, kind: str, replica: int = 0) -> CallId | None:
        to = super().answer(call, kind, replica)
        if to is None:
            waiting = (
                one for one, due in self._due.items() if due.state is CallState.WAITING and due.kind == kind
            )
            to = next(waiting, None)
        return to


class _ForgetsWhoLeft(CallMachine):
    """Drops the question of a caller who leaves, so that its answer is one to nothing."""

    def leave(self, call: CallId) -> None:
        self._due.pop(call, None)


class _TellsNobody(CallMachine):
    """Clears its table when a replica dies, and wakes nobody."""

    def lost(self, replica: int | None = None) -> list[CallId]:
        super().lost(replica)
        return []


class _KeepsWhoLeft(CallMachine):
    """When a replica dies, looks only at those who still wait."""

    def lost(self, replica: int | None = None) -> list[CallId]:
        left = {one: due for one, due in self._due.items() if due.state is CallState.LEFT}
        told = super().lost(replica)
        self._due.update(left)
        return told


class _TellsAllOfOneDeath(CallMachine):
    """Takes the death of one replica for that of all, and what the others answer for answers to nothing."""

    def lost(self, replica: int | None = None) -> list[CallId]:
        del replica
        return super().lost()


class _HasOnePlace(CallMachine):
    """Has room for one question of a kind, and a second one takes the place of the first."""

    def ask(self, kind: str, replica: int = 0) -> CallId:
        self._due = {one: due for one, due in self._due.items() if due.kind != kind}
        return super().ask(kind, replica)


class _KeepsTheUnsent(CallMachine):
    """Takes a question that could not be sent for one whose caller has left."""

    def withdraw(self, call: CallId) -> None:
        self.leave(call)


class _TakesAnythingFirst(LinkMachine):
    """Takes whatever comes first for the opening of the link."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        super().receive(name, LinkEvent.HELLO if self.state in _BEFORE_HELLO else event)


class _TakesAnotherHello(LinkMachine):
    """Lets whoever is at the other end introduce itself again, as somebody else."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        if event is not LinkEvent.HELLO or self.state in _BEFORE_HELLO:
            super().receive(name, event)


class _TakesAnotherReady(LinkMachine):
    """Lets a process say again what it is able to."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        if event is not LinkEvent.READY or self.state is not LinkState.OPEN:
            super().receive(name, event)


class _TakesWorkOfWhoLoads(LinkMachine):
    """Takes what a process says before it has loaded what it needs."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        if event is not LinkEvent.MESSAGE or self.state is not LinkState.LOADING:
            super().receive(name, event)


class _WaitsForHelloFirst(LinkMachine):
    """Refuses to hear of a failure from whoever has not introduced itself."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        super().receive(
            name, LinkEvent.MESSAGE if self.state in _BEFORE_HELLO and event is LinkEvent.FAILED else event
        )


class _HearsTheFailed(LinkMachine):
    """Goes on as if nothing had been said when the other end says that it failed."""

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        before = self.state
        super().receive(name, event)
        if event is LinkEvent.FAILED and before is LinkState.OPEN:
            self.state = before


_BEFORE_HELLO: Final = (LinkState.OPENING, LinkState.STARTING)


def _calls(machine: type[CallMachine], small: CallBounds) -> tuple[Maker, Maker]:
    parts = CallParts(machine)
    return calls(small, parts), calls(_LARGE, parts)


def _handshake(machine: type[LinkMachine], *, behaves: int = 0) -> tuple[Maker, Maker]:
    parts = HandshakeParts(machine)
    small = HandshakeBounds(messages=4, misbehaves=True, loads=True)
    large = small._replace(messages=8, behaves=behaves, closes=False)
    return handshake(small, parts), handshake(large, parts)


_TWO: Final = CallBounds(calls=2)
_DEATH: Final = CallBounds(calls=2, deaths=1)
_UNSENT: Final = CallBounds(calls=2, unsendable=1)
_LARGE: Final = CallBounds(calls=10, fronts=2, replicas=2, kinds=2, deaths=2, unsendable=2)

_CALLS: Final = "control calls"
_HANDSHAKE: Final = "handshake"

CALL_MUTANTS: Final = (
    Mutant(
        "reply-matched-by-type",
        "sgl-project/sglang, FanOutCommunicator (replies are matched by type only)",
        "two callers ask the same, and one hears the answer to the other",
        _CALLS,
        *_calls(_MatchesByKind, _TWO),
    ),
    Mutant(
        "reply-of-the-cancelled-passed-on",
        "sgl-project/sglang, test_fanout_communicator_cancellation (the next caller gets the old replies)",
        "a caller leaves, and the next one hears the answer that was meant for it",
        _CALLS,
        *_calls(_PassesOnTheUnwanted, _TWO),
    ),
    Mutant(
        "late-reply-is-fatal",
        "sgl-project/sglang, FanOutCommunicator (a late reply with no call in flight ends the receive loop)",
        "a caller leaves, and the answer that comes later ends everything",
        _CALLS,
        *_calls(_ForgetsWhoLeft, CallBounds(calls=1)),
    ),
    Mutant(
        "caller-not-told-of-death",
        "vllm-project/vllm #56416",
        "a replica dies, and who has asked it waits for ever",
        _CALLS,
        *_calls(_TellsNobody, _DEATH),
    ),
    Mutant(
        "cancelled-call-outlives-the-replica",
        "sgl-project/sglang #34205, #37824 (what an abort leaves behind is never given back)",
        "a caller leaves and the replica dies: the question is kept for ever",
        _CALLS,
        *_calls(_KeepsWhoLeft, _DEATH),
    ),
    Mutant(
        "one-death-taken-for-all",
        "sgl-project/sglang #39216, #39217 (what concerns one ends all)",
        "a replica dies, and the callers of another hear that theirs is lost, whose answers then come",
        _CALLS,
        *_calls(_TellsAllOfOneDeath, CallBounds(calls=1, replicas=2, deaths=1)),
    ),
    Mutant(
        "one-place-for-a-kind",
        "sgl-project/sglang, update_weights_from_disk (one future; concurrent calls overwrite each other)",
        "two callers ask the same, and the first one's question is forgotten",
        _CALLS,
        *_calls(_HasOnePlace, _TWO),
    ),
    Mutant(
        "unsent-question-kept",
        "vllm-project/vllm, call_utility (a call that cannot be encoded stays in utility_results)",
        "a question cannot be sent, and its answer, which nobody will give, is due for ever",
        _CALLS,
        *_calls(_KeepsTheUnsent, _UNSENT),
    ),
    Mutant(
        "message-before-hello",
        "sgl-project/sglang #5713 (a foreign frame is taken for a message)",
        "what somebody says who never said who it is is delivered",
        _HANDSHAKE,
        *_handshake(_TakesAnythingFirst),
    ),
    Mutant(
        "message-before-ready",
        "sgl-project/sglang #39689 (a worker is counted on before it listens)",
        "what a process says before it is ready is taken for an answer",
        _HANDSHAKE,
        *_handshake(_TakesWorkOfWhoLoads),
    ),
    Mutant(
        "failure-before-hello-refused",
        "sgl-project/sglang, the start-up pipe (a child that dies before it is ready hangs its parent)",
        "a process cannot even say Hello, and instead of why, its parent says that it broke the protocol",
        _HANDSHAKE,
        *_handshake(_WaitsForHelloFirst),
    ),
    Mutant(
        "heard-after-failed",
        "sgl-project/sglang #22779, #4191 (one that is dead is thought to be healthy)",
        "a process has said that it failed, and what it says further is believed",
        _HANDSHAKE,
        *_handshake(_HearsTheFailed, behaves=3),
    ),
    Mutant(
        "second-ready-taken",
        "monero-project/monero #11156 (a second handshake on the same connection)",
        "a process says twice what it is able to, and both are believed",
        _HANDSHAKE,
        *_handshake(_TakesAnotherReady, behaves=2),
    ),
    Mutant(
        "second-hello-taken",
        "monero-project/monero #11156 (a second handshake on the same connection)",
        "the other end introduces itself twice, and both are believed",
        _HANDSHAKE,
        *_handshake(_TakesAnotherHello),
    ),
)
"""Every mutant of these."""
