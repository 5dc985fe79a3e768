"""Queue and policy together over a pool that only counts: whole histories of requests, to their ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.policy import Budget, Cost, Decision, decide
from vidette.scheduler.queue import OUTPUT_WEIGHT, Ticket, WaitingQueue, standing
from vidette_protocol.ids import Vid

AGEING = 8.0
Policy = Literal["fcfs", "lpm", "lof"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Plan(NamedTuple):
    """What becomes of a request: its sizes, when it comes, and after how many steps it is aborted, if it is.

    Of those of one family only one computes its prompt at a time.
    """

    prompt: int
    output: int
    arrival: int = 0
    priority: int = 0
    tenant: str | None = None
    family: int = 0
    patience: int | None = None

    @property
    def blocks(self) -> int:
        return -(-(self.prompt + self.output) // BLOCK_SIZE)

    @property
    def service(self) -> float:
        return self.prompt + OUTPUT_WEIGHT * self.output


class Request:
    """A request as the simulation goes on."""

    def __init__(self, vid: int, plan: Plan) -> None:
        self.vid = Vid(vid)
        self.plan = plan
        self.made = 0
        self.computed = 0
        self.charged = 0
        self.held = 0
        self.begun = False

    @property
    def priority(self) -> int:
        return self.plan.priority

    @property
    def arrival(self) -> float:
        return float(self.plan.arrival)

    @property
    def known(self) -> int:
        return self.plan.prompt + self.made

    @property
    def uncomputed(self) -> int:
        return self.known - self.computed

    @property
    def room(self) -> int:
        return self.held * BLOCK_SIZE - self.computed

    def more_blocks(self, tokens: int) -> int:
        return max(0, -(-(tokens - self.room) // BLOCK_SIZE))

    @property
    def ticket(self) -> Ticket:
        plan = self.plan
        return Ticket(self.vid, plan.priority, self.arrival, plan.tenant, plan.prompt, plan.output)


class Simulation:
    """A step loop without a model, that checks each decision; one step is one second."""

    def __init__(
        self,
        plans: Iterable[Plan],
        *,
        num_blocks: int,
        tokens: int,
        slots: int,
        policy: Policy = "fcfs",
        preempt_gap: int | None = None,
    ) -> None:
        self.coming = sorted(
            (Request(vid, plan) for vid, plan in enumerate(plans)), key=lambda one: -one.plan.arrival
        )
        self.requests = {one.vid: one for one in self.coming}
        self.free = self.num_blocks = num_blocks
        self.tokens, self.slots, self.preempt_gap = tokens, slots, preempt_gap
        self.queue = WaitingQueue(policy, ageing_s=AGEING, cached=lambda vid: vid * 7 % 5)
        self.waiting: dict[Vid, Request] = {}
        self.running: dict[Vid, Request] = {}
        self.ended: list[Vid] = []
        self.passed_over: set[Vid] = set()
        self.now = 0
        self.admitted_at = -(10**6)
        self.retracted = 0
        self.preempted = 0

    @property
    def over(self) -> bool:
        return not (self.coming or self.waiting or self.running)

    @property
    def short(self) -> bool:
        """Whether those that run need more blocks for this step than there are."""
        tokens, blocks = self.tokens, 0
        for one in sorted(self.running.values(), key=lambda one: one.uncomputed > 1):
            share = min(one.uncomputed, tokens)
            tokens -= share
            blocks += one.more_blocks(share)
        return blocks > self.free

    def step(self) -> None:
        while self.coming and self.coming[-1].plan.arrival <= self.now:
            one = self.coming.pop()
            self.waiting[one.vid] = one
            self.queue.push(one.ticket)
        for one in [*self.waiting.values(), *self.running.values()]:
            if one.plan.patience is not None and self.now - one.plan.arrival >= one.plan.patience:
                self.end(one)
        self.passed_over.clear()
        decision = decide(
            list(self.running.values()),
            self.queue.candidates(),
            self.cost,
            Budget(self.tokens, self.slots, self.free),
            ageing_s=AGEING,
            preempt_gap=self.preempt_gap,
        )
        self.check(decision)
        for vid in decision.retracted:
            self.retract(vid)
        for vid in decision.admitted:
            self.queue.remove(vid)
            one = self.running[vid] = self.waiting.pop(vid)
            one.begun = True
        for vid, count in decision.chunks:
            self.compute(self.running[vid], count)
        assert self.free >= 0
        assert self.free + sum(one.held for one in self.running.values()) == self.num_blocks
        assert len(self.queue) == len(self.waiting)
        self.now += 1

    def cost(self, vid: Vid) -> Cost | None:
        one = self.waiting[vid]
        family = one.plan.family
        if family and any(o.plan.family == family and o.uncomputed > 1 for o in self.running.values()):
            self.passed_over.add(vid)
            return None
        return Cost(one.known, -(-one.known // BLOCK_SIZE))

    def check(self, decision: Decision) -> None:
        on = [vid for vid in self.running if vid not in decision.retracted] + decision.admitted
        assert sorted(on) == sorted(chunk.vid for chunk in decision.chunks), "everybody advances"
        assert sum(chunk.tokens for chunk in decision.chunks) <= self.tokens
        assert len(on) <= self.slots
        assert on or decision.retracted or not self.waiting, "a request that fits alone is admitted"
        if self.short:
            # Nobody goes back and forth: what was admitted had a while.
            assert decision.retracted
            assert on
            assert not decision.admitted
            assert self.now - self.admitted_at > BLOCK_SIZE
            worst = max(standing(self.running[vid], AGEING) for vid in decision.retracted)
            assert all(standing(self.running[vid], AGEING) <= worst for vid in on)
            self.retracted += len(decision.retracted)
        elif decision.retracted:
            assert self.preempt_gap is not None
            assert any(
                one.priority - self.running[decision.retracted[0]].priority >= self.preempt_gap
                for one in self.waiting.values()
            )
            self.preempted += len(decision.retracted)
        if decision.admitted:
            self.admitted_at = self.now
        self.check_nobody_is_passed_by_many(decision.admitted)

    def check_nobody_is_passed_by_many(self, admitted: list[Vid]) -> None:
        slack = 0 if self.queue._policy == "fcfs" else 1
        new = [self.waiting[vid] for vid in admitted if not self.waiting[vid].begun]
        for other in self.waiting.values():
            if other.vid in admitted or other.vid in self.passed_over:
                continue
            for one in new:
                levels = one.priority - other.priority
                if other.begun:
                    assert levels > 0
                    assert one.arrival - other.arrival < levels * AGEING
                elif one.plan.tenant == other.plan.tenant:
                    assert one.arrival - other.arrival <= (levels + slack) * AGEING

    def compute(self, one: Request, count: int) -> None:
        more = one.more_blocks(count)
        one.held += more
        self.free -= more
        one.computed += count
        if one.uncomputed == 0:
            one.made += 1
        first = max(0, min(one.computed, one.plan.prompt) - one.charged)
        one.charged += first
        self.queue.charge(one.plan.tenant, first)
        if one.computed >= one.plan.prompt and one.uncomputed == 1:
            self.queue.charge(one.plan.tenant, 1, OUTPUT_WEIGHT)
        if one.made == one.plan.output:
            self.end(one)

    def retract(self, vid: Vid) -> None:
        one = self.waiting[vid] = self.running.pop(vid)
        self.free += one.held
        one.held = one.computed = 0
        self.queue.push_back(one.ticket)

    def end(self, one: Request) -> None:
        if self.waiting.pop(one.vid, None) is not None:
            self.queue.remove(one.vid)
        else:
            del self.running[one.vid]
        self.free += one.held
        one.held = 0
        self.ended.append(one.vid)


PLANS = st.lists(
    st.builds(
        Plan,
        prompt=st.one_of(st.integers(1, 90), st.integers(1, 12)),
        output=st.integers(1, 90),
        arrival=st.integers(0, 30),
        priority=st.integers(0, 4),
        tenant=st.sampled_from([None, "a", "b"]),
        family=st.integers(0, 2),
        patience=st.one_of(st.none(), st.none(), st.integers(0, 40)),
    ),
    min_size=3,
    max_size=14,
)


@settings(deadline=None)
@given(
    plans=PLANS,
    spare=st.integers(0, 6),
    slots=st.integers(2, 8),
    more_tokens=st.integers(0, 40),
    policy=st.sampled_from(POLICIES),
    preempt_gap=st.sampled_from([None, 1, 3]),
)
def test_every_history_ends(
    plans: list[Plan],
    spare: int,
    slots: int,
    more_tokens: int,
    policy: Policy,
    preempt_gap: int | None,
) -> None:
    """Each request that fits alone into the pool ends, whatever else comes, within blocks and budget."""
    simulation = Simulation(
        plans,
        num_blocks=max(plan.blocks for plan in plans) + spare,
        tokens=slots + more_tokens,
        slots=slots,
        policy=policy,
        preempt_gap=preempt_gap,
    )
    # A step computes a token, or is one of 30 until the last has come; and what is lost in a retraction is
    # computed again, which happens at most every BLOCK_SIZE steps, or once for each that may preempt.
    most = 40 + sum(plan.prompt + plan.output for plan in plans) * (2 + len(plans))
    while not simulation.over:
        simulation.step()
        assert simulation.now <= most
    assert sorted(simulation.ended) == sorted(simulation.requests)
    assert simulation.free == simulation.num_blocks
    assert len(simulation.queue) == 0
    for one in simulation.requests.values():
        assert one.made == one.plan.output or one.plan.patience is not None
    event(f"retracted {min(simulation.retracted, 3)}, preempted {min(simulation.preempted, 3)}")


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 40))


@settings(deadline=None)
@given(
    sizes=st.fixed_dictionaries({name: st.lists(SIZES, min_size=4, max_size=10) for name in "abc"}),
    late=st.integers(0, 40),
    slots=st.integers(1, 6),
    spare=st.integers(0, 12),
    policy=st.sampled_from(POLICIES),
)
def test_tenants_that_always_wait_have_equal_shares(
    sizes: dict[str, list[tuple[int, int]]], late: int, slots: int, spare: int, policy: Policy
) -> None:
    """While several wait, each one's service is that of the others, but for what all have begun at once."""
    plans = [
        Plan(prompt, output, late if tenant == "c" else 0, tenant=tenant)
        for tenant, requests in sizes.items()
        for prompt, output in requests
    ]
    simulation = Simulation(
        plans,
        num_blocks=max(plan.blocks for plan in plans) + spare,
        tokens=slots + 16,
        slots=slots,
        policy=policy,
    )
    bound = 0.0
    while not simulation.over:
        before = set(simulation.ended)
        simulation.step()
        begun = [one for one in simulation.requests.values() if one.begun and one.vid not in before]
        bound = max(bound, sum(one.plan.service for one in begun))
        waits = {one.plan.tenant for one in simulation.waiting.values() if not one.begun}
        served = [simulation.queue.served(tenant) for tenant in waits]
        assert max(served, default=0) - min(served, default=0) <= bound


def test_a_pool_too_small_for_the_load_retracts_and_all_end() -> None:
    plans = [Plan(prompt=20, output=60, arrival=vid) for vid in range(12)]
    simulation = Simulation(plans, num_blocks=14, tokens=64, slots=8)
    while not simulation.over:
        simulation.step()
    assert simulation.retracted > 0
    assert sorted(simulation.ended) == list(range(12))
    assert simulation.ended[0] == 0, "the first is never retracted"


@pytest.mark.parametrize("preempt_gap", [None, 2])
def test_a_stream_of_higher_priorities_does_not_starve_a_low_one(preempt_gap: int | None) -> None:
    """It is done at the latest when those are that came before its age made up for the difference."""
    levels, output = 3, 20
    low = Plan(prompt=30, output=output)
    high = [Plan(prompt=30, output=output, arrival=second, priority=levels) for second in range(1, 90, 4)]
    simulation = Simulation([low, *high], num_blocks=8, tokens=64, slots=1, preempt_gap=preempt_gap)
    while Vid(0) not in simulation.ended:
        simulation.step()
    ahead = [
        simulation.requests[vid].arrival for vid in simulation.ended if simulation.requests[vid].priority
    ]
    assert max(ahead, default=0) < levels * AGEING
    assert simulation.preempted == (1 if preempt_gap else 0)


def test_a_late_tenant_has_its_share_at_once() -> None:
    flood = [Plan(prompt=10, output=10, tenant="flood") for _ in range(200)]
    one = Plan(prompt=10, output=10, arrival=50, tenant="late")
    simulation = Simulation([*flood, one], num_blocks=16, tokens=32, slots=4)
    while Vid(200) not in simulation.ended:
        simulation.step()
    assert simulation.now <= 50 + 2 * 10 + 2
