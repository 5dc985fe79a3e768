"""Every decoder in float32 over a paged KV pool: one forward per step, a loop over layers alone.

It computes what a `DecoderConfig` says, in torch operations one can read: native kernels are tested against
it, and it serves where there are none.
"""

# ruff: noqa: N803, N806, N815  tensor names end in their shape: T tokens, E hidden, H heads, K key-value heads,
# D values of a head, P pairs of them, G heads per key-value head, R rows, Q queries, C context positions,
# V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F  # noqa: N812

from vidette.models.best import split_logits
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.interface import BLOCK_SIZE, ModelInfo, StepPlan, StepResult
from vidette.models.paging import AttentionGroup, AttentionLayout, lay_out
from vidette.models.weights import DecoderLayer, DecoderWeights, Matrix, Vector


class LayerTensors(NamedTuple):
    """One layer, float32; linear weights are [out, in]. What a config switches off is None."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """Queries, keys and values of all heads, one below the other."""
    qkv_bias: torch.Tensor | None
    qk_norm_HD: torch.Tensor | None
    """Weights of the norm of each head of queries, then of keys."""
    output: torch.Tensor
    post_attention_norm: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    """The gate above the up projection."""
    down: torch.Tensor
    post_ffn_norm: torch.Tensor | None


class Decoder:
    """A decoder; implements `Model`.

    Args:
        config: sizes and switches.
        weights: dequantised here, so that the files they are mapped from are no longer needed.
        info: what the engine is told.
        progress: called with (matrices done, matrices in all).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        info: ModelInfo,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        self.info = info._replace(kv_bytes_per_token=values_per_token * torch.float32.itemsize)
        self.overlaps = False
        self._config = config
        loader = WeightLoader(config, weights, progress)
        self._embedding_VE = loader.matrix(weights.embedding)
        self._layers = [loader.layer(layer) for layer in weights.layers]
        self._norm = torch.from_numpy(weights.norm)
        self._head_VE = self._embedding_VE if weights.head is None else loader.matrix(weights.head)
        self._frequencies = torch.from_numpy(config.rope_frequencies)
        self._pools: list[tuple[torch.Tensor, torch.Tensor]] = []

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool: per layer and slot one key and one value for each key-value head."""
        config = self._config
        shape = (config.num_layers, num_blocks * BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self._pools = list(zip(torch.zeros(shape), torch.zeros(shape), strict=True))

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.float32]:
        """Return copies of the keys and values in these blocks.

        Returns:
            float32 [blocks, 2 * layers, values of a block]: of each layer the keys, then the values.
        """
        pools, places = self._pools_by_block(), list(blocks)
        copies = np.empty((len(places), len(pools), pools[0].shape[1]), dtype=np.float32)
        for index, pool in enumerate(pools):
            copies[:, index] = pool[places]
        return copies

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of keys and values into these blocks."""
        places = list(blocks)
        for index, pool in enumerate(self._pools_by_block()):
            pool[places] = payload[:, index]

    def _pools_by_block(self) -> list[NDArray[np.float32]]:
        """Keys and values of each layer, [blocks, values of a block]: the pool itself, no copy."""
        config = self._config
        width = BLOCK_SIZE * config.num_kv_heads * config.head_dim
        return [pool.view(-1, width).numpy() for pools in self._pools for pool in pools]

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> StepResult:
        """Compute one step, as `Model.forward` says.

        The logits are an inference tensor: change them in place under `torch.inference_mode()` only.
        """
        config = self._config
        layout = lay_out(plan, config.num_heads // config.num_kv_heads, config.windows)
        angles_TP = torch.from_numpy(plan.positions).float()[:, None, None] * self._frequencies[:, None, None]
        # Of each kind of layers, [T, 1, P]: what the two values of a pair, as one complex number, turn by.
        rotations = torch.polar(torch.ones_like(angles_TP), angles_TP).unbind()

        x_TE = self._embedding_VE[torch.from_numpy(plan.token_ids).long()]
        if config.embedding_scale != 1:
            x_TE *= config.embedding_scale
        for index, layer in enumerate(self._layers):
            rotation_T1P = rotations[config.rope_kinds[index]]
            attention = layout.attention[config.windows[index]]
            normed_TE = self._rms_norm(x_TE, layer.attention_norm)
            q_THD = self._project(normed_TE, layer, rotation_T1P, self._pools[index], layout.slots_T)
            added_TE = linear(self._attend(q_THD, self._pools[index], attention), layer.output)
            if layer.post_attention_norm is not None:
                added_TE = self._rms_norm(added_TE, layer.post_attention_norm)
            x_TE = x_TE + added_TE

            normed_TE = self._rms_norm(x_TE, layer.ffn_norm)
            gate, up = linear(normed_TE, layer.gate_up).chunk(2, dim=-1)
            added_TE = linear(self._activate(gate) * up, layer.down)
            if layer.post_ffn_norm is not None:
                added_TE = self._rms_norm(added_TE, layer.post_ffn_norm)
            x_TE = x_TE + added_TE

        wanted = x_TE[torch.from_numpy(plan.wanted_tokens).long()]
        logits = linear(self._rms_norm(wanted, self._norm), self._head_VE)
        return split_logits(capped(logits, config.logit_softcap), plan)

    def _project(
        self,
        x_TE: torch.Tensor,
        layer: LayerTensors,
        rotation_T1P: torch.Tensor,
        pools: tuple[torch.Tensor, torch.Tensor],
        slots_T: torch.Tensor,
    ) -> torch.Tensor:
        """Write the step's keys and values into one layer's pool, and return its queries."""
        config = self._config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = linear(x_TE, layer.qkv)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        qkv_THD = qkv.view(len(qkv), num_rotated + config.num_kv_heads, config.head_dim)
        # Queries and keys are normed and rotate together.
        qk_THD = qkv_THD[:, :num_rotated]
        if layer.qk_norm_HD is not None:
            qk_THD = F.rms_norm(qk_THD, (config.head_dim,), None, config.norm_epsilon) * layer.qk_norm_HD
        rotated_THD = _rotate(qk_THD, rotation_T1P, interleaved=config.interleaved_rope)
        keys, values = pools
        keys.index_copy_(0, slots_T, rotated_THD[:, config.num_heads :])
        values.index_copy_(0, slots_T, qkv_THD[:, num_rotated:])
        return rotated_THD[:, : config.num_heads]

    def _attend(
        self, q_THD: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor], layout: AttentionLayout
    ) -> torch.Tensor:
        """Attend to what each query sees of its row's context; returns [T, heads * head_dim]."""
        mixed = [attend_group(q_THD, *pools, group, self._config) for group in layout.groups]
        mixed_TE = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return mixed_TE if layout.order_T is None else mixed_TE[layout.order_T]

    def _rms_norm(self, x_TE: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_TE, (self._config.hidden_size,), weight, self._config.norm_epsilon)

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        if self._config.activation is Activation.GELU_TANH:
            return F.gelu(gate, approximate="tanh")
        return F.silu(gate)


def _rotate(x_THD: torch.Tensor, rotation_T1P: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Rotate each pair of values: neighbours, or values half a head apart."""
    if interleaved:
        pairs_THP = torch.view_as_complex(x_THD.reshape(*x_THD.shape[:-1], -1, 2))
        return torch.view_as_real(pairs_THP * rotation_T1P).flatten(-2)
    pairs_THP = torch.complex(*x_THD.chunk(2, dim=-1)) * rotation_T1P
    return torch.cat((pairs_THP.real, pairs_THP.imag), dim=-1)


def attend_group(
    q_THD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: AttentionGroup,
    config: DecoderConfig,
) -> torch.Tensor:
    """Attend for one group of rows.

    Args:
        q_THD: queries of all tokens of the step.
        keys: of a layer's pool, [slots, kv_heads, head_dim], in the type of the queries.
        values: likewise.
        group: which rows, and what they see.
        config: of the decoder.

    Returns:
        [R * Q, heads * head_dim], in the type of the queries.
    """
    (rows, num_queries), slots_N = group.queries_RQ.shape, group.slots_RC.flatten()
    seen_shape = (rows, -1, config.num_kv_heads, config.head_dim)
    k_RKCD = keys.index_select(0, slots_N).view(seen_shape).transpose(1, 2)
    v_RKCD = values.index_select(0, slots_N).view(seen_shape).transpose(1, 2)
    # The G heads that share a key-value head become further queries of it: N = Q * G.
    q_RQKGD = q_THD.index_select(0, group.queries_RQ.flatten()).view(
        rows, num_queries, config.num_kv_heads, -1, config.head_dim
    )
    q_RKND = q_RQKGD.transpose(1, 2).flatten(2, 3)
    if config.attention_softcap:
        scores_RKNC = (q_RKND @ k_RKCD.transpose(-1, -2)).float() * config.query_scale
        scores_RKNC = capped(scores_RKNC, config.attention_softcap)
        shares_RKNC = scores_RKNC.masked_fill(~group.visible_R1NC, -torch.inf).softmax(dim=-1)
        out_RKND = shares_RKNC.to(q_THD.dtype) @ v_RKCD
    else:
        out_RKND = F.scaled_dot_product_attention(
            q_RKND, k_RKCD, v_RKCD, attn_mask=group.visible_R1NC, scale=config.query_scale
        )
    out_RKQGD = out_RKND.reshape(rows, config.num_kv_heads, num_queries, -1, config.head_dim)
    return out_RKQGD.transpose(1, 2).reshape(rows * num_queries, -1)


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap); 0: x as it is."""
    return torch.tanh(x / cap) * cap if cap else x


def linear(x_TI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """Return x @ weight.T, contiguous, by the way of computing it that is fastest on a CPU.

    The weight comes first: with few rows that is up to seven times faster than `torch.nn.functional.linear`
    (MKL, AVX2, two threads, weights from memory), and with many it is no slower. A single row is doubled,
    since one row alone is a matrix-vector product, which runs on one thread.
    """
    rows = len(x_TI)
    if rows == 1:
        x_TI = torch.cat((x_TI, x_TI))
    return torch.mm(weight_OI, x_TI.t()).t()[:rows].contiguous()


class WeightLoader:
    """Turns weights into float32 tensors and tells how far it is."""

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, progress: Callable[[int, int], None] | None
    ) -> None:
        self._config = config
        self._progress = progress
        self._done = 0
        parts = sum(isinstance(part, Matrix) for layer in weights.layers for part in layer)
        self._total = parts + sum(matrix is not None for matrix in (weights.embedding, weights.head))

    def matrix(self, matrix: Matrix) -> torch.Tensor:
        """Return one matrix."""
        tensor = torch.from_numpy(matrix.dequantized())
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor

    def layer(self, layer: DecoderLayer) -> LayerTensors:
        """Return all of one layer."""
        return LayerTensors(
            attention_norm=torch.from_numpy(layer.attention_norm),
            qkv=torch.cat([self.matrix(part) for part in (layer.query, layer.key, layer.value)]),
            qkv_bias=_concatenated(layer.query_bias, layer.key_bias, layer.value_bias),
            qk_norm_HD=self._norms_by_head(layer),
            output=self.matrix(layer.output),
            post_attention_norm=_tensor(layer.post_attention_norm),
            ffn_norm=torch.from_numpy(layer.ffn_norm),
            gate_up=torch.cat([self.matrix(part) for part in (layer.gate, layer.up)]),
            down=self.matrix(layer.down),
            post_ffn_norm=_tensor(layer.post_ffn_norm),
        )

    def _norms_by_head(self, layer: DecoderLayer) -> torch.Tensor | None:
        query, key = _tensor(layer.query_norm), _tensor(layer.key_norm)
        if query is None or key is None:
            return None
        config = self._config
        return torch.cat((query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)))


def _tensor(vector: Vector | None) -> torch.Tensor | None:
    return None if vector is None else torch.from_numpy(vector)


def _concatenated(*vectors: Vector | None) -> torch.Tensor | None:
    there = [torch.from_numpy(vector) for vector in vectors if vector is not None]
    return torch.cat(there) if there else None
