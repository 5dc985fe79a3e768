"""Freezing garbage collectors: what goes round the ring, what is reported, and that a new ring is told."""

from __future__ import annotations

import gc
from functools import partial

import anyio
import pytest
from tests.engine.front.conftest import Front

from vidette.errors import EngineBroken, UsageError
from vidette.front.calls import LONGEST_FREEZE_SECONDS, GcReport
from vidette_protocol.messages import FreezeGCReq, GcState

LOST = partial(EngineBroken, "it died")


async def freeze(front: Front, wanted: FreezeGCReq, answer: FreezeGCReq) -> GcReport:
    """Ask for something, and answer it as the ring does."""
    reports: list[GcReport] = []

    async def ask() -> None:
        reports.append(await front.manager.calls.freeze_gc(wanted))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await front.until(lambda: front.sent() == [wanted])
        front.detokenizer.post(answer)
    (report,) = reports
    return report


async def test_it_goes_round_with_what_is_wanted_and_this_process_is_the_last() -> None:
    async with Front.serving() as front:
        wanted = FreezeGCReq(id=1, duration_s=60.0)
        there, further = GcState(0.5, 10), GcState(0.25, 20)
        answer = FreezeGCReq(id=1, duration_s=60.0, scheduler=there, detokenizer=further)
        report = await freeze(front, wanted, answer)
        assert (report.scheduler, report.detokenizers) == (there, (further,))
        assert report.front.frozen >= gc.get_freeze_count() > 0
        wanted = FreezeGCReq(id=2, unfreeze=True)
        assert (await freeze(front, wanted, wanted)).front.frozen == gc.get_freeze_count() == 0


async def test_nothing_stays_frozen_if_the_engine_is_closed_while_the_answer_comes() -> None:
    """The collector is closed behind the answer, and before its caller has had his turn."""
    async with Front.serving() as front:
        reports: list[GcReport] = []

        async def ask() -> None:
            reports.append(await front.manager.calls.freeze_gc())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await front.until(lambda: front.sent() == [FreezeGCReq(id=1)])
            front.manager._questions.settle(FreezeGCReq(id=1, scheduler=GcState(0.5, 10)))
            front.manager.end(LOST)
        assert [report.front.frozen for report in reports] == [gc.get_freeze_count()] == [0]


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), LONGEST_FREEZE_SECONDS + 1])
async def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    async with Front.serving() as front:
        with pytest.raises(UsageError, match=f"duration_s is {seconds}; it must be from 0 to 604800 s"):
            await front.manager.calls.freeze_gc(FreezeGCReq(duration_s=seconds))
        assert front.sent() == []


async def test_a_ring_that_takes_the_place_of_another_is_frozen_for_the_rest_of_the_time() -> None:
    async with Front.serving() as front:
        front.manager.lose(LOST)
        front.attach()
        assert front.sent() == []  # nothing is frozen
        await freeze(front, FreezeGCReq(id=1, duration_s=60.0), FreezeGCReq(id=1))
        front.manager.lose(LOST)
        with pytest.raises(EngineBroken):
            await front.manager.calls.freeze_gc(FreezeGCReq())
        front.attach()
        (again,) = front.sent()
        assert isinstance(again, FreezeGCReq)
        assert again.duration_s is not None
        assert 0 < again.duration_s <= 60.0
        front.detokenizer.post(again)  # which nobody waits for
        await front.heard()
        assert front.fault is None
        await freeze(front, FreezeGCReq(id=3), FreezeGCReq(id=3))
        front.manager.lose(LOST)
        front.attach()
        assert front.sent() == [FreezeGCReq(id=4)]
        front.manager.end(LOST)
        assert gc.get_freeze_count() == 0
