"""What the next step computes: continuous batching with chunked prefill under a token budget.

A step first serves the requests that decode (one token each, so every stream advances), then goes on with
prefills that have begun, then admits waiting requests in the order of their arrival. A request is admitted
when the blocks for its whole prompt and `max_new_tokens` are free, so one that runs never lacks memory. The
first that does not fit ends admission: nobody overtakes, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar


class Work(Protocol):
    """What the policy has to know of a request."""

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are not in the pool yet; 1 for a request that decodes."""
        ...

    @property
    def blocks_needed(self) -> int:
        """Blocks that the whole request takes."""
        ...


WorkT = TypeVar("WorkT", bound=Work)


class Budget(NamedTuple):
    """What one step may use.

    Args:
        tokens: most tokens that are computed.
        requests: most requests that run at once.
        blocks: blocks that are free.
    """

    tokens: int
    requests: int
    blocks: int


class Chunk(NamedTuple):
    """A share of a step: the next `tokens` uncomputed tokens of the request at `place`."""

    place: int
    tokens: int


class Decision(NamedTuple):
    """What a step computes; places in `running` followed by the admitted."""

    chunks: list[Chunk]
    admitted: int
    """How many waiting requests, from the head of the queue, run from now on."""


def decide(running: Sequence[WorkT], waiting: Iterable[WorkT], budget: Budget) -> Decision:
    """Choose what the next step computes.

    Args:
        running: requests that hold blocks, in the order of admission.
        waiting: requests that hold none, in the order of arrival; read no further than needed.
        budget: what the step may use.
    """
    tokens, blocks = budget.tokens, budget.blocks
    decoding = [Chunk(i, 1) for i, work in enumerate(running) if work.uncomputed == 1][:tokens]
    tokens -= len(decoding)
    chunks = decoding
    for i, work in enumerate(running):
        if work.uncomputed > 1 and tokens > 0:
            chunks.append(Chunk(i, min(work.uncomputed, tokens)))
            tokens -= chunks[-1].tokens
    admitted = 0
    for work in waiting:
        if tokens <= 0 or len(running) + admitted >= budget.requests or work.blocks_needed > blocks:
            break
        chunks.append(Chunk(len(running) + admitted, min(work.uncomputed, tokens)))
        tokens -= chunks[-1].tokens
        blocks -= work.blocks_needed
        admitted += 1
    return Decision(chunks, admitted)
