"""`vidette pull`: get a known model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vidette.cli._run import say


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette pull`."""
    from vidette.models import KNOWN_MODELS  # noqa: PLC0415

    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(KNOWN_MODELS)}")
    terms = "; ".join(f"{name}: {model.terms}" for name, model in KNOWN_MODELS.items())
    parser.epilog = f"Models come under the terms of their makers: {terms}."


def pull(options: argparse.Namespace) -> int:
    """Get a model, or check the one that is there; print the path of its file, and on stderr its terms."""
    from vidette.models import KNOWN_MODELS  # noqa: PLC0415

    print(pull_with_progress(options.name))
    say(f"{options.name} is published under: {KNOWN_MODELS[options.name].terms}")
    return 0


def pull_with_progress(name: str) -> Path:
    """Get a model, with a progress bar on stderr; return the path of its file.

    Raises:
        UsageError: there is no such model.
        ModelError: it cannot be had, or cannot be stored.
    """
    from tqdm import tqdm  # noqa: PLC0415

    from vidette.models import pull as pull_model  # noqa: PLC0415

    if sys.stderr.isatty():
        say(f"getting {name}, unless it is there already")
    # disable=None: no bar where nobody sees it move.
    with tqdm(desc=name, unit="B", unit_scale=True, disable=None, file=sys.stderr, delay=0.1) as bar:

        def progress(done: int, size: int) -> None:
            bar.total = size
            bar.update(done - bar.n)

        return pull_model(name, progress=progress)
