"""`vidette completion`: what shells offer once they have read its scripts, by asking them."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.cli.conftest import SECONDS
from vidette.cli import main
from vidette.cli._shells import describe
from vidette.cli.main import make_parser
from vidette.models.hub import Record, write_record

PROMPT = "\x1b[?2004h"
"""What zsh says once it reads a line."""
Ask = Callable[[str], set[str]]
"""Returns what is offered for a command line that ends where the cursor is."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with files, a model that was pulled, and a `vidette` on the path."""
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path / "home"))
    files = {"config.json": 2}
    record = Record(repo="org/tiny", file=None, revision="main", commit="0" * 40, files=files)
    write_record(record, tmp_path / "home" / "models")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "vidette"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m vidette.cli "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    here = tmp_path / "here"
    (here / "certificates").mkdir(parents=True)
    (here / "cert.pem").touch()
    monkeypatch.chdir(here)
    return tmp_path


def script(shell: str, home: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert shutil.which(shell) or shell == "bash"
    assert main(["completion", shell]) == 0
    path = home / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.fixture
def bash(home: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    path = script("bash", home, capsys)

    def ask(line: str) -> set[str]:
        words = [word for part in shlex.split(line) for word in part.replace("=", " = ").split(" ")]
        if line.endswith(" "):
            words.append("")
        words = [word for word in words[:-1] if word] + words[-1:]
        program = (
            f"source {shlex.quote(str(path))}; compopt() {{ :; }}; COMP_WORDS=({shlex.join(words)}); "
            f"COMP_CWORD={len(words) - 1}; _vidette; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS
        )
        assert done.stderr == ""
        return {*done.stdout.split()}

    return ask


@pytest.fixture
def fish(home: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    path = script("fish", home, capsys)

    def ask(line: str) -> set[str]:
        program = f"source {shlex.quote(str(path))}; complete -C {shlex.quote(line)}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        )
        assert done.stderr == ""
        return {offer.partition("\t")[0].rpartition("=")[2] for offer in done.stdout.splitlines()}

    return ask


@pytest.fixture
def zsh(home: Path, capsys: pytest.CaptureFixture[str]) -> Generator[Ask]:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    path = script("zsh", home, capsys)
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "COLUMNS": "300"})

    def ask(line: str) -> set[str]:
        os.write(terminal, f"{line}\x0f".encode())
        said = read_until(terminal, lambda said: said.count(line) > 1 and said.endswith(line))
        os.write(terminal, b"\x15")  # an empty line again
        return {word for each in said.split("\n")[1:-1] for word in each.partition(" -- ")[0].split()}

    try:
        setup = f"autoload -Uz compinit && compinit -D -u; source {shlex.quote(str(path))}; PS1="
        os.write(terminal, f"{setup}; bindkey '^O' list-choices; echo re''ady\n".encode())
        read_until(terminal, lambda said: PROMPT in said.partition("ready\r\n")[2])
        yield ask
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, ended: Callable[[str], bool]) -> str:
    said, deadline = "", time.monotonic() + SECONDS
    while not ended(said):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"the shell said no more: {said!r}"
        said += os.read(terminal, 1 << 16).decode(errors="replace")
    return said


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_what_is_offered(shell: str, request: pytest.FixtureRequest) -> None:
    ask: Ask = request.getfixturevalue(shell)
    assert ask("vidette ") >= {"serve", "chat", "pull", "completion", "bench"}
    assert {"serve"} <= ask("vidette se") <= {"serve"}
    assert ask("vidette serve --topo") == {"--topology"}
    assert ask("vidette serve --topology ") == {"processes", "inline"}
    assert ask("vidette serve --model ") >= {"toy", "smollm2-135m-instruct", "org/tiny"}
    assert ask("vidette pull sm") == {"smollm2-135m-instruct"}
    assert ask("vidette completion ") == {"bash", "zsh", "fish", "models"}
    assert ask("vidette bench ") >= {"wire", "serve", "idle"}
    assert ask("vidette bench serve --end") == {"--endpoint"}
    assert ask("vidette wire du") == {"dump"}
    assert "--topology" not in ask("vidette bench serve --t")
    assert {offer.rstrip("/") for offer in ask("vidette serve --tls-cert cert")} == {
        "cert.pem",
        "certificates",
    }
    assert {offer.rstrip("/") for offer in ask("vidette serve --capture c")} == {"certificates"}


def test_a_value_behind_an_equals_sign_is_offered_in_bash(bash: Ask) -> None:
    assert bash("vidette serve --topology=") == {"processes", "inline"}
    assert bash("vidette serve --topology=in") == {"inline"}


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_names_run_nothing_and_are_quoted(shell: str, home: Path, request: pytest.FixtureRequest) -> None:
    """Whoever names a file on a hub, or here, has nothing run by who completes it."""
    ask: Ask = request.getfixturevalue(shell)
    names = ["org/$(touch${IFS}ran).gguf", "org/`touch${IFS}ran`.gguf", "org/*", "org/;touch${IFS}ran"]
    (home / "bin/vidette").write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.join(names)}\n")
    (home / "here/org").mkdir()
    for name in names:
        (home / "here" / name).touch()
    offered = ask("vidette serve --model org/")
    assert not (home / "here/ran").exists()
    if shell == "bash":
        assert offered == {*map(quoted, names)}
    else:
        assert {*names} <= {offer.replace("\\", "") for offer in offered}


def quoted(name: str) -> str:
    return "".join(char if char.isalnum() or char in "/." else f"\\{char}" for char in name)


def test_only_names_that_are_taken_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("$(touch ran).gguf", "a\x1b[2J.gguf", "fine.gguf"):
        record = Record(repo="org/more", file=file, revision="main", commit="0" * 40, files={file: 1})
        write_record(record, home / "home" / "models")
    assert main(["completion", "models"]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["org/more/fine.gguf", "org/tiny"]


def test_what_bash_takes_for_lists_has_nothing_that_it_runs() -> None:
    for command in describe(make_parser()).all():
        choices = [word for place in (*command.options, *command.places) for word in place.choices]
        assert re.fullmatch(r"[\w. -]*", " ".join([command.words, *choices]))


def test_names_of_models_are_told_although_a_record_is_bad(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "models"]) == 0
    names = capsys.readouterr().out.split()
    assert names == ["toy", "smollm2-135m-instruct", "gemma3-270m", "org/tiny"]
    (record,) = (home / "home/models/pulled").rglob("*.json")
    record.write_text("{")
    assert main(["completion", "models"]) == 0
    assert capsys.readouterr().out.split() == names[:-1]


def test_another_shell_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
