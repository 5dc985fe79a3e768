"""`vidette pull`: get a model, a known one or one of a hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vidette.cli._parser import explain
from vidette.cli._run import say
from vidette.errors import UsageError


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vidette pull`."""
    from vidette.models import KNOWN_MODELS  # noqa: PLC0415

    parser.add_argument(
        "name",
        metavar="MODEL",
        help=f"{', '.join(KNOWN_MODELS)}, or a model of a hub as ORG/NAME, with @REVISION behind it for "
        "another revision than main: a branch, a tag or a commit",
    )
    parser.add_argument(
        "--file",
        metavar="PATTERN",
        help="which GGUF file of a model on a hub, such as '*Q4_K_M*' (default: its *.safetensors, or its "
        "only GGUF file)",
    )
    terms = "; ".join(f"{name}: {model.terms}" for name, model in KNOWN_MODELS.items())
    explain(
        parser,
        "vidette pull smollm2-135m-instruct",
        "vidette pull Qwen/Qwen3-0.6B@main",
        "vidette pull ggml-org/SmolLM3-3B-GGUF --file '*Q4_K_M*'",
        note=f"Models come under the terms of their makers: {terms}.",
    )


def pull(options: argparse.Namespace) -> int:
    """Get a model, or check the one that is there; print its path, and on stderr its terms."""
    from vidette.models import KNOWN_MODELS, parse_hub_name  # noqa: PLC0415

    if options.name in KNOWN_MODELS:
        if options.file is not None:
            raise UsageError(f"{options.name} is one file; leave --file away", param="file")
        print(pull_with_progress(options.name))
        say(f"{options.name} is published under: {KNOWN_MODELS[options.name].terms}")
        return 0
    name = parse_hub_name(options.name)
    if name is None:
        known = ", ".join(KNOWN_MODELS)
        raise UsageError(
            f"there is no model {options.name!r} to pull; known models are {known}, and those of a hub are "
            "ORG/NAME",
            param="name",
        )
    from vidette.models import pull_from_hub  # noqa: PLC0415

    done = pull_from_hub(name, pattern=options.file, say=say)
    if done.unchecked is not None:
        say(f"what was pulled before is kept, and was not compared: {done.unchecked}")
    print(done.path)
    say(f"`vidette serve --model {done.record.name}` serves it, under the terms that its page there names")
    return 0


def pull_with_progress(name: str) -> Path:
    """Get a known model, with a progress bar on stderr; return the path of its file.

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
