"""From a configuration to a step loop: loads the model. Called in the compute thread."""

from __future__ import annotations

from pathlib import Path

import torch

from vidette.config import EngineConfig
from vidette.errors import UsageError
from vidette.models import ModelSource, load_model, load_token_table, load_tokenizer, resolve
from vidette.scheduler.corpora import Corpora
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions


def build_loop(config: EngineConfig) -> StepLoop:
    """Load the model and build the loop around it.

    Raises:
        ModelError: the model's file is missing, damaged or not supported.
        KernelError: there is not enough memory for the model.
        UsageError: the model is not known, the device is not there, or the corpus of drafts cannot be read.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    source = resolve(config.model)
    corpora = Corpora()
    if config.draft_corpus is not None and config.draft_tokens:
        _read_corpus(corpora, config.draft_corpus, source)
    model = load_model(
        source,
        dtype=config.dtype,
        device=config.device,
        cuda_graphs=config.cuda_graphs,
        max_running=config.max_running,
        threads=config.threads,
    )
    return StepLoop(model, loop_options(config), table=load_token_table(source), corpora=corpora)


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
