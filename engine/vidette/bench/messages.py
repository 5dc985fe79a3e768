"""Messages that only the benchmark sends: loads of any size, and what it tells its peer to do."""

from __future__ import annotations

from typing import Literal

from vidette_protocol.codec import Codec
from vidette_protocol.messages import Message
from vidette_protocol.messages.tags import FIRST_USER_TAG


class Load(Message, tag=FIRST_USER_TAG, kw_only=True, frozen=True):
    """Something to carry.

    Args:
        body: bytes, or a tensor or array.
    """

    body: object


class Task(Message, tag=FIRST_USER_TAG + 1, kw_only=True, frozen=True):
    """To the peer: what comes next.

    Args:
        kind: "take" one tensor, "echo" messages, or "count" frames.
        way: how it comes: by our "link", or the name of a baseline.
        count: of messages or frames.
        verify: report the checksum of the tensor.
    """

    kind: Literal["take", "echo", "count"]
    way: str
    count: int = 1
    verify: bool = False


class Go(Message, tag=FIRST_USER_TAG + 2, kw_only=True, frozen=True):
    """From the peer: it waits for what it was told would come."""


class Done(Message, tag=FIRST_USER_TAG + 3, kw_only=True, frozen=True):
    """From the peer: that has come.

    Args:
        at: when, in nanoseconds of CLOCK_MONOTONIC, which is the same in all processes.
        checksum: of the tensor, if asked for.
    """

    at: int
    checksum: int = 0


def control_codec() -> Codec:
    """Return the codec of what the peer is told and answers, for both sides."""
    classes = (Task, Go, Done)
    return Codec(sends=classes, receives=classes)


def load_codec() -> Codec:
    """Return the codec of what is carried, for both sides."""
    return Codec(sends=[Load], receives=[Load], bulk=True)
