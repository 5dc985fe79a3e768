"""Layouts of steps: one for each window, and no more read than a window sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vidette.models import StepPlan
from vidette.models.paging import lay_out


@pytest.fixture
def plan(make_plan: Callable[..., StepPlan]) -> StepPlan:
    """A decode at position 70, and a chunk of 20 from position 30 on."""
    return make_plan([([1], 70, range(5)), (range(20), 30, range(5, 9))])


def test_windows_beyond_every_context_share_a_layout(plan: StepPlan) -> None:
    layout = lay_out(plan, 2, (0, 71, 1000, 70, 16, 16))
    assert layout.attention.keys() == {0, 16, 70, 71, 1000}
    assert layout.attention[71] is layout.attention[1000] is layout.attention[0]
    assert len({id(attention) for attention in layout.attention.values()}) == 3


def test_a_window_reads_what_it_sees(plan: StepPlan) -> None:
    decode, chunk = lay_out(plan, 2, (16,)).attention[16].groups
    # Its own position and the 15 before it.
    assert decode.slots_RC.tolist() == [list(range(55, 71))]
    assert decode.visible_R1NC.all()
    # The first token of the chunk sees positions 15 to 30, the last one 34 to 49.
    assert chunk.slots_RC.tolist() == [list(range(80 + 15, 80 + 50))]
    visible = chunk.visible_R1NC[0, 0].numpy()
    # Two heads to a key-value head: each token is there twice.
    for head in range(2):
        assert [np.flatnonzero(row).tolist() for row in visible[head::2]] == [
            list(range(token, token + 16)) for token in range(20)
        ]


def test_a_short_row_among_long_ones_is_padded_with_itself(make_plan: Callable[..., StepPlan]) -> None:
    plan = make_plan([([1], 3, [7]), ([1], 40, [1, 2, 3])])
    (group,) = lay_out(plan, 1, (16,)).attention[16].groups
    assert group.slots_RC.shape == (2, 16)
    assert group.slots_RC[0].tolist() == [112, 113, 114, 115, *[112] * 12]
    assert group.visible_R1NC[0, 0, 0].tolist() == [True] * 4 + [False] * 12
