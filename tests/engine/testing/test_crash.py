"""What the crash command makes of differences: only a tie excuses one."""

from __future__ import annotations

import json

import pytest

from vidette.testing.crash import EPSILON, Difference, Judge, Outcome, Plan, judge, main, plans
from vidette_protocol.messages import SamplingParams

GREEDY = Plan("hello", SamplingParams(temperature=0, max_new_tokens=4))
SAMPLED = Plan("hello", SamplingParams(temperature=1.0, max_new_tokens=4, sampling_seed=5))


def test_half_of_the_requests_are_sampled_each_by_a_seed_of_its_own() -> None:
    planned = plans(16, 9)
    assert [plan.params.greedy for plan in planned] == [True, False] * 8
    assert len({plan.params.sampling_seed for plan in planned}) == 16
    assert {plan.params.max_new_tokens for plan in planned} == {9}


def test_with_the_toy_model_nothing_is_a_tie() -> None:
    faults, ties = judge(Outcome(differences=[Difference(GREEDY, (1, 2), 1)]), "toy")
    assert faults == ["'hello': another token at 1"]
    assert ties == 0
    assert judge(Outcome(), "toy") == ([], 0)


def test_the_margin_of_a_greedy_choice_is_the_lead_of_the_best_logit() -> None:
    assert Judge("toy").margin(Difference(GREEDY, (1, 2), 0)) > 1  # the toy model's peaks are high


def test_the_margin_of_a_draw_is_its_distance_from_the_bounds_of_its_token() -> None:
    """It is positive for the token that was drawn, and for no other."""
    looker = Judge("toy")
    margins = [looker.margin(Difference(SAMPLED, (token,), 0)) for token in range(256)]
    assert sum(margin > 0 for margin in margins) == 1
    assert max(margins) > EPSILON


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
