"""What an engine is given of a user's own messages: a codec that knows them, and who answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from vidette.errors import UsageError
from vidette_protocol.codec import Codec
from vidette_protocol.messages import ControlOutput, ControlReq
from vidette_protocol.messages.catalogue import FRONT_TO_SCHEDULER, SCHEDULER_TO_FRONT

Handler = Callable[[Any], Awaitable[ControlOutput]]
"""Answers one kind of question, as a task of the scheduler's event loop, which it must not block."""

Handlers = Mapping[type[ControlReq], Handler]
"""Who answers which kind of question."""

ADVICE: Final = "hook_custom_types(front_codec(), ...) makes one that knows yours and ours"


class Custom(Struct, frozen=True):
    """Messages of a user's own.

    Args:
        codec: of the front's link to the scheduler; None: that of our own messages.
        handlers: who answers them there; unknown here of children in processes of their own.
        child: main module of the children, which gives `vidette.child.run_child` a codec and handlers of its
            own; None: ours.
    """

    codec: Codec | None = None
    handlers: Handlers | None = None
    child: str | None = None


def check_custom(custom: Custom, topology: Literal["processes", "inline"]) -> Custom:
    """Return what `open_engine` was given of these, if it makes sense together.

    Raises:
        UsageError: it does not.
    """
    if topology == "inline" and custom.child is not None:
        raise UsageError("child is for the topology 'processes'; with 'inline', give handlers", param="child")
    if topology == "processes" and custom.handlers is not None:
        raise UsageError(
            "with the topology 'processes', handlers are given to run_child() by the module named by child",
            param="handlers",
        )
    if topology == "processes" and (custom.codec is None) != (custom.child is None):
        raise UsageError(
            "with the topology 'processes', codec and child go together: the children know messages of yours "
            "only if their main module does",
            param="child" if custom.child is None else "codec",
        )
    if custom.codec is not None:
        check_codec(custom.codec)
    if custom.handlers is not None:
        check_handlers(custom.handlers, custom.codec)
    return custom


def check_codec(codec: Codec) -> None:
    """Check that a front can use a codec.

    Raises:
        UsageError: it lacks messages of ours, or takes pickles.
    """
    if not (codec.sends.issuperset(FRONT_TO_SCHEDULER) and codec.receives.issuperset(SCHEDULER_TO_FRONT)):
        raise UsageError(f"this codec lacks messages of ours; {ADVICE}", param="codec")
    if codec.allow_pickle:
        raise UsageError("no link of an engine takes a PickleWrapper, but this codec does", param="codec")


def check_handlers(handlers: Handlers, codec: Codec | None) -> None:
    """Check that questions of each kind reach their handler over a codec.

    Raises:
        UsageError: they do not.
    """
    for kind in handlers:
        if codec is None or kind in FRONT_TO_SCHEDULER or kind not in codec.sends:
            raise UsageError(
                f"{kind.__name__} is no question of yours that the codec sends; {ADVICE}", param="handlers"
            )
