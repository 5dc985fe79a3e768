"""What is taken out of logits that are there as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.engine.models.devices import Elsewhere

from vidette.models import StepPlan
from vidette.models.best import split_logits, take_best
from vidette.models.interface import NOT_FINITE
from vidette.models.toy import ToyModel


def test_logits_come_first_and_best_tokens_behind_them(make_plan: Callable[..., StepPlan]) -> None:
    plan = make_plan([([1], 0, [4]), ([9], 0, [5]), ([3], 0, [6])])
    logits = torch.tensor([[0.0, 3.0, 3.0], [2.0, 1.0, 0.0], [0.0, torch.nan, 1.0]])
    for wanted, best in (([2, 1], [0]), ([], [0, 2, 2]), ([1, 0, 2], []), ([], [])):
        some = plan._replace(
            logit_tokens=np.array(wanted, dtype=np.int32), best_tokens=np.array(best, dtype=np.int32)
        )
        assert some.wanted_tokens.tolist() == [*wanted, *best]
        result = split_logits(logits[some.wanted_tokens], some)
        assert result.logits.numpy().tobytes() == logits[wanted].numpy().tobytes()
        assert result.best.tolist() == [(1, 0, NOT_FINITE)[place] for place in best]
        assert result.best.dtype == torch.int64


def test_a_model_returns_the_one_or_the_other(make_plan: Callable[..., StepPlan]) -> None:
    model = ToyModel()
    model.allocate(8)
    plan = make_plan([([1, 2, 3], 0, [4]), ([9], 0, [5])], every_logit=True)
    every = model.forward(plan).logits
    wanted, best = np.array([3, 0], dtype=np.int32), np.array([1, 2, 3], dtype=np.int32)
    result = model.forward(plan._replace(logit_tokens=wanted, best_tokens=best))
    assert torch.equal(result.logits, every[wanted])
    assert result.best.tolist() == every[best].argmax(dim=1).tolist()


def test_on_a_device_no_value_is_read() -> None:
    with Elsewhere():
        best = take_best(torch.empty(3, 70, device=Elsewhere.device))
    assert best.device == Elsewhere.device
    assert (best.shape, best.dtype) == ((3,), torch.int64)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_no_row_has_no_token(count: int) -> None:
    assert take_best(torch.zeros(count, 7)).tolist() == [0] * count
