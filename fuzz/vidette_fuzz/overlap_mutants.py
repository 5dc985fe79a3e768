"""Faults of a step loop whose model computes while the host goes on; `mutants` joins them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from vidette.scheduler.effects import Command, Effects
from vidette.scheduler.shares import pack_rows
from vidette.scheduler.told import Told
from vidette_fuzz.configurations import PAUSED
from vidette_fuzz.loop_mutants import UNREPORTED, loop_mutant
from vidette_fuzz.stepping.bounds import LoopBounds
from vidette_fuzz.stepping.overlapped import OverlappedLoop
from vidette_protocol.messages import PauseGenerationReqInput
from vidette_protocol.world import Bounds


class _AppliesBeforeLanding(OverlappedLoop):
    """Applies commands to requests that a batch in flight still computes."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        told = Told(now)
        for command in commands:
            self._apply(command, now, told)
        effects = super().step((), now, launch=launch)
        return effects._replace(
            messages=[*pack_rows(told.rows, self.ledger(), 1), *effects.messages],
            over=told.over + effects.over,
        )


class _AnswersBeforeTellingWhatLanded(OverlappedLoop):
    """Lets ends go before tokens, so that nobody waits for the answer to an abort."""

    def _effects(self, told: Told) -> Effects:
        told.rows.sort(key=lambda row: row.reason is None)
        return super()._effects(told)


class _GivesBackWhatIsComputed(OverlappedLoop):
    """Gives blocks back as soon as the last token of a request is on its way."""

    def _launch(self, now: float, told: Told) -> None:
        super()._launch(now, told)
        for share in self._flight.batch if self._flight is not None else ():
            sequence = share.sequence
            if share.last and sequence.made + 1 == sequence.most and sequence.hold is not None:
                self._cache.release(sequence.hold, sequence.space, sequence.known, sequence.computed)


class _LaunchesASecondBatch(OverlappedLoop):
    """Launches the next batch before it takes what the last one has made."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        first, self._flight = self._flight, None
        effects = super().step(commands, now, launch=launch)
        if first is None:
            return effects
        second, told = self._flight, Told(now)
        self._land(first, told)
        self._flight = second
        return effects._replace(
            messages=[*effects.messages, *pack_rows(told.rows, self.ledger(), 1)],
            over=effects.over + told.over,
        )


class _ForgetsTheBatchInFlight(OverlappedLoop):
    """Leaves what is in flight to nobody when it may not launch."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        if not launch:
            self._flight = None
        return super().step(commands, now, launch=launch)


class _SleepsWhileItComputes(OverlappedLoop):
    """Takes a batch that was launched for one that is over."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        return super().step(commands, now, launch=launch)._replace(in_flight=False)


class _ForgetsTheFailedLaunch(OverlappedLoop):
    """Takes a launch that has failed for one of nothing."""

    def _launch(self, now: float, told: Told) -> None:
        with suppress(Exception):
            super()._launch(now, told)


class _FailsBeforeTellingWhatLanded(OverlappedLoop):
    """Dies of a launch at once, whatever is to be told."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        effects = super().step(commands, now, launch=launch)
        if self.failed:
            self.wait()
        return effects


class _ReadsWhatIsInFlight(OverlappedLoop):
    """Has the tokens chosen as soon as a batch is launched, as if it had been computed."""

    def _launch(self, now: float, told: Told) -> None:
        super()._launch(now, told)
        if self._flight is not None:
            self._flight.land()


class _RetractsWhatIsInFlight(OverlappedLoop):
    """Takes the blocks of all that run as soon as a pause is asked for."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        for command in commands:
            if isinstance(command, PauseGenerationReqInput):
                self._pause(command, Told(now))
        return super().step(commands, now, launch=launch)


class _GoesOnInAPause(OverlappedLoop):
    """Has something to compute as long as anything lives."""

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._running)


class _DropsWhatIsInFlightInAPause(OverlappedLoop):
    """Does not take any more what was in flight when it is to pause."""

    def step(self, commands: Iterable[Command], now: float, *, launch: bool = True) -> Effects:
        if any(isinstance(command, PauseGenerationReqInput) for command in commands):
            self._flight = None
        return super().step(commands, now, launch=launch)


ALOFT: Final = LoopBounds(overlaps=True)
STILL: Final = PAUSED._replace(prompt=1, flushes=False)
ONE: Final = Bounds(rids=1, uses=1, tokens=2)
FAILING: Final = ONE._replace(losses=1)

OVERLAP_MUTANTS: Final = (
    loop_mutant(
        "applied-in-flight",
        _AppliesBeforeLanding,
        "sgl-project/mini-sglang #111; vllm-project/vllm-ascend #14055",
        "an abort comes while its request is in flight, and what lands of it is told all the same",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "answered-before-what-landed",
        _AnswersBeforeTellingWhatLanded,
        UNREPORTED,
        "an abort is answered, and then comes what has landed of its request just before",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "given-back-in-flight",
        _GivesBackWhatIsComputed,
        "vllm-project/vllm #45357; vllm-project/vllm-ascend #13501",
        "blocks are given back as soon as the last token is on its way, and a device still writes to them",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "second-batch-in-flight",
        _LaunchesASecondBatch,
        UNREPORTED,
        "a batch is launched while the last one is in flight, of whose tokens it knows nothing",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "batch-in-flight-forgotten",
        _ForgetsTheBatchInFlight,
        UNREPORTED,
        "a reader lags behind while a batch is in flight, whose requests are held for ever",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "asleep-with-a-batch-in-flight",
        _SleepsWhileItComputes,
        UNREPORTED,
        "a batch is computed while a reader lags behind, and nobody takes its tokens until he goes on",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "failed-launch-forgotten",
        _ForgetsTheFailedLaunch,
        UNREPORTED,
        "a launch fails, nobody dies of it, and those of its batch wait for ever",
        "overlapped",
        ALOFT,
        FAILING,
    ),
    loop_mutant(
        "landed-lost-with-the-next-launch",
        _FailsBeforeTellingWhatLanded,
        UNREPORTED,
        "a launch fails, and with it goes what the batch before it had made",
        "overlapped",
        ALOFT,
        FAILING,
    ),
    loop_mutant(
        "read-before-it-is-there",
        _ReadsWhatIsInFlight,
        UNREPORTED,
        "tokens are chosen from logits that a device has not computed yet",
        "overlapped",
        ALOFT,
        ONE,
    ),
    loop_mutant(
        "retracted-in-flight",
        _RetractsWhatIsInFlight,
        "NVIDIA/TensorRT-LLM #10943 (evicted while its next token is computed)",
        "generation is paused, and what a device still computes gives its blocks up",
        "overlapped pauses",
        STILL,
        ONE,
    ),
    loop_mutant(
        "dropped-by-a-pause",
        _DropsWhatIsInFlightInAPause,
        UNREPORTED,
        "generation is paused while a batch is in flight, which never lands",
        "overlapped pauses",
        STILL,
        ONE,
    ),
    loop_mutant(
        "launched-in-a-pause",
        _GoesOnInAPause,
        UNREPORTED,
        "generation is paused, and the next batch is launched",
        "overlapped pauses",
        STILL,
        ONE,
    ),
)
"""Every mutant of these."""
