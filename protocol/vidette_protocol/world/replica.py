"""`Replica`: in a world, one scheduler with its device and its KV pool, and its detokenizer.

It dies as a whole, and another one takes its place. What no machine can be asked is observed here: which
blocks are held, what was aborted before which launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Final, Self

from vidette_protocol.ids import Vid, label
from vidette_protocol.lifecycle import DetokenizerMachine, Row, SchedulerMachine, SchedulerState


class Replica:
    """A scheduler and a detokenizer, and the link between them.

    Args:
        scheduler: its machine.
        detokenizer: its machine.
        chunks: how often a request lands before its first token (its prefill is chunked).
    """

    __slots__ = (
        "_chunks",
        "aborted",
        "batch",
        "detokenizer",
        "faults",
        "holding",
        "prefilled",
        "rows",
        "scheduler",
    )

    def __init__(self, scheduler: SchedulerMachine, detokenizer: DetokenizerMachine, chunks: int) -> None:
        self._chunks = chunks
        self.scheduler = scheduler
        self.detokenizer = detokenizer
        self.rows: tuple[Row, ...] = ()
        """In flight, scheduler to detokenizer."""
        self.batch: tuple[Vid, ...] = ()
        """What is on the device."""
        self.holding: frozenset[Vid] = frozenset()
        """Vids that hold blocks."""
        self.aborted: frozenset[Vid] = frozenset()
        """Vids whose abort the scheduler has applied."""
        self.prefilled: dict[Vid, int] = {}
        """Landings of a live vid that were chunks of its prefill, since it holds blocks."""
        self.faults: tuple[str, ...] = ()
        """Broken rules that were seen on the way here."""

    def copy(self) -> Self:
        """Return an independent replica in the same state."""
        twin = type(self)(self.scheduler.copy(), self.detokenizer.copy(), self._chunks)
        twin.rows = self.rows
        twin.batch = self.batch
        twin.holding = self.holding
        twin.aborted = self.aborted
        twin.prefilled = self.prefilled.copy()
        twin.faults = self.faults
        return twin

    def key(self, forgotten: AbstractSet[Vid]) -> tuple[object, object, object]:
        """Return a hashable picture in three parts.

        Args:
            forgotten: vids of which nothing can come any more.
        """
        live, tombstones, ended = self.scheduler.key()
        aborted = self.aborted
        if forgotten:
            aborted -= forgotten
            ended = tuple(vid if vid not in forgotten else Vid(-1) for vid in ended)
        if len(live) > 1:
            live = tuple(sorted(live, key=_vid))  # see `launchable`: in which order they came decides nothing
        prefilled = frozenset(self.prefilled.items())
        return (
            (live, tombstones, ended),
            (self.batch, self.holding, aborted, prefilled, self.faults),
            (self.rows, self.detokenizer.key()),
        )

    def mentioned(self) -> Iterator[Vid]:
        """Yield the vids of which something may come from here, or to which it may matter what comes here."""
        yield from self.scheduler.vids()
        if self.scheduler.tombstones:
            yield from self.scheduler.key().tombstones
        yield from self.holding
        yield from self.batch
        for row in self.rows:
            yield row.vid
        for vid, _ in self.detokenizer.key():
            yield vid

    @property
    def launchable(self) -> list[Vid]:
        """Vids that the next batch may contain, in their order: so what lands together has one order."""
        if self.batch:
            return []
        return sorted(vid for vid in self.scheduler.vids() if self.scheduler.state(vid) in _LAUNCHABLE)

    def may_end(self, tokens: int) -> tuple[list[Vid], list[Vid]]:
        """Return which vids on the device come to their own end when they land, and which others may.

        Args:
            tokens: most of a request.
        """
        must: list[Vid] = []
        may: list[Vid] = []
        for vid in self.batch:
            if self.scheduler.state(vid) is SchedulerState.LAUNCHED:
                last = not self._prefilling(vid) and self.scheduler.offset(vid) + 1 >= tokens
                (must if last else may).append(vid)
        return must, may

    def ask(self, vid: Vid, *, abort: bool, resumed: int) -> None:
        """Let a request or an abort come to the scheduler."""
        if abort:
            self.aborted |= {vid}
            self._emit(self.scheduler.abort(vid))
        else:
            self._emit(self.scheduler.request(vid, resumed))

    def launch(self, batch: tuple[Vid, ...]) -> None:
        """Let a batch go to the device."""
        self.scheduler.launch(batch)
        for vid in batch:
            if vid in self.aborted:
                self._fault(f"6: vid {label(vid)} was launched after its abort was applied")
        self.batch = batch
        self.holding |= set(batch)

    def may_land(self, tokens: int, several: int) -> list[list[tuple[int, bool]]]:
        """Return for each vid on the device how it may land: with how many tokens, and whether that ends it.

        Args:
            tokens: most of a request.
            several: most that it lands with at once.
        """
        found: list[list[tuple[int, bool]]] = []
        for vid in self.batch:
            if self.scheduler.state(vid) is not SchedulerState.LAUNCHED:
                found.append([(0, False)])
            elif self._prefilling(vid):
                found.append([(0, False), (0, True)])
            else:
                left = tokens - self.scheduler.offset(vid)
                goes_on = [(made, False) for made in range(1, min(several, left - 1) + 1)]
                found.append([*goes_on, *((made, True) for made in range(1, min(several, left) + 1))])
        return found

    def land(self, ends: tuple[Vid, ...], counts: tuple[int, ...] = ()) -> None:
        """Let the batch come back; some of it comes to its own end.

        Args:
            ends: what does.
            counts: with how many tokens each comes; none: with one, unless it is a chunk of a prefill.
        """
        batch, self.batch = self.batch, ()
        for place, vid in enumerate(batch):
            made = counts[place] if counts else 1
            if self._prefilling(vid):
                made = 0
                self.prefilled[vid] = self.prefilled.get(vid, 0) + 1
            self._emit(self.scheduler.land(vid, made, end=vid in ends), landing=True)

    def reject(self, vid: Vid) -> None:
        """Let a request be refused while it waits."""
        self._emit(self.scheduler.reject(vid))

    def expire(self, vid: Vid) -> None:
        """Let the deadline of a request pass."""
        self._emit(self.scheduler.expire(vid))

    def retract(self, vid: Vid) -> None:
        """Let a request give its blocks up, and wait for others."""
        self.scheduler.retract(vid)
        if vid in self.batch:
            self._fault(f"6: blocks of vid {label(vid)} were freed while it is in a batch on the device")
        self.holding -= {vid}
        self.prefilled.pop(vid, None)

    def pass_row(self) -> Row:
        """Let the first row in flight come to the detokenizer; return what it passes on."""
        row, self.rows = self.rows[0], self.rows[1:]
        self.detokenizer.receive(*row)
        return row

    @property
    def settled(self) -> bool:
        """Whether nothing goes on here by itself."""
        return not (self.rows or self.batch or self.launchable)

    def _prefilling(self, vid: Vid) -> bool:
        return self.prefilled.get(vid, 0) < self._chunks

    def _emit(self, row: Row | None, *, landing: bool = False) -> None:
        if row is None:
            return
        self.rows += (row,)
        if row.end is None:
            return
        if row.vid in self.batch:
            self._fault(f"6: blocks of vid {label(row.vid)} were freed while it is in a batch on the device")
        if landing and row.vid not in self.holding:
            self._fault(f"5: blocks of vid {label(row.vid)} were freed twice")
        self.holding -= {row.vid}
        self.prefilled.pop(row.vid, None)

    def _fault(self, text: str) -> None:
        self.faults += (text,)


_LAUNCHABLE: Final = frozenset({SchedulerState.WAITING, SchedulerState.RUNNING})
_vid: Final = itemgetter(0)
