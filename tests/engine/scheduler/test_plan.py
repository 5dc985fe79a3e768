"""Plans are written over the last one, and are what they would be if they were written anew."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduler.conftest import TABLE, FakeModel, check_plan, request

from vidette.models.interface import BLOCK_SIZE, StepPlan
from vidette.scheduler.kv_cache import KVCache
from vidette.scheduler.plan import PlanWriter, Share
from vidette.scheduler.radix import RadixCache
from vidette.scheduler.sequence import Sequence

INFO = FakeModel().info


class Batches:
    """Sequences and the blocks they hold, without a loop."""

    def __init__(self, num_blocks: int = 400) -> None:
        self.cache = KVCache(num_blocks, RadixCache())
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.asked = 0

    def begin(self, prompt: Items[int]) -> None:
        self.asked += 1
        sequence = Sequence(request(self.asked, prompt, max_new_tokens=200), 0.0)
        sequence.prepare(INFO, TABLE)
        self.resume(sequence)

    def resume(self, sequence: Sequence) -> None:
        sequence.hold = self.cache.begin(sequence.space, sequence.known, sequence.findable)
        sequence.computed = sequence.hold.shared * BLOCK_SIZE
        self.running.append(sequence)

    def stop(self, sequence: Sequence) -> None:
        assert sequence.hold is not None
        self.running.remove(sequence)
        self.cache.release(sequence.hold, sequence.space, sequence.known, sequence.computed)
        sequence.hold, sequence.computed = None, 0

    def share(self, sequence: Sequence, most: int) -> Share:
        return Share.of(sequence, min(most, sequence.uncomputed), 0, self.cache)

    def land(self, share: Share, token: int) -> None:
        sequence = share.sequence
        assert sequence.hold is not None
        sequence.computed += share.tokens
        self.cache.share(sequence.hold, sequence.space, sequence.known, sequence.computed)
        if share.last:
            sequence.take([token])


def assert_equal(plan: StepPlan, other: StepPlan) -> None:
    for name, ours, theirs in zip(StepPlan._fields, plan, other, strict=True):
        assert ours.dtype == np.int32, name
        np.testing.assert_array_equal(ours, theirs, name)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_plan_does_not_depend_on_those_before_it(data: st.DataObject) -> None:
    """Whoever comes, grows, shares, ends and comes back: a writer that is kept writes what a new one does."""
    batches, kept = Batches(), PlanWriter()
    for _ in range(data.draw(st.integers(1, 15))):
        for _ in range(data.draw(st.integers(0, 2))):
            length, kind = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 2))
            batches.begin([1 + place % kind for place in range(length)])
        if batches.running and data.draw(st.integers(0, 3)) == 0:
            sequence = data.draw(st.sampled_from(batches.running))
            batches.stop(sequence)
            batches.waiting.append(sequence)
        if batches.waiting and data.draw(st.integers(0, 1)) == 1:
            batches.resume(batches.waiting.pop(0))
        places = [*range(len(batches.running))]
        if data.draw(st.booleans()):
            places = data.draw(st.permutations(places))
        order = [batches.running[place] for place in places]
        order = order[: data.draw(st.integers(1, 8))]
        if not order:
            continue
        most = data.draw(st.sampled_from([1, 7, 100]))
        batch = [batches.share(sequence, most) for sequence in order]
        plan = kept.write(batch)
        check_plan(plan)
        assert_equal(plan, PlanWriter().write(batch))
        for share in batch:
            batches.land(share, data.draw(st.integers(1, 40)))


def test_a_step_of_as_many_decodes_takes_no_new_arrays() -> None:
    batches, writer = Batches(), PlanWriter()
    for first in range(1, 5):
        batches.begin([first] * 20)
    plans = []
    for _ in range(12):
        batch = [batches.share(sequence, 100) for sequence in batches.running]
        plans.append(writer.write(batch))
        for share in batch:
            batches.land(share, 3)
    assert all(plan is plans[1] for plan in plans[2:])
    assert plans[-1].token_ids.tolist() == [3] * 4
    assert plans[-1].positions.tolist() == [30] * 4


def test_a_table_is_as_wide_as_the_longest_row_and_zero_behind_the_others() -> None:
    batches, writer = Batches(), PlanWriter()
    batches.begin([1] * 100)
    batches.begin([2])
    wide = writer.write([batches.share(sequence, 100) for sequence in batches.running])
    assert wide.block_tables.shape == (2, 7)
    assert wide.block_tables[1, 1:].tolist() == [0] * 6
    short = writer.write([batches.share(batches.running[1], 100)])
    assert short.block_tables.shape == (1, 1)


def test_decodes_that_others_have_made_room_between_are_not_those_of_before() -> None:
    batches, writer = Batches(), PlanWriter()
    for token in (1, 2, 3):
        batches.begin([token])
    first, second, _ = [batches.share(sequence, 1) for sequence in batches.running]
    assert writer.write([first]).block_tables.tolist() == [[0]]
    writer.write([batches.share(sequence, 1)._replace(wanted=0) for sequence in batches.running])
    assert writer.write([second]).block_tables.tolist() == [[1]]


def test_blocks_that_another_had_cached_meanwhile_are_in_the_next_plan() -> None:
    batches, writer = Batches(), PlanWriter()
    for _ in range(2):
        batches.begin([1] * 20)
    batch = [batches.share(sequence, 100) for sequence in batches.running]
    assert writer.write(batch).block_tables.tolist() == [[0, 1], [2, 3]]
    for share in batch:
        batches.land(share, 3)
    batch = [batches.share(sequence, 100) for sequence in batches.running]
    assert writer.write(batch).block_tables.tolist() == [[0, 1], [0, 3]]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_that_is_begun_again_has_its_new_blocks(rows: int) -> None:
    batches, writer = Batches(), PlanWriter()
    for first in range(1, rows + 1):
        batches.begin([first] * 40)
    writer.write([batches.share(sequence, 100) for sequence in batches.running])
    again = batches.running[-1]
    batches.stop(again)
    batches.begin([9] * 17)  # takes the blocks that were freed
    batches.resume(again)
    batch = [batches.share(sequence, 100) for sequence in batches.running]
    plan = writer.write(batch)
    check_plan(plan)
    assert_equal(plan, PlanWriter().write(batch))
