"""What is said of a child that has ended, and what one is told (children themselves: tests/process)."""

from __future__ import annotations

import os
import signal
import time

import msgspec
import pytest

from vidette.transport.spawn import ChildSpec, Look, describe_exit, look_at


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
        (-signal.SIGKILL, "", "the scheduler was killed by SIGKILL"),
        (-signal.SIGSEGV, "oops", "the scheduler was killed by SIGSEGV; its last words: oops"),
        (-63, "", "the scheduler was killed by signal 63"),
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
