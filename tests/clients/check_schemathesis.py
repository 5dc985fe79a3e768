"""Schemathesis: thousands of requests made of `/openapi.json`, valid ones and broken ones.

The server has little memory, so that an answer of which nobody said how long it may be is short.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SETTINGS = """
[checks.not_a_server_error]
# 501 is said of parts of an API that are not supported yet.
expected-statuses = ["2xx", "3xx", "4xx", "501"]
"""
# Whoever pauses the server waits for whoever lets it go on; what the server does is told without an end.
LEFT_OUT = "^/(pause_generation|v1/activity)$"


@pytest.fixture
def run(url: str, tmp_path: Path) -> Any:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings)]
    command += ["run", f"{url}/openapi.json", "--exclude-path-regex", LEFT_OUT, "--no-color"]
    command += ["--seed=1", "--max-examples=10", "--request-timeout=60", "--continue-on-failure"]

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        made = re.search(r"(\d+) generated", done.stdout)
        assert made is not None
        assert int(made[1]) > 100

    return run


def check_what_is_read(run: Any) -> None:
    """Of what needs no body, all is as the document says."""
    run("--checks=all", "--include-method=GET")


def check_what_is_asked(run: Any, native: Any) -> None:
    """Of what has a body, all but this: the document cannot say which tokens or sessions there are."""
    said = native.say("The capital of France is", 8)
    run("--checks=all", "--exclude-checks=positive_data_acceptance", "--exclude-method=GET")
    assert native.say("The capital of France is", 8) == said
