"""A front with several detokenizers: what all hold, the latest ledger, and answers of all to one question."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from tests.engine.front.conftest import STOP, Front, ask

from vidette.errors import EngineBroken
from vidette.front.calls import GcReport
from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.messages import FreezeGCReq, GcState, HeartbeatReq, SchedulerLedger, StrRow

LOST = partial(EngineBroken, "it died")


async def test_what_all_of_them_hold_is_summed_and_a_new_ring_holds_nothing() -> None:
    async with Front.serving(detokenizers=3) as front:
        for shard, held in enumerate((2, 3, 4)):
            front.say(detokenizer_open=held, shard=shard)
        await front.until(lambda: front.manager.detokenizer_open == 9)
        front.say(detokenizer_open=0, shard=1)
        await front.until(lambda: front.manager.detokenizer_open == 6)
        front.manager.lose(LOST)
        assert front.manager.detokenizer_open == 0
        front.attach()
        front.say(ledger=SchedulerLedger(number=1), detokenizer_open=5, shard=2)
        await front.until(lambda: front.manager.detokenizer_open == 5)
        assert front.fault is None


async def test_an_older_ledger_that_comes_later_is_not_the_latest() -> None:
    """Two requests end by the same number of steps; the detokenizer of the first to end is slower."""
    async with (
        Front.serving(detokenizers=2) as front,
        front.manager.generate(ask()) as first,
        front.manager.generate(ask()) as second,
    ):
        slow, quick = first.vid % 2, second.vid % 2
        assert slow != quick
        ended = SchedulerLedger(steps=4, number=2)
        front.say(StrRow(second.vid, 0, (), STOP, ""), ledger=ended, shard=quick)
        await second.read()
        front.say(
            StrRow(first.vid, 0, (), STOP, ""), ledger=SchedulerLedger(live=1, steps=4, number=1), shard=slow
        )
        await first.read()
        await front.manager.wait_quiet()
        assert front.manager.scheduler_ledger == ended


async def test_a_heartbeat_is_back_when_it_has_come_from_all() -> None:
    async with Front.serving(detokenizers=2) as front:
        beats: list[HeartbeatReq] = []

        async def beat() -> None:
            beats.append(await front.manager.heartbeat())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            await front.until(lambda: len(front.posted) == 1)
            ledger = SchedulerLedger(live=5, number=3)
            front.detokenizers[1].post(HeartbeatReq(id=1, scheduler=ledger, detokenizer_open=2))
            await front.until(lambda: front.manager.detokenizer_open == 2)
            assert front.manager.pulse.heard_s is None  # the ring has not been gone round
            assert not beats
            front.detokenizers[0].post(HeartbeatReq(id=1, scheduler=ledger, detokenizer_open=3))
        assert beats == [HeartbeatReq(id=1, scheduler=ledger, detokenizer_open=5)]
        assert front.manager.pulse.heard_s is not None
        assert front.manager.scheduler_ledger == ledger


async def test_each_of_them_says_what_it_froze() -> None:
    async with Front.serving(detokenizers=2) as front:
        reports: list[GcReport] = []

        async def freeze() -> None:
            reports.append(await front.manager.calls.freeze_gc())

        states = GcState(0.5, 10), GcState(0.25, 20)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(freeze)
            await front.until(lambda: len(front.posted) == 1)
            for link, state in zip(front.detokenizers, states, strict=True):
                link.post(FreezeGCReq(id=1, scheduler=GcState(1.0, 5), detokenizer=state))
        (report,) = reports
        assert (report.scheduler, report.detokenizers) == (GcState(1.0, 5), states)


async def test_questions_to_which_one_is_slow_are_answered_in_their_order() -> None:
    async with Front.serving(detokenizers=2) as front:
        answered: list[int] = []

        async def beat() -> None:
            answered.append((await front.manager.heartbeat()).id)

        async with anyio.create_task_group() as tasks:
            for number in range(1, 4):
                tasks.start_soon(beat)
                await front.until(lambda: len(front.posted) == number)  # noqa: B023  it ends before
            for number in range(1, 4):
                front.detokenizers[0].post(HeartbeatReq(id=number))
            for number in range(1, 4):
                front.detokenizers[1].post(HeartbeatReq(id=number))
                await front.until(lambda: len(answered) == number)  # noqa: B023  likewise
        assert answered == [1, 2, 3]


@pytest.mark.parametrize("asked", [0, 1])
async def test_an_answer_too_many_breaks_the_protocol(asked: int) -> None:
    async with Front.serving(detokenizers=2) as front, anyio.create_task_group() as tasks:
        if asked:
            tasks.start_soon(front.manager.heartbeat)
            await front.until(lambda: len(front.posted) == 1)
        for _ in range(asked + 1):
            front.detokenizers[1].post(HeartbeatReq(id=1))
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, RemoteProtocolError)
        assert str(front.fault) == "detokenizer 1 answers what it was not asked"
        tasks.cancel_scope.cancel()


async def test_answers_to_different_questions_break_the_protocol() -> None:
    async with Front.serving(detokenizers=2) as front, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(front.manager.heartbeat)
        await front.until(lambda: len(front.posted) == 2)
        front.detokenizers[0].post(HeartbeatReq(id=2))
        await front.heard()
        front.detokenizers[1].post(HeartbeatReq(id=1))
        await front.until(lambda: front.fault is not None)
        assert isinstance(front.fault, RemoteProtocolError)
        assert "answer different questions: HeartbeatReq 2, HeartbeatReq 1" in str(front.fault)
        tasks.cancel_scope.cancel()
