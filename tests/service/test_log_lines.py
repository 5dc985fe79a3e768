"""Lines of the log: one for each record whatever is in it, with what the request is called."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

import vidette
from tests.service.driver import call
from vidette.service import FrontDoor, JsonLines, LogSettings, TextLines, build_app
from vidette.service.log_lines import FIELDS, note_rid, note_trace
from vidette.service.request_ids import RequestIds

HOSTILE = 'x\n{"level": "error"}\r\x1b[2J\x7f\x85\x9b\u2028\u202e\ud800"\\'


def record(
    message: str,
    *args: object,
    name: str = "vidette.front",
    fields: Mapping[str, object] | None = None,
    exc_info: Any = None,
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, args, exc_info)
    if fields is not None:
        made.__dict__[FIELDS] = fields
    return made


def as_json(line: str) -> Mapping[str, Any]:
    said: Mapping[str, Any] = json.loads(line)
    return said


@given(st.text(st.characters(), max_size=50) | st.just(HOSTILE))
def test_no_text_ends_a_line_or_reaches_the_terminal(text: str) -> None:
    """Whatever is logged is one printable line, and in JSON it can be read back."""
    for formatter in (JsonLines(), TextLines()):
        for made in (record("%s", text), record("said", fields={"body": text})):
            line = formatter.format(made)
            assert line.isprintable()
            line.encode()
    assert as_json(JsonLines().format(record("%s", text)))["message"] == text
    assert as_json(JsonLines().format(record("said", fields={"body": text})))["body"] == text


@pytest.mark.parametrize("text", [HOSTILE, "a\n" + "vidette: all is well"])
def test_no_error_poses_as_a_line(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        made = record("it failed", exc_info=sys.exc_info())
    first, *others = TextLines().format(made).split("\n")
    assert first == "it failed"
    assert others
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    line = JsonLines().format(made)
    assert line.isprintable()
    assert text in as_json(line)["error"]


def test_what_all_lines_have() -> None:
    said = dict(as_json(JsonLines().format(record("%s is slow", "it"))))
    assert datetime.fromisoformat(said.pop("time")).utcoffset() is not None
    assert said == {"level": "warning", "logger": "vidette.front", "message": "it is slow"}


def test_a_line_that_has_fields_asks_for_no_text() -> None:
    """That of a request takes long to escape, and is in the fields."""

    class Text:
        def __str__(self) -> str:
            raise AssertionError("it was asked for")

    assert as_json(JsonLines().format(record("%s", Text(), fields={"message": "x"})))["message"] == "x"


def test_where_something_was_is_said_if_that_is_asked_for() -> None:
    made = record("slow")
    made.stack_info = "Stack:\n  here"
    assert as_json(JsonLines().format(made))["stack"] == "Stack:\n  here"
    assert TextLines().format(made).split("\n") == ["slow", "  Stack:", "    here"]


def test_the_access_log_is_text_while_that_is_asked_for() -> None:
    assert JsonLines().format(record('path="/"', name="vidette.access")) == 'path="/"'


async def test_what_is_logged_meanwhile_names_the_request() -> None:
    lines: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lines.append(TextLines().format(record("before")))
        note_rid('a\n"b')
        note_trace("f" * 32)
        lines.append(TextLines().format(record("it failed")))
        lines.append(JsonLines().format(record("it failed")))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await call(RequestIds(app), "/", headers=[(b"x-request-id", b"mine")])
    before, text, line = lines
    assert before == 'before (request_id="mine")'
    assert text == rf'it failed (request_id="mine" rid="a\n\"b" trace_id="{"f" * 32}")'
    said = as_json(line)
    assert (said["request_id"], said["rid"], said["trace_id"]) == ("mine", 'a\n"b', "f" * 32)
    note_rid("nobody's")
    assert TextLines().format(record("after")) == "after"


def test_outside_of_a_request_there_is_none_to_name() -> None:
    note_rid("x")
    note_trace("x")
    assert "request_id" not in JsonLines().format(record("x"))


async def test_ids_of_responses_are_hidden() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        note_rid("resp_5ecret")
        seen.append(JsonLines().format(record("x")))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await call(RequestIds(app), "/")
    assert as_json(seen[0])["rid"] == "resp_***"


async def test_a_handler_writes_the_access_log_as_its_settings_say(engine: vidette.Engine) -> None:
    """What `/configure_logging` changes takes effect at once, in a log that is JSON otherwise."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Handler()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("vidette.access")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        app = build_app(engine, door=FrontDoor(logs=LogSettings(requests=True, format="json")))
        body = {"text": "a prompt nobody else reads", "rid": "mine", "sampling_params": {"max_new_tokens": 2}}
        await call(app, "/generate", body)
        await call(app, "/configure_logging", {"log_requests_format": "text"})
        await call(app, "/generate", body)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    said, text, more = lines
    line = as_json(said)
    assert (line["message"], line["logger"], line["rid"]) == ("POST /generate 200", "vidette.access", "mine")
    assert (line["status"], line["level"], line["whole"]) == (200, "info", True)
    assert 'path="/configure_logging"' in text
    assert 'rid="mine"' in more
    assert "prompt" not in "".join(lines)
