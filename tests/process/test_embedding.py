"""The engine as a library: any thread, any number, any backend, any number of times."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import anyio
import pytest

from tests.process.conftest import DEADLINE, start_script
from vidette import open_engine, sync
from vidette.testing import wait_quiescent

SHORT = {"max_new_tokens": 6, "temperature": 0}


async def answer(topology: str) -> str:
    async with open_engine("toy", topology=topology) as engine:
        async with engine.generate("hello", sampling_params=SHORT) as stream:
            return (await stream.read()).text


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_both_topologies_give_the_same_text() -> None:
    with anyio.fail_after(DEADLINE):
        assert await answer("inline") == await answer("processes")


async def test_two_engines_live_side_by_side(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with (
            open_engine("toy", topology=topology) as one,
            open_engine("toy", topology=topology) as other,
            one.generate("same", sampling_params=SHORT, rid="r") as first,
            other.generate("same", sampling_params=SHORT, rid="r") as second,
        ):
            assert (await first.read()).text == (await second.read()).text


async def test_opening_again_and_again_leaves_nothing_behind(topology: str) -> None:
    with anyio.fail_after(DEADLINE):
        await answer(topology)  # whatever is made once and kept is made here
        before = descriptors(), threading.active_count()
        for _ in range(5):
            await answer(topology)
        after = descriptors(), threading.active_count()
    assert after[0] <= before[0]
    # Worker threads are kept for reuse by the event loop library: a few, however often.
    assert after[1] <= before[1] + 2


def test_a_second_run_on_a_fresh_loop_works(anyio_backend: str) -> None:
    for _ in range(2):
        assert anyio.run(answer, "inline", backend=anyio_backend)


@pytest.mark.parametrize("topology", ["inline", "processes"])
def test_a_thread_that_is_not_the_main_one_will_do(anyio_backend: str, topology: str) -> None:
    texts: list[str] = []

    def run() -> None:
        texts.append(anyio.run(answer, topology, backend=anyio_backend))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE)
    assert len(texts) == 1


def test_children_of_a_thread_outlive_nothing_but_also_not_too_little() -> None:
    """A child that was started on a thread does not die with that thread while its engine lives.

    The engine is opened by a worker thread of the portal; the kernel's own parent-death signal follows the
    thread that forked, so it must not be used there.
    """
    with sync.open_engine("toy", backend="trio", topology="processes") as engine:
        for _ in range(2):
            with engine.generate("x", sampling_params=SHORT) as stream:
                assert stream.read().completion_tokens <= 6
        assert engine.statistics().ledgers.total() == 0


SCRIPT = """
import anyio, vidette
async def main():
    async with vidette.open_engine("toy", topology={topology!r}) as engine:
        params = {{"max_new_tokens": 6, "temperature": 0}}
        async with engine.generate("hello", sampling_params=params) as stream:
            print((await stream.read()).text)
print("once")
anyio.run(main, backend={backend!r})
"""


@pytest.mark.parametrize("topology", ["inline", "processes"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_plain_script_needs_no_main_guard(topology: str, backend: str) -> None:
    script = start_script(SCRIPT.format(topology=topology, backend=backend))
    output, errors = script.communicate(timeout=DEADLINE)
    assert errors == ""
    assert output.splitlines()[0] == "once"
    assert output.count("once") == 1
    assert script.returncode == 0


async def test_nothing_is_installed_in_the_embedding_program(topology: str) -> None:
    import signal
    import sys

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    interval, environment = sys.getswitchinterval(), dict(os.environ)
    with anyio.fail_after(DEADLINE):
        async with open_engine("toy", topology=topology) as engine:
            async with engine.generate("x", sampling_params=SHORT) as stream:
                await stream.read()
            await wait_quiescent(engine)
            assert sys.getswitchinterval() == interval
            assert [
                signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
            ] == handlers
    assert dict(os.environ) == environment


def test_importing_the_library_starts_nothing_and_needs_no_torch() -> None:
    source = "import sys, threading, vidette; print('torch' in sys.modules, threading.active_count())"
    script = start_script(source)
    output, errors = script.communicate(timeout=DEADLINE)
    assert (output.strip(), errors) == ("False 1", "")
    assert isinstance(script, subprocess.Popen)


@pytest.mark.parametrize("topology", ["inline", "processes"])
async def test_opening_in_a_scope_that_has_ended_opens_nothing(topology: str) -> None:
    """Neither hangs nor leaves anything: a cancelled scope, a deadline that has passed, one turn later."""
    with anyio.fail_after(DEADLINE):
        for deadline in (-1.0, 0.0, 0.001, 0.05):
            with anyio.move_on_after(deadline) as scope:
                async with open_engine("toy", topology=topology):
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            async with open_engine("toy", topology=topology):
                pytest.fail("it opened")


def test_a_task_that_is_cancelled_natively_while_it_opens_ends() -> None:
    import asyncio  # noqa: TID251  what programs on asyncio do

    async def open_and_wait() -> None:
        async with open_engine("toy"):
            await asyncio.sleep(3600)

    async def main() -> None:
        for turns in range(4):
            task = asyncio.create_task(open_and_wait())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=DEADLINE)
            assert done

    asyncio.run(main())


def test_a_program_ends_though_nobody_reads_its_stderr() -> None:
    """What its processes say on stderr is passed on by a thread that nothing waits for."""
    source = """
import anyio, vidette
from vidette.transport.spawn import _Echo
echo = _Echo()
for _ in range(64):
    echo.add(b"x" * 16383 + b"\\n")
async def main():
    async with vidette.open_engine("toy", topology="processes"):
        print("open")
anyio.run(main)
"""
    script = start_script(source)  # its stderr is a pipe, which is not read before it has ended
    try:
        assert script.wait(DEADLINE) == 0
    finally:
        script.kill()
        script.communicate()
