"""`vidette bench abort` and `vidette bench overhead`: names of checks, which other programs read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vidette.bench.abort import Leaving, to_results
from vidette.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == f"bench {arguments[0]}"
    return {check["name"]: check for check in report["checks"]}


def test_what_a_client_left_behind_is_counted_beyond_one_step() -> None:
    early, late = Leaving(0, 0.004, 0.005), Leaving(1, 0.009, 0.005)
    found = {each.name: each for each in to_results("toy", {"a": [early], "b": [late]}).findings}
    assert list(found)[:2] == ["disconnect_to_free_steps", "disconnect_to_free_extra_ms"]
    assert found["disconnect_to_free_steps"].values == [0, 1]
    assert found["disconnect_to_free_extra_ms"].values == pytest.approx([0, 4])
    assert found["disconnect_to_free_extra_ms_a"].values == [0]
    assert found["disconnect_to_free_ms_b"].values == pytest.approx([9])


@pytest.mark.parametrize("backend", [pytest.param("asyncio", marks=pytest.mark.long), "trio"])
def test_clients_that_leave_a_server(capsys: pytest.CaptureFixture[str], backend: str) -> None:
    checks = run(capsys, "abort", "--runs", "1", "--backend", backend)
    for name in ("disconnect_to_free_steps", "disconnect_to_free_extra_ms"):
        assert checks[name]["runs"] == 2
        assert 0 <= checks[name]["low"] <= checks[name]["value"]
    server = {"asyncio": "uvicorn", "trio": "hypercorn"}[backend]
    assert checks[f"disconnect_to_free_ms_{server}"]["low"] > 0
    assert checks[f"step_ms_{server}"]["low"] > 0


@pytest.mark.long
def test_what_http_costs_beside_the_least_there_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--runs", "2", "--streams", "4", "--max-new-tokens", "16", "--seconds", "0.2")
    checks = run(capsys, "overhead", *arguments)
    assert list(checks)[:4] == [
        *("added_per_step_us_b32", "http_cpu_us_per_chunk"),
        *("http_cpu_vs_bare_starlette", "idle_cpu_percent"),
    ]
    assert all(check["runs"] == 2 for check in checks.values())
    assert checks["http_cpu_us_per_chunk"]["low"] > 0
    assert checks["bare_cpu_us_per_chunk"]["low"] > 0


@pytest.mark.parametrize("arguments", [("abort", "--runs", "0"), ("overhead", "--streams", "0")])
def test_nothing_is_bad_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(["bench", *arguments]) == 2
    assert "0 is not 1 or more" in capsys.readouterr().err
