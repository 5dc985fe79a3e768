"""Lines of children: an object each, short, ASCII, whatever they are of; and what Python itself says."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidette._log_lines import CUT, LINE_BYTES, ChildLines, ChildText, log_what_python_says, message_of

LINES = ChildLines("scheduler", 3)


def line_of(message: str, error: Exception | None = None) -> str:
    record = logging.LogRecord("mine", logging.WARNING, __file__, 1, "%s", (message,), None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    return LINES.format(record)


TEXTS = st.builds(lambda text, times: text * times, st.text(max_size=20), st.sampled_from([1, 1000]))


@given(TEXTS, st.none() | st.builds(ValueError, TEXTS))
def test_whatever_is_said_is_a_short_line_of_ascii(message: str, error: ValueError | None) -> None:
    """It can be read back, says whose it is, and nothing is cut of what fits."""
    line = line_of(message, error)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= LINE_BYTES
    said: dict[str, Any] = json.loads(line)
    process = {"role": "scheduler", "pid": os.getpid(), "incarnation": 3}
    assert process.items() <= said.items()
    assert (said["level"], said["logger"], "error" in said) == ("warning", "mine", error is not None)
    assert message_of(line) == said["message"]
    trace = "" if error is None else LINES.formatException((ValueError, error, None))
    if len(message) + len(trace) < LINE_BYTES // 16:
        assert (said["message"], said.get("error", "")) == (message, trace)
    else:
        assert said["message"].startswith(message[:100])
        assert said.get("error", "").endswith(trace[-100:])


@pytest.mark.parametrize("field", ["name", "levelname", "msg", "stack_info"])
def test_whatever_is_too_long_is_cut(field: str) -> None:
    record = logging.LogRecord("mine", logging.WARNING, __file__, 1, "said", None, None)
    record.stack_info = "Stack"
    record.__dict__[field] = "a" + "x" * 9000 + "z"
    line = LINES.format(record)
    assert len(line) <= LINE_BYTES
    said = json.loads(line)
    shown = said[{"name": "logger", "levelname": "level", "msg": "message", "stack_info": "stack"}[field]]
    assert (shown[0] == "a", shown[-1] == "z") == ((False, True) if field == "stack_info" else (True, False))
    whole = {"logger": "mine", "level": "warning", "message": "said", "stack": "Stack"}
    assert len(whole.items() - said.items()) == 1


@given(TEXTS, TEXTS)
def test_no_text_of_a_child_poses_as_a_line(message: str, error: str) -> None:
    """The first line says whose it is, the others are indented, and none is too long."""
    record = logging.LogRecord("mine", logging.WARNING, __file__, 1, "%s", (message,), None)
    record.exc_info = (ValueError, ValueError(error), None)
    first, *others = ChildText("scheduler").format(record).split("\n")
    assert first.startswith("vidette scheduler: ")
    assert others
    assert all(line.startswith("  ") for line in others)
    for line in (first, *others):
        assert line.isprintable()
        assert len(line.encode()) <= LINE_BYTES + len(CUT.encode())


@pytest.mark.parametrize("line", ["", "text", "[1]", '{"a": 1}', '{"message": 1}', '{"a":' + "[" * 9999])
def test_a_line_that_is_no_object_is_its_own_message(line: str) -> None:
    assert message_of(line) == line


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    before = sys.excepthook, sys.unraisablehook, threading.excepthook, warnings.showwarning
    undo = log_what_python_says()
    try:
        yield caplog
    finally:
        undo()
    assert before == (sys.excepthook, sys.unraisablehook, threading.excepthook, warnings.showwarning)


def test_warnings_that_a_program_has_logged_stay_so() -> None:
    logging.captureWarnings(capture=True)
    shows = warnings.showwarning
    try:
        log_what_python_says()()
        assert warnings.showwarning is shows
    finally:
        logging.captureWarnings(capture=False)


def test_what_nothing_catches_is_logged(
    logged: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dying:
        def __del__(self) -> None:
            raise LookupError("while it died")

    thread = threading.Thread(target=lambda: 1 / 0, name="theirs")
    thread.start()
    thread.join()
    quiet = threading.Thread(target=sys.exit)
    quiet.start()
    quiet.join()
    Dying()
    sys.excepthook(KeyError, KeyError("x"), None)
    warnings.showwarning("soon gone", UserWarning, "theirs.py", 7)
    of_thread, dying, last, warned = logged.records
    assert of_thread.getMessage() == "thread theirs: ZeroDivisionError: division by zero"
    assert dying.getMessage().endswith("LookupError: while it died")
    assert "__del__" in dying.getMessage()
    assert last.getMessage() == "KeyError: 'x'"
    assert all(record.exc_info and record.levelname == "ERROR" for record in (of_thread, dying, last))
    assert warned.getMessage().startswith("theirs.py:7: UserWarning: soon gone")
    assert capsys.readouterr().err == ""
