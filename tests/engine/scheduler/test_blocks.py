"""Who holds which blocks: a naive model beside the pool, whatever is asked of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vidette.scheduler.blocks import BlockPool

OWNERS = st.sampled_from(["a", "b", "c", "d"])


class PoolMachine(RuleBasedStateMachine):
    """Whatever is allocated and released: every block is free or held once, and nobody gets some of it."""

    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks: int) -> None:
        self.pool: BlockPool[str] = BlockPool(num_blocks)
        self.num_blocks = num_blocks
        self.held: dict[str, list[int]] = {}

    @rule(owner=OWNERS, count=st.integers(0, 13))
    def allocate(self, owner: str, count: int) -> None:
        free = self.num_blocks - sum(map(len, self.held.values()))
        if owner in self.held:
            with pytest.raises(ValueError, match=f"^'{owner}' holds blocks already$"):
                self.pool.allocate(owner, count)
        elif count > free:
            with pytest.raises(ValueError, match=f"^{count} blocks are wanted, {free} are free$"):
                self.pool.allocate(owner, count)
        else:
            blocks = self.pool.allocate(owner, count)
            assert len(blocks) == count
            self.held[owner] = blocks.copy()
            blocks.clear()  # the caller's list is the caller's

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        assert self.pool.release(owner) == len(self.held.pop(owner, []))
        assert self.pool.release(owner) == 0

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        taken = [block for blocks in self.held.values() for block in blocks]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(self.num_blocks))
        assert self.pool.used == len(taken)
        assert self.pool.free == self.num_blocks - len(taken)
        assert self.pool.holders() == list(self.held)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def test_all_blocks_can_be_had_and_had_again() -> None:
    pool: BlockPool[int] = BlockPool(5)
    for owner in range(3):
        assert sorted(pool.allocate(owner, 5)) == [0, 1, 2, 3, 4]
        assert pool.release(owner) == 5


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_has_blocks(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"^num_blocks is {num_blocks}; a pool has at least 1$"):
        BlockPool(num_blocks)
