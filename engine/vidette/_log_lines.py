"""Lines of a log as JSON: what all processes say of a record alike, and `ChildLines`, those of a child.

A child says them on its stderr, which the front passes on, so they are ASCII whatever that takes, and no
longer than the front keeps of what nobody reads.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import msgspec

LINE_BYTES: Final = 8 * 1024
"""Longest line of a child."""
CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
"""Stands where something was left out."""

logger = logging.getLogger("vidette")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what each line has: time, level, logger and message."""
    return {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }


class ChildLines(logging.Formatter):
    """One JSON object: time, level, logger, message, which process it is, and as `error` a traceback.

    Of what is too long for a line, the beginning of the traceback is left out, and the end of the message.

    Args:
        role: of the process.
        incarnation: how often this role was started before.
    """

    def __init__(self, role: str, incarnation: int) -> None:
        super().__init__()
        self._process = {"role": role, "pid": os.getpid(), "incarnation": incarnation}

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        said = fields_of(record) | self._process
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        while len(line := json.dumps(said)) > LINE_BYTES:
            message, error = said["message"], said.get("error", "")
            if len(error) > len(message):
                said["error"] = CUT + error[len(error) // 2 + 1 :]
            else:
                said["message"] = message[: len(message) // 2 - 1] + CUT
        return line


class _Said(msgspec.Struct):
    message: str


def message_of(line: str) -> str:
    """Return the message of a line that a child has said: what the object says, or else the line."""
    try:
        return msgspec.json.decode(line, type=_Said).message
    except (msgspec.DecodeError, RecursionError):
        return line


def log_what_python_says() -> Callable[[], None]:
    """Have warnings, and exceptions that nothing handles, logged and not printed; return what undoes that."""
    before = sys.excepthook, sys.unraisablehook, threading.excepthook
    logging.captureWarnings(capture=True)
    sys.excepthook, sys.unraisablehook, threading.excepthook = _uncaught, _unraisable, _uncaught_in_thread

    def undo() -> None:
        sys.excepthook, sys.unraisablehook, threading.excepthook = before
        logging.captureWarnings(capture=False)

    return undo


def tell(error: BaseException, *, trace: bool = True, behind: str = "") -> None:
    """Log an error: its class, its sentence, and its traceback.

    Args:
        error: what was raised.
        trace: whether it is of interest where.
        behind: where it was, in words that end with a colon.
    """
    words = " ".join(filter(None, (behind, f"{type(error).__name__}: {error}")))
    logger.error("%s", words, exc_info=error if trace else None)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    del kind
    tell(error.with_traceback(trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    error = args.exc_value
    if error is not None and not isinstance(error, SystemExit):
        tell(error, behind=f"thread {'' if args.thread is None else args.thread.name}:")


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        tell(args.exc_value, behind=f"{args.err_msg or 'exception ignored in'} {args.object!r}:")
