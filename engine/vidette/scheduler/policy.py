"""What the next step computes: continuous batching with chunked prefill under a token budget; pure.

A step first serves the requests that decode (one token each, so every stream advances), then goes on with
prefills that have begun, then admits waiting requests, as far as its tokens reach. A prefill longer than what
is left of the step goes on in the next one, beside the others' decodes.

**Admission.** A request is admitted when the blocks for all its known tokens are there, and beyond them one
for each that runs then, to grow into. Not those for `max_new_tokens`: most end earlier. One that would run
alone needs only its own. The first that does not fit ends admission, so nobody is overtaken by one that
needs less. Only those whose prefix another is computing just now are passed over, at most MAX_SKIPPED a step.
Beside a prefill that does not end in this step nobody is admitted: it takes all tokens that are left.

**Retraction.** When those that run need more blocks than there are, the one of the latest standing (priority
and age, see `queue`) gives up its blocks and waits, and so on until the others have enough; the last one is
never retracted. A step that retracts admits nobody.

**Preemption**, if `preempt_gap` is set: for a waiting request that finds no place, or no blocks, running ones
whose priority is lower by at least so much give up theirs, the latest standing first, at most MAX_PREEMPTED
of them, and only if it should fit then. Not one whose age makes up for its priority. It is admitted in the
next step, when it is known what it shares with them: what they held alone may be its own beginning. It is off
unless asked for, since a priority comes from a client, and would stop others' streams.

Why everybody ends, if a request alone fits into the pool: standings never change. Of those that run, the
one of the least standing is never retracted for memory, and is preempted only by one of a lesser standing
still. If the least of all that have begun waits, it is the first candidate; then nobody else is admitted but
such preemptors, and so it is admitted at the latest when nobody runs. So it runs to its end, then the next is
the least. Nobody goes back and forth either: after an admission every running request has a block to grow
into, so in the BLOCK_SIZE steps that follow nobody is retracted for memory; and whoever preempted another
stands before it, so it is never preempted by that one in turn.

Timeouts are not decided here. The step loop gives a request a deadline (`deadlines`) by the queue timeout
when it is pushed, and drops it when the request is first admitted; one that is retracted has begun, and gets
none again. From its first admission on it has another by the running timeout, which goes on while it is
retracted. Those whose deadline has passed are ended before `decide` is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.queue import AGEING_S, Ticket, standing
from vidette_protocol.ids import Vid

MAX_SKIPPED: Final = 16
"""Most waiting requests a step passes over because their prefix is being computed."""
MAX_PREEMPTED: Final = 4
"""Most running requests that lose their place to a higher priority in one step."""


class Work(Protocol):
    """A running request, as far as the policy looks at it."""

    @property
    def vid(self) -> Vid:
        """Which."""
        ...

    @property
    def uncomputed(self) -> int:
        """Tokens whose keys and values are not in the pool yet; 1 for a request that decodes."""
        ...

    @property
    def room(self) -> int:
        """Tokens that still fit into the blocks it holds, beyond those that are computed."""
        ...

    @property
    def held(self) -> int:
        """Blocks that would be free or evictable without it; asked only when some have to be found."""
        ...

    @property
    def priority(self) -> int:
        """The larger, the sooner."""
        ...

    @property
    def arrival(self) -> float:
        """When it first came, in seconds on the caller's clock."""
        ...

    @property
    def made(self) -> int:
        """Output tokens; of two of equal standing the one with more goes on."""
        ...


class Cost(NamedTuple):
    """What it takes to admit a request.

    Args:
        tokens: its known tokens that are not cached, at least 1.
        blocks: what all its known tokens take of the free and evictable blocks: new ones, and cached ones
            that are evictable until it uses them.
    """

    tokens: int
    blocks: int


class Budget(NamedTuple):
    """What one step may use.

    Args:
        tokens: most tokens that are computed; at least `requests`, so that each that runs advances.
        requests: most requests that run at once.
        blocks: blocks that are free or evictable.
    """

    tokens: int
    requests: int
    blocks: int


class Chunk(NamedTuple):
    """A share of a step: the next `tokens` uncomputed tokens of a request."""

    vid: Vid
    tokens: int


class Decision(NamedTuple):
    """What a step does: first it retracts, then it admits, then it computes the chunks; they may be none."""

    chunks: list[Chunk]
    admitted: list[Vid]
    retracted: list[Vid]


def decide(
    running: Sequence[Work],
    candidates: Iterable[Ticket],
    cost: Callable[[Vid], Cost | None],
    budget: Budget,
    *,
    ageing_s: float = AGEING_S,
    preempt_gap: int | None = None,
) -> Decision:
    """Choose what the next step computes.

    Args:
        running: requests that hold blocks, in the order of admission.
        candidates: requests that wait, in the order of `WaitingQueue`; read no further than needed.
        cost: what a candidate takes; None: not now, its prefix is being computed by one that runs.
        budget: what the step may use.
        ageing_s: seconds of waiting that make up for one level of priority; that of the queue.
        preempt_gap: by how many levels a candidate has to be above a running request to take its place;
            None: never.
    """
    step = _Step(running, budget, ageing_s)
    step.go_on()
    if step.blocks < 0:
        step.retract()
    else:
        step.admit(candidates, cost, preempt_gap)
    chunks = [Chunk(vid, tokens) for vid, tokens in step.shares.items()]
    return Decision(chunks, step.admitted, step.retracted)


class _Step:
    """A step as it is decided.

    Attributes:
        running: who runs and is not retracted.
        shares: how many tokens each computes.
        tokens: how many are left.
        blocks: how many are left once everybody has those for their share; below 0: some are missing.
    """

    def __init__(self, running: Sequence[Work], budget: Budget, ageing_s: float) -> None:
        self.running = {work.vid: work for work in running}
        self.requests = budget.requests
        self.ageing_s = ageing_s
        self.tokens = budget.tokens
        self.blocks = budget.blocks
        self.shares: dict[Vid, int] = {}
        self.admitted: list[Vid] = []
        self.retracted: list[Vid] = []

    def go_on(self) -> None:
        """Share the step among those that run: decodes, then prefills."""
        prefills: list[Work] = []
        for work in self.running.values():
            if work.uncomputed > 1:
                prefills.append(work)
            else:
                self._share(work)
        for work in prefills:
            self._share(work)

    def retract(self) -> None:
        """Take the blocks of the latest standings until the others have enough; one always goes on."""
        for work in self._latest_first()[:-1]:
            if self.blocks >= 0:
                return
            self._stop(work)

    def admit(
        self,
        candidates: Iterable[Ticket],
        cost: Callable[[Vid], Cost | None],
        preempt_gap: int | None,
    ) -> None:
        """Admit candidates until one does not fit, or no tokens are left."""
        waiting = iter(candidates)
        skipped = 0
        while self.tokens > 0 and skipped < MAX_SKIPPED:
            if preempt_gap is None and self._count >= self.requests:
                return
            ticket = next(waiting, None)
            if ticket is None:
                return
            price = cost(ticket.vid)
            if price is None:
                skipped += 1
                continue
            if not self._fits(price, self.blocks, self._count):
                if preempt_gap is not None:
                    self._preempt(ticket, price, preempt_gap)
                return
            self.admitted.append(ticket.vid)
            self.shares[ticket.vid] = min(price.tokens, self.tokens)
            self.tokens -= self.shares[ticket.vid]
            self.blocks -= price.blocks

    @property
    def _count(self) -> int:
        """How many run, those included that are admitted."""
        return len(self.running) + len(self.admitted)

    def _fits(self, price: Cost, blocks: int, others: int) -> bool:
        """Tell whether one can be admitted beside so many others, with so many blocks that nobody needs."""
        growth = others + 1 if others else 0
        return others < self.requests and price.blocks + growth <= blocks

    def _preempt(self, ticket: Ticket, price: Cost, gap: int) -> None:
        """Stop as few as it takes for a candidate to fit; nobody if it would not fit even so."""
        rank = standing(ticket, self.ageing_s)
        lower = [
            work
            for work in self._latest_first()
            if ticket.priority - work.priority >= gap and standing(work, self.ageing_s) > rank
        ]
        blocks = self.blocks
        for count, work in enumerate(lower[:MAX_PREEMPTED], 1):
            blocks += self._freed(work)
            if self._fits(price, blocks, self._count - count):
                for victim in lower[:count]:
                    self._stop(victim)
                return

    def _share(self, work: Work) -> None:
        if self.tokens > 0:
            share = self.shares[work.vid] = min(work.uncomputed, self.tokens)
            self.tokens -= share
            self.blocks -= _more_blocks(work, share)

    def _stop(self, work: Work) -> None:
        self.blocks += self._freed(work)
        self.shares.pop(work.vid, None)
        del self.running[work.vid]
        self.retracted.append(work.vid)

    def _freed(self, work: Work) -> int:
        """Return how many blocks a request leaves to others when it stops."""
        return work.held + _more_blocks(work, self.shares.get(work.vid, 0))

    def _latest_first(self) -> list[Work]:
        return sorted(
            self.running.values(),
            key=lambda work: (-standing(work, self.ageing_s), work.made, -work.vid),
        )


def _more_blocks(work: Work, tokens: int) -> int:
    """Return how many blocks a request needs beyond those it holds, to compute so many tokens."""
    missing = tokens - work.room
    return -(-missing // BLOCK_SIZE) if missing > 0 else 0
