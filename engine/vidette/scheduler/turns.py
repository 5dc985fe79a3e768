"""`Turn` and `Session`: what a session consists of, and where in it a request goes on; pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from vidette_protocol.ids import Vid
from vidette_protocol.messages import OpenSessionReqInput, SessionParams, TokenizedGenerateReqInput

Tokens = NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class SessionRefused(ValueError):  # noqa: N818  what happened
    """A request cannot go on with the session it names.

    Args:
        message: why, in a sentence.
        status: the HTTP status that says the same.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Turn:
    """One request of a session; its tokens are `keep` of those of `base`, and then `tail`.

    Attributes:
        session: whose.
        vid: the request's.
        rid: its name.
        base: the turn it goes on behind; None: it begins anew.
        keep: how many of the base's tokens it keeps.
        tail: what it adds: the end of its prompt, and its output once that was said.
        prompt_tokens: length of its prompt, what is kept of the base included.
        length: how many tokens it has.
        most: how many the output may have.
        ends: turns in flight that it replaces.
        drops: turns that it replaces, and that cannot be named meanwhile.
        uses: how many turns go on behind this one; -1 once it is freed.
        room: tokens it counts against the bound.
    """

    __slots__ = (
        "base",
        "drops",
        "ends",
        "keep",
        "most",
        "prompt_tokens",
        "rid",
        "room",
        "session",
        "tail",
        "uses",
        "vid",
    )

    def __init__(
        self,
        session: Session,
        request: TokenizedGenerateReqInput,
        *,
        base: Turn | None,
        keep: int,
        tail: Tokens,
        most: int,
        drops: Iterable[Turn] = (),
    ) -> None:
        self.session = session
        self.vid = Vid(request.vid)
        self.rid = request.rid
        self.base = base
        self.keep = keep
        self.tail = tail
        self.prompt_tokens = keep + len(tail)
        self.most = most
        self.ends: list[Turn] = []
        self.drops = list(drops)
        self.uses = 0
        self.room = len(tail) + most

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self.keep + len(self.tail)

    def tokens(self) -> Tokens:
        """Return a copy of its tokens."""
        pieces: list[Tokens] = []
        turn: Turn | None = self
        end = self.length
        while turn is not None and end:
            if end > turn.keep:
                pieces.append(turn.tail[: end - turn.keep])
                end = turn.keep
            turn = turn.base
        return np.concatenate(pieces[::-1]) if pieces else NO_TOKENS

    def fill(self, request: TokenizedGenerateReqInput) -> TokenizedGenerateReqInput:
        """Return its request with the whole prompt, and as many output tokens as may follow that."""
        params = msgspec.structs.replace(request.sampling_params, max_new_tokens=self.most)
        prompt = memoryview(self.tokens().data).cast("B")
        return msgspec.structs.replace(request, input_ids=prompt, sampling_params=params)


class Session:
    """One session.

    Attributes:
        id: its name.
        streaming: whether its turns come one after the other, each behind the last.
        timeout: seconds without a request after which it is closed; None: never.
        capacity: characters it was expected to have; for people.
        turns: those that can be named, by rid.
        said: those that are over, and whose callers may not know it, by rid.
        live: those in flight.
        count: turns in memory, of all three kinds and those without a name.
        room: tokens that they count.
        closing: whether it ends with the last turn in flight.
    """

    __slots__ = (
        "capacity",
        "closing",
        "count",
        "id",
        "live",
        "room",
        "said",
        "streaming",
        "timeout",
        "turns",
    )

    def __init__(self, question: OpenSessionReqInput) -> None:
        self.id = question.session_id
        self.streaming = question.streaming
        self.timeout = question.timeout
        self.capacity = question.capacity_of_str_len
        self.turns: dict[str, Turn] = {}
        self.said: dict[str, Turn] = {}
        self.live: dict[Vid, Turn] = {}
        self.count = self.room = 0
        self.closing = False

    def find(self, rid: str) -> Turn | None:
        """Return the turn that a rid names: the one in flight under it, or else the last that was said."""
        live = next((turn for turn in self.live.values() if turn.rid == rid), None)
        return live or self.said.get(rid) or self.turns.get(rid)


def find_base(session: Session, params: SessionParams) -> Turn | None:
    """Return what a request goes on behind; None: it begins anew."""
    rid = params.rid
    if session.streaming:
        if session.live:
            raise SessionRefused(f"streaming session {session.id!r} has a request in flight; one at a time")
        if params.replace or params.drop_previous_output or params.offset:
            raise SessionRefused(
                f"streaming session {session.id!r} only goes on: it takes no replace, drop_previous_output "
                f"or offset"
            )
        last = next(iter((*session.said.values(), *session.turns.values())), None)
        if rid is not None and (last is None or last.rid != rid):
            raise SessionRefused(f"{rid!r} is not the last request of streaming session {session.id!r}")
        return last
    if rid is None:
        return None
    base = session.find(rid)
    if base is None or any(base in turn.drops for turn in (*session.live.values(), *session.said.values())):
        raise SessionRefused(
            f"session {session.id!r} has no request {rid!r}: it never was, it did not come to its own end, "
            f"or it was replaced"
        )
    if base.vid in session.live and not params.replace:
        raise SessionRefused(f"request {rid!r} of session {session.id!r} is not over yet")
    return base


def choose_replaced(turn: Turn, rid: str | None) -> None:
    """Note what a turn replaces: what goes on behind the rid, or the rid itself if it is in flight."""
    session = turn.session
    named = None if rid is None else session.find(rid)
    if named is not None and named.vid in session.live:
        turn.ends = [named]
        return
    live, done = session.live.values(), [*session.turns.values(), *session.said.values()]
    turn.ends = list(live) if named is None else _behind(named, live)
    turn.drops = done if named is None else _behind(named, done)


def _behind(root: Turn, turns: Iterable[Turn]) -> list[Turn]:
    """Return those of some turns that go on behind one, directly or not."""
    known: dict[Turn | None, bool] = {None: False, root: True}
    for turn in turns:
        path: list[Turn] = []
        step: Turn | None = turn
        while step is not None and step not in known:
            path.append(step)
            step = step.base
        known.update(dict.fromkeys(path, known[step]))
    return [turn for turn in turns if turn is not root and known[turn]]
