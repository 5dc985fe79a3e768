"""`vidette top` in a terminal, beside a real `vidette serve`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any

import httpx
import pytest

from tests.cli.conftest import SECONDS, Command, Commands
from vidette.cli import main

ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`vidette ARGUMENTS` in a terminal of its own."""

    def __init__(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(100, 20)
        self.before = termios.tcgetattr(self.theirs)
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "vidette.cli", *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", **(environ or {})},
        )

    def resize(self, width: int, height: int) -> None:
        """Be of another size."""
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read_until(self, end: str) -> str:
        """Read until something was said; return all that was said since the last call."""
        deadline = time.monotonic() + SECONDS
        while end not in self.said:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{end!r} did not come: {self.said[-2000:]!r}"
            self.said += os.read(self.ours, 1 << 16).decode()
        said, _, self.said = self.said.partition(end)
        return said + end

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        """Wait for its end; the terminal has to be as before."""
        self.read_until(LEFT)
        status = self.process.wait(SECONDS)
        assert termios.tcgetattr(self.theirs) == self.before
        return status

    def close(self) -> None:
        """Give everything back."""
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Generator[Any]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, environ: Mapping[str, str] | None = None) -> Terminal:
        opened.append(Terminal(*arguments, environ=environ))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def serve(vidette_command: Commands, *options: str) -> tuple[Command, str]:
    server = vidette_command("serve", "--model", "toy", "--port", "0", *options)
    ready = re.search(r"http://\S+", server.read_until("stderr", "\n"))
    assert ready is not None
    return server, ready[0]


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    """Where a service is that has two keys."""
    commands = Commands()
    server, url = serve(commands, "--api-key", "client", "--admin-api-key", "admin")
    yield url
    server.signal(signal.SIGINT)
    assert server.end()[0] == 0
    server.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_shows_what_lives_and_gives_the_terminal_back(backend: str, url: str, terminal: Any) -> None:
    options = ("--interval", "0.1", "--backend", backend)
    top = terminal("top", "--url", url, *options, environ={"VIDETTE_ADMIN_API_KEY": "admin"})
    top.read_until(ENTERED)
    top.read_until("(no request lives)")
    over = threading.Event()

    def ask() -> None:
        endless = {"max_new_tokens": 8000, "ignore_eos": True}
        asked = {"text": "x", "rid": "evil\x1b[2J", "sampling_params": endless, "stream": True}
        key = {"Authorization": "Bearer client"}
        with httpx.stream("POST", f"{url}/generate", json=asked, headers=key, timeout=SECONDS) as response:
            for _ in response.iter_bytes():
                if over.is_set():
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        top.read_until("evil\N{REPLACEMENT CHARACTER}[2J")
        top.resize(40, 3)
        top.process.send_signal(signal.SIGWINCH)
        top.read_until("\x1b[?2026l")  # the end of the one that had it
        frame = top.read_until("\x1b[?2026l")
        while "REQUEST" in frame:  # drawn before
            frame = top.read_until("\x1b[?2026l")
        lines = [SEQUENCE.sub("", line).rstrip("\r") for line in frame.splitlines()]
        assert len(lines) == 3
        assert max(map(len, lines)) == 40
        top.type("q")
        assert top.end() == 0
    finally:
        over.set()
        asking.join()


def test_a_signal_leaves_and_a_service_that_ends_is_told(vidette_command: Commands, terminal: Any) -> None:
    server, url = serve(vidette_command)
    plain = terminal("top", "--url", url, environ={"NO_COLOR": "1"})
    colours = terminal("top", "--url", url)
    assert "\x1b[7m" in colours.read_until("(no request lives)")
    assert "\x1b[7m" not in plain.read_until("(no request lives)")
    plain.process.send_signal(signal.SIGINT)
    assert plain.end() == 0
    server.process.kill()
    assert colours.end() == 1
    colours.read_until(f"the service at {url} went away")


def test_once_and_json_are_for_scripts(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIDETTE_API_KEY", "client")
    assert main(["top", "--url", url, "--json"]) == 2  # it is for whoever runs the service
    assert "the service answered 40" in capsys.readouterr().err
    assert main(["top", "--url", url, "--json", "--api-key", "admin"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [each["role"] for each in json.loads(out)["processes"]] == ["front", "detokenizer", "scheduler"]
    monkeypatch.setenv("VIDETTE_API_KEY", "alice admin\nbob other\n")  # as `serve` takes it
    assert main(["top", "--url", url, "--json"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("VIDETTE_ADMIN_API_KEY", "admin")
    assert main(["top", "--url", f"{url}/v1", "--once", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "/s made" in out
    assert "\x1b" not in out
    assert main(["top", "--url", url, "--once", "--interval", "0.001"]) == 2
    assert "interval is" in capsys.readouterr().err


def test_what_is_wrong_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:9", "--json"]) == 1
    assert "http://127.0.0.1:9/v1/ cannot be asked" in capsys.readouterr().err
    assert main(["top", "--url", "here", "--json"]) == 2
    assert "must be like http://127.0.0.1:8000" in capsys.readouterr().err
    assert main(["top"]) == 2
    assert "give --once or --json" in capsys.readouterr().err
