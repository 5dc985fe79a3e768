"""`HandshakeWorld`: the two ends of one link, from the first Hello to the end.

Both ends say Hello at once, so the two cross. Either may close at any moment: what it sent before still
comes, and then the end of file. An end that misbehaves says things out of turn; the other one must refuse
that, and deliver nothing of it.

Rules: nothing is delivered before a Hello, and one Hello only (4); nothing after the end was closed (2); who
behaves is never accused; in the end both ends are closed (7, 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.link import LinkMachine, LinkState
from vidette_protocol.small_worlds.model import Model, Step


class HandshakeParts(NamedTuple):
    """Which class plays the role; a mutant takes its place here."""

    link: type[LinkMachine] = LinkMachine


class HandshakeBounds(NamedTuple):
    """How large a world is.

    Args:
        messages: most that each end says, its Hello included.
        misbehaves: whether end 0 may say anything in any order.
    """

    messages: int = 3
    misbehaves: bool = False


HELLO: Final = "Hello"
MESSAGE: Final = "Message"
END_OF_FILE: Final = "end of file"


class End(NamedTuple):
    """One end, as seen from outside.

    Args:
        said: what it has said.
        coming: what is on its way to it, in order.
        delivered: what it has delivered to whoever listens.
        closed: whether it was closed.
    """

    said: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()
    closed: bool = False


class HandshakeWorld(Model):
    """A link as one value.

    Args:
        parts: the class that plays the role.
        bounds: how large it is.
    """

    __slots__ = ("_bounds", "ends", "machines")

    def __init__(
        self,
        parts: HandshakeParts = HandshakeParts(),  # noqa: B008  immutable
        bounds: HandshakeBounds = HandshakeBounds(),  # noqa: B008  immutable
    ) -> None:
        super().__init__()
        self._bounds = bounds
        self.machines = [parts.link(), parts.link()]
        self.ends = [End(), End()]

    def copy(self) -> Self:
        """Return an independent world in the same state."""
        twin = type(self).__new__(type(self))
        twin._bounds = self._bounds
        twin.faults = self.faults
        twin.machines = [type(machine)(machine.state) for machine in self.machines]
        twin.ends = self.ends.copy()
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        return (*(machine.state for machine in self.machines), *self.ends, self.faults)

    # --- what can happen -----------------------------------------------------

    def enabled(self) -> list[Step]:
        """List everything that can happen next, in a fixed order."""
        steps = self.draining()
        for number, end in enumerate(self.ends):
            if end.closed:
                continue
            if len(end.said) < self._bounds.messages:
                if not end.said or self._misbehaves(number):
                    steps.append(Step("say hello", (number,)))
                if end.said or self._misbehaves(number):
                    steps.append(Step("say", (number,)))
            steps.append(Step("close", (number,)))
        return steps

    def _draining(self) -> Iterator[Step]:
        return (
            Step("arrive", (number,)) for number, end in enumerate(self.ends) if end.coming and not end.closed
        )

    # --- how it happens ------------------------------------------------------

    def _act(self, step: Step) -> None:
        (number,) = step.of
        match step.name:
            case "say hello":
                self._say(number, HELLO)
            case "say":
                self._say(number, MESSAGE)
            case "arrive":
                self._arrive(number)
            case "close":
                self._close(number)
            case _:
                raise ValueError(f"no such step: {step}")

    def _say(self, number: int, name: str) -> None:
        self._set(number, said=(*self.ends[number].said, name))
        self._send(number, name)

    def _send(self, number: int, name: str) -> None:
        other = self.ends[1 - number]
        if not other.closed:
            self._set(1 - number, coming=(*other.coming, name))

    def _arrive(self, number: int) -> None:
        end = self.ends[number]
        name = end.coming[0]
        self._set(number, coming=end.coming[1:])
        if name == END_OF_FILE:
            self._close(number)
            return
        try:
            self.machines[number].receive(name, hello=name == HELLO)
        except RemoteProtocolError as error:
            if not self._misbehaves(1 - number):
                self._fault(f"RemoteProtocolError: {error}")
            self._close(number)
            return
        self._set(number, delivered=(*end.delivered, name))
        if (name == HELLO) != (not end.delivered):
            self._fault(f"4: end {number} is told of {name} after {len(end.delivered)} messages")

    def _close(self, number: int) -> None:
        self.machines[number].close()
        self._set(number, closed=True, coming=())
        self._send(number, END_OF_FILE)

    def _misbehaves(self, number: int) -> bool:
        return self._bounds.misbehaves and number == 0

    def _set(self, number: int, **changes: object) -> None:
        self.ends[number] = self.ends[number]._replace(**changes)  # type: ignore[arg-type]

    def _leftovers(self) -> list[str]:
        if not any(end.closed for end in self.ends):
            return []
        return [
            f"7: end {number} is {machine.state.value} after the link was closed"
            for number, machine in enumerate(self.machines)
            if machine.state is not LinkState.CLOSED
        ]

    # --- how it is told ------------------------------------------------------

    def tell(self, step: Step, after: Self) -> str:
        """Return in a line what a step does."""
        (number,) = step.of
        match step.name:
            case "say hello":
                return f"end {number} says Hello"
            case "say":
                return f"end {number} says something"
            case "arrive":
                closes = "; it closes" if after.ends[number].closed else ""
                return f"{self.ends[number].coming[0]} reaches end {number}{closes}"
            case _:
                return f"end {number} closes"
