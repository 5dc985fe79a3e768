"""A batch in flight: what a device is sent with it, and what of that is waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.engine.scheduler.conftest import TABLE, VOCAB, FakeModel, request
from tests.engine.scheduler.test_plan import Batches

from vidette.models.accelerator import fetch
from vidette.models.interface import BLOCK_SIZE, StepResult
from vidette.scheduler import choosing
from vidette.scheduler.choosing import Flight
from vidette.scheduler.plan import Share
from vidette.scheduler.sequence import Sequence

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"top_k": 3},
    {"top_p": 0.9},
    {"temperature": 0.0, "frequency_penalty": 1.0},
)


class Arriving:
    """Values on their way from a device that has none."""

    def __init__(self, values: torch.Tensor, waited: list[int]) -> None:
        self._values = values
        self._waited = waited

    def wait(self) -> torch.Tensor:
        self._waited.append(len(self._values))
        return torch.zeros(self._values.shape, dtype=self._values.dtype)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values were waited for, each time."""
    waited: list[int] = []
    monkeypatch.setattr(choosing, "fetch", lambda values: Arriving(values, waited))
    return waited


def shares_of(batches: Batches, most: int = 400) -> list[Share]:
    return [batches.share(sequence, most) for sequence in batches.running]


def test_a_batch_of_which_nothing_is_wanted_is_waited_for_too(waited: list[int]) -> None:
    batches = Batches()
    batches.begin([1] * 100)
    nothing = StepResult(
        torch.empty(0, VOCAB, device="meta"), torch.empty(0, dtype=torch.int64, device="meta")
    )
    flight = Flight(shares_of(batches, BLOCK_SIZE), nothing)
    assert waited == []
    flight.wait()
    assert waited == [0]
    assert flight.land() == [None]


def test_what_is_chosen_does_not_depend_on_when_that_was_begun() -> None:
    batches = Batches()
    for number, kind in enumerate(KINDS):
        sequence = Sequence(request(number + 1, [3, 4, 5], sampling_seed=number, **kind), 0.0)
        sequence.prepare(FakeModel().info, TABLE)
        batches.resume(sequence)
    shares = shares_of(batches)
    best = sum(share.best for share in shares)
    numbers = torch.Generator().manual_seed(5)
    logits = torch.randn(len(shares) - best, VOCAB, generator=numbers)

    def flight() -> Flight:
        return Flight(shares, StepResult(logits.clone(), torch.arange(7, 7 + best)))

    late, early = flight(), flight()
    early._begun, early._best = early._begin(), fetch(early._result.best)
    early.wait()
    assert early.land() == late.land()
