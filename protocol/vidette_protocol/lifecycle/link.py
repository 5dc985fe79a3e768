"""The machine of one end of a link: what may come when.

    OPENING   nothing has come yet; a Hello has to come first
    STARTING  the same, of a process that is being started; it may say that it failed instead
    LOADING   its Hello has come; Ready has to come next, or that it failed
    OPEN      messages come; another Hello or Ready must not
    FAILED    it has said that it failed, and has no more to say
    CLOSED    nothing comes any more

Where an end begins depends on who is at the other one: `STARTING` if that says Ready once it has loaded what
it needs, else `OPENING`. What this end sends needs no machine: its Hello is the first thing posted, before
anything can come.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError


class LinkState(Enum):
    """Where one end of a link stands."""

    OPENING = "opening"
    STARTING = "starting"
    LOADING = "loading"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


class LinkEvent(Enum):
    """What can happen at one end of a link."""

    HELLO = "hello"
    READY = "ready"
    FAILED = "failed"
    MESSAGE = "message"
    CLOSE = "close"


LINK_TABLE: Final[dict[tuple[LinkState, LinkEvent], LinkState]] = {
    (LinkState.OPENING, LinkEvent.HELLO): LinkState.OPEN,
    (LinkState.OPENING, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.STARTING, LinkEvent.HELLO): LinkState.LOADING,
    (LinkState.STARTING, LinkEvent.FAILED): LinkState.FAILED,
    (LinkState.STARTING, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.LOADING, LinkEvent.READY): LinkState.OPEN,
    (LinkState.LOADING, LinkEvent.FAILED): LinkState.FAILED,
    (LinkState.LOADING, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.OPEN, LinkEvent.MESSAGE): LinkState.OPEN,
    (LinkState.OPEN, LinkEvent.FAILED): LinkState.FAILED,
    (LinkState.OPEN, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.FAILED, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.CLOSED, LinkEvent.CLOSE): LinkState.CLOSED,
}


class LinkMachine:
    """One end of a link.

    Args:
        state: where it begins; OPEN for a link whose ends know each other.
    """

    __slots__ = ("state",)

    def __init__(self, state: LinkState = LinkState.OPENING) -> None:
        self.state = state

    def receive(self, name: str, event: LinkEvent = LinkEvent.MESSAGE) -> None:
        """Judge a message that came.

        Args:
            name: of its class.
            event: HELLO, READY or FAILED for a message that is one; MESSAGE for all others.

        Raises:
            RemoteProtocolError: it is not its turn.
            LocalProtocolError: this end was closed, and takes nothing any more.
        """
        if self.state is LinkState.CLOSED:
            raise LocalProtocolError(f"{name} is received of a link that is closed")
        after = LINK_TABLE.get((self.state, event))
        if after is None:
            raise RemoteProtocolError(self._refuse(name))
        self.state = after

    def close(self) -> None:
        """Note that nothing comes any more; idempotent."""
        self.state = LINK_TABLE[self.state, LinkEvent.CLOSE]

    def _refuse(self, name: str) -> str:
        match self.state:
            case LinkState.OPENING | LinkState.STARTING:
                return f"a link opens with Hello, not with {name}"
            case LinkState.LOADING:
                return f"{name} came instead of Ready"
            case LinkState.FAILED:
                return f"{name} came after Failed"
            case _:
                return f"{name} came after the handshake"
