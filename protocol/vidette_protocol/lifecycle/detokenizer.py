"""The detokenizer's machine: whose text is being put together.

States of one vid:

    (absent)  a row at offset 0 opens it; any other row is a protocol error
    OPEN      the next token offset is known; an ending row closes it

An ending row of a vid that was never opened (an abort in the queue) has offset 0, so it opens and closes in
one go and is passed on like any other. No AbortReq comes here: a vid ends by its ending row and by nothing
else, so nothing can be kept for one that is over.
"""

from __future__ import annotations

from typing import Self

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle.rows import End


class DetokenizerMachine:
    """The detokenizer's table of open requests: vid to next token offset."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[Vid, int] = {}

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> bool:
        """Judge a row that came from the scheduler.

        Returns:
            Whether it is the first of its vid, so that state has to be made for it.

        Raises:
            RemoteProtocolError: a row of an absent vid that is not at offset 0, or a gap or a repeat.
        """
        expected = self._open.get(vid)
        if offset != (expected or 0):
            what = "is not open" if expected is None else f"expects offset {expected}"
            raise RemoteProtocolError(f"vid {vid} {what}, but a row at offset {offset} came")
        if end is None:
            self._open[vid] = offset + count
        elif expected is not None:
            del self._open[vid]
        return expected is None

    def __contains__(self, vid: Vid) -> bool:
        """Return whether a vid is open."""
        return vid in self._open

    def __len__(self) -> int:
        """Return how many vids are open."""
        return len(self._open)

    def copy(self) -> Self:
        """Return an independent machine in the same state."""
        twin = type(self)()
        twin._open = self._open.copy()
        return twin

    def key(self) -> tuple[tuple[Vid, int], ...]:
        """Return a hashable picture: equal for machines that behave alike from here on."""
        return tuple(sorted(self._open.items()))
