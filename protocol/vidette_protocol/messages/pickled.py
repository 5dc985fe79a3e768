"""`PickleWrapper`: a pickle as inert bytes, for as long as a deployment is moved over, and for nothing else.

No link of the engine has it. A codec refuses it, at the top or inside of another message, in both directions,
unless it was constructed with `allow_pickle=True`. Even then nobody here unpickles it: the bytes are handed
over, and whoever trusts their sender may do that himself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from vidette_protocol.messages.base import Message
from vidette_protocol.messages.tags import Tag


class PickledBytes(bytes):
    """Bytes that msgspec does not know, so that a codec is asked about each of them."""

    __slots__ = ()


class PickleWrapper(Message, tag=Tag.PICKLE_WRAPPER, kw_only=True, frozen=True):
    """Whoever has not been moved over yet: something pickled, still pickled.

    Args:
        data: the pickle; any bytes are kept as PickledBytes.

    Raises:
        TypeError: they are not bytes.
    """

    if TYPE_CHECKING:
        data: bytes
    else:
        data: PickledBytes  # which whoever makes one need not know

    def __post_init__(self) -> None:
        data: object = self.data  # of whatever type it was given
        if isinstance(data, PickledBytes):
            return
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a {type(data).__name__} is not bytes; pickle it yourself, if it has to be")
        force_setattr(self, "data", PickledBytes(data))
