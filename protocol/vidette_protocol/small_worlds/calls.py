"""`CallWorld`: control calls, from asking to the answer, whatever happens in between.

Fronts ask replicas. A replica answers each question once, in whatever order it is done with them; each link
is first in, first out. Callers leave at any moment, which is also what a deadline does to them. A replica may
die: what it has not said yet is never said, what it has may still come until the front notes the death, and
the front's next link to that replica is a new one. A question may be one that cannot be sent, which shows
when it is to be: its caller hears that at once, and nobody will answer it.

Rules: each caller hears exactly one thing, its own answer or that the replica is lost (1, 3), and nothing
after it has left (2); in the end no table holds anything (7), and nobody waits for ever (9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from vidette_protocol.lifecycle.control import CallId, CallMachine
from vidette_protocol.small_worlds.model import Model, Step


class CallParts(NamedTuple):
    """Which class plays the role; a mutant takes its place here."""

    calls: type[CallMachine] = CallMachine


class CallBounds(NamedTuple):
    """How large a world is.

    Args:
        calls: questions asked in all.
        fronts: how many ask.
        replicas: how many answer.
        kinds: how many kinds of questions there are.
        deaths: how often a replica dies, and is replaced.
        unsendable: how many of the questions cannot be sent.
    """

    calls: int = 3
    fronts: int = 1
    replicas: int = 1
    kinds: int = 1
    deaths: int = 0
    unsendable: int = 0


class Question(NamedTuple):
    """A question on its way, or in a replica's hands; its answer is the same value on the way back.

    Args:
        call: the front's id of it.
        kind: what is asked.
        caller: who asked: the truth, which no machine knows.
    """

    call: CallId
    kind: int
    caller: int


class Caller(NamedTuple):
    """One caller, and what he has heard."""

    front: int
    replica: int
    kind: int
    call: CallId
    here: bool = True
    heard: int = 0


class Wire(NamedTuple):
    """What is between one front and one replica.

    Args:
        asked: questions on their way.
        held: questions that the replica has not answered yet.
        answers: on their way back.
        torn: whether the replica at the other end is dead, which the front has not noted.
    """

    asked: tuple[Question, ...] = ()
    held: tuple[Question, ...] = ()
    answers: tuple[Question, ...] = ()
    torn: bool = False


class CallWorld(Model):
    """Control calls as one value.

    Args:
        parts: the class that plays the role.
        bounds: how large it is.
    """

    __slots__ = ("_bounds", "callers", "deaths", "machines", "unsent", "wires")

    def __init__(self, parts: CallParts = CallParts(), bounds: CallBounds = CallBounds()) -> None:  # noqa: B008  immutable
        super().__init__()
        self._bounds = bounds
        self.machines = [parts.calls() for _ in range(bounds.fronts)]
        self.wires = {
            (front, replica): Wire() for front in range(bounds.fronts) for replica in range(bounds.replicas)
        }
        self.callers: tuple[Caller, ...] = ()
        self.deaths = 0
        self.unsent = 0

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        twin = type(self).__new__(type(self))
        twin._bounds = self._bounds
        twin.faults = self.faults
        twin.machines = [machine.copy() for machine in self.machines]
        twin.wires = self.wires.copy()
        twin.callers = self.callers
        twin.deaths = self.deaths
        twin.unsent = self.unsent
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        return (
            *(machine.key() for machine in self.machines),
            *self.wires.values(),
            self.callers,
            self.deaths,
            self.unsent,
            self.faults,
        )

    # --- what can happen -----------------------------------------------------

    def enabled(self) -> list[Step]:
        """List everything that can happen next, in a fixed order."""
        bounds = self._bounds
        steps = self.draining()
        if len(self.callers) < bounds.calls:
            steps += [
                Step("ask", (front, replica, kind))
                for front, replica in self.wires
                for kind in range(bounds.kinds)
            ]
            if self.unsent < bounds.unsendable:
                steps += [Step("ask in vain", (front, replica)) for front, replica in self.wires]
        steps += [
            Step("leave", (number,))
            for number, caller in enumerate(self.callers)
            if caller.here and not caller.heard
        ]
        if self.deaths < bounds.deaths:
            steps += [Step("die", (replica,)) for replica in range(bounds.replicas)]
        return steps

    def _draining(self) -> Iterator[Step]:
        for (front, replica), wire in self.wires.items():
            if wire.asked:
                yield Step("question arrives", (front, replica))
            yield from (Step("answer", (front, replica, question.call)) for question in wire.held)
            if wire.answers:
                yield Step("answer arrives", (front, replica))
            if wire.torn:
                yield Step("death is noted", (front, replica))

    # --- how it happens ------------------------------------------------------

    def _act(self, step: Step) -> None:
        match step:
            case Step("ask", (front, replica, kind)):
                self._ask(front, replica, kind)
            case Step("ask in vain", (front, replica)):
                self.unsent += 1
                call = self.machines[front].ask("Kind0", replica)
                self.machines[front].withdraw(call)
                self.callers += (Caller(front, replica, 0, call, here=False),)
            case Step("leave", (number,)):
                caller = self.callers[number]
                self._set(number, caller._replace(here=False))
                self.machines[caller.front].leave(caller.call)
            case Step("question arrives", (front, replica)):
                wire = self.wires[front, replica]
                self.wires[front, replica] = wire._replace(
                    asked=wire.asked[1:], held=wire.held + wire.asked[:1]
                )
            case Step("answer", (front, replica, call)):
                wire = self.wires[front, replica]
                said = tuple(question for question in wire.held if question.call == call)
                held = tuple(question for question in wire.held if question.call != call)
                self.wires[front, replica] = wire._replace(held=held, answers=wire.answers + said)
            case Step("answer arrives", (front, replica)):
                wire = self.wires[front, replica]
                self.wires[front, replica] = wire._replace(answers=wire.answers[1:])
                self._hear(front, replica, wire.answers[0])
            case Step("die", (replica,)):
                self.deaths += 1
                for front in range(self._bounds.fronts):
                    wire = self.wires[front, replica]
                    self.wires[front, replica] = Wire(answers=wire.answers, torn=True)
            case Step("death is noted", (front, replica)):
                self.wires[front, replica] = Wire()
                for call in self.machines[front].lost(replica):
                    self._note(self._caller(front, call))
            case _:
                raise ValueError(f"no such step: {step}")

    def _ask(self, front: int, replica: int, kind: int) -> None:
        call = self.machines[front].ask(f"Kind{kind}", replica)
        wire = self.wires[front, replica]
        if not wire.torn:  # else it goes nowhere, and nobody knows that yet
            question = Question(call, kind, len(self.callers))
            self.wires[front, replica] = wire._replace(asked=(*wire.asked, question))
        self.callers += (Caller(front, replica, kind, call),)

    def _hear(self, front: int, replica: int, answer: Question) -> None:
        to = self.machines[front].answer(answer.call, f"Kind{answer.kind}", replica)
        if to is not None:
            number = self._caller(front, to)
            if number != answer.caller:
                self._fault(f"3: caller {number} hears the answer to caller {answer.caller}")
            self._note(number)

    def _note(self, number: int) -> None:
        caller = self.callers[number]
        if not caller.here:
            self._fault(f"2: caller {number} hears something after it has left")
        if caller.heard:
            self._fault(f"1: caller {number} hears a second thing")
        self._set(number, caller._replace(heard=caller.heard + 1))

    def _caller(self, front: int, call: CallId) -> int:
        return next(
            number
            for number, caller in enumerate(self.callers)
            if caller.front == front and caller.call == call
        )

    def _set(self, number: int, caller: Caller) -> None:
        self.callers = (*self.callers[:number], caller, *self.callers[number + 1 :])

    def _leftovers(self) -> list[str]:
        waiting = [
            f"9: caller {number} waits, and nothing can happen any more"
            for number, caller in enumerate(self.callers)
            if caller.here and not caller.heard
        ]
        tables = [
            f"7: front {front} still holds {len(machine)} questions at quiescence"
            for front, machine in enumerate(self.machines)
            if len(machine)
        ]
        return waiting + tables

    # --- how it is told ------------------------------------------------------

    def tell(self, step: Step, after: Self) -> str:
        """Return in a line what a step does."""
        heard = [
            number
            for number, (then, now) in enumerate(zip(self.callers, after.callers, strict=False))
            if now.heard > then.heard
        ]
        who = " and ".join(f"caller {number} hears of it" for number in heard) or "nobody hears of it"
        match step:
            case Step("ask", (front, replica, kind)):
                caller = after.callers[-1]
                return (
                    f"caller {len(self.callers)} asks question {caller.call} (Kind{kind})"
                    f" of replica {replica} by front {front}"
                )
            case Step("ask in vain", (front, replica)):
                call = after.callers[-1].call
                return (
                    f"caller {len(self.callers)} would ask question {call} of replica {replica}"
                    f" by front {front}, and it cannot be sent"
                )
            case Step("leave", (number,)):
                return f"caller {number} leaves"
            case Step("question arrives", (front, replica)):
                call = self.wires[front, replica].asked[0].call
                return f"question {call} of front {front} reaches replica {replica}"
            case Step("answer", (front, replica, call)):
                return f"replica {replica} answers question {call} of front {front}"
            case Step("answer arrives", (front, replica)):
                call = self.wires[front, replica].answers[0].call
                return f"the answer to question {call} reaches front {front}; {who}"
            case Step("die", (replica,)):
                return f"replica {replica} dies"
            case _:
                front, replica = step.of
                return f"front {front} notes that replica {replica} is dead; {who}"
