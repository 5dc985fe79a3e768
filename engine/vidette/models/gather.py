"""From a config and a file's tensors to the weights of a decoder, the same way for every format.

Each tensor is taken once and has the shape that the config says; one that is left over is an error, since a
bias or an expert that is silently left out gives wrong answers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vidette.errors import ModelError
from vidette.models.decoder_config import DecoderConfig
from vidette.models.quants import dequantize
from vidette.models.tensors import TensorFile, TensorInfo
from vidette.models.weights import DecoderLayer, DecoderWeights, Matrix, Vector


class TensorNames(NamedTuple):
    """What a format calls the tensors of a decoder."""

    embedding: str
    norm: str
    head: str
    layer: str
    """What the names of a layer's tensors begin with; `{}` is its index."""
    parts: Mapping[str, str]
    """The rest of these names, by the fields of `DecoderLayer`."""


def check_config(path: Path, config: DecoderConfig) -> None:
    """Refuse sizes that do not fit together and numbers nobody can compute with.

    Raises:
        ModelError: there are such.
    """
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % kv_heads or config.head_dim % 2:
        raise ModelError(
            f"{path}: {heads} heads of {config.head_dim} values do not fit {kv_heads} key-value heads"
        )
    frequencies = config.rope_frequencies
    if not (np.isfinite(frequencies) & (frequencies > 0)).all():
        raise ModelError(f"{path}: the frequencies of its rotary embeddings are not all positive numbers")
    for name, number in (("norm epsilon", config.norm_epsilon), ("query scale", config.query_scale)):
        if not 0 < number < math.inf:
            raise ModelError(f"{path}: its {name} is {number}, not a positive number")
    for cap in (config.attention_softcap, config.logit_softcap):
        if not 0 <= cap < math.inf:
            raise ModelError(f"{path}: it caps scores or logits at {cap}, not at a positive number")


def gather_weights(
    file: TensorFile,
    config: DecoderConfig,
    names: TensorNames,
    *,
    tied: bool,
    norm_offset: float = 0.0,
    ignored: Collection[str] = (),
) -> DecoderWeights:
    """Return the weights of a decoder: its matrices as views of the file, its vectors as float32.

    Args:
        file: where the tensors are.
        config: what they are to be.
        names: what they are called.
        tied: whether the embedding is the head as well.
        norm_offset: added to the weights of all norms.
        ignored: names of further tensors that may be there.

    Raises:
        ModelError: a tensor is missing, has another shape, or is left over.
    """
    gatherer = _Gatherer(file, config, names, norm_offset)
    matrix = (config.vocab_size, config.hidden_size)
    weights = DecoderWeights(
        embedding=gatherer.matrix(names.embedding, *matrix),
        layers=[gatherer.layer(index) for index in range(config.num_layers)],
        norm=gatherer.norm(names.norm, config.hidden_size),
        head=None if tied else gatherer.matrix(names.head, *matrix),
    )
    gatherer.check_nothing_is_left(ignored)
    return weights


class _Gatherer:
    """Takes tensors out of a file, each once."""

    def __init__(
        self, file: TensorFile, config: DecoderConfig, names: TensorNames, norm_offset: float
    ) -> None:
        self._file = file
        self._config = config
        self._names = names
        self._norm_offset = np.float32(norm_offset)
        self._left = set(file.tensors)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        info = self._take(name, (rows, columns))
        return Matrix((rows, columns), info.type, self._file.raw(name))

    def vector(self, name: str, size: int) -> Vector:
        info = self._take(name, (size,))
        return dequantize(self._file.raw(name), info.type)

    def norm(self, name: str, size: int) -> Vector:
        return self.vector(name, size) + self._norm_offset

    def layer(self, index: int) -> DecoderLayer:
        config = self._config
        hidden, ffn = config.hidden_size, config.ffn_size
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def name(part: str) -> str:
            return self._names.layer.format(index) + self._names.parts[part]

        def matrix(part: str, rows: int, columns: int) -> Matrix:
            return self.matrix(name(part), rows, columns)

        def bias(part: str, size: int) -> Vector | None:
            return self.vector(name(part), size) if config.qkv_bias else None

        def norm(part: str, size: int, *, there: bool) -> Vector | None:
            return self.norm(name(part), size) if there else None

        return DecoderLayer(
            attention_norm=self.norm(name("attention_norm"), hidden),
            query=matrix("query", q_size, hidden),
            key=matrix("key", kv_size, hidden),
            value=matrix("value", kv_size, hidden),
            output=matrix("output", hidden, q_size),
            ffn_norm=self.norm(name("ffn_norm"), hidden),
            gate=matrix("gate", ffn, hidden),
            up=matrix("up", ffn, hidden),
            down=matrix("down", hidden, ffn),
            query_bias=bias("query_bias", q_size),
            key_bias=bias("key_bias", kv_size),
            value_bias=bias("value_bias", kv_size),
            query_norm=norm("query_norm", config.head_dim, there=config.qk_norm),
            key_norm=norm("key_norm", config.head_dim, there=config.qk_norm),
            post_attention_norm=norm("post_attention_norm", hidden, there=config.post_norms),
            post_ffn_norm=norm("post_ffn_norm", hidden, there=config.post_norms),
        )

    def check_nothing_is_left(self, ignored: Collection[str]) -> None:
        if left := self._left.difference(ignored):
            raise ModelError(
                f"{self._file.path}: the tensor {min(left)!r} belongs to no {self._config.architecture} "
                "model that we compute"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ModelError(f"{self._file.path}: there is no tensor {name!r}")
        if info.shape != shape:
            raise ModelError(
                f"{self._file.path}: the tensor {name!r} has shape {info.shape} instead of {shape}"
            )
        self._left.discard(name)
        return info
