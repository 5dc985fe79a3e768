"""The Llama family in float32 over a paged KV pool: one forward per step, a loop over layers alone."""

# ruff: noqa: N803, N806, N815  tensor names end in their shape: T tokens, E hidden, H heads, K key-value heads,
# D values of a head, G heads per key-value head, R rows, Q queries, C context positions, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F  # noqa: N812

from vidette.errors import ModelError
from vidette.models.gguf import GGUFFile
from vidette.models.interface import BLOCK_SIZE, Model, ModelInfo, StepPlan
from vidette.models.llama_config import LlamaConfig, llama_info, read_llama_config
from vidette.models.paging import AttentionGroup, StepLayout, lay_out
from vidette.models.vocabulary import read_end_tokens, read_start_token


class LayerWeights(NamedTuple):
    """One layer; linear weights are [out, in]."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """Queries, keys and values of all heads, one below the other."""
    output: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    """The gate above the up projection."""
    down: torch.Tensor


class LlamaWeights(NamedTuple):
    """All weights, float32."""

    embedding_VE: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head_VE: torch.Tensor
    """The embedding itself where the model ties them."""


class Llama:
    """A Llama; implements `Model`.

    Args:
        config: sizes and constants.
        weights: rows of query and key weights in the order of GGUF files: the two values that rotate
            together are neighbours.
        info: what the engine is told.
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, info: ModelInfo) -> None:
        self.info = info
        self._config = config
        self._weights = weights
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._frequencies = 1.0 / config.rope_theta**exponents
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
    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Compute one step, as `Model.forward` says.

        The result is an inference tensor: change it in place under `torch.inference_mode()` only.
        """
        config, weights = self._config, self._weights
        layout = lay_out(plan, config.num_heads // config.num_kv_heads)
        angles = torch.from_numpy(plan.positions).float()[:, None, None] * self._frequencies
        rotation_T1D = torch.polar(torch.ones_like(angles), angles)

        x_TE = weights.embedding_VE[torch.from_numpy(plan.token_ids).long()]
        for layer, (keys, values) in zip(weights.layers, self._pools, strict=True):
            normed_TE = F.rms_norm(x_TE, (config.hidden_size,), layer.attention_norm, config.norm_epsilon)
            mixed_TE = self._attend(linear(normed_TE, layer.qkv), keys, values, rotation_T1D, layout)
            x_TE = x_TE + linear(mixed_TE, layer.output)
            normed_TE = F.rms_norm(x_TE, (config.hidden_size,), layer.ffn_norm, config.norm_epsilon)
            gate, up = linear(normed_TE, layer.gate_up).chunk(2, dim=-1)
            x_TE = x_TE + linear(F.silu(gate) * up, layer.down)

        wanted = x_TE[torch.from_numpy(plan.logit_tokens).long()]
        normed = F.rms_norm(wanted, (config.hidden_size,), weights.norm, config.norm_epsilon)
        return linear(normed, weights.head_VE)

    def _attend(
        self,
        qkv: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rotation_T1D: torch.Tensor,
        layout: StepLayout,
    ) -> torch.Tensor:
        """Write the step's keys and values into one layer's pool and attend to each row's whole context."""
        config = self._config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv_THD = qkv.view(len(qkv), num_rotated + config.num_kv_heads, config.head_dim)
        # Queries and keys rotate together: neighbouring values as one complex number each.
        pairs = torch.view_as_complex(qkv_THD[:, :num_rotated].reshape(len(qkv), num_rotated, -1, 2))
        rotated_THD = torch.view_as_real(pairs * rotation_T1D).flatten(-2)
        keys.index_copy_(0, layout.slots_T, rotated_THD[:, config.num_heads :])
        values.index_copy_(0, layout.slots_T, qkv_THD[:, num_rotated:])
        q_THD = rotated_THD[:, : config.num_heads]
        mixed = [self._attend_group(q_THD, keys, values, group) for group in layout.groups]
        mixed_TE = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return mixed_TE if layout.order_T is None else mixed_TE[layout.order_T]

    def _attend_group(
        self, q_THD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: AttentionGroup
    ) -> torch.Tensor:
        """Attend for one group of rows; returns [R * Q, heads * head_dim]."""
        config = self._config
        (rows, num_queries), slots_N = group.queries_RQ.shape, group.slots_RC.flatten()
        pool_shape = (rows, -1, config.num_kv_heads, config.head_dim)
        k_RKCD = keys.index_select(0, slots_N).view(pool_shape).transpose(1, 2)
        v_RKCD = values.index_select(0, slots_N).view(pool_shape).transpose(1, 2)
        # The G heads that share a key-value head become further queries of it: N = Q * G.
        q_RQKGD = q_THD[group.queries_RQ.flatten()].view(
            rows, num_queries, config.num_kv_heads, -1, config.head_dim
        )
        q_RKND = q_RQKGD.transpose(1, 2).flatten(2, 3)
        out_RKND = F.scaled_dot_product_attention(q_RKND, k_RKCD, v_RKCD, attn_mask=group.mask_R1NC)
        out_RQKGD = out_RKND.reshape(rows, config.num_kv_heads, num_queries, -1, config.head_dim).transpose(
            1, 2
        )
        return out_RQKGD.reshape(rows * num_queries, -1)


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


def load_llama(
    path: Path, *, name: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Model:
    """Load a Llama from a GGUF file, its weights dequantised to float32.

    Args:
        path: the file.
        name: name under which it is served (default: the file's, without ".gguf").
        progress: called with (tensors done, tensors in all).

    Raises:
        ModelError: the file is missing, damaged, or not a Llama that we compute.
    """
    file = GGUFFile(path)
    config = read_llama_config(file)
    info = llama_info(config, name or path.stem, read_end_tokens(file), read_start_token(file))
    return Llama(config, _WeightReader(file, config, progress).read(), info)


class _WeightReader:
    """Takes the tensors of a Llama from a file, each once, and checks their shapes."""

    def __init__(
        self, file: GGUFFile, config: LlamaConfig, progress: Callable[[int, int], None] | None
    ) -> None:
        self._file = file
        self._config = config
        self._progress = progress
        self._unread = set(file.tensors)

    def read(self) -> LlamaWeights:
        config = self._config
        matrix = (config.vocab_size, config.hidden_size)
        embedding = self._take("token_embd.weight", matrix)
        head = self._take("output.weight", matrix) if "output.weight" in self._unread else embedding
        weights = LlamaWeights(
            embedding_VE=embedding,
            layers=[self._layer(f"blk.{index}") for index in range(config.num_layers)],
            norm=self._take("output_norm.weight", (config.hidden_size,)),
            head_VE=head,
        )
        if self._unread:
            # A bias or an expert that we would silently leave out gives wrong answers.
            raise ModelError(
                f"{self._file.path}: the tensor {min(self._unread)!r} belongs to no Llama that we compute"
            )
        return weights

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, ffn = config.hidden_size, config.ffn_size
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def take(name: str, *shape: int) -> torch.Tensor:
            return self._take(f"{prefix}.{name}.weight", shape)

        return LayerWeights(
            attention_norm=take("attn_norm", hidden),
            qkv=torch.cat(
                [
                    take("attn_q", q_size, hidden),
                    take("attn_k", kv_size, hidden),
                    take("attn_v", kv_size, hidden),
                ]
            ),
            output=take("attn_output", hidden, q_size),
            ffn_norm=take("ffn_norm", hidden),
            gate_up=torch.cat([take("ffn_gate", ffn, hidden), take("ffn_up", ffn, hidden)]),
            down=take("ffn_down", hidden, ffn),
        )

    def _take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.from_numpy(self._file.tensor(name))
        if tensor.shape != shape:
            raise ModelError(
                f"{self._file.path}: the tensor {name!r} has shape {tuple(tensor.shape)} instead of {shape}"
            )
        self._unread.discard(name)
        if self._progress is not None:
            total = len(self._file.tensors)
            self._progress(total - len(self._unread), total)
        return tensor
