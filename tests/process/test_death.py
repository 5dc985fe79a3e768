"""When a process dies, everybody who waits is told, with the cause."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from tests.process.conftest import DEADLINE, wait_gone
from vidette import Engine, EngineBroken, EngineConfig, open_engine
from vidette._ring import start_processes
from vidette_protocol.messages import ShutdownReq

ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}


def pid_of(engine: Engine, role: str) -> int:
    return next(process.pid for process in engine.statistics().processes if process.role == role)


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
async def test_every_waiter_hears_of_a_killed_process(victim: str) -> None:
    heard: dict[str, EngineBroken] = {}

    async def wait(engine: Engine, name: str, started: anyio.Event) -> None:
        try:
            async with engine.generate(name, sampling_params=ENDLESS, rid=name) as stream:
                started.set()
                await stream.read()
        except EngineBroken as error:
            heard[name] = error

    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology="processes", max_running=1) as engine:
            pids = [process.pid for process in engine.statistics().processes]
            async with anyio.create_task_group() as tasks:
                for name in ("running", "queued"):
                    started = anyio.Event()
                    tasks.start_soon(wait, engine, name, started)
                    await started.wait()
                os.kill(pid_of(engine, victim), signal.SIGKILL)
            assert (await engine.wait_broken()).role == victim
            with pytest.raises(EngineBroken, match="SIGKILL"):
                await engine.heartbeat()
            with pytest.raises(EngineBroken, match=victim):
                async with engine.generate("too late"):
                    pass
            assert engine.statistics().ledgers.total() == 0
    assert set(heard) == {"running", "queued"}
    for error in heard.values():
        assert error.role == victim
        assert error.exit_status == -signal.SIGKILL
        assert f"the {victim} was killed by SIGKILL" in str(error)
    # Nobody is left behind, the one that was not killed included.
    assert all(wait_gone(pid, 0) for pid in pids)


async def test_a_control_call_that_waits_hears_of_a_killed_process() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology="processes") as engine:
            scheduler = pid_of(engine, "scheduler")
            os.kill(scheduler, signal.SIGSTOP)  # so that the question is on its way when the process dies
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    with pytest.raises(EngineBroken, match="SIGKILL"):
                        await engine.heartbeat()

                tasks.start_soon(ask)
                await anyio.lowlevel.checkpoint()
                os.kill(scheduler, signal.SIGKILL)


async def test_an_exit_with_status_0_is_an_event_too() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology="processes") as engine:
            engine._supervisor.ring.scheduler.post(ShutdownReq())  # behind the engine's back
            broken = await engine.wait_broken()
            assert broken.exit_status == 0
            assert "ended with exit status 0" in str(broken)
            with pytest.raises(EngineBroken, match="ended with exit status 0"):
                await engine.heartbeat()


async def test_a_failure_inside_a_role_is_told_with_its_words(topology: str) -> None:
    # The pool cannot be allocated: the step loop is built in the compute thread, and fails there.
    options: dict[str, Any] = {"kv_tokens": 1 << 60, "topology": topology}
    with anyio.fail_after(DEADLINE), pytest.raises(EngineBroken, match="scheduler"):
        async with open_engine("toy", **options):
            pytest.fail("it opened")


async def test_an_error_of_the_body_comes_out_bare(topology: str) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_engine("toy", topology=topology):
            raise LookupError("mine")
    with pytest.raises(LookupError, match="inner"):
        async with (
            open_engine("toy", topology="inline") as engine,
            engine.generate("x", sampling_params=ENDLESS),
        ):
            raise LookupError("inner")


async def test_a_group_of_the_body_stays_a_group() -> None:
    with pytest.raises(ExceptionGroup, match="of the body") as caught:
        async with open_engine("toy"):
            raise ExceptionGroup("of the body", [ValueError("one")])
    assert len(caught.value.exceptions) == 1


async def test_what_a_role_says_of_its_failure_before_its_hello_is_told(tmp_path: Path) -> None:
    """The detokenizer reads the vocabulary before it opens its links."""
    model = tmp_path / "damaged.gguf"
    model.write_bytes(b"GGUF")
    config = EngineConfig(model=str(model), topology="processes")
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            ring = start_processes(config, tasks, backend=sniffio.current_async_library())
            try:
                with pytest.raises(EngineBroken, match=r"ModelError.*damaged\.gguf") as caught:
                    await ring.open()
                assert caught.value.role == "detokenizer"
            finally:
                await ring.stop(0)
                tasks.cancel_scope.cancel()
        ring.close()
