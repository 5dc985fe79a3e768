"""A decoder in a GGUF file: its config, its weights and what the engine has to know of it.

Families: llama (Mistral goes by that name as well), qwen2, qwen3 and gemma3. Whatever else a header asks for
is refused by name.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.decoder_config import Activation, DecoderConfig, decoder_info
from vidette.models.gather import TensorNames, check_config, gather_weights
from vidette.models.gguf import GGUFFile
from vidette.models.interface import ModelInfo
from vidette.models.json_object import MAX_SIZE
from vidette.models.rope import pack_frequencies, rope_frequencies, scale_linearly
from vidette.models.vocabulary import read_end_tokens, read_start_token, read_vocabulary
from vidette.models.weights import DecoderWeights

FAMILIES: Final = ("llama", "qwen2", "qwen3", "gemma3")

# Wherever a header does not say otherwise, the layout of all Gemma 3 models: every sixth layer sees all.
_GEMMA_PATTERN: Final = 6
_GEMMA_LOCAL_THETA: Final = 10_000.0
# The largest Gemma 3 is the one that scales queries by hidden_size / num_heads instead of head_dim.
_LARGEST_GEMMA_LAYERS: Final = 62

_ROPE_FACTORS: Final = "rope_freqs.weight"
_NAMES: Final = TensorNames(
    embedding="token_embd.weight",
    norm="output_norm.weight",
    head="output.weight",
    layer="blk.{}.",
    parts={
        "attention_norm": "attn_norm.weight",
        "query": "attn_q.weight",
        "key": "attn_k.weight",
        "value": "attn_v.weight",
        "output": "attn_output.weight",
        "ffn_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "query_bias": "attn_q.bias",
        "key_bias": "attn_k.bias",
        "value_bias": "attn_v.bias",
        "query_norm": "attn_q_norm.weight",
        "key_norm": "attn_k_norm.weight",
        "post_attention_norm": "post_attention_norm.weight",
        "post_ffn_norm": "post_ffw_norm.weight",
    },
)


def read_gguf_decoder(file: GGUFFile, name: str) -> tuple[DecoderConfig, DecoderWeights, ModelInfo]:
    """Read a decoder; its matrices stay where they are, in the mapped file.

    Args:
        file: the file.
        name: name under which the model is served.

    Raises:
        ModelError: as `read_gguf_config` and `read_gguf_info` do; a tensor is missing, has another shape
            than the header says, or belongs to no model that we compute.
    """
    config = read_gguf_config(file)
    tied = _NAMES.head not in file.tensors
    weights = gather_weights(file, config, _NAMES, tied=tied, ignored={_ROPE_FACTORS})
    return config, weights, _info(file, config, name)


def read_gguf_info(file: GGUFFile, name: str) -> ModelInfo:
    """Read what the engine has to know of a model from its header.

    Raises:
        ModelError: as `read_gguf_config` does; the tokenizer is of a kind that is not supported.
    """
    return _info(file, read_gguf_config(file), name)


def _info(file: GGUFFile, config: DecoderConfig, name: str) -> ModelInfo:
    return decoder_info(config, name, read_end_tokens(file), read_start_token(file))


def read_gguf_config(file: GGUFFile) -> DecoderConfig:
    """Read and check the sizes and switches of a decoder.

    Raises:
        ModelError: another architecture, sizes that do not fit together, or a variant that is not supported
            (mixture of experts, some scalings of rotary embeddings, partial rotation, a file in parts).
    """
    family = file.value("general.architecture", str)
    if family not in FAMILIES:
        raise ModelError(f"{file.path}: architecture {family!r} is not supported; {', '.join(FAMILIES)} are")
    header = _Header(file, family)
    header.refuse_variants()
    gemma = family == "gemma3"
    num_layers = header.size("block_count")
    if num_layers > len(file.tensors):
        raise ModelError(f"{file.path}: {num_layers} layers, but {len(file.tensors)} tensors")
    hidden_size = header.size("embedding_length")
    num_heads = header.size("attention.head_count")
    head_dim = header.size("attention.key_length", max(1, hidden_size // num_heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.size(key, head_dim) != head_dim:
            raise ModelError(
                f"{file.path}: {family}.{key} is not the {head_dim} values of a head: not supported"
            )
    queries = _rows(file, _NAMES.layer.format(0) + _NAMES.parts["query"])
    if num_heads * head_dim != queries:
        raise ModelError(f"{file.path}: {num_heads} heads of {head_dim} values, but {queries} of queries")
    windows = header.windows(num_layers, alternating=gemma)
    frequencies = [header.frequencies(head_dim)]
    if gemma:
        frequencies.append(rope_frequencies(head_dim, header.theta("rope.freq_base_swa", _GEMMA_LOCAL_THETA)))
    values_of_scale = hidden_size // num_heads if gemma and num_layers == _LARGEST_GEMMA_LAYERS else head_dim
    config = DecoderConfig(
        architecture=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=header.size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=header.size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_len=header.size("context_length"),
        norm_epsilon=header.number("attention.layer_norm_rms_epsilon"),
        rope_frequencies=pack_frequencies(frequencies),
        rope_kinds=tuple(int(gemma and window > 0) for window in windows),
        windows=windows,
        query_scale=values_of_scale**-0.5,
        activation=Activation.GELU_TANH if gemma else Activation.SILU,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        interleaved_rope=family == "llama",
        qkv_bias=family == "qwen2",
        qk_norm=family in {"qwen3", "gemma3"},
        post_norms=gemma,
        attention_softcap=header.number("attn_logit_softcapping", 0.0),
        logit_softcap=header.number("final_logit_softcapping", 0.0),
    )
    check_config(file.path, config)
    return config


class _Header:
    """The keys of one family."""

    def __init__(self, file: GGUFFile, family: str) -> None:
        self._file = file
        self._family = family

    def size(self, key: str, default: int | None = None) -> int:
        value = self._file.value(f"{self._family}.{key}", int, default)
        if not 0 < value <= MAX_SIZE:
            raise ModelError(f"{self._file.path}: {self._family}.{key} is {value}, not from 1 to {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self._file.value(f"{self._family}.{key}", float, default)

    def theta(self, key: str, default: float) -> float:
        """Return what frequencies are powers of."""
        theta = self.number(key, default)
        if not 0 < theta < np.inf:
            raise ModelError(f"{self._file.path}: {self._family}.{key} is {theta}, not a positive number")
        return theta

    def windows(self, num_layers: int, *, alternating: bool) -> tuple[int, ...]:
        """Return the window of each layer; alternating: all but every sixth layer have one, or as it says."""
        key = "attention.sliding_window"
        if not alternating and not self._file.value(f"{self._family}.{key}", int, 0):
            return (0,) * num_layers
        window = self.size(key)
        # One without a pattern has it everywhere: no layer is a multiple of what lies beyond the last one.
        pattern = self.size("attention.sliding_window_pattern", _GEMMA_PATTERN if alternating else MAX_SIZE)
        return tuple(0 if (layer + 1) % pattern == 0 else window for layer in range(num_layers))

    def frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of layers that see all positions, scaled as the header says."""
        path, family = self._file.path, self._family
        scaling = self._file.value(f"{family}.rope.scaling.type", str, "linear")
        if scaling not in {"none", "linear"}:
            raise ModelError(
                f"{path}: rotary embeddings scaled by {scaling!r} are not supported; 'linear' is, and factors"
            )
        frequencies = rope_frequencies(head_dim, self.theta("rope.freq_base", 10_000.0))
        if scaling == "linear":
            # The format writes 0 for what is not scaled.
            factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 0.0))
            frequencies = scale_linearly(frequencies, factor or 1.0)
        if _ROPE_FACTORS in self._file.tensors:
            factors = self._file.tensor(_ROPE_FACTORS)
            if factors.shape != (head_dim // 2,) or not (factors > 0).all():
                raise ModelError(
                    f"{path}: the tensor {_ROPE_FACTORS!r} is not {head_dim // 2} positive numbers, one for "
                    "each pair of values of a head"
                )
            frequencies = frequencies / factors.astype(np.float64)
        return frequencies

    def refuse_variants(self) -> None:
        if self._file.value(f"{self._family}.expert_count", int, 0):
            raise ModelError(f"{self._file.path}: mixtures of experts are not supported")
        if self._file.value("split.count", int, 1) > 1:
            raise ModelError(
                f"{self._file.path}: models in several files are not supported; merge them first"
            )


def _vocab_size(file: GGUFFile) -> int:
    vocab_size = _rows(file, _NAMES.embedding)
    num_tokens = len(read_vocabulary(file).tokens)
    if vocab_size != num_tokens:
        raise ModelError(f"{file.path}: {num_tokens} tokens, but embeddings of {vocab_size}")
    return vocab_size


def _rows(file: GGUFFile, name: str) -> int:
    info = file.tensors.get(name)
    return info.shape[0] if info else 0
