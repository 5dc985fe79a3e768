"""`ResponseStore`: the responses that can be retrieved and gone on behind, within bounds, in memory."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vidette.errors import Overloaded, UsageError
from vidette.service.conversation import Conversation
from vidette.service.limits import ServiceLimits
from vidette.service.response_shape import Response


class Kept(Struct, frozen=True):
    """A response that is kept.

    Args:
        response: as it is now.
        conversation: all that was said up to it, and it, but for instructions.
        response_bytes, conversation_bytes: of each, as JSON.
    """

    response: Response
    conversation: Conversation
    response_bytes: int
    conversation_bytes: int

    @property
    def nbytes(self) -> int:
        """How long both are together, as JSON."""
        return self.response_bytes + self.conversation_bytes

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

    def put(self, response: Response, conversation: Conversation) -> bool:
        """Keep a response, or what has become of one; return whether it is not too long by itself for that.

        Raises:
            UsageError: it is to be made yet, and too long by itself.
            Overloaded: it is to be made yet, and so much is being made that there is no room.
        """
        self.drop(response.id)
        new = Kept(response, conversation, _length(response), _length(conversation))
        if new.live:
            self._check_room(new)
        elif new.nbytes > self._limits.responses_bytes:
            return False
        self._kept[response.id] = new
        self._nbytes += new.nbytes
        self._forget()
        return True

    def _check_room(self, new: Kept) -> None:
        """Check that a response which cannot be forgotten has room beside the others of its kind."""
        most, live = self._limits.responses_bytes, [kept for kept in self._kept.values() if kept.live]
        if new.nbytes > most:
            raise UsageError(
                f"input is too long to be answered in the background: with all that comes before it, it is "
                f"{new.nbytes} bytes of JSON, and at most {most} are kept",
                param="input",
            )
        if len(live) >= self._limits.responses:
            raise Overloaded(f"{self._limits.responses} responses are being made in the background")
        if (held := sum(kept.nbytes for kept in live)) + new.nbytes > most:
            raise Overloaded(
                f"responses that are being made in the background hold {held} bytes, and this one has "
                f"{new.nbytes}; at most {most} are kept"
            )

    def change(self, response: Response) -> None:
        """Note what has become of a response that is kept; one that is not stays so."""
        kept = self._kept.get(response.id)
        if kept is None or kept.response is response:
            return
        new = replace(kept, response=response, response_bytes=_length(response))
        self._kept[response.id] = new
        self._nbytes += new.nbytes - kept.nbytes
        self._forget()

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


def _length(value: object) -> int:
    return len(msgspec.json.encode(value))
