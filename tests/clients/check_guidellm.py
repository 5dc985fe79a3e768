"""GuideLLM: benchmarks of chat and of completions, and one that leaves before its answers are whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROMPT_TOKENS = 32
OUTPUT_TOKENS = 16


@pytest.fixture
def run(url: str, model: str, tokenizer: Path, tmp_path: Path) -> Any:
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}"]

    def run(api: str, *, streams: int, constraint: str, output_tokens: int = OUTPUT_TOKENS) -> Any:
        report = tmp_path / "report.json"
        arguments = {
            "--backend": f"kind=openai_http,target={url},model={model},request_format={api}",
            "--profile": f"kind=concurrent,streams={streams}",
            "--constraint": constraint,
            "--data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={output_tokens}",
            "--output": f"kind=json,path={report}",
        }
        told = [word for pair in arguments.items() for word in pair]
        done = subprocess.run([*command, *told], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        return benchmark

    return run


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/completions"])
def check_a_benchmark(run: Any, native: Any, api: str) -> None:
    benchmark = run(api, streams=4, constraint="kind=max_requests,count=12")
    assert benchmark["metrics"]["request_totals"] == {
        "successful": 12,
        "errored": 0,
        "incomplete": 0,
        "total": 12,
    }
    for request in benchmark["requests"]["successful"]:
        body = json.loads(request["request_args"])["body"]
        if "prompt" in body:
            expected = len(native.tokens(body["prompt"]))
        else:
            (message,) = body["messages"]
            (part,) = message["content"]
            expected = len(native.tokens([{"role": "user", "content": part["text"]}]))
        # As the server says, and as the tokenizer does.
        assert request["input_metrics"]["text_tokens"] == expected >= PROMPT_TOKENS
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS
        assert request["output"]
        timings = request["info"]["timings"]
        # A chunk for each token, but for tokens that complete no character.
        assert OUTPUT_TOKENS / 2 < timings["token_iterations"] <= OUTPUT_TOKENS
    assert benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"] > 0


def check_requests_that_are_left(run: Any, native: Any) -> None:
    """When its time is over it leaves those that run, and they are over here as well."""
    benchmark = run(
        "/v1/chat/completions",
        streams=4,
        constraint="kind=max_duration,seconds=3",
        output_tokens=4000,
    )
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["incomplete"], totals["errored"]) == (4, 0)
    native.wait_idle()
