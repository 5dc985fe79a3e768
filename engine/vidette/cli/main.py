"""`main()`: the `vidette` command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from vidette import __version__
from vidette.cli import (
    bench,
    build_kernels,
    chat,
    completion,
    demo,
    doctor,
    fuzz,
    generate,
    pull,
    serve,
    top,
    wire,
)
from vidette.cli._parser import Parser, commands_of, explain
from vidette.errors import Error, UsageError

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended: 128 and SIGINT."""
PIPE_BROKEN = 141
"""Exit status of a command whose output nobody reads: 128 and SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for a failure, 2 for bad usage, 130 for Ctrl-C.

    Args:
        argv: the arguments behind the program's name; None takes the process's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no UTF-8 is no reason to stop
    try:
        options = make_parser().parse_args(argv)
    except SystemExit as exit_:  # argparse has said why
        return exit_.code if isinstance(exit_.code, int) else 2
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more, as behind `| head`. Python would complain once more when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_BROKEN
    except Error as error:
        print(f"vidette: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


class _Command(NamedTuple):
    name: str
    text: str
    run: Callable[[argparse.Namespace], int]
    fill: Callable[[argparse.ArgumentParser], None]


_COMMANDS: Final[Mapping[str, tuple[_Command, ...]]] = MappingProxyType(
    {
        "use a model": (
            _Command("serve", "serve a model over HTTP", serve.serve, serve.add_parser),
            _Command("generate", "generate from one prompt", generate.generate, generate.add_parser),
            _Command("chat", "talk to a model in the terminal", chat.chat, chat.add_parser),
            _Command("top", "watch what a running service does", top.top, top.add_parser),
        ),
        "get ready": (
            _Command("pull", "get a model, by name or from a hub", pull.pull, pull.add_parser),
            _Command(
                "doctor", "tell what is missing, and what to do about it", doctor.doctor, doctor.add_parser
            ),
            _Command("demo", "serve a model, ask it something, and stop", demo.demo, demo.add_parser),
            _Command(
                "build-kernels",
                "compile the native kernels ahead of time",
                build_kernels.build_kernels,
                build_kernels.add_parser,
            ),
            _Command(
                "completion",
                "print what makes a shell complete these commands",
                completion.completion,
                completion.add_parser,
            ),
        ),
        "work on the engine": (
            _Command("bench", "measure parts of the engine against baselines", bench.bench, bench.add_parser),
            _Command("fuzz", "try to break the protocol", fuzz.fuzz, fuzz.add_parser),
            _Command("wire", "read what passed the links of an engine", wire.wire, wire.add_parser),
        ),
    }
)
"""Commands by what they are for."""


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(prog="vidette", description=_describe())
    explain(
        parser,
        "vidette pull smollm2-135m-instruct",
        "vidette chat",
        "vidette serve --model Qwen/Qwen3-0.6B --port 8000",
        note="`vidette COMMAND --help` explains a command.",
    )
    parser.add_argument(
        "--version", action="version", version=f"vidette {__version__}", help="show the version and exit"
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for commands in _COMMANDS.values():
        for command in commands:
            subparser = subparsers.add_parser(command.name, help=command.text)
            subparser.set_defaults(command=command.run)
            command.fill(subparser)
    _add_descriptions(parser)
    return parser


def _describe() -> str:
    lines = ["An LLM serving engine on structured concurrency."]
    for purpose, commands in _COMMANDS.items():
        lines += ["", f"{purpose}:", *(f"  {command.name:<15} {command.text}" for command in commands)]
    return "\n".join(lines)


def _add_descriptions(parser: argparse.ArgumentParser) -> None:
    """Have each command say first what it is for."""
    for _, text, each in commands_of(parser):
        each.description = each.description or f"{text[:1].upper()}{text[1:]}."
        _add_descriptions(each)
