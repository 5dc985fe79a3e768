"""`vidette generate`: text on stdout, and nothing else there."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.conftest import Commands
from vidette.cli import main

TOY = ("--model", "toy", "--seed", "3", "--ignore-eos")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("topology", ["inline", "processes"])
def test_text_and_json_say_the_same(backend: str, topology: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--backend", backend, "--topology", topology)
    assert main(["generate", "hello", *TOY, *where, "--max-new-tokens", "20"]) == 0
    text, err = capsys.readouterr()
    assert main(["generate", "hello", *TOY, *where, "--max-new-tokens", "20", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert text == report["text"] + "\n"
    assert err == ""
    assert (report["command"], report["model"], report["finish_reason"]) == ("generate", "toy", "length")
    assert (report["prompt_tokens"], report["completion_tokens"], len(report["output_ids"])) == (5, 20, 20)


def test_a_chat_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--chat", *TOY, "--max-new-tokens", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 8


def test_ctrl_c_ends_it_quietly(vidette_command: Commands) -> None:
    command = vidette_command("generate", "x", *TOY, "--max-new-tokens", "8000", "--topology", "processes")
    assert command.process.stdout is not None
    assert command.process.stdout.read(5)
    command.find_children(2)
    command.signal(signal.SIGINT)
    status, _, err = command.end()
    assert (status, err) == (130, "")


def test_nobody_reading_ends_it_quietly(vidette_command: Commands) -> None:
    command = vidette_command("generate", "x", *TOY, "--max-new-tokens", "8000")
    assert command.process.stdout is not None
    assert command.process.stdout.read(5)
    command.process.stdout.close()
    assert command.process.stderr is not None
    assert command.process.stderr.read() == b""
    assert command.process.wait(60) == 141
