"""The command line itself: help, bad usage, and what a signal does to a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import anyio
import pytest

import vidette
from vidette.cli import main
from vidette.cli._run import Stop, run


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for command in ("serve", "generate", "chat", "top", "pull", "doctor", "demo", "completion", "bench"):
        assert f"\n  {command} " in said
        assert main([command, "--help"]) == 0


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vidette {vidette.__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from vidette.cli import main; main(['--help']);"
        "print(*{'torch', 'uvicorn', 'starlette', 'tokenizers', 'jinja2', 'httpx', 'tqdm'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
        (["generate"], "the following arguments are required: PROMPT"),
        (["generate", "x", "--tok-k", "1"], "unrecognized arguments: --tok-k 1"),
        (["generate", "x", "--seed", "a"], "argument --seed: invalid int value: 'a'"),
        (["generate", "x", "--model", "nope"], "unknown model 'nope'"),
        (
            ["generate", "x", "--model", "toy", "--max-running", "300"],
            "max_running is 300; it must be at most",
        ),
        (["generate", "", "--model", "toy"], "text is empty"),
        (["generate", "x", "--model", "toy", "--temperature", "nan"], "temperature is nan"),
        (["serve", "--model", "toy", "--port", "-1"], "port is -1; it must be from 0 to 65535"),
        (["serve", "--model", "toy", "--host", "0.0.0.0"], "allow it with --allow-remote"),
        (["serve", "--model", "toy", "--tls-key", "key.pem"], "--tls-key needs --tls-cert"),
        (["serve", "--tls-cert", "no/such.pem"], "tls-cert 'no/such.pem': No such file or directory"),
        (["serve", "--tls-cert", __file__], "cannot be used: "),
        (["serve", "--model", "nope", "--port", "0"], "unknown model 'nope'"),
        (["pull", "nope"], "there is no model 'nope' to pull"),
    ],
)
def test_bad_usage_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("vidette")
    assert said in line


def test_a_missing_model_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.setenv("VIDETTE_HOME", os.fspath(tmp_path))
    assert main(["generate", "x"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("get it with `vidette pull smollm2-135m-instruct`")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
class TestSignals:
    """What a signal does to a program."""

    def test_it_cancels_a_program(self, backend: str, signum: signal.Signals) -> None:
        cancelled = False

        async def program(stop: Stop) -> int:
            nonlocal cancelled
            os.kill(os.getpid(), signum)
            try:
                await anyio.sleep_forever()
            finally:
                cancelled = True
            return 0

        assert run(program, backend=backend) == 128 + signum  # type: ignore[arg-type]
        assert cancelled

    def test_it_only_asks_a_program_that_defers_it(self, backend: str, signum: signal.Signals) -> None:
        async def program(stop: Stop) -> int:
            stop.defer()
            os.kill(os.getpid(), signum)
            await stop.asked.wait()
            return 0

        assert run(program, backend=backend) == 0  # type: ignore[arg-type]

    def test_the_second_one_waits_for_nothing(self, backend: str, signum: signal.Signals) -> None:
        """Not even for the loop: a program that is stuck, or shielded, is left like any other."""
        left: list[int] = []

        async def program(stop: Stop) -> int:
            stop.defer()
            os.kill(os.getpid(), signum)
            while not stop.signum:
                pass
            os.kill(os.getpid(), signum)
            while not left:
                pass
            assert not stop.asked.is_set()  # the loop has not turned
            return 0

        assert run(program, backend=backend, leave=left.append) == 0  # type: ignore[arg-type]
        assert left == [128 + signum]

    def test_handlers_are_put_back(self, backend: str, signum: signal.Signals) -> None:
        before = signal.getsignal(signum)

        async def program(stop: Stop) -> int:
            assert signal.getsignal(signum) is not before
            return 7

        assert run(program, backend=backend) == 7  # type: ignore[arg-type]
        assert signal.getsignal(signum) is before


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_a_program_raises_comes_out_alone(backend: str) -> None:
    async def program(stop: Stop) -> int:
        async with anyio.create_task_group():
            raise vidette.ModelError("broken")
        return 0

    with pytest.raises(vidette.ModelError, match="broken"):
        run(program, backend=backend)  # type: ignore[arg-type]
