"""`vidette bench serve` against a real server, and what it says of options that make no sense."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from vidette.cli import main

CONTRACT = [
    *("request_s", "output_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "tpot_p50_ms"),
    "goodput_s",
]
URL = "http://127.0.0.1:9"


def test_a_server_is_measured_in_both_kinds_of_loops(vidette_command: Commands, tmp_path: Path) -> None:
    server = vidette_command("serve", "--model", "toy", "--topology", "inline", "--port", "0")
    served = re.search(r"on (http://\S+)", server.read_until("stderr", "\n"))
    assert served
    sizes = ("--url", served[1], "--output-tokens", "8", "--prompt-tokens", "100", "--ignore-eos")
    picture = tmp_path / "found.png"
    swept = vidette_command(
        *("bench", "serve", *sizes, "--sweep", "1,3", "--requests", "9", "--plot", str(picture), "--json")
    )
    opened = vidette_command(
        *("bench", "serve", *sizes, "--rate", "50", "--requests", "20", "--shared-prefix", "60"),
        *("--slo", "ttft:60000", "itl:60000", "--backend", "trio", "--json"),
    )
    for command, requests, levels in ((swept, 9, [1, 3]), (opened, 20, [8])):
        status, out, err = command.end()
        assert status == 0, err
        assert out.count("\n") == 1
        report = json.loads(out)
        assert report["command"] == "bench serve"
        assert [check["name"] for check in report["checks"]] == CONTRACT
        assert all(check["low"] <= check["value"] <= check["high"] for check in report["checks"])
        details = report["details"]
        assert details["model"] == "toy"
        assert [level["concurrency"] for level in details["levels"]] == levels
        for level in details["levels"]:
            assert (level["requests"], level["completed"], level["good"]) == (requests, requests, requests)
            assert level["errors"] == {}
            assert level["output_tokens"] == 8 * requests
            assert 70 <= level["prompt_tokens"] / requests <= 130  # words are of different lengths
            assert level["ttft"]["p50"] <= level["e2el"]["p50"]
        assert "it/s" not in err  # no bar where nobody sees it move
    assert picture.read_bytes().startswith(b"\x89PNG")
    server.signal(signal.SIGINT)
    assert server.end()[0] == 0


def test_nobody_there_is_a_failure_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", URL, "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"vidette: {URL} does not answer as a server: ConnectError")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--url", "127.0.0.1:8000"], "must begin with http"),
        (["--url", URL, "--slo", "first:3"], "'first:3' is not one of ttft, itl, tpot, e2el"),
        (["--url", URL, "--plot", "x.png"], "--plot goes with --sweep"),
        (["--url", URL, "--sweep", "1,2", "--plot", "/no/such/folder/x.png"], "a folder that is not there"),
        (["--url", URL, "--shared-prefix", "128"], "a prompt has 128 tokens in all"),
        (["--url", URL, "--sweep", "1,0"], "0 is not 1 or more"),
        (["--url", URL, "--rate", "nan"], "nan is not more than 0"),
        (["--url", URL, "--rate", "3", "--concurrency", "2"], "not allowed with"),
        ([], "required: --url"),
    ],
)
def test_bad_usage_is_said(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *options]) == 2
    said = capsys.readouterr()
    assert (said.out, why in said.err) == ("", True), said.err


@pytest.mark.parametrize(("more", "status"), [([], 1), (["--plot", "x.png"], 2)])
def test_a_picture_needs_matplotlib_and_numbers_do_not(more: list[str], status: int) -> None:
    without = "import sys; sys.modules['matplotlib'] = None"
    arguments = ["bench", "serve", "--url", URL, "--sweep", "1,2", *more]
    code = f"{without}; from vidette.cli import main; sys.exit(main({arguments}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "matplotlib is not installed; `pip install vidette[bench]` adds it\n" in done.stderr
    assert ("does not answer" in done.stderr) == (status == 1)  # nothing is measured for no picture
