"""The crash command: what it asks for, and what it says."""

from __future__ import annotations

import json

import pytest

from vidette.testing.crash import main, plans


def test_half_of_the_requests_are_sampled_each_by_a_seed_of_its_own() -> None:
    planned = plans(16, 9)
    assert [plan.params.greedy for plan in planned] == [True, False] * 8
    assert len({plan.params.sampling_seed for plan in planned}) == 16
    assert {plan.params.max_new_tokens for plan in planned} == {9}


@pytest.mark.parametrize("options", [["--streams", "0"], ["--tokens", "12"], ["--victim", "front"]])
def test_bad_usage_is_told(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(options)
    assert exited.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_report_has_the_documented_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--victim", "detokenizer", "--streams", "2", "--tokens", "2000", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    values = {check["name"]: check["value"] for check in report["checks"]}
    assert set(values) == {"streams", "resumed", "text_equal", "gap_s"}
    assert (values["streams"], values["resumed"], values["text_equal"]) == (2, 2, 1)
    assert values["gap_s"] > 0
    assert sum(report["ledgers"].values()) == 0
