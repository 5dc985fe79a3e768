"""`vidette fuzz`: exit statuses and names of checks, which other programs read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from vidette.cli import main


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {check["name"]: check["value"] for check in report["checks"]}


def test_exploring_what_is_right_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "explore", "--budget", "1s", "--json"]) == 0
    found = checks(capsys)
    assert found["states"] > 1000
    assert found["violations"] == 0
    assert found.keys() == {"states", "states_per_s", "depth", "violations"}


@pytest.mark.parametrize("kind", ["explore", "lifecycle"])
def test_a_mutant_is_caught_with_its_story(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", kind, "--mutant", "double-free-at-landing"]) == 1
    assert "freed while it is in a batch on the device" in capsys.readouterr().err


def test_every_mutant_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "explore", "--mutant", "all", "--json"]) == 0
    found = checks(capsys)
    assert found["mutants"] == found["killed"] > 10


def test_random_histories_and_frames_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "lifecycle", "--seconds", "1", "--seed", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = {check["name"]: check["value"] for check in report["checks"]}
    assert found.keys() == {"histories", "simulated_s", "faults", "violations"}
    assert found["histories"] > 0
    assert found["violations"] == 0
    assert found["faults"] == sum(report["faults"].values()) > 0
    assert report["faults"]["leave"] > 0
    assert main(["fuzz", "codec", "--seconds", "0.5", "--json"]) == 0
    assert checks(capsys)["frames"] > 0
    assert main(["fuzz", "codec", "--seconds", "0", "--frames", "25000", "--json"]) == 0
    assert checks(capsys)["frames"] == 40_000  # whole rounds


@pytest.mark.long
def test_every_mutant_is_caught_by_random_histories(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "lifecycle", "--seconds", "30", "--mutant", "all", "--json"]) == 0
    found = checks(capsys)
    assert found["mutants"] == found["killed"] > 10


def test_a_mutant_nobody_knows_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "explore", "--mutant", "nobody"]) == 2
    assert "missing-vid-check" in capsys.readouterr().err


def test_an_exploration_is_gone_on_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [
        "fuzz",
        "explore",
        "--budget",
        "0.5s",
        "--workers",
        "1",
        "--json",
        "--resume",
        str(tmp_path / "s"),
    ]
    assert main(command) == 0
    assert zipfile.is_zipfile(tmp_path / "s")
    assert main(command) == 0
    assert checks(capsys)["states"] > 1000


def test_what_cannot_be_gone_on_with_is_bad_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "s"
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("core", b'{"fingerprint": "another"}\n')
    assert main(["fuzz", "explore", "--budget", "1s", "--resume", str(saved)]) == 2
    assert "saved by another version" in capsys.readouterr().err


def test_no_workers_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "explore", "--budget", "1s", "--workers", "0"]) == 2
    assert "--workers 0" in capsys.readouterr().err
