"""`LoopOptions`: sizes and rules of one step loop."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vidette.scheduler.queue import AGEING_S

QueuePolicy = Literal["fcfs", "lpm", "lof"]
"""In what order requests of equal standing are begun: as they came, by how much of them is cached, or the one
with the longest output first."""


class LoopOptions(Struct, kw_only=True, frozen=True):
    """Sizes and rules of one step loop; those of EngineConfig.

    Args:
        num_blocks: size of the KV pool.
        step_tokens: most tokens computed in one step.
        max_running: most requests that run at once; at most step_tokens, so that each decodes in every step.
        policy: in what order requests of equal standing are begun.
        ageing_s: seconds of waiting that count as one level of priority.
        preempt_gap: a waiting request takes the blocks of a running one whose priority is so much lower;
            None: never.
        host_blocks: blocks of a second pool, in host memory, for what is evicted from the first; 0: there is
            none.
        kv_events: whether to tell what is stored in the prefix cache and removed, for routers.
        draft_tokens: longest draft of what a request may say next; 0: none is made.
        queue_timeout: seconds a request may wait to be begun; None: any time.
        running_timeout: seconds a request may run once it has begun; None: any time.
        detokenizers: how many detokenizers share the requests, see `shares`.
    """

    num_blocks: int
    step_tokens: int
    max_running: int
    policy: QueuePolicy = "fcfs"
    ageing_s: float = AGEING_S
    preempt_gap: int | None = None
    host_blocks: int = 0
    kv_events: bool = False
    draft_tokens: int = 0
    queue_timeout: float | None = None
    running_timeout: float | None = None
    detokenizers: int = 1


def check_options(options: LoopOptions) -> None:
    """Check what the loop relies on.

    Raises:
        ValueError: more requests may run than tokens fit into a step.
    """
    if not 1 <= options.max_running <= options.step_tokens:
        raise ValueError(
            f"max_running is {options.max_running}; it must be from 1 to step_tokens ({options.step_tokens})"
        )
