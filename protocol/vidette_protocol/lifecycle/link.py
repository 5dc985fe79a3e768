"""The machine of one end of a link: what may come when.

    OPENING  nothing has come yet; a Hello has to come first
    OPEN     messages come; another Hello must not
    CLOSED   nothing comes any more

What this end sends needs no machine: its Hello is the first thing posted, before anything can come.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from vidette_protocol.errors import LocalProtocolError, RemoteProtocolError


class LinkState(Enum):
    """Where one end of a link stands."""

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


class LinkEvent(Enum):
    """What can happen at one end of a link."""

    HELLO = "hello"
    MESSAGE = "message"
    CLOSE = "close"


LINK_TABLE: Final[dict[tuple[LinkState, LinkEvent], LinkState]] = {
    (LinkState.OPENING, LinkEvent.HELLO): LinkState.OPEN,
    (LinkState.OPENING, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.OPEN, LinkEvent.MESSAGE): LinkState.OPEN,
    (LinkState.OPEN, LinkEvent.CLOSE): LinkState.CLOSED,
    (LinkState.CLOSED, LinkEvent.CLOSE): LinkState.CLOSED,
}


class LinkMachine:
    """One end of a link."""

    __slots__ = ("state",)

    def __init__(self, state: LinkState = LinkState.OPENING) -> None:
        self.state = state

    def receive(self, name: str, *, hello: bool) -> None:
        """Judge a message that came.

        Args:
            name: of its class.
            hello: whether it is a Hello.

        Raises:
            RemoteProtocolError: it is not its turn.
            LocalProtocolError: this end was closed, and takes nothing any more.
        """
        if self.state is LinkState.CLOSED:
            raise LocalProtocolError(f"{name} is received of a link that is closed")
        after = LINK_TABLE.get((self.state, LinkEvent.HELLO if hello else LinkEvent.MESSAGE))
        if after is None:
            opening = self.state is LinkState.OPENING
            raise RemoteProtocolError(
                f"a link opens with Hello, not with {name}" if opening else f"a second {name} came"
            )
        self.state = after

    def close(self) -> None:
        """Note that nothing comes any more; idempotent."""
        self.state = LINK_TABLE[self.state, LinkEvent.CLOSE]
