"""From a configuration to a step loop: loads the model. Called in the compute thread."""

from __future__ import annotations

import torch

from vidette.config import EngineConfig
from vidette.models import load_model, resolve
from vidette.scheduler.loop import StepLoop


def build_loop(config: EngineConfig) -> StepLoop:
    """Load the model and build the loop around it.

    Raises:
        ModelError: the model's file is missing, damaged or not supported.
        UsageError: the model is not known.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    return StepLoop(
        load_model(resolve(config.model)),
        num_blocks=config.num_blocks,
        step_tokens=config.step_tokens,
        max_running=config.max_running,
    )
