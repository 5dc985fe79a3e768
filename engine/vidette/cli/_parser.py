"""`Parser`: what reads a command line, and how it explains itself."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

WIDEST: Final = 98
"""Cells of a line of help, however wide the terminal is."""
HELP_COLUMN: Final = 27
"""Where the text of an option begins."""
ADVANCED: Final = frozenset(
    {"scheduling", "caches", "guesses", "when something goes wrong", "processes", "recording"}
)
"""Groups of options that `--help` only names, and `--help-all` explains."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Texts as they are written, and commands without a heading of their own."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=HELP_COLUMN)
        self._width = min(self._width, WIDEST)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(self._format_action, action._get_subactions()))
        return super()._format_action(action)


class HelpAll(argparse.Action):
    """`--help-all`: help with all groups, and the end of the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(
            option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help
        )
        del dest

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print it, and end the program."""
        assert isinstance(parser, Parser)
        print(parser.format_help(everything=True), end="")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence, and whose help is short.

    Args:
        options: as for `argparse.ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})

    def error(self, message: str) -> NoReturn:
        """End the program with a sentence."""
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")

    def format_usage(self) -> str:
        """Return what a command line is made of: what has to be given, and that there are options."""
        return f"usage: {self._usage()}\n"

    def format_help(self, *, everything: bool = False) -> str:
        """Return the whole explanation.

        Args:
            everything: whether groups of ADVANCED are explained, and not only named.
        """
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), [], [])
        formatter.add_text(self.description)
        named = []
        for group in self._action_groups:
            if group.title in ADVANCED and group._group_actions and not everything:
                named.append(f"  {group.title}: {', '.join(map(name_of, group._group_actions))}")
                continue
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        if named:
            width = min(WIDEST, formatter._width)
            listed = "\n".join(_fill(line, width, indent=4) for line in named)
            formatter.add_text(f"more options, which `{self.prog} --help-all` explains:\n{listed}")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _usage(self) -> str:
        actions = [action for action in self._actions if not isinstance(action, argparse._SubParsersAction)]
        commands = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        needed = [
            f"{name_of(action)} {metavar_of(action)}"
            for action in actions
            if action.required and action.option_strings
        ]
        places = [metavar_of(action) for action in actions if not action.option_strings]
        return " ".join(
            [self.prog, *(str(action.metavar) for action in commands), *needed, "[options]", *places]
        )


def explain(parser: argparse.ArgumentParser, *examples: str, note: str = "") -> None:
    """Give the help of a command an end.

    Args:
        parser: of the command.
        examples: command lines.
        note: what is to be said besides.
    """
    parts = []
    if examples:
        parts.append("\n".join(["examples:", *(f"  {line}" for line in examples)]))
    if note:
        parts.append(textwrap.fill(note, 78))
    parser.epilog = "\n\n".join(parts)


def name_of(action: argparse.Action) -> str:
    """Return the option that people write, the long one."""
    return action.option_strings[-1] if action.option_strings else metavar_of(action)


def metavar_of(action: argparse.Action) -> str:
    """Return what stands for the value of an option, or for an argument; empty if there is none."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the options and arguments of one command, each with the title of its group."""
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS:
                yield group.title or "", action


def commands_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield name, text and parser of each command right below one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            for name, each in action.choices.items():
                yield name, texts.get(name, ""), each


def _fill(line: str, width: int, *, indent: int) -> str:
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)
