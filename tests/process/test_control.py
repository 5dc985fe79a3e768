"""Control messages through a whole engine: answered, refused, and ended with it."""

from __future__ import annotations

import anyio
import pytest

from tests.process.conftest import DEADLINE
from vidette import EngineClosed, UsageError, open_engine
from vidette_protocol.limits import Limits
from vidette_protocol.messages import (
    ConfigureLoggingReq,
    ConfigureLoggingReqOutput,
    ControlOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    LoadLoRAAdapterReqInput,
    LoRAUpdateOutput,
    OpenSessionReqInput,
)


async def test_the_scheduler_tells_its_state(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology, step_tokens=96, max_running=7) as engine:
            answer = await engine.control(GetInternalStateReq(id=0))
            assert isinstance(answer, GetInternalStateReqOutput)
            assert (answer.success, answer.message) == (True, "")
            state = answer.internal_state
            assert (state["step_tokens"], state["max_running"]) == (96, 7)


async def test_what_is_not_supported_is_refused_and_the_engine_serves_on(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            logs = await engine.control(ConfigureLoggingReq(id=0))
            told = "this scheduler does not support ConfigureLoggingReq"
            assert logs == ConfigureLoggingReqOutput(id=logs.id, success=False, message=told)
            loaded = await engine.control(
                LoadLoRAAdapterReqInput(id=0, lora_id="f" * 32, lora_name="poet", lora_path="poet")
            )
            assert type(loaded) is LoRAUpdateOutput
            assert not loaded.success
            async with engine.generate("hello", sampling_params={"max_new_tokens": 3}) as stream:
                assert (await stream.read()).text


async def test_a_message_too_long_for_a_frame_is_refused_and_the_engine_serves_on() -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy") as engine:
            name = "x" * Limits().frame_bytes
            with pytest.raises(UsageError, match=r"^OpenSessionReqInput cannot be sent: a frame of 67\d{6} "):
                await engine.control(OpenSessionReqInput(id=0, session_id=name, capacity_of_str_len=0))
            answer = await engine.control(GetInternalStateReq(id=0))
            assert answer.success


async def test_many_are_answered_while_requests_are_served(topology: str) -> None:
    answers: list[ControlOutput] = []
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:

            async def ask() -> None:
                answers.append(await engine.control(GetInternalStateReq(id=0)))

            async with engine.generate("hello", sampling_params={"max_new_tokens": 40}) as stream:
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(ask)
                await stream.read()
    assert len({answer.id for answer in answers}) == 20
    assert all(answer.success for answer in answers)


async def test_an_engine_that_was_left_answers_nothing(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            pass
        with pytest.raises(EngineClosed):
            await engine.control(GetInternalStateReq(id=0))
