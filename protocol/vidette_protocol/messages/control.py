"""Control messages: how links open, how processes are asked after, and how they stop."""

from __future__ import annotations

from msgspec import Struct

from vidette_protocol.messages.base import Message, Seconds, WireVid
from vidette_protocol.messages.tags import Tag


class Hello(Message, tag=Tag.HELLO, kw_only=True, frozen=True):
    """Both ways, the first message of every link; a mismatch is refused with both versions named.

    Args:
        version: PROTOCOL_VERSION of the sender.
        fingerprint: hash over the message classes that the sender knows on this link.
        role: "front", "scheduler" or "detokenizer".
        pid: process id, for people.
        incarnation: how often this role was started before in this engine, from 0.
        schema: what the fingerprint is of, class by class; see `vidette_protocol.schema`.
    """

    version: int
    fingerprint: str
    role: str
    pid: int
    incarnation: int = 0
    schema: dict[str, bytes] = {}  # noqa: RUF012  msgspec makes a new one each time


class Ready(Message, tag=Tag.READY, kw_only=True, frozen=True):
    """Scheduler or detokenizer to front: the model is loaded and work may come.

    Args:
        role: who is ready.
        max_total_tokens: most tokens of prompt and output together that one request may have; 0 from a
            detokenizer, which has no such bound.
        num_blocks: blocks of the KV pool; 0 from a detokenizer.
        step_tokens: token budget of one step; 0 from a detokenizer.
        max_running: most requests that run at once; 0 from a detokenizer.
    """

    role: str
    max_total_tokens: int = 0
    num_blocks: int = 0
    step_tokens: int = 0
    max_running: int = 0


class Failed(Message, tag=Tag.FAILED, kw_only=True, frozen=True):
    """Scheduler or detokenizer to front: this process ends by a fault of its own.

    Args:
        role: who failed.
        message: what happened, in a sentence.
    """

    role: str
    message: str


class SchedulerTotals(Struct, array_like=True, frozen=True):
    """What a scheduler has done since the start.

    Args:
        prompt_tokens: tokens that prefills have computed, those of outputs after a retraction included.
        cached_tokens: tokens of prompts that were found in the prefix cache instead.
        output_tokens: tokens made.
        retracted: how often a request's blocks were taken for others.
        begun_tokens: tokens of prompts of requests that were begun: those that were looked for in the cache.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retracted: int = 0
    begun_tokens: int = 0


class SchedulerLedger(Struct, array_like=True, frozen=True):
    """What a scheduler holds, as of the step that said so.

    Args:
        live: requests waiting, running or being freed.
        waiting: those of them that hold no blocks yet.
        tombstones: aborts remembered for vids that were not there.
        blocks_used: blocks of the KV pool that requests hold.
        steps: steps taken since the start.
        queue_age_s: how long the oldest of those that wait has waited.
        step_s: how long the step before took; 0 if nothing is computed.
        blocks_cached: blocks that no request uses, kept for whoever begins alike; as good as free.
        totals: what it has done since the start.
        sessions: sessions that are open.
        running: those of the live ones that hold blocks and are computed.
        blocks_host: blocks in the second tier of the cache.
        number: where there are several detokenizers, which of all ledgers it is, the first being 1.
        paused: whether it takes no steps until it is told to go on.
    """

    live: int = 0
    waiting: int = 0
    tombstones: int = 0
    blocks_used: int = 0
    steps: int = 0
    queue_age_s: float = 0.0
    step_s: float = 0.0
    blocks_cached: int = 0
    totals: SchedulerTotals = SchedulerTotals()
    sessions: int = 0
    running: int = 0
    blocks_host: int = 0
    number: int = 0
    paused: bool = False


class HeartbeatReq(Message, tag=Tag.HEARTBEAT, kw_only=True, frozen=True):
    """Round the ring, front to scheduler to detokenizer to front, through the step loop itself.

    It comes back only if every part turns; each part adds what it holds. Asked for when someone wants to
    know, never on a timer while nothing lives.

    Args:
        id: chosen by the front; says which question this answers.
        floor: as in TokenizedGenerateReqInput.
        scheduler: filled in by the scheduler.
        detokenizer_open: requests the detokenizer holds; filled in by the detokenizer.
    """

    id: int
    floor: WireVid = 0
    scheduler: SchedulerLedger | None = None
    detokenizer_open: int | None = None


class GcState(Struct, array_like=True, frozen=True):
    """The garbage collector of one process, as FreezeGCReq left it.

    Args:
        seconds: how long that took.
        frozen: objects that are left out of collections.
    """

    seconds: float = 0.0
    frozen: int = 0


class FreezeGCReq(Message, tag=Tag.FREEZE_GC, kw_only=True, frozen=True):
    """Round the ring like HeartbeatReq: collect garbage once, then leave what lives now out of collections.

    Args:
        id: chosen by the front; says which call this answers.
        duration_s: seconds after which a process un-freezes by itself; None: not before it is told to.
        unfreeze: do the opposite: let all that was left out be collected again.
        scheduler: filled in by the scheduler, if its process is not the front's.
        detokenizer: filled in by the detokenizer, likewise.
    """

    id: int = 0
    duration_s: Seconds | None = None
    unfreeze: bool = False
    scheduler: GcState | None = None
    detokenizer: GcState | None = None


class ShutdownReq(Message, tag=Tag.SHUTDOWN, kw_only=True, frozen=True):
    """Front to scheduler to detokenizer: end everything that lives, then exit with status 0."""
