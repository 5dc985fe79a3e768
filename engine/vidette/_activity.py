"""`activity_of()`: what an engine is doing: what lives, its processes, and its statistics."""

from __future__ import annotations

import os
from typing import Final

import anyio
import msgspec
from msgspec import Struct

from vidette._health import STATES
from vidette._picture import picture_of
from vidette._statistics import Statistics
from vidette._supervisor import Supervisor
from vidette.front.living import LiveRequest
from vidette.front.manager import TokenizerManager
from vidette.transport.spawn import look_at

MOST_LISTED: Final = 100
"""How many requests are listed unless somebody wants more."""


class ProcessActivity(Struct, frozen=True):
    """A process, as the kernel sees it.

    Args:
        role: what it does; "front" is the one that says so.
        pid: its process id.
        incarnation: how often this role was started before.
        state: in a word, such as "running" or "sleeping"; "gone" if there is no such process.
        cpu_s: CPU time of all its threads so far.
        rss_bytes: memory of the machine that it holds; what it shares with others counts in each.
    """

    role: str
    pid: int
    incarnation: int
    state: str
    cpu_s: float
    rss_bytes: int


class Activity(Struct, frozen=True):
    """What an engine is doing.

    Its counters only rise, but for a restart; how much that is in a second is for the reader to say.

    Args:
        clock_s: when this was so, in seconds on a clock that only goes forward.
        requests: those that live, the oldest first; not their prompts, nor their output.
        more: how many more there are that are not listed.
        processes: all of them, the front first.
        block_tokens: tokens that a block holds.
        block_bytes: memory of a block; 0 if it is not known.
        statistics: what is held and was done.
        work: what the scheduler has done since it was started: `statistics.scheduler`, which has no names in
            JSON, by its names.
    """

    clock_s: float
    requests: tuple[LiveRequest, ...]
    more: int
    processes: tuple[ProcessActivity, ...]
    block_tokens: int
    block_bytes: int
    statistics: Statistics
    work: dict[str, int] = msgspec.field(default_factory=dict)


def activity_of(manager: TokenizerManager, supervisor: Supervisor, most: int) -> Activity:
    """Return what an engine is doing now.

    Args:
        manager: its front.
        supervisor: of its processes.
        most: how many requests are listed.
    """
    config = supervisor.config
    statistics = picture_of(manager, supervisor)
    requests = manager.living.requests(most, config.detokenizer_roles)
    others = (_look(each.role, each.pid, each.incarnation) for each in statistics.processes)
    return Activity(
        clock_s=anyio.current_time(),
        requests=requests,
        more=len(manager) - len(requests),
        processes=(_look("front", os.getpid(), 0), *others),
        block_tokens=config.block_tokens,
        block_bytes=config.block_tokens * manager.info.kv_bytes_per_token,
        statistics=statistics,
        work=msgspec.structs.asdict(statistics.scheduler),
    )


def _look(role: str, pid: int, incarnation: int) -> ProcessActivity:
    look = look_at(pid)
    return ProcessActivity(role, pid, incarnation, STATES.get(look.state, "gone"), look.cpu_s, look.rss_bytes)
