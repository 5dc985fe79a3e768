"""`vidette bench quality`: how far a model's predictions are from those of all its weights in float32.

Both read the same windows of a text. The reference is the torch forward of the same file: what is measured is
what quantised activations and native kernels change, not what the file has lost already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.bench.results import Finding, Results
from vidette.errors import UsageError
from vidette.models.interface import BLOCK_SIZE, Model, StepPlan, Tokenizer

WINDOW: Final = 512
"""Tokens that are read without anything before them."""
WINDOWS: Final = 4
STEP: Final = 64
"""Tokens of a step: logits of a large vocabulary are large."""


class Window(NamedTuple):
    """What was found of one window, at each position but the last.

    Args:
        kl: nats, of the model's distribution from the reference's.
        agrees: whether both hold the same token for the most probable.
        loss: nats, of the token that comes next, by the model.
        reference_loss: the same by the reference.
    """

    kl: torch.Tensor
    agrees: torch.Tensor
    loss: torch.Tensor
    reference_loss: torch.Tensor


def read_prose(paths: Iterable[Path]) -> str:
    """Return the text of Markdown files without their code and tables.

    Raises:
        UsageError: a file cannot be read.
    """
    kept: list[str] = []
    for path in paths:
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}", param="text") from error
        fenced = False
        for line in lines:
            fence = line.lstrip().startswith("```")
            fenced ^= fence
            if not (fenced or fence or line.startswith("|")):
                kept.append(line)
    return "\n".join(kept)


def cut_windows(
    ids: NDArray[np.int32], count: int, *, bos: int | None, length: int = WINDOW
) -> NDArray[np.int32]:
    """Cut a text into windows, each behind the token that texts begin with.

    Args:
        ids: of the text.
        count: how many windows.
        bos: the token before every text; None: there is none.
        length: tokens of a window.

    Returns:
        int32 [count, length].

    Raises:
        UsageError: the text is too short.
    """
    if bos is not None:
        ids = ids[ids != bos]
    each = length - (bos is not None)
    if len(ids) < count * each:
        raise UsageError(f"the text has {len(ids)} tokens; {count} windows take {count * each}", param="text")
    windows = ids[: count * each].reshape(count, each)
    if bos is not None:
        windows = np.concatenate([np.full((count, 1), bos, dtype=np.int32), windows], axis=1)
    return windows


def bench_quality(
    model: Model,
    reference: Model,
    tokenizer: Tokenizer,
    text: str,
    *,
    windows: int = WINDOWS,
    length: int = WINDOW,
    say: Callable[[str], None],
) -> Results:
    """Compare the predictions of two models of one vocabulary.

    Args:
        model: what is served; nobody has allocated its pool.
        reference: what it is held to.
        tokenizer: of both.
        text: what they read.
        windows: how many.
        length: tokens of each.
        say: told what is measured next.

    Raises:
        UsageError: the text is too short.
    """
    cut = cut_windows(tokenizer.encode(text), windows, bos=model.info.bos_token_id, length=length)
    for one in (model, reference):
        one.allocate(-(-length // BLOCK_SIZE))
    found = []
    with torch.inference_mode():
        for number, ids in enumerate(cut):
            say(f"window {number + 1} of {windows}")
            found.append(_compare(model, reference, ids))
    kl, agrees, loss, reference_loss = (torch.cat(parts) for parts in zip(*found, strict=True))
    findings = [
        Finding("kl", "nat", [float(kl.mean())]),
        Finding("top1_agreement", "", [float(agrees.double().mean())]),
        Finding("perplexity", "", [math.exp(float(loss.mean()))]),
        Finding("reference_perplexity", "", [math.exp(float(reference_loss.mean()))]),
        Finding("positions", "", [len(kl)]),
    ]
    quantiles = {str(q): float(torch.quantile(kl, q)) for q in (0.5, 0.9, 0.99, 1.0)}
    by_window = [{"kl": float(w.kl.mean()), "top1_agreement": float(w.agrees.double().mean())} for w in found]
    notes = [f"{model.info.name}: {windows} windows of {length} tokens, against the torch forward in float32"]
    return Results(findings, notes, {"kl_quantiles": quantiles, "windows": by_window})


def _compare(model: Model, reference: Model, ids: NDArray[np.int32]) -> Window:
    parts = []
    for plan in _plans(ids):
        log_p = torch.log_softmax(reference.forward(plan).logits.float(), dim=-1)
        log_q = torch.log_softmax(model.forward(plan).logits.float(), dim=-1)
        following = torch.from_numpy(ids[plan.positions + 1]).long()[:, None]
        parts.append(
            Window(
                (log_p.exp() * (log_p - log_q)).sum(dim=-1, dtype=torch.float64),
                log_p.argmax(dim=-1) == log_q.argmax(dim=-1),
                -log_q.gather(1, following)[:, 0].double(),
                -log_p.gather(1, following)[:, 0].double(),
            )
        )
    return Window(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _plans(ids: NDArray[np.int32]) -> Iterator[StepPlan]:
    """Write the steps that read a window but for its last token, logits of every position wanted."""
    blocks = np.arange(-(-len(ids) // BLOCK_SIZE), dtype=np.int32)[None]
    for first in range(0, len(ids) - 1, STEP):
        end = min(first + STEP, len(ids) - 1)
        count = end - first
        yield StepPlan(
            token_ids=ids[first:end],
            positions=np.arange(first, end, dtype=np.int32),
            row_starts=np.array([0, count], dtype=np.int32),
            context_lens=np.array([end], dtype=np.int32),
            block_tables=blocks[:, : -(-end // BLOCK_SIZE)].copy(),
            logit_tokens=np.arange(count, dtype=np.int32),
            best_tokens=np.empty(0, dtype=np.int32),
        )


def find_texts(given: Sequence[Path] | None) -> list[Path]:
    """Return the files to read: those that are given, or this project's own documentation.

    Raises:
        UsageError: none is given, and this is no checkout.
    """
    if given:
        return list(given)
    folder = Path(__file__).parents[3] / "docs"
    found = sorted(folder.glob("*.md"))
    if not found:
        raise UsageError("the documentation is not installed; --text says what is read", param="text")
    return found
