"""`vidette pull ORG/NAME`: from a hub on loopback into a folder from which `vidette generate` loads it."""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.conftest import SECONDS, Commands
from tests.fake_hub import FakeHub, serving_hub, tiny_model
from vidette.cli import main


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[FakeHub]:
    with serving_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("VIDETTE_HOME", str(tmp_path / "vidette"))
        yield hub


def test_a_pull_that_is_interrupted_leaves_nothing_half_and_the_next_one_keeps_what_came(
    hub: FakeHub, vidette_command: Commands, tmp_path: Path
) -> None:
    hub.add("org/tiny", tiny_model(shards=2))
    hub.stalls = "model-00002-of-00002.safetensors"
    command = vidette_command("pull", "org/tiny")
    assert hub.stalled.wait(SECONDS)
    command.signal(signal.SIGINT)
    status, out, err = command.end()
    assert (status, out) == (130, "")
    assert err.startswith("getting org/tiny at 0123456789ab: weights in 3 files")
    assert [*tmp_path.rglob("*.incomplete"), *tmp_path.rglob("pulled/*")] == []
    assert main(["generate", "x", "--model", "org/tiny"]) == 1

    hub.go_on.set()
    hub.stalls = None
    hub.sent.clear()
    command = vidette_command("pull", "org/tiny")
    status, out, err = command.end()
    assert status == 0, err
    assert hub.sent == ["model-00002-of-00002.safetensors"]
    assert (Path(out.strip()) / "config.json").is_file()
    assert "`vidette serve --model org/tiny` serves it" in err


def test_a_model_that_was_pulled_needs_no_network(
    hub: FakeHub,
    vidette_command: Commands,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.add("org/tiny", tiny_model())
    assert vidette_command("pull", "org/tiny").end()[0] == 0
    hub.shutdown()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, _, err = vidette_command("pull", "org/tiny").end()
    assert status == 0
    assert "was not compared: HF_HUB_OFFLINE is set" in err
    options = ("--dtype", "float32", "--max-new-tokens", "4", "--ignore-eos", "--json")
    assert main(["generate", "x", "--model", "org/tiny", *options]) == 0
    assert '"completion_tokens":4' in capsys.readouterr().out


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "x"], ["chat"]])
def test_a_model_that_was_not_pulled_is_an_error_that_names_the_command(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VIDETTE_HOME", str(tmp_path))
    assert main([*command, "--model", "org/tiny@v1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("get it from the hub with `vidette pull org/tiny@v1`")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smollm2-135m-instruct", "--file", "x"], "is one file; leave --file away"),
        (["org/x/y.gguf", "--file", "x"], "names a file already"),
        (["org/"], "those of a hub are ORG/NAME"),
    ],
)
def test_bad_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", *arguments]) == 2
    assert said in capsys.readouterr().err
