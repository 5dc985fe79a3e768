"""`ResponseStore`: the responses that can be retrieved and gone on behind, within bounds, in memory."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vidette.errors import Overloaded
from vidette.service.conversation import Conversation
from vidette.service.limits import ServiceLimits
from vidette.service.response_shape import Response


class Kept(Struct, frozen=True):
    """A response that is kept.

    Args:
        response: as it is now.
        conversation: all that was said up to it, and it, but for instructions.
        nbytes: of both, as JSON.
    """

    response: Response
    conversation: Conversation
    nbytes: int

    @property
    def live(self) -> bool:
        """Whether it is still being made, and cannot be forgotten."""
        return self.response.status in ("queued", "in_progress")


class ResponseStore:
    """Keeps responses; the one that nobody asked for the longest time is forgotten for a new one.

    Args:
        limits: bounds of the service.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """How long they are together, as JSON."""
        return self._nbytes

    def put(self, response: Response, conversation: Conversation) -> None:
        """Keep a response, or what has become of one; if it is too long by itself, it is not kept.

        Raises:
            Overloaded: it is new, and so many are being made that there is no room.
        """
        self.drop(response.id)
        new = Kept(response, conversation, len(msgspec.json.encode((response, conversation))))
        if new.nbytes > self._limits.responses_bytes:
            return
        if new.live and sum(kept.live for kept in self._kept.values()) >= self._limits.responses:
            raise Overloaded(f"{self._limits.responses} responses are being made in the background")
        self._kept[response.id] = new
        self._nbytes += new.nbytes
        self._forget()

    def change(self, response: Response) -> None:
        """Note what has become of a response that is kept; one that is not stays so."""
        kept = self._kept.get(response.id)
        if kept is not None:
            self._kept[response.id] = replace(kept, response=response)

    def get(self, name: str) -> Kept | None:
        """Return a response; None: it is not kept, or not any more."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def drop(self, name: str) -> Kept | None:
        """Forget a response; return what it was, if it was kept."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
        return kept

    def _forget(self) -> None:
        """Forget what is too much, the oldest first."""
        for name, kept in list(self._kept.items()):
            few = len(self._kept) <= self._limits.responses
            if few and self._nbytes <= self._limits.responses_bytes:
                return
            if not kept.live:
                self.drop(name)
