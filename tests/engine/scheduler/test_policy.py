"""What a step computes: who advances, who waits, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidette.scheduler.policy import Budget, Chunk, decide


class Work(NamedTuple):
    """A request, as far as the policy looks at it."""

    uncomputed: int
    blocks_needed: int = 1


DECODE = Work(1)


@pytest.mark.parametrize(
    ("running", "waiting", "budget", "chunks", "admitted"),
    [
        pytest.param([], [], Budget(8, 4, 4), [], 0, id="nothing to do"),
        pytest.param([], [Work(5)], Budget(8, 4, 4), [(0, 5)], 1, id="a prompt fits"),
        pytest.param([], [Work(5)], Budget(3, 4, 4), [(0, 3)], 1, id="a prompt is longer than the step"),
        pytest.param([], [Work(5), Work(5)], Budget(8, 4, 4), [(0, 5), (1, 3)], 2, id="the rest is shared"),
        pytest.param([], [Work(8), Work(5)], Budget(8, 4, 4), [(0, 8)], 1, id="no tokens are left"),
        pytest.param([Work(9), DECODE], [], Budget(4, 4, 0), [(1, 1), (0, 3)], 0, id="decodes come first"),
        pytest.param(
            [DECODE] * 3, [Work(2)], Budget(3, 8, 4), [(0, 1), (1, 1), (2, 1)], 0, id="decodes only"
        ),
        pytest.param([DECODE] * 3, [], Budget(2, 8, 4), [(0, 1), (1, 1)], 0, id="more decodes than tokens"),
        pytest.param([Work(9)], [Work(2)], Budget(4, 4, 4), [(0, 4)], 0, id="what has begun goes on"),
        pytest.param([Work(3)], [Work(2)], Budget(4, 4, 4), [(0, 3), (1, 1)], 1, id="then others begin"),
        pytest.param([DECODE], [Work(2)], Budget(8, 1, 4), [(0, 1)], 0, id="enough are running"),
        pytest.param([], [Work(2, 3), Work(2, 1)], Budget(8, 4, 2), [], 0, id="nobody overtakes"),
        pytest.param(
            [], [Work(2, 2), Work(2, 2), Work(2, 1)], Budget(8, 4, 3), [(0, 2)], 1, id="blocks run out"
        ),
        pytest.param([], [Work(1, 1)], Budget(8, 4, 1), [(0, 1)], 1, id="a prompt of one token"),
    ],
)
def test_a_step(
    running: list[Work], waiting: list[Work], budget: Budget, chunks: list[tuple[int, int]], admitted: int
) -> None:
    decision = decide(running, waiting, budget)
    assert chunks == decision.chunks
    assert admitted == decision.admitted


WORK = st.builds(Work, st.one_of(st.just(1), st.integers(1, 30)), st.integers(1, 6))
BUDGETS = st.builds(Budget, st.integers(0, 40), st.integers(0, 8), st.integers(0, 12))


@settings(max_examples=200, deadline=None)
@given(running=st.lists(WORK, max_size=6), waiting=st.lists(WORK, max_size=6), budget=BUDGETS)
def test_the_rules_of_a_step(running: list[Work], waiting: list[Work], budget: Budget) -> None:
    """Within its budget a step serves decodes, then prefills, then arrivals in order, and as many as fit."""
    read: list[Work] = []

    def queue() -> Iterator[Work]:
        for work in waiting:
            read.append(work)
            yield work

    chunks, admitted = decide(running, queue(), budget)
    works = running + waiting[:admitted]
    given_tokens = {chunk.place: chunk.tokens for chunk in chunks}

    # Within bounds.
    assert len(given_tokens) == len(chunks)
    assert all(1 <= tokens <= works[place].uncomputed for place, tokens in given_tokens.items())
    left = budget.tokens - sum(given_tokens.values())
    assert left >= 0
    blocks_left = budget.blocks - sum(work.blocks_needed for work in waiting[:admitted])
    assert blocks_left >= 0
    assert admitted == 0 or len(running) + admitted <= budget.requests

    # Who has been longer has more: decodes, prefills that have begun, arrivals.
    decodes = [place for place, work in enumerate(running) if work.uncomputed == 1]
    order = decodes + [place for place in range(len(works)) if place not in decodes]
    assert [chunk.place for chunk in chunks] == order[: len(chunks)]
    assert all(given_tokens[place] == works[place].uncomputed for place in order[: max(0, len(chunks) - 1)])
    assert set(range(len(running), len(works))) <= set(given_tokens)

    # Nobody is left out who fits, and the queue is read no further than its first who does not.
    if left:
        assert len(chunks) == len(works)
        assert chunks == [] or given_tokens[order[-1]] == works[order[-1]].uncomputed
        if admitted < len(waiting) and len(running) + admitted < budget.requests:
            assert waiting[admitted].blocks_needed > blocks_left
    assert len(read) <= admitted + 1

    # There is progress.
    if budget.tokens and (
        running or (waiting and budget.requests and waiting[0].blocks_needed <= budget.blocks)
    ):
        assert chunks


class Running:
    """A request of the simulation below."""

    def __init__(self, prompt: int, output: int, blocks: int) -> None:
        self.uncomputed = prompt
        self.output = output
        self.blocks_needed = blocks


@settings(deadline=None)
@given(
    requests=st.lists(
        st.builds(Running, st.integers(1, 40), st.integers(1, 10), st.integers(1, 5)), min_size=1, max_size=10
    ),
    tokens=st.integers(1, 20),
    data=st.data(),
)
def test_everybody_is_served_in_bounded_time(
    requests: list[Running], tokens: int, data: st.DataObject
) -> None:
    """If no request is larger than the pool, all end, they start in order, and each step has its effect."""
    slots = data.draw(st.integers(1, tokens))
    free = num_blocks = data.draw(st.integers(max(work.blocks_needed for work in requests), 12))
    waiting = list(requests)
    running: list[Running] = []
    started: list[Running] = []
    steps, work_to_do = 0, sum(work.uncomputed + work.output for work in requests)
    while waiting or running:
        chunks, admitted = decide(running, waiting, Budget(tokens, slots, free))
        for work in waiting[:admitted]:
            free -= work.blocks_needed
        running += waiting[:admitted]
        started += waiting[:admitted]
        del waiting[:admitted]
        assert free >= 0
        assert len(running) <= slots
        # Each decode advances: at most `tokens` run at once.
        assert sum(running[chunk.place].uncomputed == 1 for chunk in chunks) >= sum(
            work.uncomputed == 1 for work in running[: len(running) - admitted]
        )
        for place, count in chunks:
            work = running[place]
            work.uncomputed -= count
            if work.uncomputed == 0:
                work.output -= 1
                work.uncomputed = 1
        free += sum(work.blocks_needed for work in running if work.output == 0)
        running = [work for work in running if work.output]
        steps += 1
        assert steps <= work_to_do
    assert started == requests
    assert free == num_blocks


def test_a_chunk_says_whose_it_is() -> None:
    assert Chunk(place=2, tokens=7) == (2, 7)
