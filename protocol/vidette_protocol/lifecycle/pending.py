"""`PendingDelta`: what a caller has not taken yet, merged into one, however slow the caller is.

Whoever delivers never waits, and whoever takes gets all there is: nothing is lost, repeated or reordered,
and nothing queues. It is as long as what its request has made since the caller last looked, and no longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, Self, TypeVar

from vidette_protocol.errors import LocalProtocolError

EndT = TypeVar("EndT")

UNPACKED: Final = 64
"""Tokens, or pieces of text, that wait as they came. Measured, packed they take a tenth of the memory, and to
pack each by itself takes three times as long."""


class Taken(NamedTuple, Generic[EndT]):
    """All that came since the last look.

    Args:
        text: new characters; may be empty, as a token need not complete one.
        token_ids: new output tokens.
        end: how it ended; None: it goes on.
    """

    text: str
    token_ids: tuple[int, ...]
    end: EndT | None


class PendingDelta(Generic[EndT]):
    """What waits for one caller: the last few rows as they came, and what came before them packed."""

    __slots__ = ("_end", "_ids", "_packed_ids", "_packed_text", "_taken", "_texts")

    def __init__(self) -> None:
        self._packed_text: bytes | bytearray = b""
        self._packed_ids: array[int] | None = None
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._end: EndT | None = None
        self._taken = False

    def deliver(self, text: str, token_ids: Iterable[int], end: EndT | None = None) -> None:
        """Merge what has come; never waits.

        Raises:
            LocalProtocolError: its end has come before.
        """
        if self._end is not None:
            raise LocalProtocolError("something is delivered after its end")
        if text:
            self._texts.append(text)
        self._ids.extend(token_ids)
        self._end = end
        if len(self._ids) >= UNPACKED or len(self._texts) >= UNPACKED:
            self._pack()

    def _pack(self) -> None:
        if self._packed_ids is None:
            self._packed_text, self._packed_ids = bytearray(), array("i")
        self._packed_text += "".join(self._texts).encode("utf-8", "surrogatepass")
        self._packed_ids.extend(self._ids)
        self._texts.clear()
        self._ids.clear()

    def take(self) -> Taken[EndT] | None:
        """Return all there is, once; None if there is nothing new."""
        if self._packed_ids is None and self._end is None and (self._ids or self._texts):  # as mostly
            text, ids = "".join(self._texts), tuple(self._ids)
            self._texts.clear()
            self._ids.clear()
            return Taken(text, ids, None)
        taken = self.peek()
        if taken is not None:
            self._texts.clear()
            self._ids.clear()
            if self._packed_ids is not None:
                self._packed_text, self._packed_ids = b"", None
            self._taken = self._end is not None
        return taken

    def peek(self) -> Taken[EndT] | None:
        """Return what `take` would."""
        if self._packed_ids is not None:
            text = self._packed_text.decode("utf-8", "surrogatepass") + "".join(self._texts)
            return Taken(text, (*self._packed_ids, *self._ids), self._end)
        if self._ids or self._texts or (self._end is not None and not self._taken):
            return Taken("".join(self._texts), tuple(self._ids), self._end)
        return None

    @property
    def deltas(self) -> int:
        """How many deltas wait: one, or none."""
        return int(bool(self))

    @property
    def tokens(self) -> int:
        """How many tokens wait."""
        return len(self._ids) + (0 if self._packed_ids is None else len(self._packed_ids))

    @property
    def over(self) -> bool:
        """Whether the last delta was taken."""
        return self._taken

    def __bool__(self) -> bool:
        """Return whether there is something new."""
        news = bool(self._ids or self._texts) or self._packed_ids is not None
        return news or (self._end is not None and not self._taken)

    def copy(self) -> Self:
        """Return an independent one in the same state."""
        twin = type(self)()
        twin._packed_text = self._packed_text[:]
        twin._packed_ids = None if self._packed_ids is None else self._packed_ids[:]
        twin._texts = self._texts.copy()
        twin._ids = self._ids.copy()
        twin._end = self._end
        twin._taken = self._taken
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for those that behave alike from here on."""
        packed = None if self._packed_ids is None else (bytes(self._packed_text), *self._packed_ids)
        return (packed, *self._texts, *self._ids, self._end, self._taken)
