"""Decoders in GGUF files: their logits are those of transformers, and what we do not compute is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.models.families import VOCAB_SIZE, WINDOW, WRITTEN, largest_difference, write_model

from vidette.errors import ModelError
from vidette.models import StepPlan
from vidette.models.decoder import Decoder
from vidette.models.gguf import GGUFFile
from vidette.models.gguf_decoder import read_gguf_config, read_gguf_decoder, read_gguf_info

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", WRITTEN)
def test_logits_equal_those_of_transformers(
    name: str,
    tiny_model: Callable[[str], Any],
    tmp_path: Path,
    tiny_vocabulary: list[str],
    make_plan: Callable[..., StepPlan],
) -> None:
    assert len(tiny_vocabulary) == VOCAB_SIZE
    path = write_model(tmp_path / "model.gguf", tiny_model(name), tiny_vocabulary)
    config, weights, info = read_gguf_decoder(GGUFFile(path), name)
    assert info.architecture == (name if name in {"qwen2", "qwen3", "gemma3"} else "llama")
    assert largest_difference(Decoder(config, weights, info), tiny_model(name), make_plan) < 2e-4


def test_matrices_are_views_of_the_file(tiny_llama_path: Path) -> None:
    _, weights, _ = read_gguf_decoder(GGUFFile(tiny_llama_path), "tiny")
    for matrix in (weights.embedding, weights.layers[1].down, weights.layers[0].up):
        assert not matrix.data.flags.owndata
        assert not matrix.data.flags.writeable


def test_gemma_alternates_as_its_makers_have_it(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    sizes = {
        "block_count": 13,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.sliding_window": WINDOW,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }
    metadata: dict[str, Any] = {f"gemma3.{key}": value for key, value in sizes.items()}
    queries = {"blk.0.attn_q.weight": np.ones((4 * 256, 32), np.float32)}
    path = write_gguf(tmp_path / "gemma.gguf", arch="gemma3", metadata=metadata, tensors=queries)
    config = read_gguf_config(GGUFFile(path))
    assert config.windows == ((WINDOW,) * 5 + (0,)) * 2 + (WINDOW,)
    assert config.rope_kinds == ((1,) * 5 + (0,)) * 2 + (1,)
    assert config.rope_frequencies[:, 1] == pytest.approx([1e6 ** (-1 / 128), 1e4 ** (-1 / 128)])
    assert config.query_scale == 1 / 16
    assert config.embedding_scale == pytest.approx(32**0.5)
    metadata["gemma3.attention.sliding_window"] = None
    path = write_gguf(tmp_path / "none.gguf", arch="gemma3", metadata=metadata, tensors=queries)
    with pytest.raises(ModelError, match=r"no gemma3\.attention\.sliding_window"):
        read_gguf_config(GGUFFile(path))


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"arch": "gemma2"},
        "architecture 'gemma2' is not supported; llama, qwen2, qwen3, gemma3 are",
    ),
    "scaled rope": ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "scaled by 'yarn' are not supported"),
    "no rope": ({"metadata": {"llama.rope.freq_base": 0.0}}, "freq_base is 0.0, not a positive number"),
    "rope by nothing": (
        {"metadata": {"llama.rope.scaling.factor": -1.0}},
        "frequencies .* are not all positive",
    ),
    "rope by infinity": (
        {"metadata": {"llama.rope.scaling.factor": float("inf")}},
        "frequencies .* are not all positive",
    ),
    "rope factors": (
        {"tensors": {"rope_freqs.weight": np.ones(3, np.float32)}},
        "'rope_freqs.weight' is not 4 positive numbers",
    ),
    "no rope factors": (
        {"tensors": {"rope_freqs.weight": np.zeros(4, np.float32)}},
        "'rope_freqs.weight' is not 4 positive numbers",
    ),
    "partial rope": ({"metadata": {"llama.rope.dimension_count": 4}}, "dimension_count is not the 8 values"),
    "value size": ({"metadata": {"llama.attention.value_length": 16}}, "value_length is not the 8 values"),
    "experts": ({"metadata": {"llama.expert_count": 8}}, "mixtures of experts are not supported"),
    "parts": ({"metadata": {"split.count": 3}}, "several files are not supported"),
    "no layers": ({"metadata": {"llama.block_count": 0}}, "block_count is 0, not from 1 to 16777216"),
    "absurd layers": ({"metadata": {"llama.block_count": 2**31}}, "block_count is 2147483648, not from 1"),
    "many layers": ({"metadata": {"llama.block_count": 2**24}}, "16777216 layers, but 21 tensors"),
    "a layer more": ({"metadata": {"llama.block_count": 3}}, "no tensor 'blk.2.attn_norm.weight'"),
    "absent size": ({"metadata": {"llama.feed_forward_length": None}}, "no llama.feed_forward_length"),
    "heads": ({"metadata": {"llama.attention.head_count_kv": 3}}, "4 heads of 8 values do not fit 3"),
    "absurd heads": (
        {"metadata": {"llama.attention.key_length": 2**24, "llama.attention.value_length": 2**24}},
        "4 heads of 16777216 values, but 32 of queries",
    ),
    "odd heads": (
        {
            "metadata": {"llama.attention.key_length": 7, "llama.attention.value_length": 7},
            "tensors": {"blk.0.attn_q.weight": np.ones((28, 32), np.float32)},
        },
        "4 heads of 7 values do not fit 2 key-value heads",
    ),
    "heads by layer": ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "not of type int"),
    "epsilon": (
        {"metadata": {"llama.attention.layer_norm_rms_epsilon": float("nan")}},
        "its norm epsilon is nan, not a positive number",
    ),
    "cap": ({"metadata": {"llama.final_logit_softcapping": -1.0}}, "it caps scores or logits at -1.0"),
    "other sizes": (
        {"metadata": {"llama.feed_forward_length": 64}},
        r"has shape \(48, 32\) instead of \(64, 32\)",
    ),
    "no tensor": ({"tensors": {"blk.1.attn_k.weight": None}}, "there is no tensor 'blk.1.attn_k.weight'"),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, "260 tokens, but embeddings of 0"),
    "bias": (
        {"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}},
        "'blk.0.attn_q.bias' belongs to no llama model that we compute",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_we_do_not_compute_is_refused_by_name(
    case: str, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    changes, fault = _REFUSED[case]
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ModelError, match=fault) as caught:
        read_gguf_decoder(GGUFFile(path), "odd")
    assert str(path) in str(caught.value)


def test_an_info_takes_the_header_alone(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(tmp_path / "no-weights.gguf", tensors={"blk.1.attn_k.weight": None})
    info = read_gguf_info(GGUFFile(path), "some-name")
    assert (info.name, info.architecture, info.context_len) == ("some-name", "llama", 512)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 4.0},
    ],
)
def test_a_context_stretched_by_a_factor(
    metadata: dict[str, Any], tmp_path: Path, tiny_llama_path: Path, write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf(tmp_path / "stretched.gguf", metadata=metadata)
    stretched, plain = (read_gguf_config(GGUFFile(file)) for file in (path, tiny_llama_path))
    assert np.array_equal(stretched.rope_frequencies * 4, plain.rope_frequencies)


def test_a_window_of_all_layers(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(tmp_path / "window.gguf", metadata={"llama.attention.sliding_window": WINDOW})
    assert read_gguf_config(GGUFFile(path)).windows == (WINDOW, WINDOW)
