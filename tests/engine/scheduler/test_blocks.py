"""Which blocks are free: a naive model beside the pool, whatever is asked of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vidette.scheduler.blocks import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Whatever is taken and given back: every block is free or taken once, and nobody gets some of it."""

    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.num_blocks = num_blocks
        self.taken: list[int] = []

    @rule(count=st.integers(0, 13))
    def take(self, count: int) -> None:
        free = self.num_blocks - len(self.taken)
        if count > free:
            with pytest.raises(ValueError, match=f"^{count} blocks are wanted, {free} are free$"):
                self.pool.take(count)
        else:
            blocks = self.pool.take(count)
            assert len(blocks) == count
            self.taken += blocks

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.taken), unique=True)) if self.taken else []
        self.pool.give_back(blocks)
        self.taken = [block for block in self.taken if block not in blocks]

    @precondition(lambda self: len(self.taken) < self.num_blocks)
    @rule(data=st.data())
    def give_back_twice(self, data: st.DataObject) -> None:
        free = sorted(set(range(self.num_blocks)) - set(self.taken))
        block = data.draw(st.sampled_from(free))
        with pytest.raises(ValueError, match=f"^block {block} is given back twice$"):
            self.pool.give_back([block])

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        assert len(set(self.taken)) == len(self.taken)
        assert set(self.taken) <= set(range(self.num_blocks))
        assert self.pool.taken == len(self.taken)
        assert self.pool.free == self.num_blocks - len(self.taken)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_has_blocks(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"^num_blocks is {num_blocks}; a pool has at least 1$"):
        BlockPool(num_blocks)
