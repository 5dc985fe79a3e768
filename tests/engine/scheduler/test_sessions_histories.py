"""What a caller knows of a session is what the session holds, whatever crosses on the way.

Callers and `Sessions` are joined by two queues, one each way, which only keep their order. Callers begin
turns, read them to their ends, and leave early; each remembers what he was told, and every prompt has to be
what its caller knew of the turn that it names, when he asked. Seeded faults have to be noticed, those
among them that were reported of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import request

from vidette.scheduler.sessions import Sessions
from vidette.scheduler.turns import NO_TOKENS, Session, SessionRefused, Tokens, Turn
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    CloseSessionReqInput,
    FinishReason,
    OpenSessionReqInput,
    SessionParams,
    TokenizedGenerateReqInput,
)

STOP = FinishReason("stop", matched=0)
ABORT = FinishReason("abort", message="the caller ended the request")
ERROR = FinishReason("error", message="its deadline passed")
ACTIONS = 80
WEIGHTS = (4, 1, 5, 4, 4, 1)


@dataclass(eq=False)
class Asked:
    """A turn as its caller sees it."""

    vid: Vid
    rid: str
    behind: Asked | None
    prompts: list[list[int]]
    """What its whole prompt may be; none: it has to be refused."""
    drops: list[Asked] = field(default_factory=list)
    prompt: list[int] | None = None
    """What the whole prompt was."""
    output: list[int] = field(default_factory=list)
    over: bool = False
    """Whether its caller has heard of its end, or left."""
    named: bool = False
    """Whether another names it while it is in flight; its caller does not leave it then."""


class History:
    """Callers of one session, and what happens to them."""

    def __init__(self, random: Random, make: Callable[..., Sessions]) -> None:
        self.random = random
        self.streaming = random.random() < 0.3
        self.sessions = make(max_total_tokens=10_000)
        self.now = 0.0
        self.down: deque[TokenizedGenerateReqInput | Vid] = deque()
        self.up: deque[tuple[Vid, bool]] = deque()
        self.asked: dict[Vid, Asked] = {}
        self.known: dict[str, Asked] = {}
        """By rid: what was read to its end."""
        self.closed = False
        opened = self.sessions.open(
            OpenSessionReqInput(id=0, session_id="s", streaming=self.streaming, timeout=50), 0
        )
        assert opened.success

    def run(self) -> None:
        actions = [self.ask, self.leave, self.arrive, self.end, self.hear, self.wait]
        for _ in range(ACTIONS):
            self.random.choices(actions, WEIGHTS)[0]()
            self.check()
        self.close()
        while self.down or self.live or self.up:
            self.arrive()
            self.end()
            self.hear()
            self.check()
        assert len(self.sessions) == self.sessions.tokens == len(self.sessions._turns) == 0
        assert all(turn.over for turn in self.asked.values()), "somebody waits for ever"

    @property
    def live(self) -> list[Asked]:
        """Turns in flight, as the session sees it."""
        session = self.sessions._sessions.get("s")
        return [] if session is None else [self.asked[vid] for vid in session.live]

    # --- callers ---------------------------------------------------------------

    def ask(self) -> None:
        flying = [turn for turn in self.asked.values() if not turn.over]
        free = sorted(set("abcd") - {turn.rid for turn in flying})
        if not free or (self.streaming and flying):
            return
        vid, rid = Vid(len(self.asked) + 1), self.random.choice(free)
        own = [self.random.randrange(1, 50) for _ in range(self.random.randrange(1, 4))]
        rids = [turn.rid for turn in self.asked.values()]
        once = [turn for turn in flying if rids.count(turn.rid) == 1]  # else it may name an older one by then
        going = {turn for other in flying for turn in other.drops}
        names = sorted(
            name for name, turn in self.known.items() if turn not in going and name in {*free, rid}
        )
        if self.streaming:
            base = next(iter(self.known.values()), None)
            params = SessionParams(id="s", rid=self.random.choice([None, base.rid]) if base else None)
            turn = Asked(vid, rid, base, [(whole(base) if base else []) + own])
        elif once and self.random.random() < 0.2:
            base = self.random.choice(once)
            params = SessionParams(id="s", rid=base.rid, replace=True)
            # Whether it has said all by the time this arrives its caller cannot know.
            turn = Asked(vid, rid, base, [])
            turn.drops = [*base.drops, *(one for one in flying if follows(one, base))]
            turn.prompts = [[-1]]
            base.named = True
        elif not names or self.random.random() < 0.2:
            params = SessionParams(id="s", replace=self.random.random() < 0.2)
            turn = Asked(vid, rid, None, [own])
            if params.replace:
                turn.drops = [*self.known.values(), *flying]
        else:
            base = self.known[self.random.choice(names)]
            params = SessionParams(
                id="s",
                rid=base.rid,
                offset=self.random.choice([None, 0, 1, len(whole(base))]),
                replace=self.random.random() < 0.2,
                drop_previous_output=self.random.random() < 0.2,
            )
            assert base.prompt is not None
            there = base.prompt if params.drop_previous_output else whole(base)
            if params.offset and params.offset > len(there):
                params = msgspec.structs.replace(params, offset=None)
            turn = Asked(vid, rid, base, [there[: params.offset or len(there)] + own])
            if params.replace:
                turn.drops = [one for one in [*self.known.values(), *flying] if follows(one, base)]
        if self.closed:
            turn.prompts = []
        self.asked[vid] = turn
        made = request(vid, own, max_new_tokens=9, session_params=params)
        self.down.append(msgspec.structs.replace(made, rid=rid))

    def leave(self) -> None:
        flying = [turn for turn in self.asked.values() if not (turn.over or turn.named)]
        if flying:
            turn = self.random.choice(flying)
            turn.over = True
            self.down.append(turn.vid)

    def hear(self) -> None:
        if self.up:
            vid, good = self.up.popleft()
            turn = self.asked[vid]
            if not turn.over:
                turn.over = True
                if good:
                    for one in turn.drops:
                        if self.known.get(one.rid) is one:
                            del self.known[one.rid]
                    if self.streaming:
                        self.known.clear()
                    self.known[turn.rid] = turn

    # --- the scheduler -----------------------------------------------------------

    def arrive(self) -> None:
        if not self.down:
            return
        message = self.down.popleft()
        if isinstance(message, int):
            self.sessions.finish(Vid(message), ABORT, self.now)
            self.sessions.forget(Vid(message))
            return
        turn = self.asked[Vid(message.vid)]
        try:
            made = self.sessions.look(message)
        except SessionRefused:
            assert not turn.prompts or turn.prompts == [[-1]], (
                "a turn was refused whose caller knew what he named"
            )
            self.up.append((turn.vid, False))
            return
        assert made is not None
        turn.prompt = made.tokens().tolist()
        if turn.prompts == [[-1]]:
            base = turn.behind
            assert base is not None
            assert base.prompt is not None
            own = list(message.token_ids)
            turn.prompts = [base.prompt + own, whole(base) + own]
        assert turn.prompt in turn.prompts, "a prompt is not what its caller knew"
        for vid in self.sessions.begin(made):
            self.sessions.finish(vid, ABORT, self.now)
            self.up.append((vid, False))

    def end(self) -> None:
        if self.live:
            turn = self.random.choice(self.live)
            good = self.random.random() < 0.7
            output = [self.random.randrange(1, 50) for _ in range(self.random.randrange(3))]
            if good:
                turn.output = output
            self.sessions.finish(
                turn.vid, STOP if good else ERROR, self.now, np.array(output, dtype=np.int32)
            )
            self.up.append((turn.vid, good))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            while self.down:  # what was asked before is taken before
                self.arrive()
            flying = bool(self.live)
            self.sessions.close(CloseSessionReqInput(id=0, session_id="s"))
            assert len(self.sessions) == flying

    def wait(self) -> None:
        self.now += self.random.choice([1] * 9 + [60])
        idle = self.sessions.next
        expired = self.sessions.expire(self.now)
        assert bool(expired) == (idle is not None and idle <= self.now)
        if self.live:
            assert not expired
        if expired:
            self.closed = True
            for message in self.down:
                if not isinstance(message, int):
                    self.asked[Vid(message.vid)].prompts = []

    # --- at any time ---------------------------------------------------------------

    def check(self) -> None:
        room = 0
        for session in self.sessions._sessions.values():
            found = reachable(session)
            assert session.count == len(found)
            assert session.room == sum(turn.room for turn in found)
            for turn in found:
                assert turn.uses == sum(other.base is turn for other in found)
            room += session.room
        assert self.sessions.tokens == room


def whole(turn: Asked) -> list[int]:
    assert turn.prompt is not None
    return turn.prompt + turn.output


def follows(turn: Asked, base: Asked) -> bool:
    step = turn.behind
    while step is not None and step is not base:
        step = step.behind
    return step is not None


def reachable(session: Session) -> set[Turn]:
    found: set[Turn] = set()
    for turn in (*session.live.values(), *session.said.values(), *session.turns.values()):
        found |= set(_chain(turn))
    return found


def _chain(turn: Turn | None) -> Iterator[Turn]:
    while turn is not None:
        yield turn
        turn = turn.base


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_prompt_is_what_its_caller_knew(random: Random) -> None:
    """Every turn goes on with what its caller was told; nothing is left when all is over."""
    History(random, Sessions).run()


def test_long_histories() -> None:
    """The same, of many at random."""
    for seed in range(1000):
        History(Random(seed), Sessions).run()


# --- seeded faults ---------------------------------------------------------------------------------------


class CommitsTheAborted(Sessions):
    """What an aborted request had said counts (sgl-project/sglang #36475)."""

    def finish(self, vid: Vid, _: FinishReason, now: float, output: Tokens = NO_TOKENS) -> None:
        super().finish(vid, STOP, now, output)


class AbortsInTheQueueStay(Sessions):
    """A request that is aborted stays in flight (sgl-project/sglang #31765)."""

    def finish(self, vid: Vid, reason: FinishReason, now: float, output: Tokens = NO_TOKENS) -> None:
        if reason.type != "abort":
            super().finish(vid, reason, now, output)


class CommitsTheAbandoned(Sessions):
    """What was said counts, though its caller left before hearing of it (sgl-project/sglang #36475)."""

    def forget(self, vid: Vid) -> None:
        pass


class LateAbortsFindTheNext(Sessions):
    """A late abort ends what is in flight by then (sgl-project/sglang #36475)."""

    def forget(self, vid: Vid) -> None:
        super().forget(vid)
        for session in self._sessions.values():
            for other in list(session.live):
                self.finish(other, ABORT, 0.0)


class DropsAtOnce(Sessions):
    """What is replaced is dropped when the replacement begins."""

    def begin(self, turn: Turn) -> list[Vid]:
        ends = super().begin(turn)
        for one in turn.drops:
            if turn.session.turns.get(one.rid) is one:
                del turn.session.turns[one.rid]
                self._prune(one)
        return ends


class ClosesAtOnce(Sessions):
    """A session is closed under what is in flight."""

    def close(self, question: CloseSessionReqInput) -> Any:
        session = self._sessions.get(question.session_id)
        answer = super().close(question)
        if session is not None and session.live:
            self._remove(session)
        return answer


class ExpiresInFlight(Sessions):
    """A session's time runs on while one of its requests runs."""

    def begin(self, turn: Turn) -> list[Vid]:
        ends = super().begin(turn)
        self._rest(turn.session, 0.0)
        return ends


class ForgetsWhatIsBehind(Sessions):
    """A turn whose name goes to another is freed, whatever goes on behind it."""

    def _settle(self, turn: Turn) -> None:
        old = turn.session.turns.get(turn.rid)
        super()._settle(turn)
        if old is not None and old.uses > 0:
            old.tail = NO_TOKENS


class KeepsTheNameless(Sessions):
    """A turn whose name goes to another is never freed."""

    def _prune(self, turn: Turn | None) -> None:
        pass


MUTANTS = [
    CommitsTheAborted,
    AbortsInTheQueueStay,
    CommitsTheAbandoned,
    LateAbortsFindTheNext,
    DropsAtOnce,
    ClosesAtOnce,
    ExpiresInFlight,
    ForgetsWhatIsBehind,
    KeepsTheNameless,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_fault_is_noticed(mutant: type[Sessions]) -> None:
    """A history at random finds it."""
    for seed in range(500):
        try:
            History(Random(seed), mutant).run()
        except (AssertionError, KeyError):
            return
    pytest.fail("no history has noticed it")
