"""The weights of a decoder as its file holds them: mapped, not copied, in whatever type they have.

Readers of files (`gguf_decoder`, `folder`) make a `DecoderWeights`; the torch forward dequantises its
matrices, the native kernels repack them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.models.quants import TensorType, dequantize

Vector = NDArray[np.float32]


class Matrix(NamedTuple):
    """A matrix [out, in]; blocks of quantised types lie along its rows."""

    shape: tuple[int, int]
    type: TensorType
    data: NDArray[np.uint8]
    """[bytes] of the whole matrix, row after row; may be mapped from a file, and is not to be written."""

    def dequantized(self) -> NDArray[np.float32]:
        """Return its values, a new float32 array [out, in]."""
        return dequantize(self.data, self.type).reshape(self.shape)


class DecoderLayer(NamedTuple):
    """One layer. Norm weights are what a normed value is multiplied by (Gemma's one is added already)."""

    attention_norm: Vector
    """[hidden]"""
    query: Matrix
    """[heads * head_dim, hidden]"""
    key: Matrix
    """[kv_heads * head_dim, hidden]"""
    value: Matrix
    """[kv_heads * head_dim, hidden]"""
    output: Matrix
    """[hidden, heads * head_dim]"""
    ffn_norm: Vector
    """[hidden]"""
    gate: Matrix
    """[ffn, hidden]"""
    up: Matrix
    """[ffn, hidden]"""
    down: Matrix
    """[hidden, ffn]"""
    query_bias: Vector | None = None
    key_bias: Vector | None = None
    value_bias: Vector | None = None
    query_norm: Vector | None = None
    """[head_dim]"""
    key_norm: Vector | None = None
    """[head_dim]"""
    post_attention_norm: Vector | None = None
    """[hidden]"""
    post_ffn_norm: Vector | None = None
    """[hidden]"""


class DecoderWeights(NamedTuple):
    """All weights of a decoder."""

    embedding: Matrix
    """[vocab, hidden]"""
    layers: list[DecoderLayer]
    norm: Vector
    """[hidden]"""
    head: Matrix | None = None
    """[vocab, hidden]; None: the embedding is the head as well."""
