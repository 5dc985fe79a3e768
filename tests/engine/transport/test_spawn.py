"""What is said of a child that has ended, and what one is told (children themselves: tests/process)."""

from __future__ import annotations

import signal

import msgspec
import pytest

from vidette.transport.spawn import ChildSpec, describe_exit


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
