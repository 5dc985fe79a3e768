"""Every example in README.md and docs/ does what it is there to show.

Python examples run as plain scripts, as a reader would run them: in a process of their own, without a
`__main__` guard. Shell examples are taken apart: a command of ours must exist with the options it is given,
and a request by curl is sent to a service with the toy model.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from vidette.errors import ModelError
from vidette.models import resolve

ROOT = Path(__file__).parents[2]
NOT_RUN = "<!-- not run"
"""Opens a comment right above an example that cannot run here; it says why."""
SERVICE = "http://127.0.0.1:8000"
"""Where examples expect `vidette serve`."""


class Example(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    run: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples(*languages: str) -> list[Example]:
    return [example for example in all_examples() if example.language in languages]


@cache
def all_examples() -> list[Example]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [example for page in pages for example in read_examples(page)]


def read_examples(page: Path) -> Iterator[Example]:
    lines = page.read_text().splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        yield Example(
            page.relative_to(ROOT).as_posix(),
            start + 1,
            lines[start].removeprefix("```"),
            "\n".join(lines[start + 1 : number]) + "\n",
            not lines[start - 1].startswith(NOT_RUN),
        )
        start = None
    assert start is None, f"{page} has a block that does not end"


PYTHON = [example for example in examples("python") if example.run]
SHELL = examples("sh")
README_LIBRARY = next(example for example in PYTHON if "anyio.run(main)" in example.code)


def run_script(code: str, directory: Path) -> str:
    """Run a script in a directory of its own; return what it printed."""
    script = directory / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


def needs_real_model(example: Example) -> bool:
    return "open_engine()" in example.code


# --- Python -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=str(example), marks=[pytest.mark.real_model] * needs_real_model(example))
        for example in PYTHON
    ],
)
def test_python_example_runs(example: Example, tmp_path: Path) -> None:
    if needs_real_model(example):
        try:
            resolve("smollm2-135m-instruct")
        except ModelError as error:
            pytest.fail(str(error))
    printed = run_script(example.code, tmp_path)
    assert printed.strip(), "an example shows something"
    if "The capital of France is" in example.code:
        assert "Paris" in printed


def test_only_examples_that_cannot_run_are_left_out() -> None:
    left_out = [example for example in examples("python") if not example.run]
    reasons = ["run_child(", "from openai import OpenAI"]
    assert [reason in example.code for reason, example in zip(reasons, left_out, strict=True)] == [True, True]
    for example in left_out:
        compile(example.code, str(example), "exec")


def test_every_block_has_a_language() -> None:
    known = {"python", "sh", "mermaid", "markdown", ""}
    assert {example.language for example in all_examples()} <= known
    for example in examples(""):
        assert not re.search(r"^(import|from|curl|make|vidette|pip) ", example.code, re.MULTILINE), example


VARIANTS = {
    "in a thread that is not the main one": """
        import runpy, threading
        failures = []
        threading.excepthook = failures.append
        thread = threading.Thread(target=runpy.run_path, args=("readme.py",))
        thread.start()
        thread.join()
        assert not failures, failures
    """,
    "twice at once": """
        import runpy, threading
        failures = []
        threading.excepthook = failures.append
        threads = [threading.Thread(target=runpy.run_path, args=("readme.py",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
    """,
    "again after closing": """
        import runpy
        runpy.run_path("readme.py")
        runpy.run_path("readme.py")
    """,
    "on Trio": """
        import pathlib
        code = pathlib.Path("readme.py").read_text()
        exec(code.replace("anyio.run(main)", 'anyio.run(main, backend="trio")'))
    """,
}


@pytest.fixture(scope="module")
def readme_with_toy() -> str:
    """The README's example, with the toy model."""
    code = README_LIBRARY.code
    assert code.count("open_engine()") == code.count("anyio.run(main)") == 1
    return code.replace("open_engine()", 'open_engine("toy")')


@pytest.fixture(scope="module")
def printed_alone(readme_with_toy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_script(readme_with_toy, tmp_path_factory.mktemp("alone"))


TWICE = {"twice at once", "again after closing"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_example_of_the_readme_runs_anywhere(
    variant: str, readme_with_toy: str, printed_alone: str, tmp_path: Path
) -> None:
    (tmp_path / "readme.py").write_text(readme_with_toy)
    printed = run_script(textwrap.dedent(VARIANTS[variant]), tmp_path)
    # By characters, as two at once may print in turns; the example is greedy, so each prints the same.
    assert Counter(printed) == Counter(printed_alone * (2 if variant in TWICE else 1))


# --- shell ------------------------------------------------------------------------


class Command(NamedTuple):
    """A command of a shell example."""

    example: Example
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.example}:{' '.join(self.words[:3])[:40]}"


def commands() -> Iterator[Command]:
    for example in SHELL:
        pending = ""
        for line in example.code.splitlines():
            pending += line
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # a quotation goes on in the next line
                pending += "\n"
                continue
            pending = ""
            while words and re.match(r"[A-Z_]+=", words[0]):  # of its environment
                del words[0]
            if words:
                yield Command(example, tuple(words))
        assert not pending, f"{example} does not end"


COMMANDS = list(commands())


@cache
def help_of(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.words[0] in ("vidette", "python")], ids=str)
def test_our_commands_exist_with_these_options(command: Command) -> None:
    words = list(command.words)
    words[:1] = [sys.executable, *(["-m", "vidette.cli"] if words[0] == "vidette" else [])]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    first = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    said = help_of(*words[:first])
    for option in options:
        assert re.search(rf"{option}\b", said), f"{option} is no option:\n{said}"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.words[0] == "make"], ids=str)
def test_targets_exist(command: Command) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(command.words[1:]) <= set(targets)


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    assert {command.words[0] for command in COMMANDS} <= {"vidette", "python", "make", "curl"}


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """A service with the toy model; its address."""
    command = [sys.executable, "-m", "vidette.cli", "serve", "--model", "toy", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"http://\S+:\d+", line):
                    yield found.group().rstrip("/")
                    break
            else:
                pytest.fail("".join(lines))
            process.terminate()
            process.stderr.read()
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.words[0] == "curl"], ids=str)
def test_requests_by_curl_are_answered(command: Command, service: str) -> None:
    url = next(word for word in command.words if word.startswith("http"))
    assert url.startswith(f"{SERVICE}/")
    rest = [word for word in command.words[1:] if word not in ("-N", url)]
    body = None
    if rest:
        flag, data = rest
        assert flag == "-d"
        body = json.loads(data)
    address = url.replace(SERVICE, service)
    answer = httpx.get(address) if body is None else httpx.post(address, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if body is not None and body.get("stream"):
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
    else:
        assert answer.json()


def test_the_page_and_the_command_agree_on_the_port(service: str) -> None:
    assert service.startswith("http://127.0.0.1:")
    assert "default: 8000" in help_of(sys.executable, "-m", "vidette.cli", "serve")


# --- the two commands of the README ---------------------------------------------------


def test_the_readme_names_both_commands_and_ci_runs_the_tests() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for command in ("make demo", "make test"):
        assert f"```sh\n{command}\n```" in readme
        assert f"\n{command.removeprefix('make ')}: " in makefile
    assert "\nmake test\n" in (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)
