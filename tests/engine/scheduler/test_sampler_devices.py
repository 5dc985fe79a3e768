"""On a device the sampler waits for the tokens, and for little else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.models.devices import Elsewhere
from torch.overrides import TorchFunctionMode

from vidette.models import accelerator
from vidette.models.interface import NOT_FINITE
from vidette.scheduler.logprobs import Wanted, find_logprobs
from vidette.scheduler.sampler import begin, sample
from vidette.scheduler.sampling import SamplingRow
from vidette_protocol.messages import SamplingParams

VOCABULARY = 200
ROWS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}, {"temperature": 0.0}],
    "whole": [{}, {"temperature": 0.5}, {}],
    "both": [{"temperature": 0.0}, {}],
    "edited": [{"temperature": 0.0, "repetition_penalty": 1.5}, {"logit_bias": {3: 4.0}}],
    "ranked": [{"top_k": 20}, {"top_k": 20, "min_p": 0.1}, {"temperature": 0.0}],
    "nucleus": [{"top_p": 0.9}, {"top_p": 0.9, "top_k": 20}, {}],
    "bound": [{"temperature": 0.0, "min_new_tokens": 5}, {"min_new_tokens": 5}, {}],
}


def rows_of(params: list[dict[str, Any]]) -> list[SamplingRow]:
    return [
        SamplingRow(
            SamplingParams(**{"sampling_seed": 7, **one}), (3, 4, 4), eos_ids={1}, vocab_size=VOCABULARY
        )
        for one in params
    ]


class Waits(TorchFunctionMode):
    """Counts what a device is waited for, as far as torch is asked by name; lists are told from `said`."""

    names = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self, said: list[int] | None = None) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.said = said

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.names:
            self.seen[name] += 1
            if name == "tolist" and self.said is not None:
                return self.said
        return func(*args, **(kwargs or {}))


@contextmanager
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch, Elsewhere():
        patch.setattr(accelerator, "send", lambda _values, target: target)
        yield


@pytest.mark.parametrize("kind", ROWS)
def test_tokens_alone_are_waited_for(kind: str) -> None:
    rows = rows_of(ROWS[kind])
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(3)) * 4
    with Waits() as waits:
        sample(logits, rows, [0] * len(rows))
    # On a CPU, as here, the best of all rows is found without torch.
    assert waits.seen == ({"numpy": 1, "tolist": 1} if kind == "greedy" else {"tolist": 1})


@pytest.mark.parametrize("params", [{"top_k": 20}, {"top_p": 0.9}])
def test_what_was_ranked_is_waited_for_again_if_it_was_not_enough(params: dict[str, Any]) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[1, :19] = 20.0
    logits[1, 0] = 40.0
    with Waits() as waits:
        drawn = begin(logits, rows_of([params, params]), [0, 0])
        assert not waits.seen
        tokens = drawn.tokens()
    assert waits.seen["tolist"] == 2
    assert tokens[1] == 0
    assert all(0 <= token < VOCABULARY for token in tokens)


@pytest.mark.parametrize("kind", ROWS)
def test_nothing_lies_elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(ROWS[kind])
    logits = torch.empty(len(rows), VOCABULARY, device=Elsewhere.device)
    with elsewhere(monkeypatch), Waits([NOT_FINITE] * len(rows)):
        assert sample(logits, rows, [0] * len(rows)) == [NOT_FINITE] * len(rows)


def test_log_probabilities_are_found_where_the_logits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.empty(2, VOCABULARY, device=Elsewhere.device)
    wanted = [Wanted(0, ids=np.array([3, 4])), Wanted(0)]
    # All is computed there, and then fetched: that is what a tensor without values refuses.
    with elsewhere(monkeypatch), pytest.raises(NotImplementedError, match="meta"):
        find_logprobs(logits, [0, 1], [5, 6], wanted, [1.0, 0.5])
