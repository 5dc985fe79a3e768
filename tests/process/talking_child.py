"""The main module of children whose scheduler says on its stderr whatever it is asked to."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import warnings
from typing import ClassVar

from vidette import Handlers
from vidette.child import run_child
from vidette_protocol import front_codec, hook_custom_types
from vidette_protocol.messages import ControlOutput, ControlReq


class TalkReqOutput(ControlOutput, tag=301, kw_only=True, frozen=True):
    """It was said."""


class TalkReq(ControlReq, tag=300, kw_only=True, frozen=True):
    """Say something in every way there is."""

    output: ClassVar = TalkReqOutput


class Dying:
    """Raises where nobody can catch it."""

    def __del__(self) -> None:
        raise LookupError("while it died")


async def talk(question: TalkReq) -> TalkReqOutput:
    """Answer TalkReq."""
    del question
    logging.getLogger("theirs").warning("two\nlines, %s", "\N{SNOWMAN}")
    try:
        raise ValueError("x" * 100_000)
    except ValueError:
        logging.getLogger("vidette.mine").exception("it went wrong")
    warnings.warn("soon gone", stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0, name="their own")
    thread.start()
    thread.join()
    Dying()
    faulthandler.dump_traceback()
    print("the end, which no line ends", end="", file=sys.stderr, flush=True)
    return TalkReqOutput(id=0)


CODEC = hook_custom_types(front_codec(), TalkReq)
HANDLERS: Handlers = {TalkReq: talk}

if __name__ == "__main__":
    run_child(codec=CODEC, handlers=HANDLERS)
