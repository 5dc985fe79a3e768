"""Exception groups stay inside: what a block raises comes out as it was raised, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from vidette._groups import Body, bare, sole_cause

DEADLINE = 20.0


class Fault(Exception):  # noqa: N818
    """Whatever is raised here."""


@asynccontextmanager
async def opened(*tasks: Callable[[], BaseException | None]) -> AsyncGenerator[None]:
    """Hold a block as `open_engine` does; once it is left, each task of the group may raise something."""
    body = Body()
    with bare(body):
        async with anyio.create_task_group() as group:
            for make in tasks:
                group.start_soon(_raise_later, make)
            try:
                with body.watched():
                    yield
            finally:
                with anyio.CancelScope(shield=True), anyio.fail_after(DEADLINE):
                    await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()


async def _raise_later(make: Callable[[], BaseException | None]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        error = make()
        if error is not None:
            raise error


def nothing() -> None:
    return None


async def test_what_the_block_raises_comes_out_as_itself() -> None:
    error = Fault("mine")
    with pytest.raises(Fault) as caught:
        async with opened(nothing):
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None


async def test_its_cause_and_context_are_its_own() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise Fault("mine") from inner

    with pytest.raises(Fault) as caught:
        async with opened(nothing):
            fail()
    assert isinstance(caught.value.__context__, KeyError)
    assert caught.value.__cause__ is caught.value.__context__


async def test_a_group_of_the_block_is_still_that_group() -> None:
    group = ExceptionGroup("mine", [Fault("one"), ExceptionGroup("inner", [Fault("two")])])
    with pytest.raises(ExceptionGroup) as caught:
        async with opened():
            raise group
    assert caught.value is group


async def test_a_group_of_one_of_the_block_is_still_a_group() -> None:
    group = ExceptionGroup("mine", [Fault("one")])
    with pytest.raises(ExceptionGroup) as caught:
        async with opened(nothing):
            raise group
    assert caught.value is group


async def test_an_error_of_a_task_comes_out_alone() -> None:
    error = Fault("of the task")
    with pytest.raises(Fault) as caught:
        async with opened(lambda: error):
            pass
    assert caught.value is error


async def test_errors_of_block_and_task_come_out_together() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(Fault, match="mine"), pytest.RaisesExc(Fault, match="of the task")
    ):
        async with opened(lambda: Fault("of the task")):
            raise Fault("mine")


async def test_errors_of_several_tasks_come_out_together() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(Fault, match="one"), pytest.RaisesExc(Fault, match="two")):
        async with opened(lambda: Fault("one"), lambda: Fault("two")):
            pass


async def test_an_error_in_the_midst_of_a_cancellation_comes_out() -> None:
    async def be_cancelled() -> None:
        with anyio.CancelScope() as scope:
            async with opened(nothing, lambda: Fault("of the task"), nothing):
                scope.cancel()
                await anyio.sleep_forever()

    with pytest.raises(Fault):
        await be_cancelled()


async def test_a_block_that_is_cancelled_is_just_cancelled() -> None:
    with anyio.CancelScope() as scope:
        async with opened(nothing, nothing):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_block_without_errors_is_left_in_peace() -> None:
    async with opened(nothing):
        pass


def test_what_is_no_group_passes() -> None:
    error = Fault("plain")
    with pytest.raises(Fault) as caught, bare(Body()):
        raise error
    assert caught.value is error


def test_the_sole_cause_of_a_group_is_found_however_deep() -> None:
    one, two = Fault("one"), Fault("two")
    assert sole_cause(one) is one
    assert sole_cause(ExceptionGroup("a", [ExceptionGroup("b", [one])])) is one
    both = ExceptionGroup("both", [one, two])
    assert sole_cause(both) is both
    assert sole_cause(ExceptionGroup("a", [both])) is both
    stop = KeyboardInterrupt()
    assert sole_cause(BaseExceptionGroup("a", [stop])) is stop


def test_a_body_knows_what_passed_through() -> None:
    body = Body()
    assert body.error is None
    error = Fault("mine")
    with pytest.raises(Fault), body.watched():
        raise error
    assert body.error is error
