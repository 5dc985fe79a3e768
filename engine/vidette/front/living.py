"""`Living`: what lives in a front now, request by request, for people; gathered only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

from vidette.front.admission import Admission
from vidette.front.route import Route
from vidette_protocol.ids import Vid
from vidette_protocol.lifecycle import FrontMachine, FrontState

SCHEDULER: Final = "scheduler"
"""Role of the one that a front sends to."""

RequestState = Literal["tokenising", "held", "waiting", "running", "closing"]
"""Where a request is, as the front knows it.

"tokenising": it was not sent yet. "held": likewise, since processes are being started again. "waiting": it
was sent and nothing of it has come: it waits for its turn, or its prompt is computed. "running": tokens come.
"closing": its caller has left, and its end has not come round the ring yet.
"""


class LiveRequest(Struct, frozen=True):
    """A request that is not over. Neither its prompt nor its output is in here.

    Args:
        rid: the caller's name for it.
        vid: its key, as digits: it may be too large for a number in JSON.
        state: where it is.
        age_s: seconds since it came.
        prompt_tokens: length of its prompt; None: it is not known yet, or no more.
        output_tokens: output tokens that have come.
        unread_tokens: those of them that its caller has not taken.
        cached_tokens: tokens of its prompt that were found in the prefix cache, once it has said so.
        resumed: how often it went on after the death of a process.
        group: vid of the first of those that were asked for together; None: it is alone.
        scheduler: the role that computes it; None: it was not sent yet.
        detokenizer: the role that holds its text; None: there is none yet.
    """

    rid: str
    vid: str
    state: RequestState
    age_s: float
    prompt_tokens: int | None = None
    output_tokens: int = 0
    unread_tokens: int = 0
    cached_tokens: int = 0
    resumed: int = 0
    group: str | None = None
    scheduler: str | None = None
    detokenizer: str | None = None


class Living:
    """What lives in one front.

    Args:
        machine: of the front.
        routes: of what was sent.
        admission: knows since when each lives.
        lost: says whether the ring is gone, and there is no other yet.
    """

    def __init__(
        self,
        machine: FrontMachine,
        routes: Mapping[Vid, Route],
        admission: Admission,
        *,
        lost: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._admission = admission
        self._lost = lost

    def requests(self, most: int, detokenizers: Sequence[str]) -> tuple[LiveRequest, ...]:
        """Return those that have lived longest.

        Args:
            most: how many.
            detokenizers: roles of the detokenizers, in the order of their shares.
        """
        new: RequestState = "held" if self._lost() else "tokenising"
        states: dict[FrontState, RequestState] = {
            FrontState.NEW: new,
            FrontState.SENT: "waiting",
            FrontState.LIVE: "running",
            FrontState.CLOSING: "closing",
        }
        told = []
        for vid, entry in islice(self._machine.live(), most):
            route = self._routes.get(vid)
            stream = None if route is None else route.stream
            sent = entry.state is not FrontState.NEW
            opened = entry.state is FrontState.LIVE or entry.offset > 0
            told.append(
                LiveRequest(
                    rid=entry.rid,
                    vid=str(vid),
                    state=states[entry.state],
                    age_s=round(self._admission.age_s(vid), 3),
                    prompt_tokens=None if stream is None else stream.prompt_tokens,
                    output_tokens=entry.offset,
                    unread_tokens=0 if stream is None else max(0, entry.offset - stream.completion_tokens),
                    cached_tokens=0 if stream is None else stream.served.cached_tokens,
                    resumed=0 if stream is None else stream.resumed,
                    group=None if entry.group is None else str(entry.group),
                    scheduler=SCHEDULER if sent else None,
                    detokenizer=detokenizers[vid % len(detokenizers)] if opened else None,
                )
            )
        return tuple(told)
