"""Options that say who may use the service, and what is logged of it."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from vidette._log_lines import log_what_python_says, tell
from vidette.api import Engine
from vidette.cli._run import say
from vidette.errors import Error, UsageError

if TYPE_CHECKING:
    from vidette.service import FrontDoor, ServiceLimits

logger = logging.getLogger(__name__)

API_KEY: Final = "VIDETTE_API_KEY"
"""Environment variable that stands for `--api-key`, which other users of the machine can read."""
ADMIN_API_KEY: Final = "VIDETTE_ADMIN_API_KEY"
"""Likewise of `--admin-api-key`."""


def add_front_door_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("front door")
    group.add_argument(
        "--api-key",
        action="append",
        metavar="[NAME ]KEY",
        help="what clients have to know; can be given again, for a client each, with a name by which its "
        f"use is told; better given by {API_KEY} in the environment, one a line, as the command line can be "
        "read by all users of the machine (default: nothing)",
    )
    group.add_argument(
        "--admin-api-key",
        metavar="KEY",
        help=f"what whoever pauses, flushes, aborts and profiles has to know, or {ADMIN_API_KEY} "
        "(default: the key of clients, or of several none)",
    )
    group.add_argument(
        "--key-requests",
        type=positive,
        metavar="N",
        help="most answers that one key may have made at once (default: any number, and of several keys half "
        "of --max-requests)",
    )
    group.add_argument(
        "--key-requests-per-minute",
        type=positive,
        metavar="N",
        help="most answers that one key may ask for (default: any number)",
    )
    group.add_argument(
        "--key-tokens-per-minute",
        type=positive,
        metavar="N",
        help="most tokens of prompts and answers that one key may have (default: any number)",
    )
    group.add_argument(
        "--max-connections",
        type=positive,
        metavar="N",
        help="most connections that are open at once (default: 4096, or what the process may open)",
    )
    group.add_argument(
        "--unread-seconds",
        type=float,
        metavar="SECONDS",
        help="how long a client may read nothing of what waits for it, before it is cut off (default: 300)",
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
        help="how much of each: 1 also who asked, 2 also how the body begins, 3 its first 256 KiB; from 2 on "
        "prompts are in the log (default: 0)",
    )
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="how lines are written (default: text)"
    )


def front_door(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> FrontDoor:
    """Return what the options say, and the environment where they say nothing.

    Raises:
        UsageError: a key or an origin is none.
    """
    from vidette.service import FrontDoor, Keys, LogSettings, Secret, check_origins, read_keys  # noqa: PLC0415

    api = options.api_key
    if api is None:
        api = (environment[API_KEY].splitlines() or [""]) if API_KEY in environment else []
    admin = options.admin_api_key if options.admin_api_key is not None else environment.get(ADMIN_API_KEY)
    return FrontDoor(
        keys=Keys(read_keys(api), None if admin is None else Secret(admin, "admin")),
        cors_origins=check_origins(options.cors_origin),
        logs=LogSettings(
            requests=options.log_requests, level=options.log_requests_level, format=options.log_format
        ),
    )


def service_limits(options: argparse.Namespace) -> ServiceLimits:
    """Return the bounds of the service that the options say.

    Raises:
        UsageError: a time is none.
    """
    from vidette.service import ServiceLimits  # noqa: PLC0415

    unread = options.unread_seconds
    if unread is not None and not 0 < unread < math.inf:
        raise UsageError(f"unread-seconds is {unread}; it must be more than 0", param="unread-seconds")
    given = {
        "key_requests": options.key_requests,
        "key_requests_per_minute": options.key_requests_per_minute,
        "key_tokens_per_minute": options.key_tokens_per_minute,
        "connections": options.max_connections,
        "unread_seconds": unread,
    }
    return ServiceLimits(**{name: value for name, value in given.items() if value is not None})


def positive(text: str) -> int:
    """Return a number of things given on the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def begin_metrics(engine: Engine) -> None:
    """Have requests observed from now on, if what it takes is installed; `/metrics` says so if it is not."""
    with suppress(UsageError):
        engine.metrics()


@contextmanager
def logging_to_stderr(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Write what is logged to stderr while the block runs: warnings, and requests if that is asked for.

    Yields:
        What says a sentence there to the person at the terminal; as JSON it is a line of the log.
    """
    from vidette.service import JsonLines, TextLines  # noqa: PLC0415

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    levels = {"vidette": logging.WARNING, "vidette.access": logging.INFO, logger.name: logging.INFO}
    before = {name: logging.getLogger(name).level for name in levels}
    with ExitStack() as undo:
        root.addHandler(handler)
        undo.callback(root.removeHandler, handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
            undo.callback(logging.getLogger(name).setLevel, before[name])
        if as_json:
            undo.callback(log_what_python_says())
        try:
            yield partial(logger.info, "%s") if as_json else say
        except Error as error:
            if as_json:  # the command says it as well once this is over, as text, and not where it was either
                logger.error("%s", error)  # noqa: TRY400
            raise
        except BrokenPipeError:  # whoever read it is gone, which is no bug
            raise
        except Exception as error:
            if not as_json:
                raise
            tell(error)
            raise SystemExit(1) from error  # Python would print it as well once this is over, as text
