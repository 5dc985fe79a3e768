"""`LoopWorld`: fronts, links and detokenizers as in every world of requests, and a step loop as scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, combinations, product
from typing import Any, ClassVar, Final, Self

from vidette_fuzz.stepping.bounds import LoopBounds, Outcome
from vidette_fuzz.stepping.loop import PROMPT, WAIT, ExploredLoop, LoopParts
from vidette_fuzz.stepping.turns import NAME, Asked, Book
from vidette_protocol.ids import Vid, count_of, label
from vidette_protocol.invariants import violations
from vidette_protocol.lifecycle import DetokenizerMachine, Row, end_of
from vidette_protocol.messages import (
    AbortReq,
    CloseSessionReqInput,
    OpenSessionReqInput,
    SamplingParams,
    SessionParams,
    TokenizedGenerateReqInput,
    TokenRow,
)
from vidette_protocol.messages.columns import pack_i32
from vidette_protocol.world import Action, Ask, Bounds, Parts, Replica, World
from vidette_protocol.world.choices import BY_ITSELF, NAMES

LINK: Final = (0, 0)
CLOSE: Final = Vid(-1)
"""On the link to the scheduler, in the place of a vid: close the session."""
ANEW, BEHIND, REPLACING = range(3)
"""How a turn is asked for, the first number of a submit; the second is the vid that it names."""
_OWN: Final = 400
"""What the first turn adds; of the next ones it is one more each."""


class LoopReplica(Replica):
    """A step loop and a detokenizer.

    Args:
        loop: the step loop.
        detokenizer: its machine.
        book: the truth about the session.
    """

    __slots__ = ("_ours", "book", "loop")

    def __init__(self, loop: ExploredLoop, detokenizer: DetokenizerMachine, book: Book | None) -> None:
        super().__init__(loop.machine, detokenizer, 0)
        self.loop = loop
        self.book = book
        self._ours = True

    def copy(self) -> Self:
        """Return an independent replica in the same state; the loop is shared until one changes it."""
        twin = type(self)(self.loop, self.detokenizer.copy(), None if self.book is None else self.book.copy())
        twin._ours = False
        twin.rows, twin.holding, twin.aborted, twin.faults = (
            self.rows,
            self.holding,
            self.aborted,
            self.faults,
        )
        return twin

    def key(self, forgotten: AbstractSet[Vid]) -> tuple[object, ...]:  # type: ignore[override]
        """Return a hashable picture; of the loop it has one part more."""
        book = None if self.book is None else self.book.key()
        return (*super().key(forgotten), self.loop.picture(), book)

    def take(self, vid: Vid, command: TokenizedGenerateReqInput | AbortReq, asked: Asked | None) -> None:
        """Let a request or an abort come to the scheduler.

        Args:
            vid: of which.
            command: it.
            asked: what it is as a turn of the session.
        """
        loop, book = self._own(), self.book
        abort = isinstance(command, AbortReq)
        if abort:
            self.aborted |= {vid}
        live = set(self.scheduler.vids())
        rows = loop.take(command)
        if book is not None and asked is not None and not abort and vid not in self.aborted:
            self._compare(vid, asked, book, live.difference(self.scheduler.vids()))
        if book is not None and abort:
            book.abort(vid)
        self._say(rows)

    def close(self) -> None:
        """Let the session be closed."""
        rows = self._own().take(CloseSessionReqInput(id=0, session_id=NAME))
        if self.book is not None:
            self.book.close()
        self._say(rows)

    def wait(self) -> None:
        """Let time pass."""
        self._own().pass_time()
        if self.book is not None:
            self.book.wait()
        self._say([])

    def compute(self, batch: tuple[Vid, ...], outcomes: Iterable[Outcome]) -> None:
        """Let a batch be computed."""
        for vid in batch:
            if vid in self.aborted:
                self._fault(f"6: vid {label(vid)} was launched after its abort was applied")
        self._say(self._own().compute(batch, outcomes))

    def retract(self, vid: Vid) -> None:
        """Let a request give its blocks up, and wait for others."""
        self._own().retract(vid)
        self._say([])

    def flush(self) -> None:
        """Let all be evicted that nobody uses."""
        self._own().flush()
        self._say([])

    def _compare(self, vid: Vid, asked: Asked, book: Book, ended: set[Vid]) -> None:
        """Compare what becomes of a turn with what has to."""
        expected, prompt = book.expect(asked), self.loop.prompt(vid)
        if (expected is None) != (prompt is None):
            what = "is taken" if expected is None else "is refused"
            self._fault(
                f"3: the turn of vid {label(vid)} {what}, against what its caller knows of the session"
            )
        elif prompt is not None and prompt != expected:
            self._fault(
                f"3: the turn of vid {label(vid)} goes on behind {prompt}, and its caller knows {expected}"
            )
        elif prompt is not None and ended != set(book.begin(vid, asked, prompt)):
            self._fault(f"3: the turn of vid {label(vid)} ends vids {_labels(ended)}")

    def _own(self) -> ExploredLoop:
        """Return the loop, to be changed."""
        if not self._ours:
            self.loop = self.loop.copy()
            self.scheduler = self.loop.machine
            self._ours = True
        return self.loop

    def _say(self, rows: Sequence[TokenRow]) -> None:
        loop = self.loop
        for row in rows:
            self.rows += (Row(Vid(row.vid), row.offset, len(row.token_ids), end_of(row.reason)),)
        if self.book is not None:
            for vid, how in loop.ends.items():
                self.book.end(vid, well=how in ("stop", "length"), output=loop.text(vid))
            if loop.turns != set(self.book.live):
                theirs, ours = _labels(loop.turns), _labels(self.book.live)
                self._fault(f"7: the session takes vids {theirs} for turns in flight, and {ours} are")
        self.faults += tuple(loop.check(rows))
        loop.ends.clear()
        self.holding = loop.running

    def leftovers(self) -> Iterator[str]:
        """Yield a sentence for each rule that is broken if nothing lives."""
        blocks = self.loop.blocks
        if blocks.lost or blocks.cached != blocks.explored.cached:
            yield "5: after a flush some blocks would not be free"
        sessions, book = self.loop.sessions, self.book
        if book is not None and (len(sessions) != book.opened or (not book.opened and sessions.tokens)):
            yield f"7: {len(sessions)} sessions with {sessions.tokens} tokens are left"


class LoopWorld(World):
    """A world of requests whose scheduler is a step loop.

    Args:
        loop_parts: the classes of the scheduler.
        loop_bounds: what it has to do.
        bounds: how large the rest is.
        parts: the classes of the other roles.
    """

    __slots__ = ("_opened", "asked", "loop_bounds", "loop_parts", "waits")

    names: ClassVar = NAMES | {"step", "flush", "close session", "time passes"}
    kind: ClassVar[type[LoopReplica]] = LoopReplica
    """Of its replicas."""

    def __init__(
        self,
        loop_parts: LoopParts,
        loop_bounds: LoopBounds,
        bounds: Bounds,
        parts: Parts = Parts(),  # noqa: B008  immutable
    ) -> None:
        self.loop_parts = loop_parts
        self.loop_bounds = loop_bounds
        self.asked: dict[Vid, Asked] = {}
        """What each request is as a turn of the session."""
        self.waits = 0
        self._opened = loop_bounds.session
        super().__init__(parts, bounds)

    def _new_replica(self) -> LoopReplica:
        bounds = self.loop_bounds
        loop = self.loop_parts.loop(self.loop_parts, bounds)
        opened, self._opened = self._opened, False
        if opened:
            loop.take(
                OpenSessionReqInput(id=0, session_id=NAME, streaming=bounds.streaming, timeout=WAIT / 2)
            )
        book = Book(streaming=bounds.streaming, opened=opened) if bounds.session else None
        return self.kind(loop, self.parts.detokenizer(), book)

    def copy(self) -> Self:
        """Return a world in the same state."""
        twin = super().copy()
        twin.loop_parts = self.loop_parts
        twin.loop_bounds = self.loop_bounds
        twin.asked = self.asked.copy()
        twin.waits = self.waits
        twin._opened = self._opened
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        return (*super().key(), (tuple(self.asked.items()), self.waits))

    def _at(self, number: int) -> LoopReplica:
        replica = self.replicas[number]
        assert isinstance(replica, LoopReplica)
        return replica

    # --- what can happen -------------------------------------------------------

    def singles(self) -> list[Action]:
        """List what can happen next but for steps."""
        bounds, found = self.loop_bounds, []
        for action in super().singles():
            if action.name == "submit" and bounds.session:
                found += [action._replace(counts=counts) for counts in self._turns()]
            elif action.name != "reject":
                found.append(action)
        for number in range(len(self.replicas)):
            loop, opened = self._at(number).loop, bool(self._at(number).loop.sessions)
            if bounds.flushes and loop.blocks.cached:
                found.append(Action("flush", replica=number))
            if opened and self.waits < bounds.waits:
                found.append(Action("time passes", replica=number))
        if bounds.closes and not any(ask.vid == CLOSE for ask in self.asks.get(LINK, ())):
            book = self._at(0).book
            if book is not None and book.opened and not book.closing:
                found.append(Action("close session"))
        return found

    def _turns(self) -> Iterator[tuple[int, ...]]:
        """Yield how the next turn may be asked for."""
        yield (ANEW,)
        if self.loop_bounds.streaming:
            return
        for vid, stream in self.streams.items():
            if stream.here and self._may_name(vid):
                yield BEHIND, vid
                yield REPLACING, vid

    def _may_name(self, vid: Vid) -> bool:
        """Whether a caller has reason to name a turn: one in flight, or one that he has heard to its end."""
        stream, book = self.streams[vid], self._at(0).book
        return stream.replica is not None and (not stream.ends or (book is not None and vid in book.turns))

    def enabled(self) -> list[Action]:
        """List everything that can happen next, in a fixed order."""
        found = self.singles()
        for number in range(len(self.replicas)):
            loop, vids = self._at(number).loop, self._at(number).launchable
            steps = [
                Action("step", batch, replica=number, counts=tuple(chain.from_iterable(outcomes)))
                for size in range(1, len(vids) + 1)
                for batch in combinations(vids, size)
                if loop.fits(batch)
                for outcomes in product(*map(loop.outcomes, batch))
            ]
            if vids and not steps and self.retractions >= self.bounds.retractions:
                steps = [Action("retract", (vid,), replica=number) for vid in sorted(loop.running)]
            found += steps
        return found

    def draining(self) -> list[Action]:
        """List what happens without new work, and without anybody's choice."""
        found = [action for action in super().singles() if action.name in BY_ITSELF]
        for number in range(len(self.replicas)):
            loop, batch = self._at(number).loop, list[Vid]()
            vids = self._at(number).launchable
            for vid in [*sorted(loop.running), *sorted(set(vids) - loop.running)]:
                if loop.fits([*batch, vid]):
                    batch.append(vid)
            if batch:
                found.append(Action("step", tuple(batch), replica=number, counts=(0, 0) * len(batch)))
            elif loop.running:
                found.append(Action("retract", (max(loop.running),), replica=number))
        return found

    # --- how it happens --------------------------------------------------------

    def _act(self, action: Action) -> None:
        match action.name:
            case "submit":
                super()._act(action)
                vid = next(reversed(self.streams))
                if self.loop_bounds.session:
                    how, *named = action.counts
                    behind = Vid(named[0]) if named else None
                    self.asked[vid] = Asked((_OWN + count_of(vid),), behind, replace=how == REPLACING)
            case "step":
                counts = iter(action.counts)
                self._loop(action.replica).compute(
                    action.vids, [Outcome(*pair) for pair in zip(counts, counts, strict=True)]
                )
            case "flush":
                self._loop(action.replica).flush()
            case "time passes":
                self.waits += 1
                self._loop(action.replica).wait()
            case "close session":
                asks = (*self.asks.get(LINK, ()), Ask(CLOSE, abort=False, floor=Vid(0)))
                self.asks[LINK] = asks
            case _:
                super()._act(action)

    def _loop(self, number: int) -> LoopReplica:
        """Return a replica that may be changed."""
        replica = self._replica(number)
        assert isinstance(replica, LoopReplica)
        return replica

    def _ask(self, ask: Ask, number: int) -> None:
        replica = self._loop(number)
        if ask.vid == CLOSE:
            replica.close()
        elif ask.abort:
            replica.take(ask.vid, AbortReq(vid=ask.vid, floor=ask.floor, abort_all=ask.every), None)
        else:
            replica.take(ask.vid, self._request(ask), self.asked.get(ask.vid))

    def _request(self, ask: Ask) -> TokenizedGenerateReqInput:
        vid, bounds, asked = ask.vid, self.loop_bounds, self.asked.get(ask.vid)
        params = SamplingParams(
            max_new_tokens=self.bounds.tokens,
            temperature=0.0,
            sampling_seed=0,
            stream_interval=bounds.interval,
        )
        if asked is None:
            first = PROMPT + count_of(vid) % bounds.prompts * bounds.prompt
            own: Sequence[int] = range(first, first + bounds.prompt)
            session = None
        else:
            own = asked.own
            behind = None if asked.behind is None or bounds.streaming else str(asked.behind)
            session = SessionParams(id=NAME, rid=behind, replace=asked.replace)
        return TokenizedGenerateReqInput(
            vid=vid,
            floor=ask.floor,
            rid=str(vid),
            input_ids=pack_i32(own),
            sampling_params=params,
            session_params=session,
        )

    # --- what must hold --------------------------------------------------------

    def check(self) -> list[str]:
        """Return a sentence for each rule that is broken."""
        found = violations(self)
        if self.settled:
            for number in range(len(self.replicas)):
                if not len(self._at(number).scheduler):
                    found += self._at(number).leftovers()
        return found

    # --- how it is told --------------------------------------------------------

    def tell(self, action: Action, after: Any) -> str:
        """Return in a line what an action does; `after`, of this class, is what it leads to."""
        match action.name:
            case "submit" if action.counts:
                how, *named = action.counts
                text = super().tell(action, after)
                what = ["", ", a turn behind vid {}", ", a turn in the place of what is behind vid {}"][how]
                return text + what.format(*(label(Vid(vid)) for vid in named))
            case "step":
                counts = iter(action.counts)
                outcomes = [Outcome(*pair) for pair in zip(counts, counts, strict=True)]
                said = [describe(vid, outcome) for vid, outcome in zip(action.vids, outcomes, strict=True)]
                return f"a step computes {', '.join(said)}" + self.tell_rows(action, after)
            case "flush":
                return "all that nobody uses is evicted"
            case "time passes":
                return "time passes"
            case "close session":
                return "the session is to be closed"
            case "request arrives" if self.asks[LINK][0].vid == CLOSE:
                return "the close of the session reaches the scheduler"
            case _:
                return super().tell(action, after)

    def tell_rows(self, action: Action, after: Self) -> str:
        """Return what a step says of requests, to be put behind the rest."""
        before = len(self.replicas[action.replica].rows)
        rows = after.replicas[action.replica].rows[before:]
        return "".join(
            f"; vid {label(row.vid)} says {row.tokens} from {row.offset} on"
            + (" and ends" if row.end else "")
            for row in rows
        )


def _labels(vids: Iterable[Vid]) -> str:
    return f"[{', '.join(map(label, sorted(vids)))}]"


def describe(vid: Vid, outcome: Outcome) -> str:
    """Return in a few words what the model says of a request."""
    text = f"vid {label(vid)}"
    if outcome.right:
        text += f", {outcome.right} of whose drafts are right"
    if outcome.stop:
        text += f", whose token {outcome.stop} of these ends it"
    return text
