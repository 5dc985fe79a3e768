"""The best token of each row of logits, for models that have computed them anyway."""

from __future__ import annotations

import numpy as np
import torch

from vidette.models.interface import NOT_FINITE, StepPlan, StepResult


def split_logits(logits: torch.Tensor, plan: StepPlan) -> StepResult:
    """Return what a plan wants of logits.

    Args:
        logits: float32 [L + G, vocab_size], contiguous, those after `plan.wanted_tokens`.
        plan: of the step.
    """
    count = len(plan.logit_tokens)
    return StepResult(logits[:count], take_best(logits[count:]))


def take_best(logits: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit of each row, int64 [G], as `StepResult.best` says."""
    if logits.device.type == "cpu":  # NumPy takes one pass, several times faster than torch's
        numbers = logits.numpy()
        tokens = numbers.argmax(axis=1)
        # The first of the largest is also the first that is no number, if there is one.
        largest = numbers[np.arange(len(tokens)), tokens]
        return torch.from_numpy(np.where(np.isfinite(largest), tokens, NOT_FINITE))
    values, places = logits.max(dim=1)
    return places.masked_fill_(~torch.isfinite(values), NOT_FINITE)
