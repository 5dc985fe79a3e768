"""Options that say who may use the service, and what is logged of it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from vidette.api import Engine
from vidette.errors import UsageError

if TYPE_CHECKING:
    from vidette.service import FrontDoor

API_KEY: Final = "VIDETTE_API_KEY"
"""Environment variable that stands for `--api-key`, which other users of the machine can read."""
ADMIN_API_KEY: Final = "VIDETTE_ADMIN_API_KEY"
"""Likewise of `--admin-api-key`."""
HANDLED: Final = ("vidette", "opentelemetry")
"""Loggers whose lines are written."""


def add_front_door_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("front door")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients have to know; better given by the environment variable {API_KEY}, as the command "
        "line can be read by all users of the machine",
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
        help="let pages of this origin use the service, such as https://chat.example; can be given again",
    )
    group.add_argument(
        "--log-requests", action="store_true", help="log a line for each request, without its prompt"
    )
    group.add_argument(
        "--log-requests-level",
        type=int,
        choices=(0, 1, 2, 3),
        default=0,
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


@contextmanager
def logging_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Write what Vidette logs to stderr while the block runs: requests if that is asked for, and warnings.

    So it is with what the exporter of traces has to say.
    """
    from vidette.service import JsonLines, TextLines  # noqa: PLC0415

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    loggers = {"vidette": logging.WARNING, "vidette.access": logging.INFO}
    before = {name: logging.getLogger(name).level for name in loggers}
    for name in HANDLED:
        logging.getLogger(name).addHandler(handler)
    for name, level in loggers.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name in HANDLED:
            logging.getLogger(name).removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
