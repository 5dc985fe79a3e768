"""`vidette bench model` and `vidette bench quality`: exit statuses and names of checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from vidette.cli import main

CONTRACT = ("prefill_tok_s", "decode_b1_tok_s", "decode_b8_tok_s", "decode_b32_tok_s", "prefill_2048_tok_s")


def test_a_model_is_measured_under_the_names_that_others_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "profile.png"
    threads = torch.get_num_threads()
    arguments = ["--model", "toy", "--runs", "2", "--quick", "--threads", "1", "--profile", str(picture)]
    assert main(["bench", "model", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert torch.get_num_threads() == threads
    report = json.loads(out)
    assert report["command"] == "bench model"
    checks = {check["name"]: check for check in report["checks"]}
    assert tuple(checks)[: len(CONTRACT)] == CONTRACT
    for name in CONTRACT:
        assert (checks[name]["unit"], checks[name]["runs"]) == ("tok/s", 2)
    assert "toy, 1 threads" in report["notes"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "\nmicroseconds a step " in err


def test_the_quality_of_a_model_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("It reads what it is given. " * 80)
    assert main(["bench", "quality", "--model", "toy", "--windows", "2", "--text", str(page), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bench quality"
    checks = {check["name"]: check["value"] for check in report["checks"]}
    assert list(checks) == ["kl", "top1_agreement", "perplexity", "reference_perplexity", "positions"]
    assert (checks["kl"], checks["top1_agreement"], checks["positions"]) == (0, 1, 2 * 511)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "llama.cpp"], "takes --llama-bin"),
        (["--against", "llama.cpp", "--llama-bin", "."], "takes a GGUF file, and toy is none"),
        (
            ["--against", "llama.cpp", "--llama-bin", ".", "--llama-model", "pyproject.toml"],
            "there is no llama",
        ),
        (["--against", "another"], "invalid choice"),
        (["--profile", "no/such/folder/p.png"], "in a folder that is not there"),
        (["--dtype", "int3"], "invalid choice"),
        (["--runs", "0"], "is not 1 or more"),
        (["--patience", "nan"], "is no time in seconds"),
    ],
)
def test_bad_usage_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model", "--model", "toy", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_llama_cpp_is_measured_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "llama-batched-bench"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "sizes = {name: int(given['-n' + name]) for name in ('pp', 'tg', 'pl')}\n"
        "print(json.dumps(sizes | {'speed_pp': 50, 'speed_tg': 20}))\n"
    )
    program.chmod(0o755)
    file = tmp_path / "peer.gguf"
    file.touch()
    peer = ["--against", "llama.cpp", "--llama-bin", str(tmp_path), "--llama-model", str(file)]
    assert main(["bench", "model", "--model", "toy", "--runs", "1", "--quick", *peer, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check["value"] for check in report["checks"]}
    for ours, ratio in (
        ("prefill", "prefill_128_vs_llama"),
        ("prefill_2048", "prefill_2048_vs_llama"),
        ("decode_b1", "decode_b1_vs_llama"),
        ("decode_b8", "decode_b8_vs_llama"),
        ("decode_b32", "decode_b32_vs_llama"),
    ):
        theirs = checks[f"llama_{ours}_tok_s"]
        assert theirs == (50 if "prefill" in ours else 20)
        assert checks[ratio] == pytest.approx(checks[f"{ours}_tok_s"] / theirs)
    assert f"llama.cpp computes {file}" in report["notes"]
