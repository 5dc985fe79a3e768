"""`OverlappedWorld`: a step loop whose model computes as a device does, while everything else goes on.

Here `StepLoop.step` itself is driven, which is cut behind the launch, and a batch lands by a move of its own.
What comes until then is posted, as to the thread that computes. A launch may fail, of which the thread hears
when it waits for that batch, or at once if nothing has landed before; and then it dies, and so may it at any
moment besides. Generation is paused in each way, and goes on again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, combinations, product
from typing import Any, ClassVar, Final, Literal, Self

import torch

from vidette.models.interface import StepResult
from vidette.scheduler.choosing import FailedFlight, Flight
from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.plan import Share
from vidette.scheduler.told import Told
from vidette_fuzz.overlapping import Due
from vidette_fuzz.stepping.bounds import LoopBounds, Outcome
from vidette_fuzz.stepping.loop import ExploredLoop, LoopParts, written
from vidette_fuzz.stepping.world import LoopReplica, LoopWorld, describe
from vidette_protocol.ids import Vid, label
from vidette_protocol.messages import (
    AbortReq,
    BatchTokenIDOutput,
    ContinueGenerationReqInput,
    PauseGenerationReqInput,
    TokenRow,
)
from vidette_protocol.world import Action, Ask
from vidette_protocol.world.choices import BY_ITSELF

CONTINUE: Final = Ask(Vid(-1), abort=False, floor=Vid(0))
"""Among what was posted: go on."""
PAUSES: Final[tuple[Literal["abort", "retract", "in_place"], ...]] = ("abort", "retract", "in_place")
"""In which way it may be asked to pause: what becomes of the requests that live."""


class LaunchFailed(Exception):  # noqa: N818  what it is told
    """What a launch fails with."""


def _refuse() -> torch.Tensor:
    raise RuntimeError("a result is looked at that was not computed yet")


_NOT_YET: Final = StepResult(Due.of(_refuse), Due.of(_refuse))
"""What a launch returns."""


class OverlappedLoop(ExploredLoop):
    """A step loop that is cut behind the launch.

    Args:
        parts: what it is made of.
        bounds: how large it is.
    """

    def __init__(self, parts: LoopParts, bounds: LoopBounds) -> None:
        super().__init__(parts, bounds)
        self._wanted: tuple[Vid, ...] = ()
        """What the next batch takes along, if it can."""
        self._fails = False
        self._aloft: dict[Vid, tuple[Any, ...]] = {}
        """What a device writes where, of each of the batch that was launched and has not landed."""

    def _kept(self) -> list[object]:
        return [*super()._kept(), *_NOT_YET]

    @property
    def aloft(self) -> tuple[Vid, ...]:
        """Of whom a batch is in flight, as far as the loop knows."""
        flight = self._flight
        return () if flight is None else tuple(share.sequence.vid for share in flight.batch)

    @property
    def failed(self) -> bool:
        """Whether the last launch failed."""
        return isinstance(self._flight, FailedFlight)

    @property
    def launchable(self) -> list[Vid]:
        """Those that live, as far as the loop knows."""
        return sorted({*self._waiting, *self._running})

    def lasts(self, vid: Vid, outcome: Outcome) -> bool:
        """Return whether one of the batch in flight lives on when that has landed."""
        sequence = self._running[vid]
        prefilling = self._chunk(sequence) < sequence.uncomputed
        return prefilling or (not outcome.stop and sequence.made + 1 < sequence.most)

    # --- what happens --------------------------------------------------------

    def go_round(
        self, commands: Iterable[Command], vids: tuple[Vid, ...], outcomes: Sequence[Outcome], *, fails: bool
    ) -> tuple[list[TokenRow], Effects]:
        """Take a step as soon as the device is done; return what it says of requests, and all it wants.

        Args:
            commands: what was posted.
            vids: what the next batch takes along, as far as it lives then; none: nothing is launched.
            outcomes: what the model says of each in flight.
            fails: whether the launch does.

        Raises:
            LaunchFailed: it did, or the last one had.
        """
        self._wanted, self._fails = vids, fails
        flight = self._flight
        with torch.inference_mode():
            if flight is not None and not self.failed:
                for place in self._aloft.values():
                    self._memory.write(*place)
                flight._result = self._result(flight.batch, outcomes)
            self.wait()
            effects = self.step(commands, self._now, launch=bool(vids))
        rows = [
            row for each in effects.messages if isinstance(each, BatchTokenIDOutput) for row in each.rows()
        ]
        return self._note(rows), effects

    def _launch(self, now: float, told: Told) -> None:  # noqa: ARG002  time stands still
        if self._aloft:
            raise RuntimeError("a batch is launched while another is in flight")
        if self._controls.paused:
            raise RuntimeError("a batch is launched while generation is paused")
        vids: list[Vid] = []
        for vid in self._wanted:
            if (vid in self._waiting or vid in self._running) and self.fits([*vids, vid]):
                vids.append(vid)
        self._begin_all(vids, told)
        batch = self._take_along(vids)
        if batch:
            self._flight = Flight(batch, self._forward(batch))

    def _forward(self, batch: Sequence[Share]) -> StepResult:
        if self._fails:
            raise LaunchFailed
        self._aloft = {share.sequence.vid: written(share) for share in batch}
        return _NOT_YET

    def _land(self, flight: Flight, told: Told) -> None:
        self._aloft = {}
        super()._land(flight, told)

    # --- what must hold ------------------------------------------------------

    def check(self, rows: Iterable[TokenRow]) -> list[str]:
        """Return a sentence for each rule that is broken, as its parent."""
        faults = super().check(rows)
        for vid, (blocks, _, _) in self._aloft.items():
            if not set(blocks).isdisjoint(self.blocks.free()):
                faults.append(
                    f"6: blocks of vid {label(vid)} were freed while it is in a batch on the device"
                )
        return faults

    def picture(self) -> tuple[object, ...]:
        """Return a hashable picture: equal for loops that behave alike from here on."""
        return (*super().picture(), (self.aloft, tuple(self._aloft), self.failed, self._controls.paused))


class OverlappedReplica(LoopReplica):
    """A step loop that is cut behind the launch, what was posted to it, and a detokenizer."""

    __slots__ = ("due", "paused", "posted")

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.posted: tuple[Ask, ...] = ()
        """What has come since the last step."""
        self.due = False
        """Whether the next step is, even if nothing comes."""
        self.paused = False
        """Whether it was asked to pause, and not yet to go on."""

    def copy(self) -> Self:
        """Return an independent replica in the same state."""
        twin = super().copy()
        twin.posted, twin.due, twin.paused, twin.batch = self.posted, self.due, self.paused, self.batch
        return twin

    def key(self, forgotten: AbstractSet[Vid]) -> tuple[object, ...]:  # type: ignore[override]
        """Return a hashable picture; of what was posted it has one part more."""
        return (*super().key(forgotten), (self.posted, self.due, self.paused))

    def mentioned(self) -> Iterator[Vid]:
        """Yield the vids of which something may come from here, or to which it may matter what comes here."""
        yield from super().mentioned()
        for ask in self.posted:
            yield ask.vid

    @property
    def overlapped(self) -> OverlappedLoop:
        """The step loop."""
        assert isinstance(self.loop, OverlappedLoop)
        return self.loop

    @property
    def launchable(self) -> list[Vid]:
        """Vids that the next batch may contain, those included that were posted."""
        aborted = {ask.vid for ask in self.posted if ask.abort}
        asked = {ask.vid for ask in self.posted if not ask.abort and ask.vid >= 0}
        return sorted(asked.union(self.overlapped.launchable) - aborted)

    @property
    def settled(self) -> bool:
        """Whether nothing goes on here by itself."""
        return not (self.rows or self.posted or self.due or self.paused)

    def go_round(
        self, commands: Iterable[Command], vids: tuple[Vid, ...], outcomes: Sequence[Outcome], *, fails: bool
    ) -> None:
        """Let a step be taken; see there.

        Raises:
            LaunchFailed: the thread that computes has died of it.
        """
        self._own()
        loop, landing = self.overlapped, bool(self.batch)
        try:
            rows, effects = loop.go_round(commands, vids, outcomes, fails=fails)
        except LaunchFailed:
            if landing:
                self._fault("4: a launch failed, and what had landed before it is never told")
            raise
        if vids and not (landing or self.posted or loop.aloft):
            self._fault(f"8: {_vids(vids)} could be computed, and nothing is launched")
        self.aborted |= {ask.vid for ask in self.posted if ask.abort}
        self.posted, self.batch = (), loop.aloft
        # What is merely busy sleeps as long as a reader lags behind; what is in flight has to land.
        self.due = effects.in_flight if loop.aloft or loop.failed else effects.busy
        for vid in self.batch:
            if vid in self.aborted:
                self._fault(f"6: vid {label(vid)} was launched after its abort was applied")
        self._say(rows)


class OverlappedWorld(LoopWorld):
    """A world of requests whose scheduler is a step loop that is cut behind the launch."""

    __slots__ = ("pauses",)

    names: ClassVar = LoopWorld.names | {"launch fails", "pause", "continue"}
    kind: ClassVar = OverlappedReplica

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.pauses = 0

    def copy(self) -> Self:
        """Return a world in the same state."""
        twin = super().copy()
        twin.pauses = self.pauses
        return twin

    def key(self) -> tuple[object, ...]:
        """Return a hashable picture; equal pictures have like futures, and break the same rules."""
        return (*super().key(), self.pauses)

    def _at(self, number: int) -> OverlappedReplica:
        replica = self.replicas[number]
        assert isinstance(replica, OverlappedReplica)
        return replica

    def _loop(self, number: int) -> OverlappedReplica:
        """Return a replica that may be changed."""
        self._replica(number)
        return self._at(number)

    # --- what can happen -------------------------------------------------------

    def singles(self) -> list[Action]:
        """List what can happen next but for steps."""
        # Blocks are taken by launches, so nothing is evicted while a batch is in flight.
        found = [
            action
            for action in super().singles()
            if action.name != "flush" or not self._at(action.replica).batch
        ]
        for number in range(len(self.replicas)):
            if self._at(number).paused:
                found.append(Action("continue", replica=number))
            elif self.pauses < self.loop_bounds.pauses:
                found += [Action("pause", replica=number, counts=(mode,)) for mode in range(len(PAUSES))]
        return found

    def enabled(self) -> list[Action]:
        """List everything that can happen next, in a fixed order."""
        found = self.singles()
        for number in range(len(self.replicas)):
            found += self._steps(number)
        return found

    def _steps(self, number: int) -> Iterator[Action]:
        replica = self._at(number)
        if not (replica.due or replica.posted):
            return
        fails = self.losses < self.bounds.losses and not self.cut and not replica.overlapped.failed
        for outcomes in product(*map(replica.overlapped.outcomes, replica.batch)):
            whole = self._step(number, outcomes)
            for size in range(len(whole.vids) + 1):
                for batch in combinations(whole.vids, size):
                    if batch or whole.name == "land" or replica.posted:
                        yield whole._replace(vids=batch)
                    if batch and fails:
                        yield whole._replace(name="launch fails", vids=batch)

    def _step(self, number: int, outcomes: Sequence[Outcome]) -> Action:
        """Return a step that takes along all that it can."""
        replica = self._at(number)
        loop, landing = replica.overlapped, dict(zip(replica.batch, outcomes, strict=True))
        left = [vid for vid in replica.launchable if vid not in landing or loop.lasts(vid, landing[vid])]
        name = "land" if replica.batch or loop.failed else "step"
        counts = tuple(chain.from_iterable(outcomes))
        return Action(name, () if loop.failed else tuple(left), replica=number, counts=counts)

    def draining(self) -> list[Action]:
        """List what happens without new work, and without anybody's choice."""
        found = [action for action in self.singles() if action.name in BY_ITSELF or action.name == "continue"]
        for number in range(len(self.replicas)):
            replica = self._at(number)
            if replica.due or replica.posted:
                found.append(self._step(number, [Outcome()] * len(replica.batch)))
        return found

    # --- how it happens --------------------------------------------------------

    def _act(self, action: Action) -> None:
        match action.name:
            case "step" | "land" | "launch fails":
                self._go_round(action)
            case "pause":
                self.pauses += 1
                replica = self._loop(action.replica)
                replica.paused = True
                replica.posted += (_pause(*action.counts),)
            case "continue":
                replica = self._loop(action.replica)
                replica.paused = False
                replica.posted += (CONTINUE,)
            case _:
                super()._act(action)

    def _go_round(self, action: Action) -> None:
        replica, counts = self._loop(action.replica), iter(action.counts)
        outcomes = [Outcome(*pair) for pair in zip(counts, counts, strict=True)]
        commands = [self._command(ask) for ask in replica.posted]
        try:
            replica.go_round(commands, action.vids, outcomes, fails=action.name == "launch fails")
        except LaunchFailed:
            self.faults += replica.faults
            self._lose(action.replica)

    def _ask(self, ask: Ask, number: int) -> None:
        self._loop(number).posted += (ask,)

    def _command(self, ask: Ask) -> Command:
        if ask == CONTINUE:
            return ContinueGenerationReqInput(id=0)
        if ask.vid < 0:
            return PauseGenerationReqInput(id=0, mode=PAUSES[CONTINUE.vid - 1 - ask.vid])
        if ask.abort:
            return AbortReq(vid=ask.vid, floor=ask.floor)
        return self._request(ask)

    # --- how it is told --------------------------------------------------------

    def tell(self, action: Action, after: Any) -> str:
        """Return in a line what an action does; `after`, of this class, is what it leads to."""
        match action.name:
            case "step" | "land" | "launch fails":
                return "; ".join(self._tell_round(action, after))
            case "pause":
                return f"generation is to be paused ({PAUSES[action.counts[0]]})"
            case "continue":
                return "generation is to go on"
            case _:
                return super().tell(action, after)

    def _tell_round(self, action: Action, after: Self) -> Iterator[str]:
        replica, then, counts = self._at(action.replica), after._at(action.replica), iter(action.counts)
        if replica.overlapped.failed:
            yield "the launch that failed is waited for"
        elif replica.batch:
            pairs = zip(replica.batch, zip(counts, counts, strict=True), strict=True)
            said = ", ".join(describe(vid, Outcome(*pair)) for vid, pair in pairs)
            yield f"a batch lands: {said}"
        else:
            yield "a step is taken"
        if replica.posted:
            yield f"what was posted is applied ({len(replica.posted)})"
        if action.name == "launch fails":
            yield f"the launch of {_vids(action.vids)} fails"
        elif then.batch:
            yield f"{_vids(then.batch)} is launched"
        if after.losses > self.losses:
            yield "the scheduler and its detokenizer die"
        elif rows := self.tell_rows(action, after):
            yield rows.removeprefix("; ")


def _vids(vids: Iterable[Vid]) -> str:
    return ", ".join(f"vid {label(vid)}" for vid in vids)


def _pause(mode: int) -> Ask:
    return CONTINUE._replace(vid=Vid(CONTINUE.vid - 1 - mode))
