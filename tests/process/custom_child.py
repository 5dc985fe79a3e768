"""Messages of a user's own, and the main module of the children that know them."""

from __future__ import annotations

import os
from typing import ClassVar

import anyio

from vidette import Handlers
from vidette.child import run_child
from vidette_protocol import front_codec, hook_custom_types
from vidette_protocol.messages import ControlOutput, ControlReq


class AddReqOutput(ControlOutput, tag=301, kw_only=True, frozen=True):
    """The sum, and who made it."""

    total: int = 0
    pid: int = 0


class AddReq(ControlReq, tag=300, kw_only=True, frozen=True):
    """How much is that together?"""

    output: ClassVar = AddReqOutput

    numbers: list[int]


class WaitReqOutput(ControlOutput, tag=303, kw_only=True, frozen=True):
    """Never comes."""


class WaitReq(ControlReq, tag=302, kw_only=True, frozen=True):
    """Wait for ever."""

    output: ClassVar = WaitReqOutput


class NobodyReqOutput(ControlOutput, tag=305, kw_only=True, frozen=True):
    """No."""


class NobodyReq(ControlReq, tag=304, kw_only=True, frozen=True):
    """A question that has no handler."""

    output: ClassVar = NobodyReqOutput


async def add(question: AddReq) -> AddReqOutput:
    """Answer AddReq."""
    if not question.numbers:
        raise ValueError("nothing to add")
    return AddReqOutput(id=0, total=sum(question.numbers), pid=os.getpid())


async def wait(question: WaitReq) -> WaitReqOutput:
    """Never answer WaitReq."""
    await anyio.sleep_forever()
    raise AssertionError("it slept for ever, and woke up")


CODEC = hook_custom_types(front_codec(), AddReq, WaitReq, NobodyReq)
HANDLERS: Handlers = {AddReq: add, WaitReq: wait}

if __name__ == "__main__":
    run_child(codec=CODEC, handlers=HANDLERS)
