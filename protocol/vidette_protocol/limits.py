"""Every bound of the protocol with its default, in one table; docs/reference/limits.md lists it for users."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Bounds that hold before anything proportional to a message is allocated."""

    frame_bytes: int = 64 * 1024 * 1024
    """Longest frame a link accepts; its length is checked before the body is awaited."""
    rid_chars: int = 256
    """Longest rid."""
    text_chars: int = 4 * 1024 * 1024
    """Longest prompt, in characters, before tokenising is tried."""
    max_new_tokens: int = 1 << 20
    """Largest `max_new_tokens` that can be asked for; the context bounds it further."""
    ended_remembered: int = 4096
    """How many ended vids a front remembers the end of (to tell an error from a late message)."""
