"""The scheduler's shell: what only the step loop can answer comes back over the link to the front."""

from __future__ import annotations

import anyio
from tests.engine.scheduler.conftest import ENDLESS, request
from tests.engine.scheduler.test_process import Kind, kind, running

from vidette.scheduler.effects import Command
from vidette.scheduler.process import Lives
from vidette_protocol.ids import Vid
from vidette_protocol.messages import (
    AbortReq,
    CloseSessionReqInput,
    CloseSessionReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    OpenSessionReqInput,
    OpenSessionReqOutput,
    SessionParams,
)

__all__ = ["kind"]  # the fixture


async def test_sessions_are_opened_used_and_closed(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(OpenSessionReqInput(id=3, session_id="s", streaming=True))
        assert await ends.front.receive() == OpenSessionReqOutput(id=3, session_id="s")
        for vid in (1, 2):
            ends.front.post(request(vid, session_params=SessionParams(id="s")))
            assert await ends.receive_until_end_of(vid) == "length"
        assert (await ends.ask()).sessions == 1
        ends.front.post(CloseSessionReqInput(id=4, session_id="s"))
        assert await ends.front.receive() == CloseSessionReqOutput(id=4)
        assert (await ends.ask()).sessions == 0


async def test_an_idle_session_ends_though_nothing_comes(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(OpenSessionReqInput(id=3, session_id="s", timeout=0.01))
        assert await ends.front.receive() == OpenSessionReqOutput(id=3, session_id="s")
        while (await ends.ask()).sessions:
            pass


async def test_a_flush_waits_for_what_lives(kind: Kind) -> None:
    async with running(kind) as ends:
        ends.front.post(request(1, max_new_tokens=ENDLESS))
        ends.front.post(FlushCacheReqInput(id=5))
        answer = await ends.front.receive()
        assert isinstance(answer, FlushCacheReqOutput)
        assert (answer.id, answer.success) == (5, False)
        ends.front.post(FlushCacheReqInput(id=6, timeout_s=1000))
        ends.front.post(AbortReq(vid=1))
        answer = await ends.front.receive()
        assert isinstance(answer, FlushCacheReqOutput)
        assert (answer.id, answer.success) == (6, True)


class Posts:
    """Keeps what the step loop is told."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def post(self, command: Command, /) -> None:
        self.commands.append(command)


async def test_an_abort_that_crosses_the_end_reaches_the_step_loop_once() -> None:
    posts = Posts()
    async with anyio.create_task_group() as tasks:
        lives = Lives(posts, tasks)
        lives.begin(request(1))
        lives.end([Vid(1)])
        lives.abort(AbortReq(vid=1))  # the task has not been told yet
    assert len(lives) == 0
    assert [type(command).__name__ for command in posts.commands] == ["TokenizedGenerateReqInput", "AbortReq"]
