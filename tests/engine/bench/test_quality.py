"""Predictions compared, where the answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from vidette.bench.quality import STEP, bench_quality, cut_windows, find_texts, read_prose
from vidette.errors import UsageError
from vidette.models import StepPlan, StepResult
from vidette.models.best import split_logits
from vidette.models.toy import ToyModel
from vidette.models.toy_tokenizer import ToyTokenizer

TEXT = "What is read is a text like any other, and longer than a step.\n" * 8


class Flat(ToyModel):
    """A toy model that is sure of nothing."""

    def forward(self, plan: StepPlan) -> StepResult:
        return split_logits(torch.zeros(len(plan.logit_tokens), self.info.vocab_size), plan)


def compare(model: ToyModel, reference: ToyModel) -> dict[str, float]:
    results = bench_quality(
        model, reference, ToyTokenizer(), TEXT, windows=3, length=STEP + 20, say=lambda _: None
    )
    assert all(len(finding.values) == 1 for finding in results.findings)
    return {finding.name: finding.values[0] for finding in results.findings}


def test_a_model_agrees_with_itself() -> None:
    found = compare(ToyModel(), ToyModel())
    assert found.pop("perplexity") == found.pop("reference_perplexity") > 1
    assert found == {"kl": 0.0, "top1_agreement": 1.0, "positions": 3 * (STEP + 19)}


def test_what_differs_is_measured() -> None:
    found = compare(Flat(), ToyModel())
    model, length = ToyModel(), STEP + 20
    assert found["perplexity"] == pytest.approx(model.info.vocab_size, rel=1e-5)
    # KL from a distribution to the uniform one is log(n) less its entropy; here over whole windows at once.
    entropies, losses = [], []
    for ids in ToyTokenizer().encode(TEXT)[: 3 * length].reshape(3, -1):
        model.allocate(8)
        plan = StepPlan(
            ids[:-1],
            *(np.arange(length - 1, dtype=np.int32), np.array([0, length - 1], dtype=np.int32)),
            *(np.array([length - 1], dtype=np.int32), np.arange(6, dtype=np.int32)[None]),
            *(np.arange(length - 1, dtype=np.int32), np.empty(0, dtype=np.int32)),
        )
        log_p = torch.log_softmax(model.forward(plan).logits.double(), dim=-1)
        entropies.append(-(log_p.exp() * log_p).sum(dim=-1))
        losses.append(-log_p.gather(1, torch.from_numpy(ids[1:]).long()[:, None])[:, 0])
    assert found["kl"] == pytest.approx(math.log(260) - float(torch.cat(entropies).mean()), rel=1e-4)
    assert found["reference_perplexity"] == pytest.approx(math.exp(float(torch.cat(losses).mean())), rel=1e-4)
    assert found["top1_agreement"] < 0.1


def test_windows_begin_like_texts() -> None:
    ids = np.array([1, 10, 11, 12, 13, 14, 15], dtype=np.int32)
    assert cut_windows(ids, 2, bos=1, length=4).tolist() == [[1, 10, 11, 12], [1, 13, 14, 15]]
    assert cut_windows(ids, 2, bos=None, length=3).tolist() == [[1, 10, 11], [12, 13, 14]]
    with pytest.raises(UsageError, match="has 6 tokens; 3 windows take 9"):
        cut_windows(ids, 3, bos=1, length=4)


def test_prose_is_what_is_neither_code_nor_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nText.\n```sh\nvidette serve\n```\n| a | b |\n- item\n  ```\n  x\n  ```\nEnd.\n"
    )
    assert read_prose([page, page]) == "\n".join(["# Title", "", "Text.", "- item", "End."] * 2)
    with pytest.raises(UsageError, match="cannot be read"):
        read_prose([tmp_path / "other.md"])


def test_our_own_pages_are_read_unless_others_are_given() -> None:
    assert find_texts([Path("a.md")]) == [Path("a.md")]
    pages = find_texts(None)
    assert "design.md" in {page.name for page in pages}
    words = read_prose(pages).split()
    assert len(words) > 2200, "four windows of 512 tokens"
