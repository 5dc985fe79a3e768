"""The waiting queue: shares between tenants, standing within one, and the policy among those about equal."""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette._arguments import PROBE_PRIORITY
from vidette.scheduler.queue import (
    IDLE_TENANTS,
    LEVEL_TOKENS,
    LONG_OUTPUT,
    LOOK,
    MAX_PRIORITY,
    OUTPUT_WEIGHT,
    Ticket,
    WaitingQueue,
    standing,
)
from vidette_protocol.ids import Vid

Policy = Literal["fcfs", "lpm", "lof"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
AGEING = 10.0


def ticket(
    vid: int,
    arrival: float = 0.0,
    *,
    priority: int = 0,
    tenant: str | None = None,
    prompt: int = 100,
    output: int = 100,
) -> Ticket:
    return Ticket(Vid(vid), priority, arrival, tenant, prompt, output)


def queue_of(*tickets: Ticket, policy: Policy = "fcfs", cached: dict[int, int] | None = None) -> WaitingQueue:
    there = cached or {}
    queue = WaitingQueue(policy, ageing_s=AGEING, cached=lambda vid: there.get(vid, 0))
    for one in tickets:
        queue.push(one)
    return queue


def order(queue: WaitingQueue) -> list[int]:
    return [one.vid for one in queue.candidates()]


@pytest.mark.parametrize(
    ("tickets", "vids"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param([ticket(2, 0), ticket(1, 1)], [2, 1], id="first come"),
        pytest.param([ticket(2, 0), ticket(1, 0)], [2, 1], id="at once: as pushed"),
        pytest.param([ticket(1, 0), ticket(2, 5, priority=1)], [2, 1], id="priority"),
        pytest.param([ticket(1, 0), ticket(2, 10.5, priority=1)], [1, 2], id="age makes up for a level"),
        pytest.param([ticket(1, 0), ticket(2, 10.5, priority=2)], [2, 1], id="but not for two"),
        pytest.param([ticket(1, 0, priority=-1), ticket(2, 9)], [2, 1], id="below zero"),
        pytest.param(
            [ticket(i, tenant="a") for i in (1, 2, 3)] + [ticket(i, 5, tenant="b") for i in (4, 5)],
            [1, 4, 2, 5, 3],
            id="tenants take turns",
        ),
        pytest.param(
            [ticket(i, tenant="a", prompt=300) for i in (1, 2)] + [ticket(i, tenant="b") for i in (3, 4, 5)],
            [1, 3, 4, 5, 2],
            id="by tokens, not by requests",
        ),
        pytest.param(
            [ticket(1, tenant="a"), ticket(2, tenant="b"), ticket(3)], [1, 2, 3], id="without one is one"
        ),
        pytest.param(
            [ticket(1, tenant="a"), ticket(2, 50, tenant="b", priority=1), ticket(3, 50, tenant="b")],
            [2, 1, 3],
            id="priority decides between tenants",
        ),
    ],
)
def test_who_is_next(tickets: list[Ticket], vids: list[int]) -> None:
    assert vids == order(queue_of(*tickets))


@pytest.mark.parametrize(
    ("tickets", "vids"),
    [
        pytest.param([ticket(1, output=10), ticket(2, output=500)], [2, 1], id="the longest output"),
        pytest.param([ticket(1, 0, output=1), ticket(2, 9.9, output=10**6)], [2, 1], id="within a level"),
        pytest.param([ticket(1, 0, output=1), ticket(2, 10, output=10**6)], [1, 2], id="not beyond"),
        pytest.param([ticket(1, output=10**6), ticket(2, priority=1, output=1)], [2, 1], id="priority first"),
        pytest.param(
            [ticket(1, output=1), ticket(2, AGEING / 2 + 0.1, output=LONG_OUTPUT)], [1, 2], id="half a level"
        ),
    ],
)
def test_longest_output(tickets: list[Ticket], vids: list[int]) -> None:
    assert vids == order(queue_of(*tickets, policy="lof"))


@pytest.mark.parametrize(
    ("tickets", "cached", "vids"),
    [
        pytest.param([ticket(1), ticket(2), ticket(3)], {3: 64, 2: 16}, [3, 2, 1], id="the longest match"),
        pytest.param([ticket(1), ticket(2)], {}, [1, 2], id="none: first come"),
        pytest.param([ticket(1, 0), ticket(2, 10)], {2: 64}, [2, 1], id="within a level"),
        pytest.param([ticket(1, 0), ticket(2, 10.1)], {2: 64}, [1, 2], id="not beyond"),
        pytest.param(
            [ticket(1, 0), ticket(2, 6), ticket(3, 12)], {1: 64, 3: 64}, [1, 3, 2], id="a level from the next"
        ),
        pytest.param(
            [ticket(i) for i in range(1, LOOK + 2)],
            {LOOK + 1: 64},
            [1, LOOK + 1],
            id="the first are looked at",
        ),
        pytest.param(
            [ticket(1, tenant="a"), ticket(2, tenant="b"), ticket(3, tenant="b")],
            {2: 16, 3: 64},
            [1, 3, 2],
            id="of its own tenant",
        ),
    ],
)
def test_longest_prefix_match(tickets: list[Ticket], cached: dict[int, int], vids: list[int]) -> None:
    assert vids == order(queue_of(*tickets, policy="lpm", cached=cached))[: len(vids)]


def test_prefixes_are_looked_up_only_as_needed() -> None:
    asked: list[int] = []

    def cached(vid: Vid) -> int:
        asked.append(vid)
        return 0

    queue = WaitingQueue("lpm", cached=cached)
    for vid in range(1000):
        queue.push(ticket(vid))
    assert not asked
    candidates = queue.candidates()
    assert not asked
    next(candidates)
    assert len(asked) == LOOK + 1  # that of the next is known, too
    next(candidates)
    assert len(asked) == LOOK + 2


def test_a_look_costs_no_more_with_many_tenants() -> None:
    asked: list[int] = []

    def cached(vid: Vid) -> int:
        asked.append(vid)
        return 0

    queue = WaitingQueue("lpm", cached=cached)
    for vid in range(4000):
        queue.push(ticket(vid, tenant=f"t{vid % 40}"))
    read = list(itertools.islice(queue.candidates(), 40))
    assert len({one.tenant for one in read}) == 40
    assert len(asked) == 80  # of each its first, and its next


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_comes_back_goes_before_all_that_never_ran(policy: Policy) -> None:
    queue = queue_of(ticket(1, 0), ticket(2, 0, output=1000), ticket(3, 0, tenant="new"), policy=policy)
    queue.push_back(ticket(4, 3))
    queue.push_back(ticket(5, 2, tenant="busy"))
    queue.charge("busy", 10**6)
    assert order(queue)[:2] == [5, 4]


def test_one_that_comes_back_gives_way_to_a_higher_priority_until_its_age_makes_up_for_it() -> None:
    queue = queue_of(ticket(1, 9, priority=1), ticket(2, 11, priority=1), ticket(3, 0))
    queue.push_back(ticket(4, 0))
    assert order(queue) == [1, 4, 3, 2]


def test_a_priority_is_a_lead_and_no_larger_share() -> None:
    """One that always asks for a higher priority is LEVEL_TOKENS ahead, and then they take turns."""
    vids = itertools.count()
    queue = queue_of()
    served = {"modest": 0, "eager": 0}
    for _ in range(400):
        for tenant, priority in (("modest", 0), ("eager", 1)):
            queue.push(ticket(next(vids), priority=priority, tenant=tenant))
        one = next(queue.candidates())
        assert one.tenant is not None
        queue.remove(one.vid)
        queue.charge(one.tenant, one.prompt_tokens)
        served[one.tenant] += one.prompt_tokens
    assert abs(served["eager"] - served["modest"] - LEVEL_TOKENS) <= 100


@pytest.mark.parametrize("levels", [0, 1])
@pytest.mark.parametrize("names", [2, 7])
def test_new_names_do_not_starve_who_was_served_more(levels: int, names: int) -> None:
    """However many tenants come anew, one that waits has its turn within the bound that is stated."""
    queue = queue_of(ticket(0, tenant="known"), ticket(1, tenant="other"))
    queue.charge("known", 3000)
    gap, most = 1500, names + 2
    vids, total = itertools.count(2), 0
    while True:
        while len(queue) <= names:
            vid = next(vids)
            queue.push(ticket(vid, 1, priority=levels, tenant=f"new {vid}"))
        one = next(queue.candidates())
        if one.vid == 0:
            break
        queue.remove(one.vid)
        queue.charge(one.tenant, one.prompt_tokens)
        total += one.prompt_tokens
        assert total <= most * (gap + levels * LEVEL_TOKENS + one.prompt_tokens)


def test_a_probe_has_the_highest_priority() -> None:
    assert PROBE_PRIORITY == MAX_PRIORITY


def test_nobody_saves_up_while_idle() -> None:
    queue = queue_of(ticket(1, tenant="a"))
    queue.charge("a", 5000)
    queue.push(ticket(2, tenant="late"))
    queue.push(ticket(3, tenant="late"))
    assert queue.served("late") == 5000
    queue.charge("late", 100)
    assert order(queue) == [1, 2, 3]


def test_the_last_that_waited_counts_when_nobody_waits() -> None:
    queue = queue_of(ticket(1, tenant="a"))
    queue.remove(Vid(1))
    queue.charge("a", 700, OUTPUT_WEIGHT)
    queue.push(ticket(2, tenant="b"))
    assert queue.served("b") == queue.served("a") == 1400


def test_who_was_served_more_stays_so_while_idle() -> None:
    queue = queue_of(ticket(1, tenant="a"), ticket(2, tenant="b"))
    queue.charge("a", 1000)
    queue.remove(Vid(1))
    queue.push(ticket(3, 5, tenant="a"))
    queue.push(ticket(4, 9, tenant="b"))
    assert order(queue) == [2, 4, 3]


def test_idle_tenants_are_forgotten_but_those_with_most_service() -> None:
    queue = queue_of(ticket(0, tenant="waits"))
    queue.charge("heavy", 10**9)
    for vid in range(1, 3 * IDLE_TENANTS):
        queue.push(ticket(vid, tenant=f"once {vid}"))
        queue.remove(Vid(vid))
        queue.charge(f"once {vid}", vid % 2)
        assert len(queue._served) <= IDLE_TENANTS + 2
    assert queue.served("heavy") == 10**9
    assert order(queue) == [0]


def test_who_has_been_here_longest() -> None:
    queue = queue_of(ticket(1, 5), ticket(2, 3, priority=-4, tenant="a"))
    assert queue.oldest_arrival() == 3
    queue.push_back(ticket(3, 1))
    assert queue.oldest_arrival() == 1
    for vid, oldest in ((3, 3.0), (2, 5.0), (1, None)):
        assert Vid(vid) in queue
        queue.remove(Vid(vid))
        assert Vid(vid) not in queue
        assert queue.oldest_arrival() == oldest


def test_one_that_waits_is_not_pushed_again() -> None:
    queue = queue_of(ticket(1))
    for push in (queue.push, queue.push_back):
        with pytest.raises(ValueError, match="vid 1 waits already"):
            push(ticket(1))
    assert order(queue) == [1]


def test_one_that_does_not_wait_is_not_removed() -> None:
    with pytest.raises(KeyError):
        queue_of(ticket(1)).remove(Vid(2))


# --- against the rules, written down plainly -----------------------------------


class Model:
    """The queue as its docstring has it, sorted anew at each look."""

    def __init__(self, policy: Policy, cached: dict[int, int]) -> None:
        self.policy = policy
        self.cached = cached
        self.fresh: list[Ticket] = []
        self.returned: list[Ticket] = []
        self.served: dict[str | None, float] = {}
        self.last: str | None = None
        self.clock = 0.0
        self.look = LOOK

    def active(self) -> set[str | None]:
        return {one.tenant for one in self.fresh}

    def least(self) -> float:
        if self.fresh:
            return max(self.clock, min(self.served[tenant] for tenant in self.active()))
        return max(self.clock, self.served.get(self.last, 0.0))

    def push(self, one: Ticket) -> None:
        if one.tenant not in self.active():
            self.served[one.tenant] = max(self.served.get(one.tenant, 0.0), self.least())
        self.fresh.append(one)

    def remove(self, vid: int) -> None:
        gone = [one for one in self.fresh if one.vid == vid]
        self.fresh = [one for one in self.fresh if one.vid != vid]
        self.returned = [one for one in self.returned if one.vid != vid]
        if gone and gone[0].tenant not in self.active():
            self.last = gone[0].tenant

    def charge(self, tenant: str | None, tokens: int) -> None:
        before = self.served[tenant] if tenant in self.served else self.least()
        self.served[tenant] = before + tokens
        self.clock += tokens / len(self.active() | {tenant})

    def rank(self, one: Ticket) -> float:
        longest = one.max_new_tokens / (one.max_new_tokens + LONG_OUTPUT) if self.policy == "lof" else 0
        return standing(one, AGEING) - AGEING * longest

    def take(self, lane: list[Ticket]) -> Ticket:
        if self.policy != "lpm":
            return lane.pop(0)
        near = [one for one in lane[: self.look] if self.rank(one) <= self.rank(lane[0]) + AGEING]
        best = max(near, key=lambda one: (self.cached.get(one.vid, 0), -lane.index(one)))
        lane.remove(best)
        return best

    def candidates(self) -> list[int]:
        lanes: dict[str | None, list[Ticket]] = {}
        for one in sorted(self.fresh, key=self.rank):  # stable: as pushed among equals
            lanes.setdefault(one.tenant, []).append(one)
        self.look = max(1, LOOK // max(1, len(lanes)))
        score = dict(self.served)
        fresh: list[Ticket] = []
        # A tenant is judged by its first request, and once it was read from, by the one that was taken next.
        judged = {tenant: lane[0] for tenant, lane in lanes.items()}
        while judged:
            tenant = min(
                judged,
                key=lambda t: (
                    score[t] - LEVEL_TOKENS * judged[t].priority,
                    self.rank(judged[t]),
                    self.fresh.index(judged[t]),
                ),
            )
            one = judged.pop(tenant)
            if all(other.tenant != tenant for other in fresh):
                one = self.take(lanes[tenant])
            fresh.append(one)
            score[tenant] += one.prompt_tokens
            if lanes[tenant]:
                judged[tenant] = self.take(lanes[tenant])
        vids: list[int] = []
        for back in sorted(self.returned, key=lambda one: standing(one, AGEING)):
            while (
                fresh
                and fresh[0].priority > back.priority
                and standing(fresh[0], AGEING) < standing(back, AGEING)
            ):
                vids.append(fresh.pop(0).vid)
            vids.append(back.vid)
        return vids + [one.vid for one in fresh]


TENANTS = st.sampled_from([None, "a", "b", "c"])
TICKETS = st.tuples(
    st.integers(0, 80).map(lambda halves: halves / 2),
    st.integers(-1, 2),
    TENANTS,
    st.sampled_from([1, 50, 400]),
    st.sampled_from([1, 100, 10_000]),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), TICKETS),
        st.tuples(st.just("push"), TICKETS),
        st.tuples(st.just("push_back"), TICKETS),
        st.tuples(st.just("remove"), st.integers(0, 200)),
        st.tuples(st.just("charge"), TENANTS, st.integers(0, 20_000)),
    ),
    max_size=70,
)


@settings(deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    events=EVENTS,
    cached=st.dictionaries(st.integers(0, 70), st.integers(1, 4)),
)
def test_it_is_what_the_rules_say(
    policy: Policy, events: list[tuple[Any, ...]], cached: dict[int, int]
) -> None:
    """After any history the order is that of the rules applied anew, and passing is bounded as stated."""
    queue = queue_of(policy=policy, cached=cached)
    model = Model(policy, cached)
    for number, event in enumerate(events):
        waiting = [one.vid for one in model.fresh + model.returned]
        match event:
            case ("push" | "push_back" as how, (arrival, priority, tenant, prompt, output)):
                one = ticket(number, arrival, priority=priority, tenant=tenant, prompt=prompt, output=output)
                if how == "push":
                    queue.push(one)
                    model.push(one)
                else:
                    queue.push_back(one)
                    model.returned.append(one)
            case ("remove", which) if waiting:
                queue.remove(waiting[which % len(waiting)])
                model.remove(waiting[which % len(waiting)])
            case ("charge", tenant, tokens):
                queue.charge(tenant, tokens)
                model.charge(tenant, tokens)
    everybody = model.fresh + model.returned
    vids = order(queue)
    assert vids == model.candidates()
    assert vids == order(queue), "a look changes nothing"
    assert len(queue) == len(vids)
    assert queue.oldest_arrival() == min((one.arrival for one in everybody), default=None)

    by_vid = {one.vid: one for one in model.fresh}
    fresh = [by_vid[Vid(vid)] for vid in vids if vid in by_vid]
    slack = 0 if policy == "fcfs" else 1
    for before, after in itertools.combinations(fresh, 2):
        if before.tenant == after.tenant:
            levels = before.priority - after.priority + slack
            assert before.arrival - after.arrival <= levels * AGEING

    for vid in vids:
        queue.remove(Vid(vid))
    assert (len(queue), order(queue), queue._lanes, queue._places) == (0, [], {}, {})
    for left in (queue._turns, queue._shares, queue._returned, queue._arrivals):
        assert len(left) == 0
