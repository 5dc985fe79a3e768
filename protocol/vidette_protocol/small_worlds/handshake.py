"""`HandshakeWorld`: the two ends of one link, from the first Hello to the end.

Both ends say Hello at once, so the two cross. End 0 may be a process that is being started: it says Ready
once it has loaded what it needs, or that it failed, be it before its Hello. Either may close at any moment:
what it sent before still comes, and then the end of file. An end that misbehaves says things out of turn; the
other one must refuse that, and deliver nothing of it.

Rules: what is delivered is in order, as a pattern says it that knows nothing of the machine: one Hello first,
one Ready, nothing behind a failure (4); nothing after the end was closed (2); what is in order is never
refused; in the end both ends are closed (7, 8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.lifecycle.link import LinkEvent, LinkMachine, LinkState
from vidette_protocol.small_worlds.model import Model, Step


class HandshakeParts(NamedTuple):
    """Which class plays the role; a mutant takes its place here."""

    link: type[LinkMachine] = LinkMachine


class HandshakeBounds(NamedTuple):
    """How large a world is.

    Args:
        messages: most that each end says, its Hello included.
        misbehaves: whether end 0 may say something out of turn, which is the last that it says.
        behaves: how many messages it says in turn before.
        closes: whether either end may close at any moment.
        loads: whether end 0 is a process that is being started.
    """

    messages: int = 3
    misbehaves: bool = False
    behaves: int = 0
    closes: bool = True
    loads: bool = False


HELLO: Final = "Hello"
READY: Final = "Ready"
FAILED: Final = "Failed"
MESSAGE: Final = "Message"
END_OF_FILE: Final = "end of file"

EVENTS: Final = {HELLO: LinkEvent.HELLO, READY: LinkEvent.READY, FAILED: LinkEvent.FAILED}
"""What a message is to the machine; all others are messages."""
SAYINGS: Final = {"say hello": HELLO, "say ready": READY, "say failed": FAILED, "say": MESSAGE}
"""What is said, by the name of the step."""
ORDER: Final = re.compile("HM*")
ORDER_OF_STARTED: Final = re.compile("F|H(F|RM*F?)?")
"""What may be said, by first letters; beginnings of it included."""


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
        starting = LinkState.STARTING if bounds.loads else LinkState.OPENING
        self.machines = [parts.link(), parts.link(starting)]
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
                steps.extend(Step(name, (number,)) for name in self._sayings(number, end.said))
            if self._bounds.closes:
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
            case "say hello" | "say ready" | "say failed" | "say":
                self._say(number, SAYINGS[step.name])
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
        in_order = self._in_order(1 - number, *end.delivered, name)
        try:
            self.machines[number].receive(name, EVENTS.get(name, LinkEvent.MESSAGE))
        except RemoteProtocolError as error:
            if in_order:
                self._fault(f"RemoteProtocolError: {error}")
            self._close(number)
            return
        self._set(number, delivered=(*end.delivered, name))
        if not in_order:
            self._fault(f"4: end {number} is told of {name} after {len(end.delivered)} messages")

    def _close(self, number: int) -> None:
        self.machines[number].close()
        self._set(number, closed=True, coming=())
        self._send(number, END_OF_FILE)

    def _sayings(self, number: int, said: tuple[str, ...]) -> list[str]:
        """List what an end may say next, by the name of the step."""
        if said and not self._in_order(number, *said):
            return []
        names = [name for name in SAYINGS if self._loads(number) or SAYINGS[name] in (HELLO, MESSAGE)]
        right = [name for name in names if self._in_order(number, *said, SAYINGS[name])]
        may_slip = self._bounds.misbehaves and number == 0
        return names if may_slip and (len(said) >= self._bounds.behaves or not right) else right

    def _loads(self, number: int) -> bool:
        return self._bounds.loads and number == 0

    def _in_order(self, number: int, *messages: str) -> bool:
        """Whether an end may say this, one after the other."""
        order = ORDER_OF_STARTED if self._loads(number) else ORDER
        return order.fullmatch("".join(message[0] for message in messages)) is not None

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
            case "say hello" | "say ready" | "say failed":
                return f"end {number} says {SAYINGS[step.name]}"
            case "say":
                return f"end {number} says something"
            case "arrive":
                closes = "; it closes" if after.ends[number].closed else ""
                return f"{self.ends[number].coming[0]} reaches end {number}{closes}"
            case _:
                return f"end {number} closes"
