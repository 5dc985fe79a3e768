"""`llm`, the command: a chat and a completion model, with and without a stream, and a conversation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import llm
import pytest

QUESTION = "Name three colours, and say what each is the colour of."
CHAT = [{"role": "user", "content": QUESTION}]
PROMPT = "The capital of France is"


@pytest.fixture(autouse=True)
def settings(url: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write down where the models are, as its users do."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    where = {"model_name": model, "api_base": f"{url}/v1"}
    models = [
        {"model_id": "here", **where},
        {"model_id": "plain", **where, "completion": True},
        {"model_id": "newer", **where, "responses": True},
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def check_the_command(native: Any) -> None:
    said = native.say(CHAT, 40)
    options = ["-m", "here", "-o", "temperature", "0", "-o", "max_tokens", "40"]
    assert run(*options, QUESTION) == said.text
    assert run(*options, "--no-stream", QUESTION) == said.text


def check_its_log_has_the_usage(native: Any) -> None:
    said = native.say([{"role": "system", "content": "Be brief."}, *CHAT], 24)
    run("-m", "here", "-s", "Be brief.", "-o", "temperature", "0", "-o", "max_tokens", "24", QUESTION)
    (logged,) = json.loads(run("logs", "--json"))
    assert logged["response"] == said.text
    assert (logged["input_tokens"], logged["output_tokens"]) == said[1:3]


def check_a_conversation(native: Any) -> None:
    options = ["-o", "temperature", "0", "-o", "max_tokens", "24"]
    first = run("-m", "here", *options, QUESTION)
    turns = [*CHAT, {"role": "assistant", "content": first}, {"role": "user", "content": "And a fourth?"}]
    assert run("-c", *options, "And a fourth?") == native.say(turns, 24).text


def check_a_completion_model(native: Any) -> None:
    said = native.say(PROMPT, 12)
    assert run("-m", "plain", "-o", "temperature", "0", "-o", "max_tokens", "12", PROMPT) == said.text


def check_a_model_over_responses(native: Any) -> None:
    said = native.say(CHAT, 24)
    assert run("-m", "newer", "-o", "temperature", "0", "-o", "max_tokens", "24", QUESTION) == said.text


def check_the_library(native: Any) -> None:
    said = native.say(CHAT, 24)
    response = llm.get_model("here").prompt(QUESTION, temperature=0, max_tokens=24)
    pieces = list(response)
    assert len(pieces) > 5
    assert "".join(pieces) == response.text() == said.text
    assert (response.usage().input, response.usage().output) == said[1:3]


def check_a_command_that_is_interrupted(native: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "here",
        "-o",
        "max_tokens",
        "4000",
        "Tell a very long story.",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        native.wait_running()
        process.send_signal(signal.SIGINT)
        native.wait_idle()
