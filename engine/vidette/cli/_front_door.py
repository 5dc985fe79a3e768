"""Options that say who may use the service, and what is logged of it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from vidette.api import Engine
from vidette.errors import UsageError

if TYPE_CHECKING:
    from vidette.service import FrontDoor

API_KEY: Final = "VIDETTE_API_KEY"
"""Environment variable that stands for `--api-key`, which other users of the machine can read."""
ADMIN_API_KEY: Final = "VIDETTE_ADMIN_API_KEY"
"""Likewise of `--admin-api-key`."""


def add_front_door_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("front door")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients have to know; better given by {API_KEY} in the environment, as the command line "
        "can be read by all users of the machine (default: nothing)",
    )
    group.add_argument(
        "--admin-api-key",
        metavar="KEY",
        help=f"what whoever pauses, flushes, aborts and profiles has to know, or {ADMIN_API_KEY} "
        "(default: that of clients)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin use the service, such as https://chat.example; can be given again "
        "(default: none)",
    )
    group.add_argument(
        "--log-requests", action="store_true", help="log a line for each request, without its prompt"
    )
    group.add_argument(
        "--log-requests-level",
        type=int,
        choices=(0, 1, 2, 3),
        default=0,
        metavar="N",
        help="how much of each: 1 also who asked, 2 also how the body begins, 3 all of it; from 2 on prompts "
        "are in the log (default: 0)",
    )
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="how lines are written (default: text)"
    )


def front_door(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> FrontDoor:
    """Return what the options say, and the environment where they say nothing.

    Raises:
        UsageError: a key or an origin is none.
    """
    from vidette.service import FrontDoor, Keys, LogSettings, Secret, check_origins  # noqa: PLC0415

    api = options.api_key if options.api_key is not None else environment.get(API_KEY)
    admin = options.admin_api_key if options.admin_api_key is not None else environment.get(ADMIN_API_KEY)
    return FrontDoor(
        keys=Keys(None if api is None else Secret(api), None if admin is None else Secret(admin)),
        cors_origins=check_origins(options.cors_origin),
        logs=LogSettings(
            requests=options.log_requests, level=options.log_requests_level, format=options.log_format
        ),
    )


def begin_metrics(engine: Engine) -> None:
    """Have requests observed from now on, if what it takes is installed; `/metrics` says so if it is not."""
    with suppress(UsageError):
        engine.metrics()


class _AsJson(logging.Formatter):
    """One JSON object for each line; the access log writes its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        text = super().format(record)
        if record.name == "vidette.access":
            return text
        said = {"level": record.levelname.lower(), "logger": record.name, "message": text}
        return msgspec.json.encode(said).decode()


@contextmanager
def logging_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Write what Vidette logs to stderr while the block runs: requests if that is asked for, and warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if as_json else logging.Formatter())
    loggers = {"vidette": logging.WARNING, "vidette.access": logging.INFO}
    before = {name: logging.getLogger(name).level for name in loggers}
    logging.getLogger("vidette").addHandler(handler)
    for name, level in loggers.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        logging.getLogger("vidette").removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
