"""Faults of control calls and of handshakes; `mutants` joins them with the others."""

from __future__ import annotations

from typing import Final

from vidette_fuzz.configurations import Maker, calls, handshake
from vidette_fuzz.mutant import Mutant
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.control import CallId, CallMachine, CallState
from vidette_protocol.lifecycle.link import LinkMachine, LinkState
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


class _TakesAnythingFirst(LinkMachine):
    """Takes whatever comes first for the opening of the link."""

    def receive(self, name: str, *, hello: bool) -> None:
        super().receive(name, hello=hello or self.state is LinkState.OPENING)


class _TakesAnotherHello(LinkMachine):
    """Lets whoever is at the other end introduce itself again, as somebody else."""

    def receive(self, name: str, *, hello: bool) -> None:
        try:
            super().receive(name, hello=hello)
        except RemoteProtocolError:
            if self.state is LinkState.OPENING:
                raise


def _calls(machine: type[CallMachine], small: CallBounds) -> tuple[Maker, Maker]:
    parts = CallParts(machine)
    return calls(small, parts), calls(_LARGE, parts)


def _handshake(machine: type[LinkMachine]) -> tuple[Maker, Maker]:
    parts = HandshakeParts(machine)
    return handshake(HandshakeBounds(misbehaves=True), parts), handshake(
        HandshakeBounds(messages=8, misbehaves=True), parts
    )


_TWO: Final = CallBounds(calls=2)
_DEATH: Final = CallBounds(calls=2, deaths=1)
_LARGE: Final = CallBounds(calls=10, fronts=2, replicas=2, kinds=2, deaths=2)

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
        "message-before-hello",
        "sgl-project/sglang #5713 (a foreign frame is taken for a message)",
        "what somebody says who never said who it is is delivered",
        _HANDSHAKE,
        *_handshake(_TakesAnythingFirst),
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
