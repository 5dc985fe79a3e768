"""What is said of a child that has ended, and what one is told (children themselves: tests/process)."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time

import anyio
import msgspec
import pytest

from vidette.transport.spawn import Child, ChildSpec, Look, _Echo, describe_exit, look_at


@pytest.mark.parametrize(
    ("status", "last_words", "sentence"),
    [
        (0, "", "the scheduler ended with exit status 0"),
        (3, "", "the scheduler ended with exit status 3"),
        (
            1,
            "Traceback\n  ...\nOSError: no",
            "the scheduler ended with exit status 1; its last words: OSError: no",
        ),
        (
            1,
            "vidette scheduler: OSError: no\n  Traceback\n    ...\n  OSError: no",
            "the scheduler ended with exit status 1; its last words: OSError: no",
        ),
        (
            1,
            "vidette scheduler: UsageError: no",
            "the scheduler ended with exit status 1; its last words: UsageError: no",
        ),
        (-signal.SIGKILL, "", "the scheduler was killed by SIGKILL"),
        (-signal.SIGSEGV, "oops", "the scheduler was killed by SIGSEGV; its last words: oops"),
        (-63, "", "the scheduler was killed by signal 63"),
        (
            1,
            '{"level": "info", "message": "a"}\n{"level": "error", "message": "OSError: no", "error": "..."}',
            "the scheduler ended with exit status 1; its last words: OSError: no",
        ),
        (
            1,
            '{"message": "two\\nlines"}',
            "the scheduler ended with exit status 1; its last words: lines",
        ),
    ],
)
def test_how_a_child_ended_is_one_sentence(status: int, last_words: str, sentence: str) -> None:
    assert sentence == describe_exit("scheduler", status, last_words)


def test_what_a_child_is_told_survives_its_command_line() -> None:
    spec = ChildSpec(
        links={"front": 5, "detokenizer": 7},
        guard=9,
        parent=4711,
        die_with_thread=True,
        incarnation=2,
        backend="trio",
        config=msgspec.Raw(b'{"model":"toy"}'),
    )
    told = msgspec.json.decode(msgspec.json.encode(spec), type=ChildSpec)
    assert msgspec.structs.replace(told, config=msgspec.Raw()) == msgspec.structs.replace(
        spec, config=msgspec.Raw()
    )
    assert bytes(told.config) == b'{"model":"toy"}'


def test_what_the_kernel_says_of_a_process() -> None:
    before = time.process_time()
    look = look_at(os.getpid())
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert look.state == "R"
    assert look.rss_bytes > 10_000_000
    assert before - 2 * tick <= look.cpu_s <= time.process_time() + 2 * tick


def test_of_one_that_is_not_there_it_says_nothing() -> None:
    assert look_at(1 << 30) == Look("X", 0.0)


class Slow(io.StringIO):
    """What is read only once that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, text: str) -> int:
        assert self.gate.wait(20)
        return super().write(text)


def wait_echoed() -> None:
    for thread in threading.enumerate():
        if thread.name == "echo":
            thread.join(20)


async def test_what_a_child_said_at_its_end_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody listens any more, since what runs the listener was cancelled."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    child = Child("scheduler", {}, {}, backend="asyncio", module="this")  # says a poem, and ends
    try:
        with anyio.fail_after(20):
            assert await child.wait_exit() == 0
    finally:
        child.close()
    wait_echoed()
    assert stderr.getvalue().endswith("let's do more of those!\n")


def test_lines_are_passed_on_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several processes come to one stderr."""
    stderr = Slow()
    stderr.gate.set()
    monkeypatch.setattr(sys, "stderr", stderr)
    echo = _Echo()
    for piece, whole in ((b"on", ""), (b"e\ntw", "one\n"), (b"o\n", "one\ntwo\n"), (b"last", "one\ntwo\n")):
        echo.add(piece)
        wait_echoed()
        assert stderr.getvalue() == whole
    echo.end()
    wait_echoed()
    assert stderr.getvalue() == "one\ntwo\nlast"


def test_what_there_is_no_room_for_is_left_out_by_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Slow()
    monkeypatch.setattr(sys, "stderr", stderr)
    echo = _Echo()
    lines = [f"line {number}\n" for number in range(20_000)]
    for line in lines:
        echo.add(line.encode())
    stderr.gate.set()
    wait_echoed()
    said = stderr.getvalue().splitlines(keepends=True)
    assert set(said) < set(lines), "none is cut, and some are missing"
    assert said[-1] == lines[-1]
