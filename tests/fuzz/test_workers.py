from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest

from vidette_fuzz.configurations import CONFIGURATIONS, requests
from vidette_fuzz.explore import SavedByAnother, Search, explore
from vidette_fuzz.workers import Outcome, WorkerFailed, explore_all, fingerprint, main
from vidette_protocol.world import Bounds

TWO = ("core", "handshake")
"""Whose short forms are soon at their end."""


def test_configurations_are_explored_side_by_side_and_reported_as_they_come() -> None:
    reported: list[Outcome] = []
    outcomes = explore_all(4.0, names=TWO, workers=2, report=reported.append)
    assert [outcome.name for outcome in outcomes] == list(TWO)
    assert sorted(reported) == sorted(outcomes)
    for outcome in outcomes:
        assert outcome.whole == explore(CONFIGURATIONS[outcome.name].short).states
        assert outcome.new == outcome.whole + outcome.states - 1
        assert outcome.story is None
        assert str(outcome).startswith(
            f"{outcome.name}: all {outcome.whole} states of the short form; {outcome.states} states, all "
        )


def test_what_comes_to_its_end_says_so() -> None:
    (outcome,) = explore_all(60, names=["handshake"], workers=3)
    assert outcome.complete
    assert "all of them" in str(outcome)


def test_a_search_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    saved = tmp_path / "searches"
    first = explore_all(4, names=TWO, saved=saved)
    with zipfile.ZipFile(saved) as archive:
        assert sorted(archive.namelist()) == sorted(TWO)
    second = explore_all(1, names=TWO, saved=saved)
    for before, after in zip(first, second, strict=True):
        assert after.states - after.new == before.states
        assert after.new > 0 or before.complete
        assert after.loading > 0
        assert (before.whole > 0, after.whole) == (True, 0)
    assert list(tmp_path.iterdir()) == [saved]


def test_what_another_version_has_saved_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "searches"
    search = Search(CONFIGURATIONS["core"].long)
    search.save(tmp_path / "one", "another version")
    with zipfile.ZipFile(saved, "w") as archive:
        archive.write(tmp_path / "one", "core")
    with pytest.raises(SavedByAnother, match="another version"):
        explore_all(1, names=["core"], saved=saved)


def test_a_process_that_says_nothing_is_an_error() -> None:
    with pytest.raises(WorkerFailed, match=r"(?s)^nobody: exit status 1: .*KeyError"):
        explore_all(1, names=["nobody"])


def test_a_fingerprint_is_that_of_a_world_and_its_bounds() -> None:
    assert fingerprint(requests(Bounds())) == fingerprint(requests(Bounds()))
    assert fingerprint(requests(Bounds())) != fingerprint(requests(Bounds(tokens=3)))


def test_a_process_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deadlines", f"--until={time.monotonic()}"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    outcome = Outcome(**json.loads(line))
    assert outcome.name == "deadlines"
    assert (outcome.whole, outcome.complete) == (0, False)  # not even the short form, in no time
    assert outcome.states > 1


def test_an_outcome_says_that_a_rule_is_broken() -> None:
    outcome = Outcome("core", 0, 50, 49, 7, complete=False, seconds=0.0, loading=0.0, story="1. ...")
    assert str(outcome) == "core: 50 states, all up to depth 7, 0 a second; A RULE IS BROKEN"
