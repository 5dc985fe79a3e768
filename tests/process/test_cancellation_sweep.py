"""Every public operation is cancelled at each of its checkpoints: nothing is held, and the engine answers.

With the toy model. What waits for a thread or a process waits once, however long it takes, so the checkpoints
are the same each time but for the number of deltas that a reader finds, which `max_new_tokens` bounds.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from vidette import (
    DuplicateRequest,
    Engine,
    GenerateReqInput,
    RequestAborted,
    RequestReplaced,
    SamplingParams,
    Stream,
    open_engine,
)
from vidette.testing import sweep, wait_quiescent
from vidette_protocol.messages import FlushCacheReqInput, GetInternalStateReq

DEADLINE = 60.0
SHORT = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}

Operation = Callable[[Engine], Awaitable[object]]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both backends."""
    backend: str = request.param
    return backend


@pytest.fixture(autouse=True)
def nothing_stays_frozen() -> Iterator[None]:
    """Give the garbage collector back what a sweep froze: it is the one of all tests."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", params=["inline", "processes"])
async def engine(anyio_backend: object, request: pytest.FixtureRequest) -> AsyncGenerator[Engine]:
    """One engine of each topology, for all sweeps."""
    async with open_engine("toy", topology=request.param) as engine:
        yield engine


async def check_free_and_answering(engine: Engine) -> None:
    """Check that nothing is held anywhere, and that the next request has the text that it always has."""
    await wait_quiescent(engine)
    with anyio.fail_after(DEADLINE):
        # Under the name that the operations use: it can be used again at once.
        async with engine.generate("hello", rid="swept", sampling_params=SHORT) as stream:
            assert (await stream.read()).text == "sA/"


async def generate_and_read(engine: Engine) -> None:
    async with engine.generate("hello", rid="swept", sampling_params=SHORT) as stream:
        await stream.read()


async def generate_from_ids(engine: Engine) -> None:
    async with engine.generate([1, 2, 3], rid="swept", sampling_params=SHORT) as stream:
        await stream.read()


async def generate_and_iterate(engine: Engine) -> None:
    async with engine.generate("hello", rid="swept", sampling_params=SHORT) as stream:
        async for _ in stream:
            await anyio.lowlevel.checkpoint()


async def generate_and_leave(engine: Engine) -> None:
    async with engine.generate("hello", rid="swept", sampling_params={"max_new_tokens": 4000}):
        await anyio.lowlevel.checkpoint()


async def generate_with_a_deadline(engine: Engine) -> None:
    with anyio.move_on_after(0.01):
        async with engine.generate("hello", rid="swept", sampling_params={"max_new_tokens": 3}) as stream:
            await stream.read()


async def generate_a_group(engine: Engine) -> None:
    params = SamplingParams(**SHORT, n=2)  # type: ignore[arg-type]
    request = GenerateReqInput(text=["a", "b", "c"], rid="swept", sampling_params=params)
    async with engine.generate_group(request) as group:
        await group.read()


async def wait_for_a_group(engine: Engine) -> None:
    request = GenerateReqInput(
        text=["a", "b"], rid=["swept", "x"], sampling_params=SamplingParams(max_new_tokens=2)
    )
    async with engine.generate_group(request) as group:
        while ready := await group.wait_ready():
            for place in ready:
                await anext(group.streams[place])


async def replace(engine: Engine) -> None:
    async with engine.generate("old", rid="swept", sampling_params={"max_new_tokens": 4000}) as old:
        async with engine.generate("new", rid="swept", sampling_params=SHORT, on_duplicate="replace") as new:
            await new.read()
        with suppress(RequestReplaced):
            await old.read()


async def replace_one_that_is_being_tokenised(engine: Engine) -> None:
    async def first() -> None:
        with suppress(RequestReplaced, DuplicateRequest):  # whichever comes first
            async with engine.generate("old", rid="swept", sampling_params=SHORT) as old:
                await old.read()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await anyio.lowlevel.checkpoint()
        async with engine.generate("new", rid="swept", sampling_params=SHORT, on_duplicate="replace") as new:
            await new.read()


async def render_and_generate(engine: Engine) -> None:
    prompt = await engine.render_chat([{"role": "user", "content": "hi"}])
    async with engine.generate(prompt, rid="swept", sampling_params=SHORT) as stream:
        await stream.read()


async def quiet_behind_a_request(engine: Engine) -> None:
    async with engine.generate("hello", rid="swept", sampling_params={"max_new_tokens": 4000}):
        pass
    await engine.wait_quiet()


async def abort_all_and_wait(engine: Engine) -> None:
    async with engine.generate("hello", rid="swept", sampling_params={"max_new_tokens": 4000}) as stream:
        engine.abort_all()
        with suppress(RequestAborted):
            await stream.read()
    await engine.wait_quiet()


OPERATIONS: dict[str, tuple[Operation, int]] = {
    "generate and read": (generate_and_read, 3),
    "generate from ids": (generate_from_ids, 2),
    "generate and iterate": (generate_and_iterate, 3),
    "generate and leave": (generate_and_leave, 2),
    "generate with a deadline": (generate_with_a_deadline, 1),
    "generate a group": (generate_a_group, 4),
    "wait for a group": (wait_for_a_group, 4),
    "replace": (replace, 5),
    "replace one that is being tokenised": (replace_one_that_is_being_tokenised, 4),
    "render a chat, and generate": (render_and_generate, 4),
    "wait until all is quiet": (quiet_behind_a_request, 3),
    "heartbeat": (lambda engine: engine.heartbeat(), 1),
    "freeze": (lambda engine: engine.freeze_gc(duration_s=0.01), 1),
    "unfreeze": (lambda engine: engine.unfreeze_gc(), 1),
    "abort all": (abort_all_and_wait, 3),
    "control": (lambda engine: engine.control(GetInternalStateReq(id=0)), 1),
    "control with a deadline": (lambda engine: engine.control(GetInternalStateReq(id=0, deadline_s=9.0)), 1),
    "control that is refused": (lambda engine: engine.control(FlushCacheReqInput(id=0, timeout_s=1.0)), 1),
}
"""Each with the least number of checkpoints that it has, so that a sweep over nothing is noticed."""


@pytest.mark.parametrize("name", OPERATIONS)
async def test_whenever_it_is_cancelled_nothing_is_held(engine: Engine, name: str) -> None:
    """Cancelled at its first checkpoint, its second, at any: all ledgers are zero, the text is right."""
    operation, least = OPERATIONS[name]
    with anyio.fail_after(DEADLINE):
        points = await sweep(partial(operation, engine), partial(check_free_and_answering, engine), limit=60)
    assert points >= least, f"{points} checkpoints"


async def test_a_request_that_is_not_left_is_found(engine: Engine) -> None:
    """A mutant: its block is not left if it is cancelled at the checkpoint behind entering."""
    blocks: list[AbstractAsyncContextManager[Stream]] = []

    async def leak() -> None:
        block = engine.generate("hello", sampling_params={"max_new_tokens": 8000, "ignore_eos": True})
        await block.__aenter__()
        blocks.append(block)
        await anyio.lowlevel.checkpoint()
        await blocks.pop().__aexit__(None, None, None)

    with anyio.fail_after(DEADLINE):
        with pytest.raises(TimeoutError) as caught:
            await sweep(leak, partial(wait_quiescent, engine, timeout=0.3))
        assert caught.value.__notes__
        (block,) = blocks
        await block.__aexit__(None, None, None)
        await check_free_and_answering(engine)


async def test_whenever_draining_is_cancelled_requests_go_on_or_are_ended(anyio_backend: object) -> None:
    """It has no way back, so each time it is another engine that is drained."""

    async def drain_and_read() -> None:
        async with open_engine("toy") as engine:
            async with engine.generate("hello", sampling_params={"max_new_tokens": 4000}) as stream:
                try:
                    await engine.drain(0.001)
                finally:
                    assert engine.draining
                with suppress(RequestAborted):
                    await stream.read()
            await wait_quiescent(engine)

    async def check() -> None:
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(DEADLINE):
        assert await sweep(drain_and_read, check, limit=100, stride=3) >= 5


# --- the engine itself -----------------------------------------------------------------------------


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> list[str]:
    return (Path("/proc/self/task") / str(os.getpid()) / "children").read_text().split()


@pytest.mark.parametrize(
    ("topology", "stride"), [("inline", 1), pytest.param("processes", 7, marks=pytest.mark.long)]
)
async def test_whenever_opening_or_closing_is_cancelled_nothing_is_left(
    anyio_backend: object, topology: str, stride: int
) -> None:
    """Cancelled at any checkpoint from the first of opening to the last of closing, nothing is left.

    Processes take long to start, so of their checkpoints only each seventh is tried.
    """

    async def open_use_and_close() -> None:
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("hello", sampling_params=SHORT) as stream:
                assert (await stream.read()).text == "sA/"

    with anyio.fail_after(DEADLINE):
        await open_use_and_close()  # whatever is made once and kept is made here
        before, processes = descriptors(), children()

        async def check() -> None:
            assert descriptors() <= before
            assert children() == processes

        assert await sweep(open_use_and_close, check, limit=100, stride=stride) >= 10  # the last one answers
