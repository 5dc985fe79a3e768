"""`main()`: the `vidette` command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from vidette import __version__
from vidette.cli import bench, build_kernels, chat, demo, doctor, fuzz, generate, pull, serve, top, wire
from vidette.errors import Error, UsageError

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended: 128 and SIGINT."""
PIPE_BROKEN = 141
"""Exit status of a command whose output nobody reads: 128 and SIGPIPE."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for a failure, 2 for bad usage, 130 for Ctrl-C.

    Args:
        argv: the arguments behind the program's name; None takes the process's.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no UTF-8 is no reason to stop
    try:
        options = _make_parser().parse_args(argv)
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


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vidette", description="An LLM serving engine on structured concurrency.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vidette {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str,
        text: str,
        command: Callable[[argparse.Namespace], int],
        fill: Callable[[argparse.ArgumentParser], None],
    ) -> None:
        description = f"{text[:1].upper()}{text[1:]}."
        subparser = subparsers.add_parser(name, help=text, description=description, allow_abbrev=False)
        subparser.set_defaults(command=command)
        fill(subparser)

    add("serve", "serve a model over HTTP", serve.serve, serve.add_parser)
    add("generate", "generate from one prompt", generate.generate, generate.add_parser)
    add("chat", "talk to a model in the terminal", chat.chat, chat.add_parser)
    add("top", "watch what a running service does", top.top, top.add_parser)
    add("pull", "get a known model", pull.pull, pull.add_parser)
    add(
        "doctor",
        "tell what is there, what is missing, and what to do about it",
        doctor.doctor,
        doctor.add_parser,
    )
    add("demo", "serve a model, stream an answer from it, and stop", demo.demo, demo.add_parser)
    add(
        "build-kernels",
        "compile the native kernels ahead of time",
        build_kernels.build_kernels,
        build_kernels.add_parser,
    )
    add("bench", "measure parts of the engine against baselines", bench.bench, bench.add_parser)
    add("fuzz", "try to break the protocol", fuzz.fuzz, fuzz.add_parser)
    add("wire", "read what passed the links of an engine", wire.wire, wire.add_parser)
    return parser
