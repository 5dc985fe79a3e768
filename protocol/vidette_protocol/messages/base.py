"""Bases of every message.

A message is an array on the wire: `[tag, field, field, ...]`. Tags are stable integers; fields are only
ever appended, with a default, so that old readers ignore new fields and new readers fill in missing ones.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from vidette_protocol.ids import MAX_VID

PROTOCOL_VERSION: Final = 1
"""Raised when an old reader can no longer make sense of a new writer; appended fields do not raise it."""


WireVid = Annotated[int, Meta(ge=0, le=MAX_VID)]
"""A vid or a floor in a message. Its range is checked by decoding, not by constructing."""

Seconds = Annotated[float, Meta(ge=0)]
"""A length of time."""


class Message(Struct, array_like=True, kw_only=True, frozen=True):
    """Base of everything that travels; subclasses give their tag as `tag=Tag.X`."""

    def check_columns(self) -> str | None:
        """Return in a sentence what is wrong with the values, or None; a decoder knows types only.

        Decoding calls it; a message whose fields have to agree with each other overrides it.
        """
        return None


class BaseReq(Message, kw_only=True, frozen=True):
    """Base of what concerns one request. Its front is part of the vid; see `ids.front_of`.

    Args:
        vid: the only key of the request.
        floor: lowest vid of this front that is not over; tombstones below it can be forgotten.
    """

    vid: WireVid
    floor: WireVid = 0


class BaseBatchReq(Message, kw_only=True, frozen=True):
    """Base of what concerns several requests, one a row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    @property
    def vids(self) -> list[int]:
        """The vid of each row."""
        raise NotImplementedError


class ControlOutput(Message, kw_only=True, frozen=True):
    """Base of the answer to a control message.

    Args:
        id: that of the question; an answer nobody waits for any more is dropped.
        success: whether it was done; if not, nothing was changed.
        message: a sentence, above all why it was not done.
    """

    id: int
    success: bool = True
    message: str = ""


class ControlReq(Message, kw_only=True, frozen=True):
    """Base of a control message: a question that has just one answer, of the class `output`.

    Args:
        id: chosen by the front, counting up; its answer carries it.
        deadline_s: seconds from sending until the front stops waiting; whoever gets it later than that
            need not begin. None: as long as it takes.
    """

    output: ClassVar[type[ControlOutput]]

    id: int
    deadline_s: Seconds | None = None
