"""Bases of every message, and the one table of tags.

A message is an array on the wire: `[tag, field, field, ...]`. Tags are stable integers; fields are only
ever appended, with a default, so that old readers ignore new fields and new readers fill in missing ones.
A tag that was given out is never given to another class.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from vidette_protocol.ids import MAX_VID

PROTOCOL_VERSION: Final = 1
"""Raised when an old reader can no longer make sense of a new writer; appended fields do not raise it."""


WireVid = Annotated[int, Meta(ge=0, le=MAX_VID)]
"""A vid or a floor in a message. Its range is checked by decoding, not by constructing."""


class Tag:
    """The first element of every message (plain integers: msgspec takes no enum here)."""

    HELLO: Final = 1
    READY: Final = 2
    HEARTBEAT: Final = 3
    SHUTDOWN: Final = 4
    FREEZE_GC: Final = 5
    FAILED: Final = 6
    ABORT: Final = 16
    TOKENIZED_GENERATE: Final = 17
    BATCH_TOKEN_ID_OUTPUT: Final = 32
    BATCH_STR_OUTPUT: Final = 33


class Message(Struct, array_like=True, kw_only=True, frozen=True):
    """Base of everything that travels; subclasses give their tag as `tag=Tag.X`."""

    def check_columns(self) -> str | None:
        """Return in a sentence what is wrong with the values, or None; a decoder knows types only.

        Decoding calls it; a message whose fields have to agree with each other overrides it.
        """
        return None
