"""A pause outlives the processes that were paused, and traces are of those that compute."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.process.conftest import DEADLINE
from vidette import Engine, open_engine
from vidette_protocol.messages import ProfileReq, ProfileReqOutput

SHORT = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}


async def kill_scheduler(engine: Engine) -> None:
    pid = next(process.pid for process in engine.statistics().processes if process.role == "scheduler")
    os.kill(pid, signal.SIGKILL)
    while engine.statistics().restarts == 0:
        await anyio.lowlevel.checkpoint()


def names_in(folder: Path, path: str) -> set[str]:
    """Return the names of what was traced, in the one trace that is there."""
    (written,) = folder.iterdir()
    assert Path(path) == written
    return {event.get("name", "") for event in json.loads(written.read_text())["traceEvents"]}


@pytest.mark.long
async def test_a_scheduler_that_is_started_again_is_paused_as_well() -> None:
    with anyio.fail_after(3 * DEADLINE):
        async with open_engine(
            "toy", topology="processes", supervision="restart", restart_delay=0.01
        ) as engine:
            async with engine.generate("hello", sampling_params=SHORT) as stream:
                whole = (await stream.read()).text
            await engine.pause_generation("in_place")
            async with engine.generate("hello", sampling_params=SHORT) as stream:
                await kill_scheduler(engine)
                beat = await engine.heartbeat()
                assert beat.health.paused
                assert (beat.steps, beat.incarnation) == (0, 1)
                await engine.continue_generation()
                assert (await stream.read()).text == whole


async def test_steps_are_traced_into_the_folder_of_the_operator(tmp_path: Path) -> None:
    with anyio.fail_after(3 * DEADLINE):
        async with open_engine("toy", topology="processes", profile_dir=str(tmp_path)) as engine:
            refused = await engine.control(ProfileReq(id=0, req_type="start", output_dir="/tmp"))
            assert not refused.success
            assert (await engine.control(ProfileReq(id=0, req_type="start", profile_id="slow"))).success
            async with engine.generate("hello", sampling_params=SHORT) as stream:
                await stream.read()
            answer = await engine.control(ProfileReq(id=0, req_type="stop"))
            assert isinstance(answer, ProfileReqOutput)
            assert answer.success, answer.message
            assert answer.path is not None
            assert {"step 0", "step 4"} <= names_in(tmp_path, answer.path)
