"""Who `vidette serve` lets in: keys from options and the environment, and no open door by accident."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from datetime import datetime

import pytest

from tests.cli.conftest import Commands
from tests.cli.test_serve import pid_of, start
from vidette import UsageError
from vidette.cli import main
from vidette.cli._front_door import add_front_door_options, front_door, logging_to_stderr, service_limits
from vidette.service import FrontDoor, ServiceLimits


def door(*arguments: str, environment: Mapping[str, str] | None = None) -> FrontDoor:
    parser = argparse.ArgumentParser()
    add_front_door_options(parser)
    return front_door(parser.parse_args(arguments), environment or {})


def test_by_itself_there_are_no_keys_and_nothing_is_logged() -> None:
    made = door()
    assert (made.keys.api, made.keys.admin, made.cors_origins, made.logs.requests) == ((), None, (), False)


def test_keys_are_options_or_in_the_environment() -> None:
    variables = {"VIDETTE_API_KEY": "one", "VIDETTE_ADMIN_API_KEY": "two"}
    for made in (door("--api-key", "one", "--admin-api-key", "two"), door(environment=variables)):
        assert made.keys.admin is not None
        (key,) = made.keys.api
        assert key.matches(b"one")
        assert made.keys.admin.matches(b"two")
    (changed,) = door("--api-key", "other", environment=variables).keys.api
    assert not changed.matches(b"one")


def test_each_client_may_have_a_key_of_its_own() -> None:
    variables = {"VIDETTE_API_KEY": "alice one=\n two,three\nbob  four:\n"}
    given = ("--api-key", "alice one=", "--api-key", "two,three", "--api-key", "bob four:")
    for made in (door(*given), door(environment=variables)):
        assert [key.name for key in made.keys.api] == ["alice", "key2", "bob"]
        assert [key.matches(b"two,three") for key in made.keys.api] == [False, True, False]
        assert made.keys.api[2].matches(b"four:")


@pytest.mark.parametrize(
    "keys", [("a 5ecret", "a two"), ("a 5ecret", "b 5ecret"), ("5ecret", "5ecret"), ("a/b 5ecret",), ("",)]
)
def test_keys_that_cannot_be_told_apart_are_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as raised:
        door(*(word for key in keys for word in ("--api-key", key)))
    assert "5ecret" not in str(raised.value)


def test_bounds_are_options() -> None:
    parser = argparse.ArgumentParser()
    add_front_door_options(parser)
    assert service_limits(parser.parse_args([])) == ServiceLimits()
    given = "--key-requests 4 --key-requests-per-minute 60 --key-tokens-per-minute 7 --max-connections 9"
    limits = service_limits(parser.parse_args([*given.split(), "--unread-seconds", "0.5"]))
    assert (limits.key_requests, limits.key_requests_per_minute, limits.key_tokens_per_minute) == (4, 60, 7)
    assert (limits.connections, limits.unread_seconds) == (9, 0.5)
    with pytest.raises(UsageError, match="unread-seconds is 0"):
        service_limits(parser.parse_args(["--unread-seconds", "0"]))
    with pytest.raises(SystemExit):
        parser.parse_args(["--key-requests", "0"])


@pytest.mark.parametrize("variable", ["VIDETTE_API_KEY", "VIDETTE_ADMIN_API_KEY"])
def test_an_empty_key_is_no_open_door(variable: str) -> None:
    with pytest.raises(UsageError):
        door(environment={variable: ""})


def test_pages_and_logs() -> None:
    made = door("--cors-origin", "https://a.example", "--cors-origin", "https://b.example", "--log-requests",
                "--log-requests-level", "2", "--log-format", "json")  # fmt: skip
    assert made.cors_origins == ("https://a.example", "https://b.example")
    assert (made.logs.requests, made.logs.level, made.logs.format) == (True, 2, "json")
    with pytest.raises(UsageError):
        door("--cors-origin", "a.example")


def test_other_machines_need_a_key_or_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIDETTE_API_KEY", raising=False)
    assert main(["serve", "--model", "toy", "--host", "0.0.0.0", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "--api-key" in said
    assert "--allow-remote" in said
    # An admin key alone lets everybody use the model.
    assert main(["serve", "--model", "toy", "--host", "0.0.0.0", "--port", "0", "--admin-api-key", "x"]) == 2


def test_it_asks_for_the_key_and_logs_who_came(vidette_command: Commands) -> None:
    command, client = start(vidette_command, "--topology", "inline", "--api-key", "sk-1", "--log-requests")
    with client:
        assert client.get("/v1/models").status_code == 401
        named = {"host": "api.example", "authorization": "Bearer sk-1"}  # a proxy's name: the key is enough
        assert client.get("/v1/models", headers=named).status_code == 200
        assert client.get("/metrics", headers=named).status_code == 200
        said = command.read_until("stderr", 'path="/metrics" status=200')
        assert 'method="GET" path="/v1/models" status=401' in said
    command.signal(signal.SIGINT)
    assert command.end()[0] == 0


def test_it_says_that_of_several_clients_none_runs_it(vidette_command: Commands) -> None:
    keys = ("--api-key", "alice sk-1", "--api-key", "bob sk-2")
    command = vidette_command("serve", "--model", "toy", "--port", "0", "--topology", "inline", *keys)
    command.read_until("stderr", "no --admin-api-key: nobody may")
    command.signal(signal.SIGINT)
    assert command.end()[0] == 0


def test_all_that_a_server_says_is_json_if_that_is_asked_for(vidette_command: Commands) -> None:
    """Its own lines, and those of its processes; but for the sentence of the command that it has failed."""
    command = vidette_command(
        "serve", "--model", "toy", "--port", "0", "--log-format", "json", "--supervision", "fail"
    )
    first = json.loads(command.read_until("stderr", "\n"))
    assert first["message"].startswith("vidette serves toy on http://127.0.0.1:")
    assert (first["level"], first["logger"]) == ("info", "vidette.cli._front_door")
    os.kill(pid_of(command, "detokenizer"), signal.SIGKILL)
    status, _, said = command.end()
    *lines, last = said.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["the detokenizer was killed by SIGKILL"]
    assert (status, last) == (1, "vidette: the detokenizer was killed by SIGKILL")


def test_what_others_log_is_json_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what Python itself says: a warning, and an error that nothing handles."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    before = sys.excepthook, sys.unraisablehook, threading.excepthook, warnings.showwarning
    with logging_to_stderr(as_json=True) as tell:
        logging.getLogger("uvicorn.error").error("it is\nbroken")
        warnings.showwarning("soon gone", UserWarning, "theirs.py", 7)
        sys.excepthook(KeyError, KeyError("x"), None)
        tell("100 % fine")
    assert before == (sys.excepthook, sys.unraisablehook, threading.excepthook, warnings.showwarning)
    with pytest.raises(UsageError), logging_to_stderr(as_json=True):
        raise UsageError("no such thing")
    messages = [json.loads(line)["message"] for line in stderr.getvalue().splitlines()]
    assert messages[0] == "it is\nbroken"
    assert "soon gone" in messages[1]
    assert messages[2:] == ["KeyError: 'x'", "100 % fine", "no such thing"]


def test_a_bug_of_the_server_is_a_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing prints it as text: what ends the program says nothing."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(SystemExit) as ended, logging_to_stderr(as_json=True):
        raise LookupError("a bug\nFORGED")
    said = json.loads(stderr.getvalue())
    assert (ended.value.code, said["level"], said["message"]) == (1, "error", "LookupError: a bug\nFORGED")
    assert said["error"].startswith("Traceback")
    for error, as_json in ((LookupError("a bug"), False), (BrokenPipeError(), True)):
        with pytest.raises(type(error)), logging_to_stderr(as_json=as_json):
            raise error


def test_lines_are_json_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with logging_to_stderr(as_json=True):
        logging.getLogger("vidette.front").warning("it is\nslow")
        logging.getLogger("vidette.access").info("%s", '{"path":"/"}')
        logging.getLogger("vidette.front").info("nobody asked")
    logging.getLogger("vidette.access").info("late")
    said, asked = (json.loads(line) for line in stderr.getvalue().splitlines())
    assert datetime.fromisoformat(said.pop("time")).tzinfo is not None
    assert said == {"level": "warning", "logger": "vidette.front", "message": "it is\nslow"}
    assert asked == {"path": "/"}
