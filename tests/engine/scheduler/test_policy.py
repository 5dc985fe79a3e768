"""What a step computes: who goes on, who is admitted, who gives up blocks, and that it is within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.models.interface import BLOCK_SIZE
from vidette.scheduler.policy import MAX_PREEMPTED, MAX_SKIPPED, Budget, Chunk, Cost, decide
from vidette.scheduler.queue import Ticket, standing
from vidette_protocol.ids import Vid

AGEING = 10.0


class Work(NamedTuple):
    """A running request, as the policy sees it: it decodes, and has room, unless told otherwise."""

    vid: Vid
    uncomputed: int = 1
    room: int = BLOCK_SIZE
    held: int = 1
    priority: int = 0
    arrival: float = 0.0
    made: int = 1


class Waiting(NamedTuple):
    """One that waits, and what it costs; no blocks: not now."""

    vid: Vid
    tokens: int = 1
    blocks: int | None = 0
    priority: int = 0
    arrival: float = 100.0


def work(vid: int, uncomputed: int = 1, **more: float) -> Work:
    return Work(Vid(vid), uncomputed, **more)  # type: ignore[arg-type]


def full(vid: int, **more: float) -> Work:
    """Return one that decodes and needs a block to go on."""
    return Work(Vid(vid), room=0, **more)  # type: ignore[arg-type]


def waiting(vid: int, tokens: int = 1, blocks: int | None = 0, **more: float) -> Waiting:
    return Waiting(Vid(vid), tokens, blocks, **more)  # type: ignore[arg-type]


class Decided(NamedTuple):
    chunks: list[tuple[int, int]]
    admitted: list[int]
    retracted: list[int]
    read: int


def decide_on(
    running: list[Work], queue: list[Waiting], budget: Budget, preempt_gap: int | None = None
) -> Decided:
    """Decide, and count how many of the queue were read."""
    costs = {one.vid: None if one.blocks is None else Cost(one.tokens, one.blocks) for one in queue}
    read = 0

    def candidates() -> Iterator[Ticket]:
        nonlocal read
        for one in queue:
            read += 1
            yield Ticket(one.vid, one.priority, one.arrival, None, one.tokens, 10)

    decision = decide(
        running, candidates(), costs.__getitem__, budget, ageing_s=AGEING, preempt_gap=preempt_gap
    )
    return Decided([*map(tuple, decision.chunks)], [*decision.admitted], [*decision.retracted], read)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("running", "queue", "budget", "chunks", "admitted"),
    [
        pytest.param([], [], Budget(8, 4, 4), [], [], id="nothing to do"),
        pytest.param([], [waiting(1, 5)], Budget(8, 4, 4), [(1, 5)], [1], id="a prompt fits"),
        pytest.param([], [waiting(1, 5)], Budget(3, 4, 4), [(1, 3)], [1], id="longer than the step"),
        pytest.param(
            [],
            [waiting(1, 5), waiting(2, 5)],
            Budget(8, 4, 4),
            [(1, 5), (2, 3)],
            [1, 2],
            id="the rest is shared",
        ),
        pytest.param(
            [], [waiting(1, 8), waiting(2, 5)], Budget(8, 4, 4), [(1, 8)], [1], id="no tokens are left"
        ),
        pytest.param(
            [work(1, 9), work(2)], [], Budget(4, 4, 4), [(2, 1), (1, 3)], [], id="decodes come first"
        ),
        pytest.param(
            [work(1), work(2)], [waiting(3, 2)], Budget(2, 8, 9), [(1, 1), (2, 1)], [], id="decodes only"
        ),
        pytest.param([work(1), work(2)], [], Budget(1, 8, 4), [(1, 1)], [], id="more decodes than tokens"),
        pytest.param([work(1, 9)], [waiting(2)], Budget(4, 4, 9), [(1, 4)], [], id="what has begun goes on"),
        pytest.param(
            [work(1, 3)], [waiting(2, 2)], Budget(4, 4, 9), [(1, 3), (2, 1)], [2], id="then others begin"
        ),
        pytest.param([work(1)], [waiting(2)], Budget(8, 1, 9), [(1, 1)], [], id="enough are running"),
        pytest.param([work(1)], [waiting(2)], Budget(8, 2, 9), [(1, 1), (2, 1)], [2], id="one more may run"),
    ],
)
def test_a_step(
    running: list[Work],
    queue: list[Waiting],
    budget: Budget,
    chunks: list[tuple[int, int]],
    admitted: list[int],
) -> None:
    decided = decide_on(running, queue, budget)
    assert chunks == decided.chunks
    assert admitted == decided.admitted
    assert decided.retracted == []


@pytest.mark.parametrize(
    ("running", "queue", "blocks", "admitted"),
    [
        pytest.param([], [waiting(1, 9, 4)], 4, [1], id="alone it needs only its own"),
        pytest.param([], [waiting(1, 9, 5)], 4, [], id="not even alone"),
        pytest.param([work(1)], [waiting(2, 9, 4)], 6, [2], id="and a block for each that runs then"),
        pytest.param([work(1)], [waiting(2, 9, 4)], 5, [], id="a block is missing"),
        pytest.param([], [waiting(1, 9, 2), waiting(2, 9, 2)], 6, [1, 2], id="two"),
        pytest.param([], [waiting(1, 9, 2), waiting(2, 9, 2)], 5, [1], id="one of two"),
        pytest.param([], [waiting(1, 9, 5), waiting(2, 9, 1)], 4, [], id="nobody overtakes"),
        pytest.param([full(1)], [waiting(2, 9, 1)], 4, [2], id="a decode takes one"),
        pytest.param([full(1)], [waiting(2, 9, 1)], 3, [], id="that is not there twice"),
        pytest.param(
            [work(1, 99, room=0)], [waiting(2, 1, 0)], 9, [2], id="the last of a prefill takes seven"
        ),
        pytest.param([work(1, 99, room=0)], [waiting(2, 1, 0)], 8, [], id="that are not there twice either"),
        pytest.param([work(1, 300)], [waiting(2, 1, 0)], 99, [], id="not beside a prefill that goes on"),
        pytest.param([], [waiting(1, 9, None), waiting(2, 9, 1)], 9, [2], id="not now: the next"),
        pytest.param(
            [], [waiting(1, 9, None), waiting(2, 9, 9), waiting(3)], 8, [], id="not now, and no room: nobody"
        ),
        pytest.param(
            [], [*(waiting(v, 1, None) for v in range(MAX_SKIPPED)), waiting(99)], 9, [], id="not too many"
        ),
        pytest.param(
            [],
            [*(waiting(v, 1, None) for v in range(1, MAX_SKIPPED)), waiting(99)],
            9,
            [99],
            id="just as many",
        ),
    ],
)
def test_admission(running: list[Work], queue: list[Waiting], blocks: int, admitted: list[int]) -> None:
    decided = decide_on(running, queue, Budget(299, 8, blocks))
    assert admitted == decided.admitted
    assert decided.retracted == []


@pytest.mark.parametrize(
    ("running", "blocks", "retracted"),
    [
        pytest.param([full(1), full(2)], 2, [], id="there is enough"),
        pytest.param([full(1), full(2)], 1, [2], id="the last of two that came at once"),
        pytest.param([full(1, arrival=5), full(2)], 1, [1], id="who came last"),
        pytest.param([full(1, priority=1, arrival=5), full(2)], 1, [2], id="the lower priority"),
        pytest.param([full(1, priority=1, arrival=15), full(2)], 1, [1], id="unless it is older than that"),
        pytest.param([full(1, made=3), full(2, made=9)], 1, [1], id="who has made less"),
        pytest.param([full(1), full(2), full(3)], 0, [3, 2], id="as many as it takes"),
        pytest.param([full(1), full(2), full(3, held=2)], 0, [3], id="and no more"),
        pytest.param([full(1), work(2, arrival=5)], 0, [2], id="one that needs none itself"),
        pytest.param([full(1), full(2, held=0), full(3, held=0)], 0, [3, 2], id="the last one goes on"),
        pytest.param([full(1)], 0, [], id="alone it goes on"),
        pytest.param([full(1), work(2, 40, room=8, arrival=9)], 2, [2], id="a prefill"),
        pytest.param([full(1), work(2, 40, room=8, arrival=9)], 3, [], id="for which there is enough"),
    ],
)
def test_retraction(running: list[Work], blocks: int, retracted: list[int]) -> None:
    decided = decide_on(running, [waiting(9)], Budget(299, 8, blocks))
    assert retracted == decided.retracted
    assert [vid for vid, _ in decided.chunks if vid != 9] == [
        one.vid for one in running if one.vid not in retracted
    ]
    if retracted:
        assert (decided.admitted, decided.read) == ([], 0)


@pytest.mark.parametrize(
    ("running", "queue", "budget", "retracted"),
    [
        pytest.param([work(1)], [waiting(2, priority=20)], Budget(8, 1, 9), [1], id="a place"),
        pytest.param([work(1)], [waiting(2, 1, 3, priority=20)], Budget(8, 2, 2), [1], id="blocks"),
        pytest.param([work(1)], [waiting(2, priority=20)], Budget(8, 2, 9), [], id="there is room"),
        pytest.param([work(1)], [waiting(2, priority=19)], Budget(8, 1, 9), [], id="not high enough"),
        pytest.param([work(1)], [waiting(2, 1, 4, priority=20)], Budget(8, 1, 2), [], id="in vain"),
        pytest.param(
            [work(1)], [waiting(2, priority=20, arrival=200)], Budget(8, 1, 9), [], id="age makes up for it"
        ),
        pytest.param(
            [work(1), work(2, priority=1), work(3, arrival=1)],
            [waiting(4, priority=30)],
            Budget(8, 3, 9),
            [3],
            id="the latest standing",
        ),
        pytest.param(
            [work(1), work(2), work(3, priority=20, arrival=50)],
            [waiting(4, 1, 4, priority=30)],
            Budget(8, 4, 4),
            [2, 1],
            id="as many as it takes",
        ),
        pytest.param(
            [work(v) for v in range(1, MAX_PREEMPTED + 2)],
            [waiting(9, 1, MAX_PREEMPTED + 1, priority=30)],
            Budget(20, 16, 1),
            [],
            id="not too many",
        ),
        pytest.param(
            [work(1), work(2)],
            [waiting(v, priority=30) for v in (3, 4)],
            Budget(8, 2, 9),
            [2],
            id="one by one",
        ),
        pytest.param([work(1, 20)], [waiting(2, priority=30)], Budget(20, 1, 9), [], id="no tokens are left"),
    ],
)
def test_preemption(running: list[Work], queue: list[Waiting], budget: Budget, retracted: list[int]) -> None:
    decided = decide_on(running, queue, budget, preempt_gap=20)
    assert retracted == decided.retracted
    assert not (decided.admitted and decided.retracted), "it is admitted when they are gone"
    assert {vid for vid, _ in decided.chunks} == {one.vid for one in running} - {*retracted} | {
        *decided.admitted
    }
    assert decide_on(running, queue, budget).retracted == [], "it is off unless asked for"


def test_full_and_no_preemption_no_candidate_is_read() -> None:
    assert decide_on([work(1)], [waiting(2)], Budget(8, 1, 9)).read == 0
    assert decide_on([work(1, 8)], [waiting(2)], Budget(8, 4, 9)).read == 0


RANKS = {"priority": st.integers(0, 3), "arrival": st.integers(0, 40).map(float)}
UNCOMPUTED = st.one_of(st.just(1), st.integers(1, 60))
WORKS = st.lists(
    st.builds(
        Work,
        st.just(Vid(0)),
        UNCOMPUTED,
        st.integers(0, 40),
        held=st.integers(0, 5),
        made=st.integers(0, 3),
        **RANKS,
    ),
    max_size=7,
).map(lambda works: [one._replace(vid=Vid(place)) for place, one in enumerate(works)])
QUEUES = st.lists(
    st.builds(Waiting, st.just(Vid(0)), UNCOMPUTED, st.one_of(st.integers(0, 6), st.none()), **RANKS),
    max_size=7,
).map(lambda queue: [one._replace(vid=Vid(100 + place)) for place, one in enumerate(queue)])
BUDGETS = st.builds(Budget, st.integers(0, 80), st.integers(0, 9), st.integers(0, 30))


def more_blocks(one: Work, tokens: int) -> int:
    return max(0, -(-(tokens - one.room) // BLOCK_SIZE))


def first_shares(running: list[Work], tokens: int) -> dict[int, int]:
    """Return what each would compute if nobody had to stop."""
    shares: dict[int, int] = {}
    for one in sorted(running, key=lambda one: one.uncomputed > 1):
        shares[one.vid] = min(one.uncomputed, tokens)
        tokens -= shares[one.vid]
    return shares


@settings(max_examples=400, deadline=None)
@given(running=WORKS, queue=QUEUES, budget=BUDGETS, gap=st.sampled_from([None, 1, 2]))
def test_the_rules_of_a_step(
    running: list[Work], queue: list[Waiting], budget: Budget, gap: int | None
) -> None:
    """A step is within its budget, serves decodes, prefills, arrivals in order, and retracts who it must."""
    chunks, admitted, retracted, read = decide_on(running, queue, budget, gap)
    works = {one.vid: one for one in running}
    queued = {one.vid: one for one in queue}
    on = [one for one in running if one.vid not in retracted]
    shares = dict(chunks)

    first = first_shares(running, budget.tokens)
    short = sum(more_blocks(one, first.get(one.vid, 0)) for one in running) > budget.blocks

    # Who: each at most once, and nobody who is not there.
    assert len(shares) == len(chunks)
    assert len({*retracted}) == len(retracted)
    assert {*retracted} <= {*works}
    assert [vid for vid in queued if vid in admitted] == admitted
    assert {*admitted} <= {*shares} <= {one.vid for one in on} | {*admitted}

    # Tokens: within the step, and nobody more than it has.
    assert sum(shares.values()) <= budget.tokens
    sizes = {one.vid: one.uncomputed for one in running} | {one.vid: one.tokens for one in queue}
    assert all(1 <= tokens <= sizes[Vid(vid)] for vid, tokens in chunks)
    kinds = [2 if vid in admitted else works[Vid(vid)].uncomputed > 1 for vid, _ in chunks]
    assert kinds == sorted(kinds)
    assert not admitted or len(on) + len(admitted) <= budget.requests

    # Blocks: what is computed has them, unless only one goes on; and each that is admitted leaves room.
    taken = sum(more_blocks(one, shares.get(one.vid, 0)) for one in on)
    taken += sum(queued[Vid(vid)].blocks or 0 for vid in admitted)
    blocks = budget.blocks + sum(works[Vid(vid)].held for vid in retracted)
    count = len(on) + len(admitted)
    assert taken <= blocks or (len(on) == 1 and not admitted)
    assert not admitted or blocks - taken >= (count if count > 1 else 0)

    # Everybody goes on who is not retracted, as far as the tokens reach.
    if len(shares) < count or any(shares[one.vid] < one.uncomputed for one in on):
        assert retracted or sum(shares.values()) == budget.tokens
    if len(running) <= budget.tokens and sum(one.uncomputed > 1 for one in running) <= 1:
        assert {*shares} == {one.vid for one in on} | {*admitted}

    # The queue is read no further than its first that does not fit.
    assert read <= len(admitted) + 1 + sum(one.blocks is None for one in queue[:read])
    if short:
        assert (read, admitted) == (0, [])
    elif gap is None:
        assert not retracted
    if len(admitted) < len([one for one in queue if one.blocks is not None]) and not retracted:
        rest = next(one for one in queue if one.blocks is not None and one.vid not in admitted)
        assert (
            sum(shares.values()) >= budget.tokens
            or count >= budget.requests
            or (rest.blocks or 0) + (count + 1 if count else 0) > blocks - taken
        )

    # Victims: the latest standings for memory; for a priority only those that are below it in both.
    if retracted and short:
        latest = max(standing(works[Vid(vid)], AGEING) for vid in retracted)
        assert all(standing(one, AGEING) <= latest for one in on)
        assert on
        last = works[Vid(retracted[-1])]
        its_own = more_blocks(last, first.get(last.vid, 0))
        assert blocks - last.held - taken - its_own < 0, "one too many"
    elif retracted:
        assert gap is not None
        assert len(retracted) <= MAX_PREEMPTED
        above = queue[read - 1]
        assert above.vid not in admitted
        assert count < budget.requests
        assert (above.blocks or 0) + (count + 1 if count else 0) <= blocks - taken, "it fits then"
        for vid in retracted:
            assert above.priority - works[Vid(vid)].priority >= gap
            assert standing(above, AGEING) < standing(works[Vid(vid)], AGEING)


def test_a_chunk_says_whose_it_is() -> None:
    assert Chunk(vid=Vid(2), tokens=7) == (2, 7)
