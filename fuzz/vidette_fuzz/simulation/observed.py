"""The engine's own parts, whose machines tell a `Refinement` what they are asked.

Nothing is decided here: each method does what its parent does, and tells of it. A seeded bug is a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vidette.detokenizer.detokenizer import Detokenizer
from vidette.front.manager import TokenizerManager
from vidette.models.interface import Model, TokenTable
from vidette.scheduler.drafts import Drafts
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette.scheduler.sequence import Sequence as Work
from vidette.transport.link import Link
from vidette_fuzz.overlapping import Overlapping
from vidette_fuzz.simulation.refinement import Refinement
from vidette_protocol.ids import Rid, Vid
from vidette_protocol.lifecycle import DetokenizerMachine, End, FrontMachine, Row, SchedulerMachine
from vidette_protocol.lifecycle.front import Replaced


class ObservedFront(FrontMachine):
    """The front's machine; tells of every call that changes it."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Refinement) -> None:
        super().__init__()
        self._watch: Refinement | None = watch

    def submit(self, rid: Rid) -> Vid:
        """As its parent."""
        vid = super().submit(rid)
        self._tell.submitted("submit", (rid,))
        return vid

    def submit_group(self, rids: Sequence[Rid]) -> tuple[Vid, ...]:
        """As its parent."""
        vids = super().submit_group(rids)
        self._tell.submitted("submit group", tuple(rids))
        return vids

    def replace(self, rid: Rid) -> tuple[Vid, Replaced | None]:
        """As its parent, whose own abort of the holder is no leaving of its caller."""
        watch, self._watch = self._watch, None
        try:
            done = super().replace(rid)
        finally:
            self._watch = watch
        self._tell.submitted("submit" if done[1] is None else "replace", (rid,))
        return done

    def send(self, vid: Vid, replica: int = 0) -> None:
        """As its parent."""
        super().send(vid, replica)
        self._tell.sent(vid)

    def abort(self, vid: Vid) -> bool:
        """As its parent."""
        posts = super().abort(vid)
        if self._watch is not None:
            self._watch.left(vid)
        return posts

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> Vid | None:
        """As its parent."""
        to = super().receive(vid, offset, count, end)
        self._tell.text_came(Row(vid, offset, count, end), to)
        return to

    def lost(self, replica: int | None = None) -> list[Vid]:
        """As its parent."""
        told = super().lost(replica)
        self._tell.lost()
        return told

    @property
    def _tell(self) -> Refinement:
        assert self._watch is not None
        return self._watch


class ObservedScheduler(SchedulerMachine):
    """The scheduler's machine; tells of every call that changes it."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Refinement) -> None:
        super().__init__()
        self._watch = watch

    def request(self, vid: Vid, resumed: int = 0) -> Row | None:
        """As its parent."""
        row = super().request(vid, resumed)
        self._watch.asked(vid, abort=False, resumed=resumed)
        return row

    def abort(self, vid: Vid) -> Row | None:
        """As its parent."""
        row = super().abort(vid)
        self._watch.asked(vid, abort=True)
        return row

    def expire(self, vid: Vid) -> Row | None:
        """As its parent."""
        row = super().expire(vid)
        if row is not None:
            self._watch.happened("expire", vid)
        return row

    def reject(self, vid: Vid) -> Row:
        """As its parent."""
        row = super().reject(vid)
        self._watch.happened("reject", vid)
        return row

    def retract(self, vid: Vid) -> None:
        """As its parent."""
        super().retract(vid)
        self._watch.retracted(vid)

    def launch(self, vids: Iterable[Vid]) -> None:
        """As its parent."""
        vids = list(vids)
        super().launch(vids)
        self._watch.launched(vids)

    def land(self, vid: Vid, count: int, *, end: bool) -> Row | None:
        """As its parent."""
        row = super().land(vid, count, end=end)
        self._watch.landed(vid, row)
        return row


class ObservedDetokenizer(DetokenizerMachine):
    """The detokenizer's machine; tells of every call that changes it."""

    __slots__ = ("_watch",)

    def __init__(self, watch: Refinement) -> None:
        super().__init__()
        self._watch = watch

    def receive(self, vid: Vid, offset: int, count: int, end: End | None) -> bool:
        """As its parent."""
        opens = super().receive(vid, offset, count, end)
        self._watch.row_came(Row(vid, offset, count, end))
        return opens


class SimulatedManager(TokenizerManager):
    """The front, watched.

    Args:
        scheduler: as its parent.
        detokenizers: as its parent.
        watch: who is told.
        options: as its parent.
    """

    def __init__(
        self, scheduler: Link, detokenizers: Sequence[Link], *, watch: Refinement, **options: Any
    ) -> None:
        super().__init__(scheduler, detokenizers, **options)
        self._machine = watch.front = ObservedFront(watch)

    def held(self) -> dict[str, int]:
        """Return how much is in each table of the front."""
        return {
            "requests of the front": len(self._machine),
            "rid slots": len(self._machine.key().slots),
            "groups": len(self._machine.key().groups),
            "routes": len(self._routes),
            "admitted requests": len(self._admission),
            "admitted tokens": self._admission.tokens,
            "questions": len(self._questions),
        }


class SimulatedLoop(StepLoop):
    """The scheduler's core, watched.

    Args:
        model: as its parent.
        options: as its parent.
        table: as its parent.
        watch: who is told.
        guess: makes the drafts of a request, in the place of those that it would make itself.
    """

    def __init__(
        self,
        model: Model,
        options: LoopOptions,
        *,
        table: TokenTable,
        watch: Refinement,
        guess: Callable[[Work], Drafts],
    ) -> None:
        super().__init__(model, options, table=table)
        self._watch = watch
        self._guess = guess
        self._machine = watch.scheduler = ObservedScheduler(watch)

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        """As its parent, once the device is done."""
        if isinstance(self._model, Overlapping):
            self._model.finish()
        effects = super().step(commands, now, launch=launch)
        self._watch.stepped()
        return effects

    def _begin(self, vid: Vid, now: float) -> None:
        begun = self._waiting[vid].begun
        super()._begin(vid, now)
        sequence = self._running[vid]
        if not begun and sequence.drafts is not None:
            sequence.drafts = self._guess(sequence)

    def held(self) -> dict[str, int]:
        """Return how much is in each table of the scheduler."""
        ledger = self.ledger()
        return {
            "requests of the scheduler": ledger.live,
            "waiting requests": ledger.waiting,
            "running requests": len(self._running),
            "tombstones": ledger.tombstones,
            "batches in flight": int(self._flight is not None),
            "blocks": ledger.blocks_used,
            "deadlines": len(self._deadlines),
            "times to wait or to run": len(self._patience),
            "queued requests": len(self._queue),
            "blocks that are being computed": len(self._prefilling),
            "blocks that are lost": self._cache.lost,
            "turns in flight": sum(len(session.live) for session in self._sessions._sessions.values()),
        }


class SimulatedDetokenizer(Detokenizer):
    """The detokenizer, watched.

    Args:
        table: as its parent.
        watch: who is told.
    """

    def __init__(self, table: TokenTable, watch: Refinement) -> None:
        super().__init__(table)
        self._machine = ObservedDetokenizer(watch)
        watch.detokenizers.append(self._machine)

    def held(self) -> dict[str, int]:
        """Return how much is in each table of the detokenizer."""
        return {"requests of the detokenizer": len(self._machine), "texts": len(self._texts)}
