"""`vidette fuzz simulate` and `replay`: exit statuses and names of checks, which other programs read."""

from __future__ import annotations

import json

import pytest

from vidette.cli import main

MUTANT = "text-kept-after-abort"


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {check["name"]: check["value"] for check in report["checks"]}


def test_histories_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "simulate", "--seconds", "0.5", "--seed", "7", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = {check["name"]: check["value"] for check in report["checks"]}
    assert {"histories", "simulated_s", "faults", "violations"} <= found.keys()
    assert found["histories"] > 0
    assert found["simulated_s"] > 0
    assert found["violations"] == 0
    kinds = {name.removeprefix("faults_"): found[name] for name in found if name.startswith("faults_")}
    assert report["faults"] == kinds
    assert found["faults"] == sum(kinds.values()) > 0


def test_a_mutant_is_caught_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "simulate", "--mutant", MUTANT]) == 1
    story = capsys.readouterr().err
    assert "broken: 7: something is still held: {'texts'" in story
    (seed,) = {line.split()[1] for line in story.splitlines() if line.startswith("seed ")}
    assert main(["fuzz", "replay", seed, "--mutant", MUTANT]) == 1
    assert "broken: 7: something is still held: {'texts'" in capsys.readouterr().err
    assert main(["fuzz", "replay", seed]) == 0
    assert f"seed {seed}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["simulate"], ["replay", "1"]])
def test_a_mutant_nobody_knows_is_bad_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", *command, "--mutant", "nobody"]) == 2
    assert MUTANT in capsys.readouterr().err


@pytest.mark.long
def test_every_mutant_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "simulate", "--seconds", "60", "--mutant", "all", "--json"]) == 0
    found = checks(capsys)
    assert found["mutants"] == found["killed"] > 5
