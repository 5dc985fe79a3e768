"""The sweep: every checkpoint once, with the cancellation of a scope, and leaks are found."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from vidette.testing import sweep

DEADLINE = 20.0


async def nothing_to_check() -> None:
    """Find nothing wrong."""


async def test_it_counts_the_checkpoints_of_an_operation() -> None:
    event = anyio.Event()
    event.set()

    async def operation() -> None:
        await anyio.lowlevel.cancel_shielded_checkpoint()
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group():
            pass

    with anyio.fail_after(DEADLINE):
        assert await sweep(operation, nothing_to_check) >= 3
        assert await sweep(nothing_to_check, nothing_to_check) == 0


async def test_each_checkpoint_is_cancelled_once_and_the_last_time_none() -> None:
    got_to: list[int] = []
    checks = 0

    async def operation() -> None:
        got_to.append(0)
        for _ in range(5):
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await anyio.lowlevel.checkpoint_if_cancelled()
            got_to[-1] += 1

    async def check() -> None:
        nonlocal checks
        checks += 1
        await anyio.lowlevel.checkpoint()  # what is cancelled is the operation alone

    with anyio.fail_after(DEADLINE):
        assert await sweep(operation, check) == 5
    assert got_to == [0, 1, 2, 3, 4, 5]
    assert checks == 6


async def test_every_kind_of_wait_can_be_cancelled() -> None:
    """One that is ready at once, one for a time, one for a thread, one for another task."""
    log: list[str] = []

    async def operation() -> None:
        for name, wait in waits.items():
            log.append(name)
            await wait()

    async def never_until_it_is_told() -> None:
        event = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_set, event)
            await event.wait()

    waits: dict[str, Callable[[], Awaitable[object]]] = {
        "sleep": lambda: anyio.sleep(0.001),
        "thread": lambda: to_thread.run_sync(int, abandon_on_cancel=True),
        "task": never_until_it_is_told,
        "turn": anyio.lowlevel.checkpoint,
    }
    with anyio.fail_after(DEADLINE):
        points = await sweep(operation, nothing_to_check)
    assert points >= 4
    assert log.count("sleep") == points + 1
    # Whoever is cancelled at one does not get to the next. (On asyncio the event is there in the same turn.)
    assert log.count("sleep") > log.count("thread") > log.count("task") >= log.count("turn") >= 2


async def _set(event: anyio.Event) -> None:
    event.set()


async def test_a_cancelled_scope_stays_cancelled() -> None:
    """Cancellation is a level: what the operation awaits while it cleans up is cancelled as well."""
    cleaned: list[bool] = []

    async def operation() -> None:
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            cleaned.append(False)
            await anyio.lowlevel.checkpoint()
            cleaned[-1] = True

    with anyio.fail_after(DEADLINE):
        await sweep(operation, nothing_to_check)
    assert cleaned[0] is False
    assert cleaned[-1] is True


async def test_behind_a_shield_the_cancellation_waits() -> None:
    shielded: list[bool] = []

    async def operation() -> None:
        with anyio.CancelScope(shield=True):
            shielded.append(False)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            shielded[-1] = True

    with anyio.fail_after(DEADLINE):
        assert await sweep(operation, nothing_to_check) == 2
    assert shielded == [True] * 3


# --- that it can fail ------------------------------------------------------------------------------


class Resource:
    """Something of which every operation takes one, and has to give it back."""

    def __init__(self) -> None:
        self.held = 0

    async def use_well(self) -> None:
        self.held += 1
        try:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await anyio.lowlevel.checkpoint_if_cancelled()
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await anyio.lowlevel.checkpoint_if_cancelled()
        finally:
            self.held -= 1

    async def leak_at_the_second(self) -> None:
        """Give it back but for a cancellation at the second checkpoint, which the first one's try misses."""
        self.held += 1
        try:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self.held -= 1
            raise
        await anyio.lowlevel.cancel_shielded_checkpoint()
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.held -= 1

    async def leak_in_an_awaiting_cleanup(self) -> None:
        """Wait for something before it is given back, which is cancelled again."""
        self.held += 1
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            await anyio.lowlevel.checkpoint()
            self.held -= 1

    async def check(self) -> None:
        assert self.held == 0, f"{self.held} still held"


async def test_who_gives_back_whatever_happens_passes() -> None:
    resource = Resource()
    with anyio.fail_after(DEADLINE):
        assert await sweep(resource.use_well, resource.check) == 2


async def test_a_leak_at_the_second_checkpoint_is_found_there() -> None:
    resource = Resource()
    with anyio.fail_after(DEADLINE), pytest.raises(AssertionError, match="1 still held") as caught:
        await sweep(resource.leak_at_the_second, resource.check)
    assert caught.value.__notes__ == ["the operation was to be cancelled at its checkpoint 2"]


async def test_a_cleanup_that_awaits_is_found() -> None:
    resource = Resource()
    with anyio.fail_after(DEADLINE), pytest.raises(AssertionError, match="still held"):
        await sweep(resource.leak_in_an_awaiting_cleanup, resource.check)


async def test_what_the_operation_raises_comes_out() -> None:
    async def operation() -> None:
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise LookupError("no such thing")

    with anyio.fail_after(DEADLINE), pytest.raises(LookupError, match="no such thing") as caught:
        await sweep(operation, nothing_to_check)
    assert len(caught.value.__notes__) == 1


# --- bounds ----------------------------------------------------------------------------------------


async def many(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.cancel_shielded_checkpoint()
        await anyio.lowlevel.checkpoint_if_cancelled()


async def test_more_checkpoints_than_the_limit_fail() -> None:
    with anyio.fail_after(DEADLINE):
        assert await sweep(lambda: many(7), nothing_to_check, limit=7) == 7
        with pytest.raises(AssertionError, match=r"^the operation has more than 7 checkpoints$"):
            await sweep(lambda: many(8), nothing_to_check, limit=7)


@pytest.mark.parametrize("stride", [1, 2, 3, 100])
async def test_a_stride_leaves_some_out(stride: int) -> None:
    begun = 0

    async def operation() -> None:
        nonlocal begun
        begun += 1
        await many(7)

    with anyio.fail_after(DEADLINE):
        assert await sweep(operation, nothing_to_check, stride=stride) == 7
    assert begun == math.ceil(7 / stride) + 1


async def test_a_sweep_that_is_cancelled_itself_ends() -> None:
    with anyio.fail_after(DEADLINE):
        with anyio.CancelScope() as scope:

            async def operation() -> None:
                scope.cancel()
                await anyio.sleep_forever()

            await sweep(operation, nothing_to_check)
        assert scope.cancelled_caught
