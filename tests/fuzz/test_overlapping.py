from __future__ import annotations

import numpy as np
import pytest
import torch

from vidette.models.interface import StepPlan
from vidette.models.toy import ToyModel
from vidette_fuzz.overlapping import Overlapping


def plan_of(tokens: list[int]) -> StepPlan:
    count = len(tokens)
    arrays = (tokens, range(count), [0, count], [count], [[0]], [count - 1], [count - 1])
    return StepPlan(*(np.array([*array], dtype=np.int32) for array in arrays))


@pytest.fixture
def model() -> Overlapping:
    model = Overlapping(ToyModel())
    model.allocate(2)
    return model


def test_it_computes_what_its_model_computes(model: Overlapping) -> None:
    plain = ToyModel()
    plain.allocate(2)
    logits, best = model.forward(plan_of([5, 6, 7]))
    model.finish()
    expected = plain.forward(plan_of([5, 6, 7]))
    assert torch.equal(logits, expected.logits)
    assert torch.equal(logits.index_select(0, torch.tensor([0])), expected.logits)
    assert (logits.numpy() == expected.logits.numpy()).all()
    assert best.tolist() == expected.best.tolist()


def test_it_has_read_a_plan_when_it_returns(model: Overlapping) -> None:
    plan = plan_of([5, 6, 7])
    logits = model.forward(plan).logits
    plan.token_ids[:] = 9
    model.finish()
    wrong = logits.clone()
    model.forward(plan_of([9, 9, 9]))
    model.finish()
    assert not torch.equal(wrong, model.result.logits)


def test_before_it_is_done_nothing_of_it_may_be_looked_at(model: Overlapping) -> None:
    logits, best = model.forward(plan_of([5]))
    assert logits.device.type == "cpu"
    for look in (logits.numpy, lambda: logits[0], lambda: logits.argmax(dim=1), best.tolist):
        with pytest.raises(RuntimeError, match="its result is looked at while a batch is in flight"):
            look()
    with pytest.raises(RuntimeError, match="another batch is launched"):
        model.forward(plan_of([5]))
    with pytest.raises(RuntimeError, match="blocks are copied"):
        model.export_blocks([0])
    with pytest.raises(RuntimeError, match="blocks are copied"):
        model.import_blocks([0], np.zeros((1, 16), dtype=np.int64))
    model.finish()
    assert logits.shape == (1, model.info.vocab_size)
    model.import_blocks([1], model.export_blocks([0]))
