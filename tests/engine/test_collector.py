"""The garbage collector of a process: until when it is frozen, and that this ends by itself."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette._collector import Collector
from vidette._freeze import Freeze, carry_out
from vidette_protocol.messages import FreezeGCReq

DEADLINE = 20.0


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a test froze: it is the one of all tests."""
    yield
    gc.unfreeze()


@asynccontextmanager
async def running() -> AsyncGenerator[Collector]:
    collector = Collector()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.run)
            yield collector
            tasks.cancel_scope.cancel()


seconds = st.floats(0, 1e6)
asked = st.lists(st.tuples(seconds, st.one_of(st.none(), seconds)))


@given(asked)
def test_it_lasts_as_long_as_the_longest_that_was_asked_for(asked: list[tuple[float, float | None]]) -> None:
    """Contract: frozen exactly while a freeze that was asked for has time left, whatever came before it."""
    freeze, now, ends = Freeze(), 0.0, -math.inf
    for pause, duration in asked:
        now += pause
        assert freeze.pass_time(now) is (-math.inf < ends <= now)
        if ends <= now:
            ends = -math.inf
        freeze.note(FreezeGCReq(duration_s=duration), now)
        ends = max(ends, now + (math.inf if duration is None else duration))
        assert freeze.until == ends
        assert freeze.ends_at == (None if ends == math.inf else ends)


def test_unfreezing_ends_all_that_was_asked_for() -> None:
    freeze = Freeze()
    freeze.note(FreezeGCReq(), 1.0)
    freeze.note(FreezeGCReq(duration_s=5.0), 2.0)
    freeze.note(FreezeGCReq(unfreeze=True), 3.0)
    assert freeze.until is None
    assert not freeze.pass_time(100.0)


def test_what_lives_is_left_out_and_let_in_again() -> None:
    state = carry_out(FreezeGCReq())
    assert state.seconds > 0
    assert state.frozen >= gc.get_freeze_count() > 1000
    assert carry_out(FreezeGCReq(unfreeze=True)).frozen == gc.get_freeze_count() == 0


async def test_it_unfreezes_when_the_time_has_come() -> None:
    async with running() as collector:
        assert collector.apply(FreezeGCReq(duration_s=0.02)).frozen
        again = collector.again
        assert again is not None
        assert again.duration_s is not None
        assert 0 <= again.duration_s <= 0.02
        while gc.get_freeze_count():
            await anyio.lowlevel.checkpoint()
        assert collector.again is None


async def test_a_longer_freeze_takes_the_place_of_a_shorter_one() -> None:
    async with running() as collector:
        collector.apply(FreezeGCReq(duration_s=0.01))
        collector.apply(FreezeGCReq())
        assert collector.again == FreezeGCReq(duration_s=None)
        with anyio.move_on_after(0.03):
            await anyio.sleep_forever()
        assert gc.get_freeze_count() > 0
        collector.apply(FreezeGCReq(unfreeze=True))
        assert gc.get_freeze_count() == 0


def test_closing_gives_back_what_it_froze_and_nothing_else() -> None:
    collector = Collector()
    gc.freeze()
    collector.close()
    assert gc.get_freeze_count() > 0


async def test_closing_gives_back_what_it_froze() -> None:
    async with running() as collector:
        collector.apply(FreezeGCReq())
        collector.close()
        assert gc.get_freeze_count() == 0
        assert collector.again is None


async def test_one_that_is_closed_freezes_nothing() -> None:
    async with running() as collector:
        collector.close()
        assert collector.apply(FreezeGCReq()).frozen == gc.get_freeze_count() == 0
        assert collector.again is None
