"""`Sessions`: conversations that requests go on with; pure.

A session is a tree of turns. A turn is a request that came to its own end, with its prompt and its output,
named by its rid; it keeps only what it adds to the turn before it. The next turn names the one it goes on
behind, so naming an earlier one makes a branch. Of a streaming session the last turn alone has a name.

What a session holds is what its callers know. A turn in flight is in no tree, and one that is aborted, or
fails, or runs out of time leaves all as it was. Even one that was said to its end is kept beside the tree
until another names it or comes under its rid: if its caller left before hearing of the end, the abort that
says so is on its way, and comes before whatever that caller asks next. So an abort that is late finds the
turn still to be dropped. What a turn replaces is kept as long, but cannot be named any more.

A rid names the turn that was said last under it. A turn whose name has gone to another is kept only while
something goes on behind it; where just one does, the two become one.

Keys and values are not held: they are in the prefix cache like everybody's, and are computed again if they
were evicted. So no session takes memory from a request, and no request waits for one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vidette.scheduler.deadlines import Deadlines
from vidette.scheduler.turns import (
    NO_TOKENS,
    Session,
    SessionRefused,
    Tokens,
    Turn,
    choose_replaced,
    find_base,
)
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    CloseSessionReqInput,
    CloseSessionReqOutput,
    FinishReason,
    OpenSessionReqInput,
    OpenSessionReqOutput,
    SamplingParams,
    SessionParams,
    TokenizedGenerateReqInput,
)

MAX_SESSIONS: Final = 1024
"""Sessions that may be open at once."""
MAX_TURNS: Final = 1024
"""Turns that one session may hold, those in flight included."""
MAX_SESSION_TOKENS: Final = 16 * 1024 * 1024
"""Tokens that all sessions together may hold, those included that turns in flight may still say."""


class Sessions:
    """The sessions of one scheduler.

    Args:
        bos: what the tokenizer puts before every text, and a turn that goes on does without; None: nothing.
        max_total_tokens: most tokens of prompt and output together that one turn may have.
        max_sessions: as MAX_SESSIONS.
        max_turns: as MAX_TURNS.
        max_tokens: as MAX_SESSION_TOKENS.
    """

    def __init__(
        self,
        *,
        bos: int | None = None,
        max_total_tokens: int,
        max_sessions: int = MAX_SESSIONS,
        max_turns: int = MAX_TURNS,
        max_tokens: int = MAX_SESSION_TOKENS,
    ) -> None:
        self._bos = bos
        self._max_total_tokens = max_total_tokens
        self._max_sessions = max_sessions
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._sessions: dict[str, Session] = {}
        self._turns: dict[Vid, Turn] = {}
        """Those in flight, and those said that are in no tree yet."""
        self._idle: Deadlines[str] = Deadlines()
        self._room = 0

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._sessions)

    @property
    def tokens(self) -> int:
        """Tokens that all sessions hold, those included that turns in flight may still say."""
        return self._room

    # --- sessions --------------------------------------------------------------

    def open(self, question: OpenSessionReqInput, now: float) -> OpenSessionReqOutput:
        """Open a session, if there is none of that id and room for one; return the answer."""
        name = question.session_id
        if name in self._sessions:
            return OpenSessionReqOutput(id=question.id, success=False, message=f"session {name!r} is open")
        if len(self._sessions) >= self._max_sessions:
            message = f"{len(self._sessions)} sessions are open; close one first"
            return OpenSessionReqOutput(id=question.id, success=False, message=message, full=True)
        session = self._sessions[name] = Session(question)
        self._rest(session, now)
        return OpenSessionReqOutput(id=question.id, session_id=name)

    def close(self, question: CloseSessionReqInput) -> CloseSessionReqOutput:
        """Close a session: at once, or with the last of its turns in flight; return the answer."""
        session = self._sessions.get(question.session_id)
        if session is None:
            message = f"session {question.session_id!r} is not open"
            return CloseSessionReqOutput(id=question.id, success=False, message=message)
        session.closing = True
        self._idle.drop(session.id)
        if not session.live:
            self._remove(session)
        return CloseSessionReqOutput(id=question.id)

    def expire(self, now: float) -> list[str]:
        """Close the sessions that were not used for their timeout; return their ids."""
        expired = self._idle.passed(now)
        for name in expired:
            self._remove(self._sessions[name])
        return expired

    @property
    def next(self) -> float | None:
        """When `expire` has something to do, if nothing comes; None: never."""
        return self._idle.next

    # --- turns -----------------------------------------------------------------

    def look(self, request: TokenizedGenerateReqInput) -> Turn | None:
        """Return the turn that a request would be; nothing changes until `begin`.

        Args:
            request: as it came: its prompt is what it adds.

        Returns:
            The turn; None if the request is of no session.

        Raises:
            SessionRefused: the session or the turn it names is not there, or it asks for what cannot be.
        """
        params = request.session_params
        if params is None or params.id is None:
            return None
        session = self._sessions.get(params.id)
        if session is None:
            raise SessionRefused(
                f"session {params.id!r} is not open: it was closed or never opened, its timeout has passed, "
                f"or the process that held it has ended, which sessions do not survive"
            )
        if session.closing:
            raise SessionRefused(f"session {params.id!r} is being closed")
        turn = self._place(session, params, request)
        if params.replace:
            choose_replaced(turn, params.rid)
        if any(other.rid == turn.rid and other not in turn.ends for other in session.live.values()):
            raise SessionRefused(f"session {session.id!r} has a request {turn.rid!r} that is not over yet")
        self._check_room(session, turn)
        return turn

    def begin(self, turn: Turn) -> list[Vid]:
        """Take what `look` returned, before anything else is done; return the vids that have to be ended now.

        Of each of these, `finish` has to be told.
        """
        session = turn.session
        self._idle.drop(session.id)
        self._count(session, 1, turn.room)
        session.live[turn.vid] = self._turns[turn.vid] = turn
        if turn.base is not None:
            turn.base.uses += 1
        known = [
            said
            for said in session.said.values()
            if session.streaming or said is turn.base or said.rid == turn.rid
        ]
        for said in known:
            self._settle(said)
        return [other.vid for other in turn.ends]

    def finish(self, vid: Vid, reason: FinishReason, now: float, output: Tokens = NO_TOKENS) -> None:
        """End a turn; nothing happens if the vid is none in flight.

        Args:
            vid: which.
            reason: how it ended; one that did not come to its own end never was.
            now: seconds on the caller's clock.
            output: what it said.
        """
        turn = self._turns.get(vid)
        if turn is None or vid not in turn.session.live:
            return
        session = turn.session
        if reason.type not in ("stop", "length"):
            self._drop(turn)
        else:
            del session.live[vid]
            turn.tail = np.concatenate((turn.tail, output))
            self._count(session, 0, len(turn.tail) - turn.room)
            turn.room = len(turn.tail)
            session.said[turn.rid] = turn
        if session.live:
            return
        if session.closing:
            self._remove(session)
        else:
            self._rest(session, now)

    def forget(self, vid: Vid) -> None:
        """Drop a turn whose caller left before hearing of its end; one that others go on behind stays."""
        turn = self._turns.get(vid)
        if turn is not None and turn.session.said.get(turn.rid) is turn:
            self._drop(turn)

    # --- where a turn goes -------------------------------------------------------

    def _place(self, session: Session, params: SessionParams, request: TokenizedGenerateReqInput) -> Turn:
        base = find_base(session, params)
        keep = 0
        if base is not None:
            in_flight = base.vid in session.live
            keep = base.prompt_tokens if in_flight or params.drop_previous_output else base.length
        offset = params.offset or keep
        if offset > keep:
            raise SessionRefused(f"offset is {offset}, but only {keep} tokens are there")
        keep = offset
        own: Tokens = np.frombuffer(request.input_ids, dtype=np.int32)
        if keep and own[0] == self._bos:
            own = own[1:]
        drops: list[Turn] = []
        if base is not None and base.vid in session.live:  # it will not have been: go on behind what it did
            own = np.concatenate((base.tail[: max(0, keep - base.keep)], own))
            keep, drops, base = min(keep, base.keep), base.drops, base.base
        most = self._most(request.sampling_params, len(request.input_ids) // 4, keep + len(own))
        return Turn(session, request, base=base, keep=keep, tail=own, most=most, drops=drops)

    def _most(self, params: SamplingParams, own: int, prompt: int) -> int:
        """Return how long the output may be: a front gives all that fits to whoever asks for nothing else."""
        most = params.max_new_tokens or 0
        room = self._max_total_tokens - prompt
        if most == self._max_total_tokens - own and max(1, params.min_new_tokens) <= room < most:
            return room
        if most > room:
            raise SessionRefused(
                f"what is there and the prompt have {prompt} tokens, and max_new_tokens is {most}; together "
                f"at most {self._max_total_tokens} fit"
            )
        return most

    def _check_room(self, session: Session, turn: Turn) -> None:
        if session.count >= self._max_turns:
            raise SessionRefused(
                f"session {session.id!r} holds {session.count} requests; at most {self._max_turns} fit: "
                f"open another"
            )
        if self._room + turn.room > self._max_tokens:
            raise SessionRefused(
                f"sessions hold {self._room} tokens, and with up to {turn.room} more they would hold over "
                f"{self._max_tokens}: close one",
                status=429,
            )

    # --- the tree ----------------------------------------------------------------

    def _settle(self, turn: Turn) -> None:
        """Make a turn that was said part of the tree."""
        session = turn.session
        del session.said[turn.rid], self._turns[turn.vid]
        named = session.turns
        old = [*named.values()] if session.streaming else [*turn.drops]
        for one in old:
            if session.said.get(one.rid) is one:
                self._drop(one)
            elif named.get(one.rid) is one:
                del named[one.rid]
        if turn.rid in named:
            old.append(named[turn.rid])
        named[turn.rid] = turn
        turn.drops = []
        for one in old:
            self._prune(one)
        self._join(turn)

    def _drop(self, turn: Turn) -> None:
        """Let a turn that is in no tree never have been."""
        session = turn.session
        del self._turns[turn.vid]
        if session.live.pop(turn.vid, None) is None:
            del session.said[turn.rid]
        turn.uses = -1
        self._count(session, -1, -turn.room)
        if turn.base is not None:
            turn.base.uses -= 1
            self._prune(turn.base)

    def _prune(self, turn: Turn | None) -> None:
        """Free a turn that has no name and that nothing goes on behind, and those before it likewise."""
        while turn is not None and turn.uses == 0 and turn.session.turns.get(turn.rid) is not turn:
            turn.uses = -1
            self._count(turn.session, -1, -turn.room)
            turn = turn.base
            if turn is not None:
                turn.uses -= 1

    def _join(self, turn: Turn) -> None:
        """Make a turn one with those before it that have no name and that nothing else goes on behind."""
        session = turn.session
        while (base := turn.base) is not None and base.uses == 1 and session.turns.get(base.rid) is not base:
            if turn.keep > base.keep:
                turn.tail = np.concatenate((base.tail[: turn.keep - base.keep], turn.tail))
                turn.keep = base.keep
            self._count(session, -1, len(turn.tail) - turn.room - base.room)
            turn.room, turn.base = len(turn.tail), base.base

    # --- all of them ---------------------------------------------------------------

    def _count(self, session: Session, turns: int, room: int) -> None:
        session.count += turns
        session.room += room
        self._room += room

    def _rest(self, session: Session, now: float) -> None:
        if session.timeout is not None:
            self._idle.set(session.id, now + session.timeout)

    def _remove(self, session: Session) -> None:
        del self._sessions[session.id]
        self._room -= session.room
        for turn in session.said.values():
            del self._turns[turn.vid]
