"""AIPerf: throughput over three APIs, and requests that it cancels on purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REQUESTS = 12
INPUT_TOKENS = 40
OUTPUT_TOKENS = 16


@pytest.fixture
def profile(url: str, model: str, tokenizer: Path, tmp_path: Path) -> Any:
    command = [sys.executable, "-m", "aiperf", "profile", "--model", model, "--url", url, "--streaming"]
    command += ["--tokenizer", str(tokenizer), "--use-server-token-count", "--concurrency", "4"]
    command += ["--synthetic-input-tokens-mean", str(INPUT_TOKENS), "--random-seed", "7"]
    command += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--no-gpu-telemetry"]
    command += ["--output-artifact-dir", str(tmp_path)]
    # With these it takes the folder of the tokenizer for the name of a repository.
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}

    def profile(api: str, *arguments: str) -> tuple[Any, list[Any]]:
        told = ["--endpoint-type", api, *arguments]
        done = subprocess.run([*command, *told], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        whole = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
        lines = (tmp_path / "profile_export.jsonl").read_text().splitlines()
        return whole, [json.loads(line) for line in lines]

    return profile


@pytest.mark.parametrize("api", ["chat", "completions"])
def check_throughput(profile: Any, tmp_path: Path, native: Any, api: str) -> None:
    arguments = ["--request-count", str(REQUESTS), "--output-tokens-mean", str(OUTPUT_TOKENS)]
    whole, requests = profile(api, *arguments)
    assert (whole["request_count"]["avg"], whole["error_summary"]) == (REQUESTS, [])
    assert whole["output_token_throughput"]["avg"] > 0
    assert whole["time_to_first_token"]["min"] > 0
    assert len(requests) == REQUESTS
    for request in requests:
        assert request["metrics"]["output_sequence_length"]["value"] == OUTPUT_TOKENS
    # As many tokens as its tokenizer has made, which is the model's, and those of the chat template.
    given = len(native.tokens([{"role": "user", "content": ""}])) if api == "chat" else 0
    (lengths,) = {request["metrics"]["usage_prompt_tokens"]["value"] for request in requests}
    assert lengths == pytest.approx(INPUT_TOKENS + given, abs=1)
    told = json.loads((tmp_path / "server_metrics_export.json").read_text())
    assert told["summary"]["endpoints_successful"]  # it has read /metrics meanwhile


def check_requests_that_are_cancelled(profile: Any, native: Any) -> None:
    cancelling = ["--request-cancellation-rate", "50", "--request-cancellation-delay", "0.2"]
    whole, requests = profile("chat", "--request-count", "16", "--output-tokens-mean", "400", *cancelling)
    cancelled = sum(request["metadata"]["was_cancelled"] for request in requests)
    assert 2 <= cancelled <= 14
    assert whole["request_count"]["avg"] == 16 - cancelled
    assert {error["error_details"]["code"] for error in whole["error_summary"]} == {499}
    native.wait_idle()
