"""`vidette serve` as a process: the ready line, signals, a broken engine, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import SECONDS, Command, Commands
from vidette.cli import main

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 8000,
    "ignore_eos": True,
}


def start(commands: Commands, *options: str) -> tuple[Command, httpx.Client]:
    command = commands("serve", "--model", "toy", "--port", "0", *options)
    line = command.read_until("stderr", "\n")
    ready = re.fullmatch(r"vidette serves toy on (http://127\.0\.0\.1:\d+)\n", line)
    assert ready, line
    return command, httpx.Client(base_url=ready[1], trust_env=False, timeout=SECONDS)


@pytest.mark.parametrize(
    ("signum", "topology", "processes", "backend"),
    [
        (signal.SIGINT, "processes", 2, "asyncio"),
        (signal.SIGTERM, "inline", 0, "asyncio"),
        (signal.SIGINT, "processes", 2, "trio"),
    ],
)
def test_it_serves_until_a_signal(
    vidette_command: Commands, signum: signal.Signals, topology: str, processes: int, backend: str
) -> None:
    command, client = start(vidette_command, "--topology", topology, "--backend", backend)
    with client:
        assert client.get("/health").status_code == 200
        answer = client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 3}})
        assert answer.status_code == 200
    command.find_children(processes)
    command.signal(signum)
    assert command.end() == (0, "", "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_running_requests_may_end_and_the_second_signal_does_not_wait(
    vidette_command: Commands, backend: str
) -> None:
    """Not for a client that does not read, nor for processes that are stopped."""
    command, client = start(vidette_command, "--drain-seconds", "600", "--backend", backend)
    command.find_children(2)
    pids = [pid_of(command, role) for role in ("scheduler", "detokenizer")]
    with client, httpx.Client(base_url=client.base_url, trust_env=False, timeout=SECONDS) as other:
        with client.stream("POST", CHAT, json=LONG) as response:
            lines = response.iter_lines()  # which would close the response if nobody had it
            assert next(lines).startswith("data: ")
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            command.signal(signal.SIGINT)
            while (refused := other.get("/v1/models")).status_code == 200:
                pass
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "service_unavailable")
            assert 500 < int(refused.headers["retry-after"]) <= 600
            command.signal(signal.SIGINT)
            assert command.end() == (130, "", "")


@pytest.mark.long
def test_a_second_signal_does_not_wait_for_an_engine_that_is_being_closed(vidette_command: Commands) -> None:
    """Which is shielded, and waits for a process that never ends."""
    command, client = start(vidette_command, "--drain-seconds", "0", "--stop-timeout", "600")
    with client:
        assert client.get("/health").status_code == 200
        command.find_children(2)
        os.kill(pid_of(command, "scheduler"), signal.SIGSTOP)
        command.signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            while True:
                client.get("/health")
    command.signal(signal.SIGTERM)
    assert command.end() == (143, "", "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stop_is_bounded_whatever_hangs(vidette_command: Commands, backend: str) -> None:
    """A scheduler that is stopped, a client that does not read: it ends by itself, as if all were well."""
    options = ("--drain-seconds", "0.1", "--stop-timeout", "0.1", "--backend", backend)
    command, client = start(vidette_command, *options)
    command.find_children(2)
    scheduler = pid_of(command, "scheduler")
    with client, client.stream("POST", CHAT, json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(scheduler, signal.SIGSTOP)
        command.signal(signal.SIGTERM)
        assert command.end() == (0, "", "")


def test_a_signal_before_it_serves_ends_it_and_what_it_has_started(vidette_command: Commands) -> None:
    command = vidette_command("serve", "--model", "toy", "--port", "0")
    deadline = time.monotonic() + SECONDS
    while len(command.children) < 2:
        assert time.monotonic() < deadline
        command.look_for_children()
    command.signal(signal.SIGTERM)
    assert command.end() == (143, "", "")


@pytest.mark.long
def test_a_stop_while_processes_are_started_again_is_bounded(vidette_command: Commands) -> None:
    command, client = start(vidette_command, "--drain-seconds", "0.1")
    with client, client.stream("POST", CHAT, json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(pid_of(command, "scheduler"), signal.SIGKILL)
        command.read_until("stderr", "it is started again in 0.1 s\n")
        command.signal(signal.SIGTERM)
        last = [line for line in lines if line][-1]
        assert "cannot wait for it" in last
    command.look_for_children()
    assert command.end() == (0, "", "")


def test_a_broken_engine_ends_it_with_the_cause(vidette_command: Commands) -> None:
    command, client = start(vidette_command, "--supervision", "fail")
    with client, client.stream("POST", CHAT, json=LONG) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        command.find_children(2)
        os.kill(pid_of(command, "scheduler"), signal.SIGKILL)
        last = [line for line in lines if line][-1]
        assert "the scheduler was killed by SIGKILL" in last
    assert command.end() == (1, "", "vidette: the scheduler was killed by SIGKILL\n")


def test_a_process_that_dies_is_started_again_and_streams_go_on(vidette_command: Commands) -> None:
    command, client = start(vidette_command)
    params = {"max_new_tokens": 3000, "ignore_eos": True, "sampling_seed": 5}
    body = {"text": "hello", "sampling_params": params, "stream": True}
    with client:
        whole = client.post("/generate", json={**body, "stream": False}).json()
        assert whole["meta_info"]["resumed"] == 0
        with client.stream("POST", "/generate", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            assert next(lines).startswith("data: ")
            os.kill(pid_of(command, "scheduler"), signal.SIGKILL)
            *_, last, done = lines
        assert done == "data: [DONE]"
        resumed = json.loads(last.removeprefix("data: "))
        assert (resumed["text"], resumed["output_ids"]) == (whole["text"], whole["output_ids"])
        assert resumed["meta_info"]["resumed"] == 1
        assert client.get("/health").status_code == 200
    command.signal(signal.SIGINT)
    warning = "the scheduler was killed by SIGKILL; it is started again in 0.1 s\n"
    assert command.end() == (0, "", warning)


def pid_of(command: Command, role: str) -> int:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        pid = int(stat.parent.name)
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == command.process.pid and role.encode() in arguments:
            return pid
    raise AssertionError(f"there is no {role}")


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The model is not even looked for.
        assert main(["serve", "--port", str(port), "--model", "nope"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vidette: cannot serve on 127.0.0.1 port {port}: Address already in use; choose")
