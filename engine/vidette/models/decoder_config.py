"""What a decoder-only transformer is: sizes and switches, the same for every family and every file format.

A family is a set of values here, not a class: Llama, Mistral, Qwen and Gemma differ in a handful of switches.
The torch forward (`decoder`) and the native kernels compute whatever this says.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.interface import ModelInfo

_BYTES_PER_VALUE: Final = 2  # as native kernels keep keys and values; torch on a CPU takes twice that


class Activation(enum.IntEnum):
    """What the gate of a feed-forward layer goes through; the values are those of the native kernels."""

    SILU = 0
    GELU_TANH = 1
    """GELU by its approximation with tanh."""


class DecoderConfig(NamedTuple):
    """Sizes and switches of a decoder.

    One layer is x += post_attention_norm(output(attend(attention_norm(x)))), then, with y = ffn_norm(x),
    x += post_ffn_norm(down(activation(gate(y)) * up(y))). The two norms of what is added: with `post_norms`.
    """

    architecture: str
    """Family, as GGUF files name it: "llama", "mistral", "qwen2", "qwen3" or "gemma3"."""
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    norm_epsilon: float
    rope_frequencies: NDArray[np.float32]
    """[kinds, head_dim / 2]: radians per position of each pair of values; scaling, if any, is in it."""
    rope_kinds: tuple[int, ...]
    """Of each layer: which row of `rope_frequencies` is its own."""
    windows: tuple[int, ...]
    """Of each layer: how many positions a token sees, its own included; 0: all."""
    query_scale: float
    """What scores are multiplied by; mostly head_dim ** -0.5."""
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    """What embeddings are multiplied by on their way in."""
    interleaved_rope: bool = False
    """Whether the two values that rotate together are neighbours (Llama in GGUF); else half a head apart."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Whether each head's query and key are normed, before they rotate."""
    post_norms: bool = False
    attention_softcap: float = 0.0
    """c of c * tanh(score / c); 0: none."""
    logit_softcap: float = 0.0
    """The same for logits."""


def decoder_info(
    config: DecoderConfig, name: str, eos_token_ids: frozenset[int], bos_token_id: int | None
) -> ModelInfo:
    """Return what the engine has to know of a decoder."""
    values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return ModelInfo(
        name=name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        context_len=config.context_len,
        eos_token_ids=eos_token_ids,
        kv_bytes_per_token=values_per_token * _BYTES_PER_VALUE,
        bos_token_id=bos_token_id,
    )
