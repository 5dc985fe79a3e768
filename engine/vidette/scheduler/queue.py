"""`WaitingQueue`: who is admitted next; pure.

Three rules, from the outside in.

**Between tenants: shares.** Each tenant has a counter of the tokens it was served, and the tenant with the
least goes next. One that had nothing waiting is first lifted to the least of those that have, and to the
clock: the tokens of a tenant that always waited, had each an equal part. So nobody saves up while idle,
nobody loses by having asked little, and nobody stays ahead by taking a new name each time. One level of
`priority` is worth a lead of LEVEL_TOKENS tokens: priority decides who goes first, shares decide how much
each gets in the long run, and no tenant gets more by asking for a higher priority every time. What a client
asks for counts from -MAX_PRIORITY to MAX_PRIORITY. Requests without a tenant are one tenant.

**Within a tenant: standing**, which is `arrival - ageing_s * priority`, the least first. Every `ageing_s`
seconds of waiting make up for one level of priority. It never changes, so nothing is sorted again as time
passes.

**Among those of about the same standing: the policy.** `fcfs` keeps to the standing. `lof` puts long outputs
ahead, by less than one level; so what is left at the end of a burst is short. `lpm` takes, of the first few
whose standing is within one level of the first, the one with the longest cached prefix. These few are LOOK
for all tenants together, and at least one of each, so that a look costs no more where there are many.

A request that ran before and was retracted comes back ahead of all that did not; only a higher priority, for
which its age does not make up yet, passes it.

Nobody starves:

* Within a tenant, a request is passed only by those that came at most `(D + 1) * ageing_s` seconds later, if
  they are D levels above it; with `fcfs`, `D * ageing_s`.
* Two tenants that always have something of equal priority waiting differ in service by at most what all have
  begun at once, counted in full, and the prompts that a look passed over; if their priorities differ by D, by
  D * LEVEL_TOKENS more.
* Between tenants, however many come and go: let K be the most that are served or wait at once, and G how far
  the counter of a tenant is above the clock. Once `K * (G + D * LEVEL_TOKENS)` more tokens were served, each
  tenant that comes anew stands behind it, unless its priority is more than D levels above; those that waited
  already pass it as the rule above has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, Protocol

from vidette.scheduler.ordered import Ordered
from vidette_protocol.ids import Vid

AGEING_S: Final = 30.0
"""Seconds of waiting that make up for one level of priority, unless told otherwise."""
LEVEL_TOKENS: Final = 8192
"""Tokens of service that one level of priority is worth between tenants."""
MAX_PRIORITY: Final = 16
"""The highest priority that counts, and below zero the lowest: what is beyond counts as this."""
OUTPUT_WEIGHT: Final = 2.0
"""What an output token costs in tokens of a prompt, for a share: it takes a place in a step by itself."""
LOOK: Final = 32
"""Most requests whose cached prefixes are compared: an equal part for each tenant, and at least one."""
LONG_OUTPUT: Final = 1024
"""Output tokens that are worth half a level with `lof`."""
IDLE_TENANTS: Final = 1024
"""Most tenants without a waiting request that are remembered."""


class Ranked(Protocol):
    """What a standing is made of."""

    @property
    def priority(self) -> int:
        """The larger, the sooner."""
        ...

    @property
    def arrival(self) -> float:
        """When it first came, in seconds on the caller's clock."""
        ...


def standing(request: Ranked, ageing_s: float) -> float:
    """Return where a request stands among others; the least goes first."""
    return request.arrival - ageing_s * request.priority


class Ticket(NamedTuple):
    """One that waits.

    Args:
        vid: which.
        priority: the larger, the sooner.
        arrival: when it first came, in seconds on the caller's clock.
        tenant: whose share it counts towards; None for those without.
        prompt_tokens: tokens of its prompt.
        max_new_tokens: most output tokens.
    """

    vid: Vid
    priority: int
    arrival: float
    tenant: str | None
    prompt_tokens: int
    max_new_tokens: int


_Key = tuple[float, int, Vid]
"""Of a request among those of its tenant: its standing, then its number in the order of pushing."""
_Turn = tuple[float, _Key]
"""Of a tenant among others: its service less the lead of its next request, then that request's key."""


class WaitingQueue:
    """Requests that wait, in the order in which they should be admitted.

    Pushing, removing, charging and each candidate cost about the same with a hundred thousand as with ten.

    Args:
        policy: who goes first among those of about the same standing: `fcfs` first come, `lpm` longest prefix
            match, `lof` longest output.
        ageing_s: seconds of waiting that make up for one level of priority.
        cached: how many tokens of a request's prompt the prefix cache holds now. Only `lpm` asks, of a
            tenant's part of LOOK when its turn comes in `candidates`, and of one more for each that is read.
    """

    def __init__(
        self,
        policy: Literal["fcfs", "lpm", "lof"] = "fcfs",
        *,
        ageing_s: float = AGEING_S,
        cached: Callable[[Vid], int] | None = None,
    ) -> None:
        self._policy = policy
        self._ageing_s = ageing_s
        self._cached = cached
        self._pushed = 0
        self._places: dict[Vid, _Place] = {}
        self._arrivals: Ordered[tuple[float, int]] = Ordered()
        self._returned: Ordered[_Key] = Ordered()
        self._lanes: dict[str | None, _Lane] = {}
        self._turns: Ordered[_Turn] = Ordered()  # one of each lane: the tenant that goes next is first
        self._served: dict[str | None, float] = {}
        self._shares: Ordered[tuple[float, int]] = Ordered()  # what the tenant of each lane was served
        self._last: str | None = None
        self._clock = 0.0

    def push(self, ticket: Ticket) -> None:
        """Have a new request wait.

        Raises:
            ValueError: it waits already.
        """
        place = self._place(ticket, returned=False)
        lane = self._lanes.get(ticket.tenant)
        if lane is None:
            lane = self._open(ticket.tenant, place.number)
        lane.keys.add(place.key)
        self._turn(lane)

    def push_back(self, ticket: Ticket) -> None:
        """Have a request that ran wait again, ahead of those that did not; its arrival is its first one.

        Raises:
            ValueError: it waits already.
        """
        self._returned.add(self._place(ticket, returned=True).key)

    def remove(self, vid: Vid) -> None:
        """Forget one that waits: it was admitted, or ended.

        Raises:
            KeyError: it does not wait.
        """
        place = self._places.pop(vid)
        self._arrivals.remove((place.ticket.arrival, place.number))
        if place.returned:
            self._returned.remove(place.key)
            return
        lane = self._lanes[place.ticket.tenant]
        lane.keys.remove(place.key)
        if lane.keys.first is not None:
            self._turn(lane)
        else:
            self._close(lane)

    def candidates(self) -> Iterator[Ticket]:
        """Read who should be admitted, the first first; nothing changes the queue meanwhile.

        What was read counts as served its prompt for what follows, so that tenants alternate within a look.
        """
        fresh = self._fresh()
        following = next(fresh, None)
        for _, _, vid in self._returned:
            ticket = self._places[vid].ticket
            while following is not None and self._passes(following, ticket):
                yield following
                following = next(fresh, None)
            yield ticket
        if following is not None:
            yield following
            yield from fresh

    def charge(self, tenant: str | None, tokens: float, weight: float = 1.0) -> None:
        """Count tokens as served to a tenant.

        Args:
            tenant: whose request they were of; it need not have any that wait.
            tokens: how many were computed; what is computed again after a retraction is nobody's.
            weight: 1 for those of a prompt, OUTPUT_WEIGHT for those of an output.
        """
        before = self._served.get(tenant)
        served = (self._least() if before is None else before) + tokens * weight
        self._served[tenant] = served
        lane = self._lanes.get(tenant)
        self._clock += tokens * weight / (len(self._lanes) + (lane is None))
        if lane is not None:
            assert before is not None, "a tenant that waits has a counter"
            self._shares.remove((before, lane.number))
            self._shares.add((served, lane.number))
            self._turn(lane)
        self._forget()

    def served(self, tenant: str | None) -> float:
        """Return a tenant's counter; it has meaning only beside those of others."""
        return self._served.get(tenant, 0.0)

    def oldest_arrival(self) -> float | None:
        """Return when the request came that has been here longest; None if nobody waits."""
        first = self._arrivals.first
        return None if first is None else first[0]

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._places)

    def __contains__(self, vid: object) -> bool:
        """Tell whether one waits."""
        return vid in self._places

    # --- places and lanes ------------------------------------------------------

    def _place(self, ticket: Ticket, *, returned: bool) -> _Place:
        if ticket.vid in self._places:
            raise ValueError(f"vid {ticket.vid} waits already")
        self._pushed += 1
        rank = standing(ticket, self._ageing_s)
        if self._policy == "lof" and not returned:
            rank -= self._ageing_s * ticket.max_new_tokens / (ticket.max_new_tokens + LONG_OUTPUT)
        place = _Place(ticket, (rank, self._pushed, ticket.vid), returned)
        self._places[ticket.vid] = place
        self._arrivals.add((ticket.arrival, place.number))
        return place

    def _open(self, tenant: str | None, number: int) -> _Lane:
        lane = self._lanes[tenant] = _Lane(tenant, number)
        self._served[tenant] = max(self._served.get(tenant, 0.0), self._least())
        self._shares.add((self._served[tenant], number))
        self._forget()
        return lane

    def _close(self, lane: _Lane) -> None:
        del self._lanes[lane.tenant]
        self._shares.remove((self._served[lane.tenant], lane.number))
        if lane.turn is not None:
            self._turns.remove(lane.turn)
        self._last = lane.tenant

    def _turn(self, lane: _Lane) -> None:
        """Put a lane where its service and its first request have it now."""
        first = lane.keys.first
        assert first is not None, "a lane has a request"
        turn = self._score(self._places[first[2]], 0)
        if turn != lane.turn:
            if lane.turn is not None:
                self._turns.remove(lane.turn)
            self._turns.add(turn)
            lane.turn = turn

    def _score(self, place: _Place, more: float) -> _Turn:
        """Return whose turn it is, among tenants: less service first, then the better standing."""
        ticket = place.ticket
        return (self._served[ticket.tenant] + more - LEVEL_TOKENS * ticket.priority, place.key)

    def _least(self) -> float:
        """Return where a counter begins: at the clock, or the least of those that wait, or else the last."""
        first = self._shares.first
        return max(self._clock, self._served.get(self._last, 0.0) if first is None else first[0])

    def _forget(self) -> None:
        """Forget idle tenants, but those with most service: the others would be lifted anyway, or nearly."""
        if len(self._served) - len(self._lanes) <= IDLE_TENANTS:
            return
        least = self._least()
        idle = [
            (served, tenant)
            for tenant, served in self._served.items()
            if tenant not in self._lanes and tenant != self._last
        ]
        idle.sort(key=lambda entry: -entry[0])
        kept = IDLE_TENANTS // 2
        for place, (served, tenant) in enumerate(idle):
            if served <= least or place >= kept:
                del self._served[tenant]

    # --- in order --------------------------------------------------------------

    def _passes(self, fresh: Ticket, returned: Ticket) -> bool:
        return fresh.priority > returned.priority and standing(fresh, self._ageing_s) < standing(
            returned, self._ageing_s
        )

    def _fresh(self) -> Iterator[Ticket]:
        """Read those that never ran: of the tenant with the least service, its next by the policy."""
        begun: list[tuple[_Turn, _Reader]] = []
        for turn in self._turns:
            while begun and begun[0][0] < turn:
                yield self._next_of(begun)
            tenant = self._places[turn[1][2]].ticket.tenant
            heappush(begun, (turn, _Reader(self._read(self._lanes[tenant]))))
        while begun:
            yield self._next_of(begun)

    def _next_of(self, begun: list[tuple[_Turn, _Reader]]) -> Ticket:
        _, reader = heappop(begun)
        place = reader.ahead or next(reader.places)
        reader.taken += place.ticket.prompt_tokens
        reader.ahead = next(reader.places, None)
        if reader.ahead is not None:
            heappush(begun, (self._score(reader.ahead, reader.taken), reader))
        return place.ticket

    def _read(self, lane: _Lane) -> Iterator[_Place]:
        if self._policy == "lpm" and self._cached is not None:
            return self._read_longest_match(lane, self._cached)
        return (self._places[vid] for _, _, vid in lane.keys)

    def _read_longest_match(self, lane: _Lane, cached: Callable[[Vid], int]) -> Iterator[_Place]:
        most = max(1, LOOK // len(self._lanes))
        looked_at: list[tuple[int, _Key]] = []
        pending: deque[_Key] = deque()  # in order of standing; those that were read are dropped when first
        read: set[int] = set()
        keys = iter(lane.keys)
        coming = next(keys, None)
        while True:
            while pending and pending[0][1] in read:
                read.remove(pending.popleft()[1])
            oldest = pending[0] if pending else coming
            if oldest is None:
                return
            while coming is not None and len(looked_at) < most and coming[0] <= oldest[0] + self._ageing_s:
                heappush(looked_at, (-cached(coming[2]), coming))
                pending.append(coming)
                coming = next(keys, None)
            _, (_, number, vid) = heappop(looked_at)
            read.add(number)
            yield self._places[vid]


class _Place(NamedTuple):
    """Where a ticket lies."""

    ticket: Ticket
    key: _Key
    returned: bool

    @property
    def number(self) -> int:
        """How many were pushed before it, and one."""
        return self.key[1]


class _Lane:
    """The new requests of one tenant."""

    __slots__ = ("keys", "number", "tenant", "turn")

    def __init__(self, tenant: str | None, number: int) -> None:
        self.tenant = tenant
        self.number = number
        self.keys: Ordered[_Key] = Ordered()
        self.turn: _Turn | None = None


class _Reader:
    """How far a lane was read: what comes next if that is known, and the prompt tokens read so far."""

    __slots__ = ("ahead", "places", "taken")

    def __init__(self, places: Iterator[_Place]) -> None:
        self.places = places
        self.ahead: _Place | None = None
        self.taken = 0
