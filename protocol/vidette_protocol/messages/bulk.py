"""What links say to each other about the memory that carries large buffers; their users never see it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from vidette_protocol.messages.base import Message
from vidette_protocol.messages.columns import view_i64
from vidette_protocol.messages.tags import Tag


class ArenaOffer(Message, tag=Tag.ARENA_OFFER, kw_only=True, frozen=True):
    """Both ways, at most once each: large buffers may lie in this memory from now on.

    The descriptor of the memory comes along with the frame.

    Args:
        nbytes: how long the memory is.
    """

    nbytes: Annotated[int, Meta(gt=0, le=1 << 47)]


class ArenaCredit(Message, tag=Tag.ARENA_CREDIT, kw_only=True, frozen=True):
    """Both ways: buffers in the memory that the other side offered are read and done with.

    Args:
        packed_places: packed int64, where each of them begins.
    """

    packed_places: memoryview

    def check_columns(self) -> str | None:
        """Return in a sentence what is wrong with the offsets, or None."""
        try:
            view_i64(self.packed_places)
        except ValueError as error:
            return str(error)
        return None


LINK_MESSAGES: Final[tuple[type[Message], ...]] = (ArenaOffer, ArenaCredit)
"""Both travel both ways on every link that allows bulk."""
