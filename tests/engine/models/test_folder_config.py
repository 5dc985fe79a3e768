"""What config.json says: both spellings mean the same, and what we do not compute is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vidette.errors import ModelError
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.folder_config import is_tied, read_folder_config
from vidette.models.json_object import JSONObject

PATH = Path("folder/config.json")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(model_type: str, **options: Any) -> DecoderConfig:
    return read_folder_config(JSONObject(PATH, SIZES | {"model_type": model_type} | options))


def assert_equal(one: DecoderConfig, other: DecoderConfig) -> None:
    assert np.array_equal(one.rope_frequencies, other.rope_frequencies)
    empty = np.empty(0, np.float32)
    assert one._replace(rope_frequencies=empty)[:10] == other._replace(rope_frequencies=empty)[:10]
    assert one[11:] == other[11:]


@pytest.mark.parametrize(
    ("model_type", "new", "old"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 500.0}}, {"rope_theta": 500.0, "rope_scaling": None}),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5e4, "rope_type": "llama3"} | LLAMA3},
            {"rope_theta": 50_000, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
        ),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4}},
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}},
        ),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                },
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2
                + ["sliding_attention"] * 2,
            },
            {
                "rope_theta": 2e6,
                "rope_local_base_freq": 2e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window_pattern": 3,
            },
        ),
    ],
)
def test_both_spellings_mean_the_same(model_type: str, new: dict[str, Any], old: dict[str, Any]) -> None:
    assert_equal(read(model_type, **new), read(model_type, **old))


def test_rotation() -> None:
    pairs = np.arange(6) / 6
    assert read("llama").rope_frequencies == pytest.approx(np.array([10_000**-pairs]), rel=1e-6)
    linear = {"rope_type": "linear", "factor": 4.0}
    config = read("gemma3_text", head_dim=12, rope_scaling=linear, sliding_window=9)
    # Only layers that see all positions are stretched.
    assert config.rope_frequencies == pytest.approx(np.array([1e6**-pairs / 4, 1e4**-pairs]), rel=1e-6)
    assert config.windows == (9, 9, 9, 9, 9, 0, 9, 9)
    assert config.rope_kinds == (1, 1, 1, 1, 1, 0, 1, 1)


@pytest.mark.parametrize(
    ("model_type", "options", "windows"),
    [
        ("llama", {"sliding_window": 9}, (0,) * 8),
        ("mistral", {"sliding_window": 9}, (9,) * 8),
        ("mistral", {"sliding_window": None}, (0,) * 8),
        ("mistral", {}, (4096,) * 8),
        ("qwen2", {"sliding_window": 9}, (0,) * 8),
        (
            "qwen2",
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 6},
            (0,) * 6 + (9, 9),
        ),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, (0,) * 8),
        ("qwen3", {"layer_types": ["full_attention"] * 8}, (0,) * 8),
        ("gemma3_text", {"_sliding_window_pattern": 2, "sliding_window": 9}, (9, 0) * 4),
    ],
)
def test_windows(model_type: str, options: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert read(model_type, **options).windows == windows


def test_what_may_be_absent() -> None:
    config = read("llama")
    assert (config.head_dim, config.query_scale, config.norm_epsilon) == (12, 12**-0.5, 1e-6)
    assert config.activation is Activation.SILU
    assert read("qwen3").head_dim == 128
    sparse = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240}
    config = read_folder_config(
        JSONObject(PATH, {"model_type": "gemma3", "text_config": sparse | {"num_hidden_layers": 34}})
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.context_len) == (262_208, 131_072)
    assert (config.query_scale, config.activation) == (1 / 16, Activation.GELU_TANH)


def test_tied_heads() -> None:
    def tied(model_type: str, **options: Any) -> bool:
        return is_tied(JSONObject(PATH, {"model_type": model_type} | options))

    assert not tied("llama")
    assert tied("llama", tie_word_embeddings=True)
    assert tied("gemma3_text")
    assert tied("gemma3", text_config={})
    assert not tied("gemma3", text_config={"tie_word_embeddings": False}, tie_word_embeddings=True)


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"model_type": "gpt2"}, "model type 'gpt2' is not supported; llama, mistral, qwen2"),
    "no type": ({"model_type": None}, "there is no model_type"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "scaled by 'yarn' are not supported"),
    "rope by nothing": ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0.0, not a positive"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, r"there is no rope_scaling\.factor"),
    "tiny factor": (
        {"rope_scaling": {"type": "linear", "factor": 5e-324}},
        "frequencies .* not all positive",
    ),
    "rope of nothing": ({"rope_theta": 0}, "rope_theta is 0.0, not a positive number"),
    "rope of little": ({"rope_theta": 1e-300}, "frequencies .* not all positive"),
    "rope of a text": ({"rope_theta": "10000"}, 'rope_theta is "10000", not a number'),
    "bands": (
        {"rope_scaling": {"rope_type": "llama3"} | LLAMA3 | {"low_freq_factor": 4.0}},
        "low_freq_factor is not below high_freq_factor",
    ),
    "partial": ({"partial_rotary_factor": 0.5}, "heads that rotate in part are not supported"),
    "partial, new": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "heads that rotate in part"),
    "packed": ({"quantization_config": {"bits": 4}}, "weights that are packed"),
    "biases": ({"attention_bias": True}, "biases of all parts of the attention are not supported"),
    "other biases": ({"mlp_bias": True}, "biases of feed-forward layers are not supported"),
    "both ways": ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "what comes later"),
    "activation": ({"hidden_act": "relu"}, "the activation 'relu' is not supported"),
    "size": ({"hidden_size": 0}, "hidden_size is 0, not from 1 to 16777216"),
    "a size that is none": ({"hidden_size": 48.0}, "hidden_size is 48.0, not an integer"),
    "a size that is true": ({"hidden_size": True}, "hidden_size is true, not an integer"),
    "layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not from 1"),
    "heads": ({"num_key_value_heads": 3}, "4 heads of 12 values do not fit 3 key-value heads"),
    "no size": ({"intermediate_size": None}, "there is no intermediate_size"),
    "epsilon": ({"rms_norm_eps": 0}, "its norm epsilon is 0.0, not a positive number"),
    "types": ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types are not 8 times"),
    "other types": ({"model_type": "qwen3", "layer_types": ["linear"] * 8}, "layer_types are not 8 times"),
    "no window": (
        {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 8},
        "layers slide, but there is no sliding_window",
    ),
    "window": ({"model_type": "mistral", "sliding_window": -1}, "sliding_window is -1, not from 1"),
    "text": ({"model_type": "gemma3", "text_config": [1]}, "text_config is list, not an object"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_we_do_not_compute_is_refused_by_name(case: str) -> None:
    changes, fault = _REFUSED[case]
    with pytest.raises(ModelError, match=fault) as caught:
        read(**({"model_type": "llama"} | changes))
    assert str(PATH) in str(caught.value)
