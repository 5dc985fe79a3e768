"""From a configuration to a step loop: loads the model. Called in the compute thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from vidette.config import EngineConfig
from vidette.errors import UsageError
from vidette.kernels.native import NativeDecoder
from vidette.models import Model, ModelSource, load_model, load_token_table, load_tokenizer, resolve
from vidette.scheduler.corpora import Corpora
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 2.0


def build_loop(config: EngineConfig) -> StepLoop:
    """Load the model and build the loop around it.

    Raises:
        ModelError: the model's file is missing, damaged or not supported.
        KernelError: there is not enough memory for the model.
        UsageError: the model is not known, the device is not there, or the corpus of drafts cannot be read.
    """
    source = resolve(config.model)
    model = load_model(
        source,
        dtype=config.dtype,
        device=config.device,
        cuda_graphs=config.cuda_graphs,
        max_running=config.max_running,
        threads=config.threads,
        progress=LoadingLog(source.name, time.monotonic),
    )
    share_processors(model, config)
    corpora = Corpora(model.info.vocab_size)
    if config.draft_corpus is not None and config.draft_tokens:
        _read_corpus(corpora, config.draft_corpus, source)
    return StepLoop(model, loop_options(config), table=load_token_table(source), corpora=corpora)


def share_processors(model: Model, config: EngineConfig) -> None:
    """Have torch take no more threads than there are processors for it, in a process that is ours.

    Threads of OpenMP spin for a while when they are done, which native kernels of the next step would pay for
    with half of their speed. What is left to torch beside these, the sampler, is as quick with one.
    """
    if isinstance(model, NativeDecoder) and config.topology == "processes":
        torch.set_num_threads(1)
    elif config.threads is not None:
        torch.set_num_threads(config.threads)


class LoadingLog:
    """Says how far the loading of a model is, if that takes long.

    Args:
        name: of the model.
        clock: seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._began = self._said = clock()

    def __call__(self, done: int, total: int) -> None:
        """Take note that so many matrices of all are loaded."""
        now = self._clock()
        if now - self._said >= _LOG_SECONDS or (done == total and self._said > self._began):
            self._said = now
            logger.info("loading %s: %d of %d matrices, %.0f s", self._name, done, total, now - self._began)


def loop_options(config: EngineConfig) -> LoopOptions:
    """Return the sizes and rules of a configuration."""
    return LoopOptions(
        num_blocks=config.num_blocks,
        step_tokens=config.step_tokens,
        max_running=config.max_running,
        policy=config.schedule_policy,
        ageing_s=config.ageing_s,
        preempt_gap=config.preempt_gap,
        host_blocks=config.host_blocks,
        kv_events=config.kv_events,
        draft_tokens=config.draft_tokens,
        queue_timeout=config.queue_timeout,
        running_timeout=config.running_timeout,
        detokenizers=config.detokenizers,
    )


def _read_corpus(corpora: Corpora, path: str, source: ModelSource) -> None:
    try:
        text = Path(path).read_text("utf-8")
        corpora.add(path, [load_tokenizer(source).encode(text)])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"draft_corpus is {path!r}; it must be a text in UTF-8: {error}", param="draft_corpus"
        ) from error
