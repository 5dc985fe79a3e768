"""How large the world of a step loop is."""

from __future__ import annotations

from typing import NamedTuple


class LoopBounds(NamedTuple):
    """What a step loop has to do, besides what `Bounds` says.

    Args:
        blocks: of the pool.
        prompt: tokens of each prompt.
        chunk: most tokens of a prompt that are computed in one step.
        prompts: how many different prompts there are; requests take turns.
        drafts: most tokens that are guessed in one step.
        interval: how many output tokens are said at once.
        flushes: whether everything that nobody uses may be evicted at any moment.
        session: whether requests are turns of a session.
        streaming: whether that takes one turn at a time, each behind the last.
        closes: whether the session may be closed.
        waits: how often the time passes after which an idle session ends.
        overlaps: whether the model computes as a device does; without drafts and sessions.
        pauses: how often generation is paused, of a model that overlaps.
    """

    blocks: int = 8
    prompt: int = 1
    chunk: int = 16
    prompts: int = 1
    drafts: int = 0
    interval: int = 1
    flushes: bool = False
    session: bool = False
    streaming: bool = False
    closes: bool = False
    waits: int = 0
    overlaps: bool = False
    pauses: int = 0


class Outcome(NamedTuple):
    """What the model says of one request in a step.

    Args:
        right: how many of its drafts, from the first, are what the model says.
        stop: which of the tokens that it says ends the output, from 1 on; 0: none.
    """

    right: int = 0
    stop: int = 0
