"""Faults of an arena's credits, and of rings with slow callers; `mutants` joins them with the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from vidette_fuzz.configurations import MANY_BUFFERS, Maker, arena, ring
from vidette_fuzz.mutant import Mutant
from vidette_protocol.lifecycle.credits import (
    BorrowMachine,
    CreditEvent,
    CreditMachine,
    CreditState,
    Extent,
)
from vidette_protocol.lifecycle.pending import PendingDelta, Taken
from vidette_protocol.small_worlds.credits import CreditBounds, CreditParts
from vidette_protocol.small_worlds.ring import FrontPolicy, RingBounds, RingParts, SchedulerPolicy

# --- producer ---------------------------------------------------------------------------------------------


class _HoldsAndWaits(CreditMachine):
    """Takes what there is, and waits for the rest."""

    def take(self, sizes: Sequence[int]) -> list[Extent] | None:
        taken: list[Extent] = []
        for size in sizes:
            taken += super().take([size]) or []
        return taken


class _TakesCreditsOfTheDead(CreditMachine):
    """Takes a credit that a dead consumer sent for one of the next."""

    def credit(self, starts: Sequence[int], generation: int = 0) -> bool:
        del generation
        return super().credit(starts, self.generation)


class _KeepsWhatTheDeadHeld(CreditMachine):
    """Goes on waiting for the credits of a consumer that is dead."""

    def lost(self) -> bool:
        self.generation += 1
        return False


class _FreesWhatIsProduced(CreditMachine):
    """When the consumer dies, frees all there is, whether or not it was the consumer's."""

    def lost(self) -> bool:
        held = [extent for extent, state in self._out.values() if state is CreditState.TAKEN]
        return super().release(held) | super().lost()


class _ReleasesByPlace(CreditMachine):
    """Gives back what lies there now, whoever has taken it meanwhile."""

    def release(self, extents: Iterable[Extent]) -> bool:
        dropped = [extent for extent in extents if self.state(extent.start) is CreditState.TAKEN]
        for extent in dropped:
            self._move(extent.start, CreditEvent.RELEASE)
        return bool(dropped)


class _FreesWhatIsPosted(CreditMachine):
    """Gives back at the end of the block whatever was taken in it, posted or not."""

    def release(self, extents: Iterable[Extent]) -> bool:
        extents = list(extents)
        lent = [one.start for one in extents if self._out.get(one.start) == (one, CreditState.LENT)]
        return self.credit(lent, self.generation) | super().release(extents)


# --- consumer ---------------------------------------------------------------------------------------------


class _CreditsTwice(BorrowMachine):
    """Returns each extent when its views have died, and again when its message has."""

    def credits(self) -> list[int]:
        return [start for start in super().credits() for _ in range(2)]


class _CreditsAtTheArraysDeath(BorrowMachine):
    """Returns an extent when the array dies that was made of it, whatever was cut out of that."""

    def drop(self, loan: Extent) -> bool:
        last = super().drop(loan)
        super().give_back(loan)
        return last


class _LeaksWhatIsDropped(BorrowMachine):
    """Forgets what a message named that could not be decoded, and sends no credit for it."""

    def give_back(self, loan: Extent) -> None:
        del self._held[loan.start]
        self._starts.remove(loan.start)


class _DropsByPlace(BorrowMachine):
    """Takes the end of a view for one of what lies there now."""

    def drop(self, loan: Extent) -> bool:
        held = self._held.get(loan.start)
        return False if held is None else super().drop(held.loan)


# --- ring -------------------------------------------------------------------------------------------------


class _StopsReadingToSend(FrontPolicy):
    """Reads nothing while its own send is stuck."""

    def reads(self, *, stuck: bool, unread: bool) -> bool:
        del unread
        return not stuck


class _WaitsForTheSlow(FrontPolicy):
    """Reads nothing until the caller whose row is next has taken what came before."""

    def reads(self, *, stuck: bool, unread: bool) -> bool:
        del stuck
        return not unread


class _SendsOnlyWithAStep(SchedulerPolicy):
    """Sends what is parked with what the next step makes, if there is one."""

    def sends(self, *, busy: bool) -> bool:
        return busy


class _KeepsTheNewest(PendingDelta[bool]):
    """Has room for one row, and a new one takes the place of what was not taken."""

    def deliver(self, text: str, token_ids: Iterable[int], end: bool | None = None) -> None:
        self._texts.clear()
        self._ids.clear()
        super().deliver(text, token_ids, end)


class _ForgetsNothing(PendingDelta[bool]):
    """Goes on showing what was taken."""

    def take(self) -> Taken[bool] | None:
        texts, ids = self._texts.copy(), self._ids.copy()
        taken = super().take()
        if taken is not None and taken.end is None:
            self._texts, self._ids = texts, ids
        return taken


class _Queues(PendingDelta[bool]):
    """Keeps a delta for each row, until somebody takes them."""

    @property
    def deltas(self) -> int:
        return len(self._ids)


_DEATH: Final = CreditBounds(arena=1, messages=((1,), (1,)), deaths=1)
_PAIRS: Final = CreditBounds(arena=2, messages=((1,), (1, 1), (1, 1)), patient=True)
_SINGLE: Final = CreditBounds(arena=1, messages=((1,), (1,)))
_MANY: Final = CreditBounds(arena=5, messages=MANY_BUFFERS, slices=True, deaths=2)
_DENSE: Final = CreditBounds(arena=4, messages=((1, 1, 1, 1),) * 8, patient=True)
_HUNGRY: Final = CreditBounds(arena=3, messages=((1, 1), (1, 1, 1)) * 5, patient=True)
_CALLERS: Final = RingBounds(callers=8, tokens=6, room=2, high_water=3)

_ARENA: Final = "arena credits"
_SLOW: Final = "slow consumers"


def _arena(parts: CreditParts, small: CreditBounds, large: CreditBounds = _MANY) -> tuple[Maker, Maker]:
    return arena(small, parts), arena(large, parts)


def _ring(parts: RingParts, small: RingBounds, large: RingBounds = _CALLERS) -> tuple[Maker, Maker]:
    return ring(small, parts), ring(large, parts)


CREDIT_MUTANTS: Final = (
    Mutant(
        "hold-and-wait",
        "oceanbase/miniob #238, vmware-archive/quickstep #180 (who waits for a buffer holds another)",
        "two messages hold half of the arena each, and each waits for the other's half",
        _ARENA,
        *_arena(CreditParts(producer=_HoldsAndWaits), _PAIRS, _HUNGRY),
    ),
    Mutant(
        "credit-of-the-dead",
        "supabase/pg_net #276 (what is left of the dead is taken for the living's)",
        "a credit that a dead consumer sent takes away what the next one holds, or is held against it",
        _ARENA,
        *_arena(CreditParts(producer=_TakesCreditsOfTheDead), _DEATH),
    ),
    Mutant(
        "dead-consumer-keeps-all",
        "rixed/ramen #221, sgl-project/sglang #40723",
        "the consumer dies, and what it held is never free again",
        _ARENA,
        *_arena(CreditParts(producer=_KeepsWhatTheDeadHeld), _DEATH),
    ),
    Mutant(
        "freed-while-produced",
        "intelligent-machine-learning/dlrover #1069 (freed at a restart, while it is still written)",
        "the consumer dies, and memory that somebody produces in is given to another",
        _ARENA,
        *_arena(CreditParts(producer=_FreesWhatIsProduced), _DEATH),
    ),
    Mutant(
        "released-by-place",
        "smg-project/smg #2426 (a late end of the old one ends the new one of the same name)",
        "a block that is left late gives back what is another's by now",
        _ARENA,
        *_arena(CreditParts(producer=_ReleasesByPlace), _SINGLE, _DENSE),
    ),
    Mutant(
        "freed-while-posted",
        "facebookresearch/spdl #1636",
        "what was posted is free when its producer is done with it, and is overwritten unseen",
        _ARENA,
        *_arena(CreditParts(producer=_FreesWhatIsPosted), _SINGLE),
    ),
    Mutant(
        "credit-returned-twice",
        "dotnet/runtime #110582; sgl-project/sglang #34205 (released twice)",
        "an extent is returned twice, and the second time it is another's",
        _ARENA,
        *_arena(CreditParts(consumer=_CreditsTwice), _SINGLE),
    ),
    Mutant(
        "credit-at-the-arrays-death",
        "LMCache/LMCache #3610, pytorch/pytorch #5311",
        "an array dies while a slice of it lives, and the slice is silently overwritten",
        _ARENA,
        *_arena(CreditParts(consumer=_CreditsAtTheArraysDeath), _SINGLE._replace(slices=True)),
    ),
    Mutant(
        "dropped-message-leaks",
        "vllm-project/vllm #45224 (a reader that fails keeps its slot)",
        "a message is dropped half decoded, and what it named is never free again",
        _ARENA,
        *_arena(CreditParts(consumer=_LeaksWhatIsDropped), _SINGLE),
    ),
    Mutant(
        "dropped-by-place",
        "facebookresearch/spdl #1636 (given out again while something is left of the last)",
        "a view that was left of a dropped message dies, and what another message has there is returned",
        _ARENA,
        *_arena(CreditParts(consumer=_DropsByPlace), _SINGLE, _DENSE),
    ),
    Mutant(
        "front-stops-reading-to-send",
        "microsoft/CCF #628, libp2p/rust-yamux #227",
        "the front does not read while its send is stuck, and the whole ring stands still",
        _SLOW,
        *_ring(RingParts(front=_StopsReadingToSend), RingBounds(callers=3, tokens=3)),
    ),
    Mutant(
        "front-waits-for-the-slow",
        "libp2p/js-libp2p-mplex #85, radkesvat/WaterWall #332",
        "the front does not read while one caller is slow, and that one waits for another",
        _SLOW,
        *_ring(RingParts(front=_WaitsForTheSlow), RingBounds(in_turn=True), _CALLERS._replace(in_turn=True)),
    ),
    Mutant(
        "parked-until-the-next-step",
        "vllm-project/vllm #51921 (stall after idle)",
        "the last rows stay parked at a scheduler that has nothing more to do",
        _SLOW,
        *_ring(RingParts(scheduler=_SendsOnlyWithAStep), RingBounds(callers=1)),
    ),
    Mutant(
        "only-the-newest-kept",
        "sgl-project/sglang #19977",
        "a caller who is slow reads the last row only, and misses tokens",
        _SLOW,
        *_ring(RingParts(pending=_KeepsTheNewest), RingBounds(callers=1)),
    ),
    Mutant(
        "taken-twice",
        "sgl-project/sglang #31598, #31564 (text that was sent is sent again)",
        "a caller reads again what it has read before",
        _SLOW,
        *_ring(RingParts(pending=_ForgetsNothing), RingBounds(callers=1)),
    ),
    Mutant(
        "deltas-queue",
        "vllm-project/vllm #18826 (a queue without a bound)",
        "a delta waits for each row that a slow caller has not taken",
        _SLOW,
        *_ring(RingParts(pending=_Queues), RingBounds(callers=1)),
    ),
)
"""Every mutant of these."""
