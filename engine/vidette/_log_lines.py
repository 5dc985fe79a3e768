"""Lines of a log: what all processes say of a record alike, and those of a child: `ChildLines`, `ChildText`.

A child says them on its stderr, which the front passes on, so as JSON they are ASCII whatever that takes, and
no longer than the front keeps of what nobody reads.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import msgspec

LINE_BYTES: Final = 8 * 1024
"""Longest line of a child."""
TRACES: Final = ("error", "stack")
"""What is of interest at its end."""
CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
"""Stands where something was left out."""

logger = logging.getLogger("vidette")


def fields_of(record: logging.LogRecord, message: str) -> dict[str, Any]:
    """Return what each line has: time, level, logger, message, and the stack if that is asked for."""
    fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": message,
    }
    return fields | {"stack": record.stack_info} if record.stack_info else fields


class _Escapes(dict[int, str]):
    """For `str.translate`: each character, or what stands for one that a terminal might obey."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = shown = char if char.isprintable() else json.dumps(char)[1:-1]
        return shown


def printable(line: str) -> str:
    """Return a line with what a terminal might obey escaped, as JSON has it; msgspec escapes only some."""
    return line if line.isprintable() else line.translate(_Escapes())


def as_text(message: str, trace: str = "") -> str:
    """Return a message as one line, and a traceback in lines that are indented, so that none poses as one."""
    return "\n".join([printable(message), *(f"  {printable(line)}" for line in trace.splitlines())])


def trace_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record, and the stack that it was made to tell, if it has them."""
    trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
    return "\n".join(filter(None, (trace, record.stack_info)))


class ChildLines(logging.Formatter):
    """One JSON object: time, level, logger, message, which process it is, and as `error` a traceback.

    Of what is too long for a line, the longest is cut: of a traceback the beginning is left out, of all else
    the end.

    Args:
        role: of the process.
        incarnation: how often this role was started before.
    """

    def __init__(self, role: str, incarnation: int) -> None:
        super().__init__()
        self._process = {"role": role, "pid": os.getpid(), "incarnation": incarnation}

    def format(self, record: logging.LogRecord) -> str:
        """Return a line."""
        said = fields_of(record, record.getMessage()) | self._process
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        while len(line := json.dumps(said)) > LINE_BYTES:
            name = max(
                (name for name in said if isinstance(said[name], str)), key=lambda name: len(said[name])
            )
            half = len(said[name]) // 2
            said[name] = CUT + said[name][half + 1 :] if name in TRACES else said[name][: half - 1] + CUT
        return line


class ChildText(logging.Formatter):
    """Which process it is, and the message, in one line; a traceback follows in lines that are indented.

    Of a line that is too long the end is left out, so that no other is taken for its beginning.

    Args:
        role: of the process.
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, or several."""
        text = as_text(f"{name_of(self._role)}{record.getMessage()}", trace_of(record))
        return "\n".join(map(_shortened, text.split("\n")))


def _shortened(line: str) -> str:
    said = line.encode()
    return line if len(said) <= LINE_BYTES else said[:LINE_BYTES].decode(errors="ignore") + CUT


def name_of(role: str) -> str:
    """Return what a line of a child begins with as text."""
    return f"vidette {role}: "


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
    shows = warnings.showwarning
    logging.captureWarnings(capture=True)
    ours = warnings.showwarning is not shows  # or else the program has had them logged before
    sys.excepthook, sys.unraisablehook, threading.excepthook = _uncaught, _unraisable, _uncaught_in_thread

    def undo() -> None:
        sys.excepthook, sys.unraisablehook, threading.excepthook = before
        if ours:
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
