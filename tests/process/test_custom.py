"""Messages of a user's own, answered in the scheduler, in both topologies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.process.conftest import DEADLINE
from tests.process.custom_child import CODEC, HANDLERS, AddReq, AddReqOutput, NobodyReq, WaitReq
from vidette import Engine, EngineBroken, UsageError, open_engine, sync
from vidette_protocol import front_codec

CHILD = "tests.process.custom_child"
SHORT = {"max_new_tokens": 6, "temperature": 0}


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@asynccontextmanager
async def opened(topology: str) -> AsyncIterator[Engine]:
    with anyio.fail_after(DEADLINE):
        if topology == "inline":
            async with open_engine("toy", codec=CODEC, handlers=HANDLERS) as engine:
                yield engine
        else:
            async with open_engine("toy", topology="processes", codec=CODEC, child=CHILD) as engine:
                yield engine


async def test_a_question_is_answered_by_its_handler_in_the_scheduler(topology: str) -> None:
    async with opened(topology) as engine:
        good = await engine.control(AddReq(id=0, numbers=[1, 2]))
        bad = await engine.control(AddReq(id=0, numbers=[]))
        nobodys = await engine.control(NobodyReq(id=0))
        async with engine.generate("hello", sampling_params=SHORT) as stream:
            assert (await stream.read()).text, "the engine goes on, whatever a handler raises"
        pids = {process.role: process.pid for process in engine.statistics().processes}
    assert isinstance(good, AddReqOutput)
    assert (good.success, good.total) == (True, 3)
    assert good.pid == pids.get("scheduler", os.getpid())
    assert (bad.success, bad.message) == (False, "AddReq failed: ValueError: nothing to add")
    assert (nobodys.success, "does not support NobodyReq" in nobodys.message) == (False, True)


async def test_a_handler_that_never_ends_keeps_nobody(topology: str) -> None:
    async with opened(topology) as engine:
        with pytest.raises(TimeoutError):
            await engine.control(WaitReq(id=0, deadline_s=0.01))
        with anyio.move_on_after(0.01):
            await engine.control(WaitReq(id=0))
        assert (await engine.control(AddReq(id=0, numbers=[2]))).success
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.control, WaitReq(id=0))  # and is waiting when the engine closes
            await engine.heartbeat()
            tasks.cancel_scope.cancel()


async def test_children_that_know_other_messages_are_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_child.py").write_text(
        "from vidette.child import run_child\n"
        "from vidette_protocol import front_codec\n"
        "if __name__ == '__main__':\n"
        "    run_child(codec=front_codec(), handlers={})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with anyio.fail_after(DEADLINE), pytest.raises(EngineBroken, match=r"\(AddReq, .* are not known there\)"):
        async with open_engine("toy", topology="processes", codec=CODEC, child="other_child"):
            pytest.fail("it opened")


async def test_a_main_module_that_is_not_there_is_said_to_be_missing() -> None:
    with anyio.fail_after(DEADLINE), pytest.raises(EngineBroken, match="no_such_child"):
        async with open_engine("toy", topology="processes", codec=CODEC, child="no_such_child"):
            pytest.fail("it opened")


async def test_what_makes_no_sense_together_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="codec and child go together"):
        async with open_engine("toy", topology="processes", codec=front_codec()):
            pytest.fail("it opened")


def test_without_an_event_loop_it_is_the_same() -> None:
    with sync.open_engine("toy", codec=CODEC, handlers=HANDLERS) as engine:
        with engine.generate("hello", sampling_params=SHORT) as stream:
            assert stream.read().text
