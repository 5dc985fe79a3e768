"""A terminal that is drawn on: another screen while it lasts, and afterwards all as it was before."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from vidette.cli._top_view import Line, Style, cells_of

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""The other screen, no cursor, and nothing on it."""
_LEAVE: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know them show what is between at once; others ignore them."""
_STYLES: Final[Mapping[Style, str]] = MappingProxyType(
    {"plain": "", "title": "\x1b[1;32m", "head": "\x1b[7m", "alarm": "\x1b[1;31m"}
)
_PLAIN: Final = "\x1b[0m"
_SMALLEST: Final = (80, 24)
"""What a terminal is taken for that does not tell its size."""


class Screen:
    """The terminal of stdin and stdout.

    Args:
        environ: where NO_COLOR may be.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._colours = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._keyboard = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._keyboard)
        self._entered = False

    def enter(self) -> None:
        """Begin to draw: call `leave()` whatever happens next."""
        self._entered = True
        tty.setcbreak(self._keyboard)  # keys come one by one, and Ctrl-C is still a signal
        self._write(_ENTER)

    def leave(self) -> None:
        """Have all as it was before; also in a signal handler, and more than once."""
        if self._entered:
            self._entered = False
            try:
                self._write(_LEAVE)
            finally:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def size(self) -> tuple[int, int]:
        """Return its width and height as they are now."""
        width, height = os.get_terminal_size(sys.stdout.fileno())
        return (width, height) if width and height else _SMALLEST

    def read_keys(self) -> bytes:
        """Return the keys that were pressed, which are there; empty if the terminal is gone."""
        try:
            return os.read(self._keyboard, 64)
        except OSError:
            return b""

    def draw(self, lines: Sequence[Line]) -> None:
        """Show lines, from the top; each has to fit."""
        width, height = self.size()
        shown = []
        for line in lines:
            style = _STYLES[line.style] if self._colours else ""
            # A line that is full is not cleared: the cursor is still on its last cell.
            rest = "\x1b[K" if cells_of(line.text) < width else ""
            shown.append(f"{style}{line.text}{_PLAIN if style else ''}{rest}")
        below = "\n\x1b[J" if len(lines) < height else ""
        # In one piece, over what is there: nothing is blank in between.
        text = "\n".join(shown)
        self._write(f"{_BEGIN}\x1b[H{text}{below}{_END}")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
