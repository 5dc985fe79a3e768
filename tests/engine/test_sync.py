"""The blocking facade: the same lifetimes, from threads and under Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from vidette import DuplicateRequest, EngineClosed, RequestError, RequestReplaced, UsageError, sync
from vidette._loop import Loop, open_portal

DEADLINE = 30.0
ENDLESS = {"max_new_tokens": 8000, "ignore_eos": True}
SHORT = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Literal["asyncio", "trio"]:
    name: Literal["asyncio", "trio"] = request.param
    return name


@contextmanager
def interrupted_by_ctrl_c(ready: threading.Event) -> Iterator[None]:
    """Send SIGINT to the main thread as soon as an event is set, and expect it to arrive in the block."""

    def send() -> None:
        ready.wait(DEADLINE)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join(DEADLINE)


def test_it_streams_reads_and_leaves_nothing(backend: Literal["asyncio", "trio"]) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        with engine.generate("hello", sampling_params=SHORT) as stream:
            pieces = [delta.text for delta in stream]
        with engine.generate("hello", sampling_params=SHORT) as stream:
            completion = stream.read()
        assert "".join(pieces) == completion.text == stream.text
        assert stream.token_ids == completion.token_ids
        engine.wait_quiet()
        assert engine.heartbeat().ledgers.total() == 0
        engine.probe()
        assert engine.render_chat([{"role": "user", "content": "hi"}])
        assert engine.info.name == "toy"
        assert engine.max_total_tokens > 0
    with pytest.raises(EngineClosed):
        engine.heartbeat()
    with pytest.raises(EngineClosed), engine.generate("late"):
        pass


def test_leaving_a_block_early_aborts(backend: Literal["asyncio", "trio"]) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        for _ in range(3):
            with engine.generate("x", sampling_params=ENDLESS, rid="r") as stream:
                next(iter(stream))
        engine.wait_quiet()
        assert engine.statistics().ledgers.total() == 0


def test_a_name_is_refused_or_taken_over(backend: Literal["asyncio", "trio"]) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        with engine.generate("x", sampling_params=ENDLESS, rid="r") as first:
            next(iter(first))
            with pytest.raises(DuplicateRequest), engine.generate("y", sampling_params=SHORT, rid="r"):
                pass
            with engine.generate("y", sampling_params=SHORT, rid="r", on_duplicate="replace") as second:
                with pytest.raises(RequestReplaced):
                    first.read()
                assert second.read().completion_tokens == 6
        engine.wait_quiet()
        assert engine.statistics().ledgers.total() == 0


def test_errors_come_out_as_they_are(backend: Literal["asyncio", "trio"]) -> None:
    with sync.open_engine("toy", backend=backend) as engine:
        with pytest.raises(UsageError, match="empty"), engine.generate(""):
            pass
        with pytest.raises(LookupError), engine.generate("x", sampling_params=ENDLESS):
            raise LookupError
        engine.wait_quiet()


def test_closing_ends_the_call_of_another_thread(backend: Literal["asyncio", "trio"]) -> None:
    heard: list[BaseException] = []
    started = threading.Event()

    def read() -> None:
        try:
            with engine.generate("x", sampling_params=ENDLESS) as stream:
                started.set()
                stream.read()
        except (EngineClosed, RequestError) as error:
            heard.append(error)

    with sync.open_engine("toy", backend=backend) as engine:
        thread = threading.Thread(target=read)
        thread.start()
        assert started.wait(DEADLINE)
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert [type(error) for error in heard] == [EngineClosed]


def test_ctrl_c_while_reading_leaves_the_engine_usable(backend: Literal["asyncio", "trio"]) -> None:
    ready = threading.Event()
    with sync.open_engine("toy", backend=backend) as engine:
        with (
            interrupted_by_ctrl_c(ready),
            engine.generate("x", sampling_params=ENDLESS, rid="r") as stream,
        ):
            next(iter(stream))
            ready.set()
            stream.read()
        engine.wait_quiet()
        engine.wait_turning()
        with engine.generate("next", sampling_params=SHORT, rid="r") as stream:
            assert stream.read().completion_tokens == 6
        assert engine.heartbeat().ledgers.total() == 0


def test_ctrl_c_while_the_engine_opens_ends_what_was_begun(backend: Literal["asyncio", "trio"]) -> None:
    import time

    for delay in (0.0, 0.005, 0.02, 0.05, 0.2):
        threads = threading.active_count()

        def send(delay: float = delay) -> None:
            time.sleep(delay)  # a moment of the opening; any will do
            os.kill(os.getpid(), signal.SIGINT)

        interrupter = threading.Thread(target=send)
        with pytest.raises(KeyboardInterrupt):
            interrupter.start()
            with sync.open_engine("toy", backend=backend):
                time.sleep(DEADLINE)
        interrupter.join(DEADLINE)
        ends = time.monotonic() + DEADLINE
        while any(thread.name == "vidette loop" for thread in threading.enumerate()):
            # It may be about to end, or even to start: then it finds that nobody waits for it.
            assert time.monotonic() < ends
            time.sleep(0.001)
        assert threading.active_count() <= threads + 3  # idle workers of the event loop library


def test_a_request_that_was_entered_just_when_we_were_interrupted_is_left_again() -> None:
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    log: list[str] = []
    entering = threading.Event()

    @asynccontextmanager
    async def request() -> AsyncIterator[None]:
        entering.set()
        os.kill(os.getpid(), signal.SIGINT)  # seen by the main thread while this one goes on
        log.append("entered")
        try:
            yield
        finally:
            log.append("left")

    with open_portal("asyncio") as portal:
        loop = Loop(portal)
        with pytest.raises(KeyboardInterrupt):
            loop.enter(request())
            pytest.fail("it was not interrupted")  # pragma: no cover
    assert log == ["entered", "left"]
