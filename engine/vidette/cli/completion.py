"""`vidette completion`: what makes a shell complete the commands, options and values of this very program."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from vidette.cli import _shells
from vidette.cli._parser import explain
from vidette.errors import Error

MODELS: Final = "models"
"""Asks for names instead: scripts do when somebody completes one."""
_SHELLS: Final[Mapping[str, Callable[[_shells.Command], str]]] = MappingProxyType(
    {"bash": _shells.bash, "zsh": _shells.zsh, "fish": _shells.fish}
)


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette completion`."""
    parser.add_argument(
        "shell",
        metavar="SHELL",
        choices=(*_SHELLS, MODELS),
        help=f"{', '.join(_SHELLS)}; or {MODELS}, for the names that --model takes, one on each line",
    )
    explain(
        parser,
        'eval "$(vidette completion bash)"  # in ~/.bashrc',
        'eval "$(vidette completion zsh)"   # in ~/.zshrc, behind compinit',
        "vidette completion fish > ~/.config/fish/completions/vidette.fish",
    )


def completion(options: argparse.Namespace) -> int:
    """Print the script of a shell, or the names of models."""
    if options.shell == MODELS:
        print("\n".join(model_names()))
        return 0
    from vidette.cli.main import make_parser  # noqa: PLC0415  which has this command in it

    print(_SHELLS[options.shell](_shells.describe(make_parser())), end="")
    return 0


def model_names() -> list[str]:
    """Return the names that `--model` takes: those that are known, and those of a hub that were pulled."""
    from vidette.models import KNOWN_MODELS, models_directory, parse_hub_name, pulled_models  # noqa: PLC0415

    try:
        pulled = [name for name in pulled_models(models_directory()) if parse_hub_name(name) is not None]
    except (
        Error,
        OSError,
        RuntimeError,
    ):  # a bad record or no home is not told to who completes a name
        pulled = []
    return ["toy", *KNOWN_MODELS, *pulled]
