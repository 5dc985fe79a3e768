"""What scheduler and detokenizer say on stderr: as JSON, an object in each line, whatever it is of."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.process.conftest import DEADLINE
from tests.process.talking_child import CODEC, TalkReq
from vidette import EngineBroken, open_engine

LAST = "the end, which no line ends"


def hear_stderr(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what is said on stderr from now on, by this process, and by those of an engine through it."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    return stderr


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


async def wait_said(said: io.StringIO, words: str) -> None:
    while words not in said.getvalue():  # noqa: ASYNC110
        await anyio.sleep(0.01)  # a thread says it


def in_json(said: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.getvalue().splitlines() if line.startswith("{")]


async def test_whatever_python_says_is_an_object_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = hear_stderr(monkeypatch)
    with anyio.fail_after(DEADLINE):
        async with open_engine(
            "toy", topology="processes", log_format="json", codec=CODEC, child="tests.process.talking_child"
        ) as engine:
            assert (await engine.control(TalkReq(id=0))).success
            pids = {each.role: each.pid for each in engine.statistics().processes}
        await wait_said(said, LAST)
    objects = [each for each in in_json(said) if each["role"] == "scheduler"]
    del objects[: [each["logger"] for each in objects].index("theirs")]  # what was said while it started
    process = {"role": "scheduler", "pid": pids["scheduler"], "incarnation": 0}
    assert all(process.items() <= each.items() and each["time"] for each in objects)
    assert [(each["level"], each["logger"]) for each in objects] == [
        ("warning", "theirs"),
        ("error", "vidette.mine"),
        ("warning", "py.warnings"),
        ("error", "vidette"),
        ("error", "vidette"),
    ]
    theirs, wrong, warned, of_thread, dying = objects
    assert theirs["message"] == "two\nlines, \N{SNOWMAN}"
    assert wrong["message"] == "it went wrong"
    assert wrong["error"].endswith("x" * 100), "its end; the rest would not fit"
    assert "soon gone" in warned["message"]
    assert of_thread["message"] == "thread their own: ZeroDivisionError: division by zero"
    assert of_thread["error"].startswith("Traceback")
    assert "in <lambda>" in of_thread["error"]
    assert dying["message"].endswith("LookupError: while it died")
    assert "in __del__" in dying["error"]
    assert "most recent call first" in said.getvalue(), "faulthandler's lines stay as they are"


async def test_as_text_nothing_that_one_says_poses_as_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = hear_stderr(monkeypatch)
    with anyio.fail_after(DEADLINE):
        async with open_engine(
            "toy", topology="processes", codec=CODEC, child="tests.process.talking_child"
        ) as engine:
            assert (await engine.control(TalkReq(id=0))).success
        await wait_said(said, LAST)
    lines = said.getvalue().partition("Current thread")[0].splitlines()  # until faulthandler says its own
    while lines[-1].startswith(("Thread", "  File")) or not lines[-1]:
        del lines[-1]
    assert "vidette scheduler: two\\nlines, \N{SNOWMAN}" in lines
    assert "vidette scheduler: thread their own: ZeroDivisionError: division by zero" in lines
    assert "  ZeroDivisionError: division by zero" in lines
    assert any("soon gone" in line for line in lines)
    assert all(line.startswith(("vidette scheduler: ", "vidette detokenizer: ", "  ")) for line in lines), (
        lines
    )


async def test_why_one_ends_is_such_a_line_and_the_front_says_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = hear_stderr(monkeypatch)
    with anyio.fail_after(DEADLINE):
        with pytest.raises(EngineBroken, match="the scheduler ") as caught:
            async with open_engine("toy", topology="processes", log_format="json", kv_tokens=1 << 50):
                pytest.fail("it opened")
        await wait_said(said, "Traceback")
    assert "{" not in str(caught.value)
    last = in_json(said)[-1]
    assert (last["role"], last["level"], last["incarnation"]) == ("scheduler", "error", 0)
    assert last["error"].startswith("Traceback")
    assert last["message"].partition(":")[0] in str(caught.value)


async def test_of_an_error_that_tells_all_there_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = hear_stderr(monkeypatch)
    corpus = tmp_path / "a\nvidette: all is well"
    corpus.write_bytes(b"\xff")
    with anyio.fail_after(DEADLINE):
        with pytest.raises(EngineBroken, match="UsageError: draft_corpus is"):
            async with open_engine("toy", topology="processes", draft_tokens=1, draft_corpus=str(corpus)):
                pytest.fail("it opened")
        await wait_said(said, "\n")
    (line,) = said.getvalue().splitlines()
    assert line.startswith("vidette scheduler: UsageError: draft_corpus is ")
    assert "invalid start byte" in line
