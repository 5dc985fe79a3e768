"""`--help`: short, whole, and true."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import msgspec
import pytest

from vidette import EngineConfig
from vidette.cli import main
from vidette.cli._options import ENGINE_OPTIONS
from vidette.cli._parser import ADVANCED, Parser, commands_of, metavar_of, options_of
from vidette.cli.main import make_parser

ENGINE = msgspec.structs.asdict(EngineConfig())


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for _, _, child in commands_of(parser):
        yield from every_parser(child)


PARSERS = {parser.prog: parser for parser in every_parser(make_parser())}
OPTIONS = [(prog, action) for prog, parser in PARSERS.items() for _, action in options_of(parser)]


def test_it_fits_on_eighty_columns_and_begins_with_what_the_command_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for prog, parser in PARSERS.items():
        assert isinstance(parser, Parser)
        for text in (parser.format_help(), parser.format_help(everything=True)):
            assert max(map(len, text.splitlines())) <= 80
            usage, blank, purpose, *_ = text.splitlines()
            assert usage.startswith(f"usage: {prog}")
            assert (blank, purpose[-1]) == ("", ".")
            assert purpose[0].isupper()


def test_what_few_need_is_named_and_explained_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["serve", "--help-all"]) == 0
    whole = capsys.readouterr().out
    shown, _, named = short.partition("more options, which `vidette serve --help-all` explains:\n")
    hidden = [action for title, action in options_of(PARSERS["vidette serve"]) if title in ADVANCED]
    assert len(hidden) > 15
    for action in hidden:
        (flag,) = action.option_strings
        assert f"\n  {flag} " not in shown
        assert flag in named
        assert re.search(rf"^  {flag}\b", whole, re.MULTILINE)


def test_each_option_says_what_it_is_for_and_its_default() -> None:
    for prog, action in OPTIONS:
        where = f"{prog} {action.dest}"
        text = " ".join((action.help or "").split())
        assert len(re.sub(r"\(default: .*\)", "", text).split()) >= 2, where
        if not action.option_strings or not metavar_of(action):  # an argument, or a switch that is off
            assert action.default in (None, False, argparse.SUPPRESS), where
        elif not action.required:
            assert "default" in text, where
            default = action.default
            if default is None and action.dest in ENGINE_OPTIONS and not prog.startswith("vidette bench"):
                default = ENGINE[action.dest]
            if default is not None and default != []:
                shown = f"{default:g}" if isinstance(default, float) else str(default)
                assert re.search(rf"default: {re.escape(shown)}(?!\w)", text), where


def test_each_number_says_of_what() -> None:
    for prog, action in OPTIONS:
        if action.dest.endswith(("seconds", "timeout", "interval", "patience", "budget")):
            assert metavar_of(action) == "SECONDS", f"{prog} {action.dest}"
        if action.dest.endswith("_tokens"):
            assert metavar_of(action) == "TOKENS", f"{prog} {action.dest}"


def test_examples_are_commands_that_there_are() -> None:
    parser = make_parser()
    for prog, each in PARSERS.items():
        epilog = each.epilog or ""
        examples = re.findall(r"^  (?:\w+=\S+ )?(?:.* \| )?vidette (.*)$", epilog, re.MULTILINE)
        assert examples or len(prog.split()) > 2
        for example in examples:
            parser.parse_args(shlex.split(example.partition(" > ")[0]))
