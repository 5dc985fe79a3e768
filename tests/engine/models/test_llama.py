"""The Llama forward over the paged pool against a dense one written here, on a tiny random model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models import BLOCK_SIZE, ModelSource, StepPlan, load_model, paging
from vidette.models.gguf import GGUFFile
from vidette.models.llama import Llama, linear, load_llama

Array = NDArray[np.float64]
pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 24
LAYERS, HEADS, KV_HEADS, HEAD_DIM, THETA, EPSILON = 2, 4, 2, 8, 5000.0, 1e-5


class DenseLlama:
    """The same model the plain way: float64, one sequence at a time, no cache, halves rotating."""

    def __init__(self, path: Path) -> None:
        file = GGUFFile(path)
        self.weights = {name: file.tensor(name).astype(np.float64) for name in file.tensors}
        for name, weight in self.weights.items():
            if "attn_q" in name or "attn_k" in name:
                # The file has the partners of a rotation side by side; here they are half a head apart.
                rows, columns = weight.shape
                pairs = weight.reshape(rows // HEAD_DIM, HEAD_DIM // 2, 2, columns)
                self.weights[name] = pairs.swapaxes(1, 2).reshape(rows, columns)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return [len(tokens), vocabulary]."""
        x = self.weights["token_embd.weight"][list(tokens)]
        for layer in range(LAYERS):
            x = x + self._attention(f"blk.{layer}", self._norm(x, f"blk.{layer}.attn_norm"))
            y = self._norm(x, f"blk.{layer}.ffn_norm")
            gate, up = (y @ self.weights[f"blk.{layer}.ffn_{kind}.weight"].T for kind in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"blk.{layer}.ffn_down.weight"].T
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        logits: Array = self._norm(x, "output_norm") @ head.T
        return logits

    def _norm(self, x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON)
        return scaled * self.weights[f"{name}.weight"]

    def _attention(self, prefix: str, x: Array) -> Array:
        q, k, v = (x @ self.weights[f"{prefix}.attn_{kind}.weight"].T for kind in "qkv")
        heads = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            kept = slice(shared * HEAD_DIM, (shared + 1) * HEAD_DIM)
            scores = _rotate(q[:, own]) @ _rotate(k[:, kept]).T / np.sqrt(HEAD_DIM)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, kept])
        mixed: Array = np.concatenate(heads, axis=-1) @ self.weights[f"{prefix}.attn_output.weight"].T
        return mixed


def _rotate(x: Array) -> Array:
    frequencies = THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = np.arange(len(x))[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    left, right = x[:, : HEAD_DIM // 2], x[:, HEAD_DIM // 2 :]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


@pytest.fixture(scope="module")
def dense(tiny_llama_path: Path) -> DenseLlama:
    return DenseLlama(tiny_llama_path)


@pytest.fixture(scope="module")
def model(tiny_llama_path: Path) -> Llama:
    loaded = load_model(ModelSource("tiny", tiny_llama_path))
    assert isinstance(loaded, Llama)
    loaded.allocate(NUM_BLOCKS)
    return loaded


def _poison(model: Llama) -> None:
    """Fill the pool with what recycled blocks might hold at worst."""
    for pool in (pool for layer in model._pools for pool in layer):
        pool.fill_(float("nan"))


def _check(logits: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(logits.numpy(), expected, atol=2e-4, rtol=0)


def test_one_prompt_at_once(model: Llama, dense: DenseLlama, make_plan: Callable[..., StepPlan]) -> None:
    tokens = list(np.random.default_rng(1).integers(0, 260, 100))
    _poison(model)
    logits = model.forward(make_plan([(tokens, 0, range(7))], every_logit=True))
    assert logits.dtype == torch.float32
    _check(logits, dense.logits(tokens))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.integers(0, 259), min_size=1, max_size=50), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    short_context=st.sampled_from([8, 512]),
)
def test_any_schedule_gives_the_dense_logits(
    rows: list[list[int]],
    seed: int,
    short_context: int,
    model: Llama,
    dense: DenseLlama,
    make_plan: Callable[..., StepPlan],
) -> None:
    """Chunks of any size, decodes and extends in one step, in any order and in any blocks."""
    rng = random.Random(seed)
    _poison(model)
    free = list(range(NUM_BLOCKS))
    rng.shuffle(free)
    blocks = [[free.pop() for _ in range(-(-len(row) // BLOCK_SIZE))] for row in rows]
    expected = [dense.logits(row) for row in rows]
    done = [0] * len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_SHORT_CONTEXT", short_context)
        while unfinished := [index for index, row in enumerate(rows) if done[index] < len(row)]:
            chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
            chunks, wanted = [], []
            for index in chosen:
                start = done[index]
                done[index] = rng.choice([start + 1, rng.randint(start + 1, len(rows[index]))])
                chunks.append((rows[index][start : done[index]], start, blocks[index]))
                wanted.append(expected[index][start : done[index]])
            _check(model.forward(make_plan(chunks, every_logit=True)), np.concatenate(wanted))


def test_logits_only_where_they_are_wanted(model: Llama, make_plan: Callable[..., StepPlan]) -> None:
    plan = make_plan([([1, 2, 3], 0, [4]), ([9], 0, [5])], every_logit=True)
    every = model.forward(plan)
    for wanted in ([3, 0], [2], []):
        some = model.forward(plan._replace(logit_tokens=np.array(wanted, dtype=np.int32)))
        assert some.shape == (len(wanted), 260)
        torch.testing.assert_close(some, every[wanted], atol=1e-5, rtol=0)


def test_a_poisoned_row_does_not_touch_the_others(
    model: Llama, dense: DenseLlama, make_plan: Callable[..., StepPlan]
) -> None:
    _poison(model)
    tokens = list(range(20))
    model.forward(make_plan([(tokens, 0, [0, 1])]))
    # The second row goes on from blocks nobody wrote: all its keys are no numbers. It is padded together with
    # the first one, and longer than it.
    logits = model.forward(make_plan([([20], 20, [0, 1]), ([7], 40, [2, 3, 4])]))
    _check(logits[0], dense.logits([*tokens, 20])[-1])
    assert logits[1].isnan().all()


def test_copied_blocks_are_as_good_as_computed_ones(model: Llama, make_plan: Callable[..., StepPlan]) -> None:
    tokens = list(np.random.default_rng(2).integers(0, 260, 40))
    _poison(model)
    model.forward(make_plan([(tokens, 0, [7, 2, 9])]))
    expected = model.forward(make_plan([([5], 40, [7, 2, 9])]))
    copies = model.export_blocks([7, 2, 9])
    assert copies.shape == (3, 2 * LAYERS, BLOCK_SIZE * KV_HEADS * HEAD_DIM)
    assert copies[:2].nbytes == 2 * BLOCK_SIZE * model.info.kv_bytes_per_token
    _poison(model)
    model.import_blocks([4, 8], copies[:2])
    model.import_blocks([1], copies[2:])
    assert torch.equal(model.forward(make_plan([([5], 40, [4, 8, 1])])), expected)
    assert model.export_blocks([8, 4])[::-1].tobytes() == copies[:2].tobytes()


def test_an_untied_and_a_tied_head(tmp_path: Path, write_gguf: Callable[..., Path], make_plan: Any) -> None:
    path = write_gguf(tmp_path / "tied.gguf", tied=True)
    assert "output.weight" not in GGUFFile(path).tensors
    tied = load_llama(path)
    tied.allocate(1)
    _check(
        tied.forward(make_plan([([1, 2, 3], 0, [0])], every_logit=True)), DenseLlama(path).logits([1, 2, 3])
    )


def test_progress_counts_the_tensors(tiny_llama_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    model = load_llama(tiny_llama_path, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(done, 21) for done in range(1, 22)]
    assert model.info.name == "tiny"


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 33])
def test_linear_is_the_product_with_the_transpose(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 12, generator=generator), torch.randn(7, 12, generator=generator)
    result = linear(x, weight)
    assert result.shape == (rows, 7)
    assert result.is_contiguous()
    torch.testing.assert_close(result, x @ weight.T)


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"arch": "gemma3"}, "architecture 'gemma3' is not supported; 'llama' is"),
    "scaled rope": ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "scaled rotary .*'yarn'"),
    "rope factors": ({"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}}, "scaled rotary embeddings"),
    "partial rope": ({"metadata": {"llama.rope.dimension_count": 4}}, "dimension_count is not the 8 values"),
    "value size": ({"metadata": {"llama.attention.value_length": 16}}, "value_length is not the 8 values"),
    "experts": ({"metadata": {"llama.expert_count": 8}}, "mixtures of experts are not supported"),
    "parts": ({"metadata": {"split.count": 3}}, "several files are not supported"),
    "no layers": ({"metadata": {"llama.block_count": 0}}, "block_count is 0, not a positive number"),
    "absurd layers": ({"metadata": {"llama.block_count": 2**31}}, "no tensor 'blk.2.attn_norm.weight'"),
    "absent size": ({"metadata": {"llama.feed_forward_length": None}}, "no llama.feed_forward_length"),
    "heads": ({"metadata": {"llama.attention.head_count_kv": 3}}, "4 heads of 8 values do not fit 3"),
    "heads by layer": ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "not of type int"),
    "other sizes": (
        {"metadata": {"llama.feed_forward_length": 64}},
        r"has shape \(48, 32\) instead of \(64, 32\)",
    ),
    "no tensor": ({"tensors": {"blk.1.attn_k.weight": None}}, "there is no tensor 'blk.1.attn_k.weight'"),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, "260 tokens, but embeddings of 0"),
    "bias": (
        {"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}},
        "'blk.0.attn_q.bias' belongs to no Llama that we compute",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_we_do_not_compute_is_refused_by_name(
    case: str, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    changes, fault = _REFUSED[case]
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ModelError, match=fault) as caught:
        load_llama(path)
    assert str(path) in str(caught.value)
