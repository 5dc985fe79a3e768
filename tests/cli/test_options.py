"""What the options of a command are to an engine."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from vidette.cli import generate, serve
from vidette.cli._options import engine_options


def given(command: Any, *arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    command.add_parser(parser)
    return engine_options(parser.parse_args(arguments))


def test_a_service_goes_on_whatever_dies_or_hangs() -> None:
    options = given(serve)
    assert (options["supervision"], options["watchdog"]) == ("restart", "restart")
    assert "hang_timeout" not in options  # the engine's default


def test_it_may_be_told_to_report_only_and_when() -> None:
    options = given(serve, "--watchdog", "report", "--hang-timeout", "2.5")
    assert (options["watchdog"], options["hang_timeout"]) == ("report", 2.5)


@pytest.mark.parametrize("name", ["supervision", "watchdog", "hang_timeout"])
def test_a_command_that_ends_by_itself_has_the_defaults_of_the_library(name: str) -> None:
    assert name not in given(generate, "a prompt")


def test_where_a_model_is_computed() -> None:
    for command, arguments in ((serve, ()), (generate, ("a prompt",))):
        assert not {"device", "cuda_graphs"} & given(command, *arguments).keys()  # the engine's default
        options = given(command, *arguments, "--device", "cuda:1", "--cuda-graphs", "off")
        assert (options["device"], options["cuda_graphs"]) == ("cuda:1", "off")
