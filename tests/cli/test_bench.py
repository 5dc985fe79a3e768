"""`vidette bench`: exit statuses and names of checks, which other programs read."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Commands
from vidette.cli import main

CONTRACT = {
    *("rtt_100kb_us", "rtt_1mb_us", "rtt_10mb_us", "nested_ext_vs_prefixed_ext", "request_codec_vs_pickle4"),
    *("step32_codec_vs_pickle4", "step256_codec_vs_pickle4", "handover_8mib_copy_vs_pickle_zmq"),
    *(
        "handover_8mib_inplace_vs_pickle_zmq",
        "handover_8mib_copy_vs_zmq_zerocopy",
        "small_rtt_vs_zmq_asyncio",
    ),
    "coalesced_vs_single",
}


def test_the_wire_is_measured_under_the_names_that_others_know(vidette_command: Commands) -> None:
    command = vidette_command("bench", "wire", "--runs", "2", "--quick", "--json")
    status, out, err = command.end()
    assert status == 0, err
    report = json.loads(out)
    assert out.count("\n") == 1
    assert report["command"] == "bench wire"
    checks = {check["name"]: check for check in report["checks"]}
    assert len(checks) == len(report["checks"])
    assert set(list(checks)[: len(CONTRACT)]) == CONTRACT
    for name, check in checks.items():
        assert check["runs"] == 2, name
        assert check["unit"] == ("us" if name.endswith("_us") else "x")
        assert 0 < check["low"] <= check["value"] <= check["high"] < math.inf
        assert f"\n{name} " in err
    assert "step32_rows_vs_pickle4" in checks


@pytest.mark.parametrize(
    ("signum", "ends_with"), [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_ends_it_and_its_process(
    vidette_command: Commands, signum: signal.Signals, ends_with: int
) -> None:
    command = vidette_command("bench", "wire", "--runs", "30", "--quick", "--json")
    command.read_until("stderr", "small messages")
    command.find_children(1)
    command.signal(signum)
    status, out, _ = command.end()
    assert (status, out) == (ends_with, "")


def test_what_is_missing_is_bad_usage_and_said() -> None:
    without = "import sys; sys.modules['zmq'] = None"
    code = f"{without}; from vidette.cli import main; sys.exit(main(['bench', 'wire']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "vidette: zmq is not installed; `pip install vidette[bench]` adds it\n"


def test_idleness_is_measured_in_each_topology(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "idle", "--seconds", "0.1", "--runs", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bench idle"
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == ["idle_cpu_percent_inline", "idle_cpu_percent_processes"]
    assert all((check["unit"], check["runs"]) == ("%", 2) for check in checks.values())


@pytest.mark.parametrize("seconds", ["0", "nan", "-1"])
def test_no_time_is_bad_usage(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "idle", f"--seconds={seconds}"]) == 2
    assert "is no time in seconds" in capsys.readouterr().err


def test_the_scheduler_is_measured_under_the_names_that_others_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "scheduler", "--runs", "2", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bench scheduler"
    found = [(check["name"], check["unit"], check["runs"]) for check in report["checks"]]
    assert found == [
        ("step_us_b1", "us", 2),
        ("step_us_b32", "us", 2),
        ("step_us_b256", "us", 2),
        ("queue_10000_vs_10", "x", 2),
    ]


def test_a_shared_prefix_is_measured_under_the_names_that_others_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--topology", "inline", "--requests", "4", "--runs", "2", "--prefix-tokens", "64"]
    assert main(["bench", "prefix", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bench prefix"
    ratio, computed = report["checks"]
    assert (ratio["name"], ratio["unit"], ratio["runs"]) == ("ttft_warm_vs_cold", "x", 2)
    assert (computed["name"], computed["low"], computed["high"]) == ("prefix_tokens_computed", 64, 64)


@pytest.mark.parametrize("requests", ["1", "0", "x"])
def test_one_request_shares_nothing(requests: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prefix", "--requests", requests]) == 2
    assert requests in capsys.readouterr().err
