"""What the config.json of a Hugging Face folder says of a decoder, in either spelling of its keys.

Model types: llama, mistral, qwen2, qwen3, gemma3_text, and gemma3 where it is text alone. What may be absent
has the default that transformers gives it; what we do not compute is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.gather import check_config
from vidette.models.json_object import JSONObject
from vidette.models.rope import (
    Llama3Scaling,
    pack_frequencies,
    rope_frequencies,
    scale_linearly,
    scale_llama3,
)

FAMILIES: Final = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
}
"""Families by model type."""

_ACTIVATIONS: Final = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULT_WINDOW: Final = 4096
# Sizes that may be absent; Gemma's folders leave out what they do not change.
_SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "qwen3": {"head_dim": 128},
    "gemma3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
}
_GEMMA_PATTERN: Final = 6
_GEMMA_THETA: Final = {_FULL: 1_000_000.0, _SLIDING: 10_000.0}


def text_config(config: JSONObject) -> JSONObject:
    """Return the part of a config that is about text: all of it, but for models that are made of parts."""
    return config.child("text_config") if config.has("text_config") else config


def is_tied(config: JSONObject) -> bool:
    """Return whether the embedding is the head as well.

    Args:
        config: the whole object.

    Raises:
        ModelError: it says neither true nor false.
    """
    key, text = "tie_word_embeddings", text_config(config)
    where = text if text.has(key) else config
    return where.boolean(key, default=_family(config) == "gemma3")


def read_folder_config(config: JSONObject) -> DecoderConfig:
    """Read and check the sizes and switches of a decoder.

    Args:
        config: the whole object.

    Raises:
        ModelError: another model type, a value that is missing or of the wrong kind, sizes that do not fit
            together, or a variant that is not supported.
    """
    family, text = _family(config), text_config(config)
    gemma = family == "gemma3"
    _refuse_variants(config, text)
    sizes = _SIZES.get(family, {})
    num_layers = text.size("num_hidden_layers")
    hidden_size = text.size("hidden_size")
    num_heads = text.size("num_attention_heads", sizes.get("num_attention_heads"))
    head_dim = text.size("head_dim", sizes.get("head_dim", max(1, hidden_size // num_heads)))
    windows = _windows(family, text, num_layers)
    frequencies, kinds = _rotation(text, head_dim, windows, gemma=gemma)
    result = DecoderConfig(
        architecture=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=text.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=text.size("num_key_value_heads", sizes.get("num_key_value_heads", num_heads)),
        head_dim=head_dim,
        vocab_size=text.size("vocab_size", sizes.get("vocab_size")),
        context_len=text.size("max_position_embeddings", sizes.get("max_position_embeddings")),
        norm_epsilon=text.number("rms_norm_eps", 1e-6),
        rope_frequencies=frequencies,
        rope_kinds=kinds,
        windows=windows,
        query_scale=(text.size("query_pre_attn_scalar", 256) if gemma else head_dim) ** -0.5,
        activation=_activation(text, gemma=gemma),
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        qkv_bias=family == "qwen2",
        qk_norm=family in {"qwen3", "gemma3"},
        post_norms=gemma,
        attention_softcap=text.number("attn_logit_softcapping", 0.0),
        logit_softcap=text.number("final_logit_softcapping", 0.0),
    )
    check_config(config.path, result)
    return result


def _family(config: JSONObject) -> str:
    model_type = config.string("model_type")
    if model_type not in FAMILIES:
        raise ModelError(
            f"{config.path}: model type {model_type!r} is not supported; {', '.join(FAMILIES)} are"
        )
    return FAMILIES[model_type]


def _refuse_variants(config: JSONObject, text: JSONObject) -> None:
    for part in {id(config): config, id(text): text}.values():
        for key, what in (
            ("quantization_config", "weights that are packed in other ways than GGUF's"),
            ("vision_config", "models that see images"),
        ):
            if part.has(key):
                _refuse(part, what)
        for key, what in (
            ("attention_bias", "biases of all parts of the attention"),
            ("mlp_bias", "biases of feed-forward layers"),
            ("use_bidirectional_attention", "attention to what comes later"),
        ):
            if part.boolean(key, default=False):
                _refuse(part, what)
        if part.number("partial_rotary_factor", 1.0) != 1:
            _refuse(part, "heads that rotate in part")


def _refuse(config: JSONObject, what: str) -> NoReturn:
    raise ModelError(f"{config.path}: {what} are not supported")


def _activation(text: JSONObject, *, gemma: bool) -> Activation:
    if gemma:
        name = text.string("hidden_activation", text.string("hidden_act", "gelu_pytorch_tanh"))
    else:
        name = text.string("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"{text.path}: the activation {name!r} is not supported; {', '.join(_ACTIVATIONS)} are"
        )
    return _ACTIVATIONS[name]


def _windows(family: str, text: JSONObject, num_layers: int) -> tuple[int, ...]:
    """Return the window of each layer, 0 for none."""
    if family == "llama":
        return (0,) * num_layers
    # Here null and absent differ: null says that there is none.
    there = text.values.get("sliding_window", _DEFAULT_WINDOW) is not None
    if family.startswith("qwen"):
        there = there and text.boolean("use_sliding_window", default=False)
    window = text.size("sliding_window", _DEFAULT_WINDOW) if there else 0
    if family == "mistral":
        return (window,) * num_layers
    if text.has("layer_types"):
        types = text.strings("layer_types")
        if len(types) != num_layers or not {*types} <= {_FULL, _SLIDING}:
            raise ModelError(f"{text.path}: layer_types are not {num_layers} times {_FULL!r} or {_SLIDING!r}")
        sliding = [kind == _SLIDING for kind in types]
    elif family == "gemma3":
        pattern = text.size("sliding_window_pattern", text.size("_sliding_window_pattern", _GEMMA_PATTERN))
        sliding = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    else:
        first = text.integer("max_window_layers", 28)
        sliding = [bool(window) and layer >= first for layer in range(num_layers)]
    if any(sliding) and not window:
        raise ModelError(f"{text.path}: layers slide, but there is no sliding_window")
    return tuple(window if slides else 0 for slides in sliding)


def _rotation(
    text: JSONObject, head_dim: int, windows: tuple[int, ...], *, gemma: bool
) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    """Return the frequencies, and of each layer the row that is its own."""
    # transformers 5 keeps all in rope_parameters, by type of layer where types differ; before it, rope_theta,
    # rope_local_base_freq (of layers with a window) and rope_scaling (of layers without) lay side by side.
    parameters = text.child("rope_scaling")
    if not parameters.values:
        parameters = text.child("rope_parameters")
    theta = text.number("rope_theta", _GEMMA_THETA[_FULL] if gemma else 10_000.0)
    context = text.integer("original_max_position_embeddings", text.integer("max_position_embeddings", 0))
    if not gemma:
        return pack_frequencies([_frequencies(parameters, head_dim, theta, context)]), (0,) * len(windows)
    local_theta = text.number("rope_local_base_freq", _GEMMA_THETA[_SLIDING])
    full, sliding = parameters.child(_FULL), parameters.child(_SLIDING)
    if not (full.values or sliding.values):
        full = parameters
    rows = [
        _frequencies(full, head_dim, theta, context),
        _frequencies(sliding, head_dim, local_theta, context),
    ]
    return pack_frequencies(rows), tuple(int(window > 0) for window in windows)


def _frequencies(parameters: JSONObject, head_dim: int, theta: float, context: int) -> NDArray[np.float64]:
    """Return the frequencies of one kind of layers.

    Args:
        parameters: what is said of the rotation.
        head_dim: values of a head.
        theta: what they are powers of, unless the parameters say.
        context: tokens of the context before it was stretched, unless the parameters say.
    """
    kind = parameters.string("rope_type", parameters.string("type", "default"))
    if parameters.number("partial_rotary_factor", 1.0) != 1:
        _refuse(parameters, "heads that rotate in part")
    theta = parameters.number("rope_theta", theta)
    if theta <= 0:
        raise ModelError(f"{parameters.path}: rope_theta is {theta}, not a positive number")
    frequencies = rope_frequencies(head_dim, theta)
    if kind == "default":
        return frequencies
    if kind == "linear":
        return scale_linearly(frequencies, _positive(parameters, "factor"))
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=_positive(parameters, "factor"),
            low_freq_factor=_positive(parameters, "low_freq_factor"),
            high_freq_factor=_positive(parameters, "high_freq_factor"),
            original_context=parameters.size("original_max_position_embeddings", context),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise ModelError(f"{parameters.path}: low_freq_factor is not below high_freq_factor")
        return scale_llama3(frequencies, scaling)
    raise ModelError(
        f"{parameters.path}: rotary embeddings scaled by {kind!r} are not supported; 'linear' and 'llama3' "
        "are"
    )


def _positive(parameters: JSONObject, key: str) -> float:
    number = parameters.number(key)
    if number <= 0:
        raise ModelError(f"{parameters.path}: {key} is {number}, not a positive number")
    return number
