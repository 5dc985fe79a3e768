"""Every decoder on a torch device: decodes in steps of fixed shapes that can be captured, the rest eagerly.

It computes what `decoder` computes, with matrices, keys and values in the type of the device; what layers add
up to, norms, rotations and logits are float32. All that a step depends on besides its shape lies on the
device: token ids, positions, slots and block tables travel in one copy, and from them the device finds by
itself what each token sees.

A step of decodes is filled up to one of a few shapes: rows to a power of two, block tables likewise. So it is
one function over the same tensors each time, and on CUDA a graph that is captured once. The rows that fill it
up compute token 0 at position 0 of a block beyond those the scheduler knows, and nobody reads what they make.

As in `paging`, a padded position reads a slot of its own row, and the mask takes it out; so whatever other
blocks hold, even values that are not finite, it cannot leak.
"""

# ruff: noqa: N803, N806, N815  tensor names end in their shape: T tokens, E hidden, H heads, K key-value heads,
# D values of a head, P pairs of them, G heads per key-value head, R rows, Q queries, W blocks of a table,
# C context positions, N queries times G, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F  # noqa: N812

from vidette.models import accelerator
from vidette.models.accelerator import Capture
from vidette.models.best import split_logits
from vidette.models.decoder import LayerTensors, WeightLoader, attend_group, capped
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.interface import BLOCK_SIZE, ModelInfo, StepPlan, StepResult
from vidette.models.paging import AttentionGroup, find_slots, group_rows
from vidette.models.weights import DecoderWeights

_FIXED: Final = 3  # token id, position and slot of a decode go before its block table
_LEAST_WIDTH: Final = 8
"""Blocks of the smallest table of a decode."""
_MATRICES: Final = ("qkv", "output", "gate_up", "down")


class _Group(NamedTuple):
    """Rows whose attention is computed as one padded batch."""

    queries_RQ: torch.Tensor
    """int64: index of each query among the step's tokens; padding repeats the row's first."""
    tables_RW: torch.Tensor
    """int64: block numbers."""
    reach: int
    """No row has more positions than this."""


class _Step(NamedTuple):
    """A step of decodes of one shape."""

    inputs: torch.Tensor
    """int32 [R, _FIXED + W], on the device."""
    logits_RV: torch.Tensor
    run: Callable[[], None]
    """Computes the logits of what is in `inputs`."""


class DeviceDecoder:
    """A decoder on a torch device; implements `Model`. Its steps may still run when `forward` returns.

    Args:
        config: sizes and switches.
        weights: copied to the device, so that the files they are mapped from are no longer needed.
        info: what the engine is told.
        device: where it computes.
        dtype: of matrices, keys and values.
        capture: makes steps of decodes cheap to repeat; None: they are computed anew each time.
        max_rows: most rows of a step that is captured; those with more are computed eagerly.
        ahead: whether every step is captured by `allocate`, or when the first of its shape comes.
        progress: called with (matrices done, matrices in all).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        info: ModelInfo,
        *,
        device: torch.device,
        dtype: torch.dtype,
        capture: Capture | None = None,
        max_rows: int = 64,
        ahead: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        self.info = info._replace(kv_bytes_per_token=values_per_token * dtype.itemsize)
        self._config = config
        self.overlaps = device.type != "cpu"
        self._device, self.dtype = device, dtype
        self._capture, self._max_rows, self._ahead = capture, max_rows, ahead
        loader = WeightLoader(config, weights, progress)
        self._embedding_VE = self._matrix(loader.matrix(weights.embedding))
        self._layers = [self._placed(loader.layer(layer)) for layer in weights.layers]
        self._norm = self._vector(torch.from_numpy(weights.norm))
        self._head_VE = (
            self._embedding_VE if weights.head is None else self._matrix(loader.matrix(weights.head))
        )
        self._frequencies = self._vector(torch.from_numpy(config.rope_frequencies))
        self._widest = -(-config.context_len // BLOCK_SIZE)
        ordinals = torch.arange(max(max_rows, self._widest * BLOCK_SIZE))
        self._ordinals = accelerator.place(ordinals, device, torch.int64)
        self._pool = torch.empty(0)
        self._steps: dict[tuple[int, int], _Step] = {}
        self._logits_RV: dict[int, torch.Tensor] = {}

    def _matrix(self, values: torch.Tensor) -> torch.Tensor:
        return accelerator.place(values, self._device, self.dtype)

    def _vector(self, values: torch.Tensor) -> torch.Tensor:
        return accelerator.place(values, self._device, torch.float32)

    def _placed(self, layer: LayerTensors) -> LayerTensors:
        parts = layer._asdict()
        for name, values in parts.items():
            if values is not None:
                parts[name] = self._matrix(values) if name in _MATRICES else self._vector(values)
        return LayerTensors(**parts)

    # --- the pool ----------------------------------------------------------------

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool, with one block more, for the rows that fill up a step."""
        config = self._config
        # Of each layer the keys, then the values: [2 * layers, slots, kv_heads, head_dim].
        self._pool = torch.zeros(
            (2 * config.num_layers, (num_blocks + 1) * BLOCK_SIZE, config.num_kv_heads, config.head_dim),
            dtype=self.dtype,
            device=self._device,
        )
        if self._ahead:
            self._capture_all()

    @torch.inference_mode()
    def export_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        """Return copies of the keys and values in these blocks.

        Returns:
            [blocks, 2 * layers, values of a block]: of each layer the keys, then the values; float32, or the
            bits of bfloat16 as int16, which NumPy has no type for.
        """
        (places,) = self._upload(np.array(blocks, dtype=np.int32))
        copies = self._pool_by_block().index_select(1, places).transpose(0, 1)
        if self.dtype is torch.bfloat16:
            copies = copies.view(torch.int16)
        exported: NDArray[Any] = copies.contiguous().cpu().numpy()
        return exported

    @torch.inference_mode()
    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of keys and values into these blocks."""
        (places,) = self._upload(np.array(blocks, dtype=np.int32))
        payload = np.require(payload, requirements=["C", "W"])
        copies = accelerator.upload(torch.from_numpy(payload), self._device).view(self.dtype)
        self._pool_by_block().index_copy_(1, places, copies.transpose(0, 1))

    def _pool_by_block(self) -> torch.Tensor:
        """Return the pool itself as [2 * layers, blocks, values of a block]."""
        values_per_block = BLOCK_SIZE * self._config.num_kv_heads * self._config.head_dim
        return self._pool.view(len(self._pool), -1, values_per_block)

    def _upload(self, *parts: NDArray[Any]) -> list[torch.Tensor]:
        """Copy integers to the device, all at once; returns each part as int64, flat."""
        flat = np.concatenate([part.ravel() for part in parts]).astype(np.int32, copy=False)
        numbers = accelerator.upload(torch.from_numpy(flat), self._device).long()
        ends = np.cumsum([part.size for part in parts])
        return [numbers[end - part.size : end] for part, end in zip(parts, ends, strict=True)]

    # --- steps -------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> StepResult:
        """Compute one step, as `Model.forward` says; a device may not have done so yet.

        The logits are an inference tensor: change them in place under `torch.inference_mode()` only.
        """
        num_new_R = np.diff(plan.row_starts)
        if len(num_new_R) <= self._max_rows and num_new_R.max(initial=0) == num_new_R.min(initial=1) == 1:
            return split_logits(self._decode(plan), plan)
        return split_logits(self._extend(plan, num_new_R), plan)

    def _decode(self, plan: StepPlan) -> torch.Tensor:
        """Compute a step in which every row has one token."""
        rows = len(plan.positions)
        step = self._step(rows, -(-int(plan.context_lens.max()) // BLOCK_SIZE))
        self._fill(step, plan)
        step.run()
        logits = step.logits_RV[:rows]
        wanted = plan.wanted_tokens
        if len(wanted) == rows and bool((wanted == np.arange(rows)).all()):
            return logits
        return logits.index_select(0, self._upload(wanted)[0])

    def _fill(self, step: _Step, plan: StepPlan | None) -> None:
        """Tell a step what to compute; None: nothing but what fills it up."""
        inputs = np.zeros(step.inputs.shape, dtype=np.int32)
        nobodys = self._pool.shape[1] // BLOCK_SIZE - 1
        inputs[:, 2], inputs[:, _FIXED:] = nobodys * BLOCK_SIZE, nobodys
        if plan is not None:
            rows = len(plan.positions)
            width = min(plan.block_tables.shape[1], inputs.shape[1] - _FIXED)
            inputs[:rows, 0], inputs[:rows, 1] = plan.token_ids, plan.positions
            inputs[:rows, 2] = find_slots(plan.block_tables, plan.positions[:, None])[:, 0]
            inputs[:rows, _FIXED : _FIXED + width] = plan.block_tables[:, :width]
        accelerator.send(torch.from_numpy(inputs), step.inputs)

    def _step(self, rows: int, width: int) -> _Step:
        """Return the step for so many rows with tables of so many blocks; captured if it is the first."""
        shape = (_doubled(rows, self._max_rows), _doubled(max(width, _LEAST_WIDTH), self._widest))
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self._make_step(*shape)
        return step

    def _make_step(self, rows: int, width: int) -> _Step:
        if rows not in self._logits_RV:
            self._logits_RV[rows] = torch.zeros((rows, self._config.vocab_size), device=self._device)
        logits_RV = self._logits_RV[rows]
        inputs = torch.zeros((rows, _FIXED + width), dtype=torch.int32, device=self._device)
        step = _Step(inputs, logits_RV, partial(self._compute_decodes, inputs, logits_RV))
        if self._capture is None:
            return step
        self._fill(step, None)
        return step._replace(run=self._capture(step.run))

    @torch.inference_mode()
    def _capture_all(self) -> None:
        """Make the step of every shape; the largest first, so that the others fit into its memory."""
        for rows in reversed(_doublings(1, self._max_rows)):
            for width in reversed(_doublings(_LEAST_WIDTH, self._widest)):
                self._step(rows, width)

    def _compute_decodes(self, inputs: torch.Tensor, logits_RV: torch.Tensor) -> None:
        """Compute a step of decodes; its operations depend on shapes alone."""
        numbers = inputs.long()
        rows, width = len(inputs), inputs.shape[1] - _FIXED
        group = _Group(self._ordinals[:rows, None], numbers[:, _FIXED:], width * BLOCK_SIZE)
        x_TE = self._compute(numbers[:, 0], numbers[:, 1], numbers[:, 2], [group], None)
        logits_RV.copy_(self._logits(x_TE))

    def _extend(self, plan: StepPlan, num_new_R: NDArray[Any]) -> torch.Tensor:
        """Compute a step of any rows."""
        grouped, order_T = group_rows(plan, plan.context_lens)
        reaches = [int(plan.context_lens[group.rows].max()) for group in grouped]
        rows_T = np.repeat(np.arange(len(num_new_R)), num_new_R)
        parts: list[NDArray[Any]] = [
            plan.token_ids,
            plan.positions,
            find_slots(plan.block_tables[rows_T], plan.positions[:, None])[:, 0],
            plan.wanted_tokens,
            np.arange(0) if order_T is None else order_T,
        ]
        for (rows, queries_RQ), reach in zip(grouped, reaches, strict=True):
            parts += [queries_RQ, plan.block_tables[rows, : -(-reach // BLOCK_SIZE)]]
        tokens_T, positions_T, slots_T, wanted, places_T, *rest = self._upload(*parts)
        groups = [
            _Group(queries.view(part.queries_RQ.shape), tables.view(len(part.rows), -1), reach)
            for part, queries, tables, reach in zip(grouped, rest[::2], rest[1::2], reaches, strict=True)
        ]
        x_TE = self._compute(tokens_T, positions_T, slots_T, groups, None if order_T is None else places_T)
        return self._logits(x_TE.index_select(0, wanted))

    # --- layers ------------------------------------------------------------------

    def _compute(
        self,
        tokens_T: torch.Tensor,
        positions_T: torch.Tensor,
        slots_T: torch.Tensor,
        groups: Sequence[_Group],
        order_T: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute all layers.

        Args:
            tokens_T: int64, as all that follow.
            positions_T: of the tokens.
            slots_T: where their keys and values go.
            groups: every token is a query of one of them.
            order_T: place of each token in the outputs of the groups; None: its own.
        """
        config = self._config
        angles_T1P = positions_T.float()[:, None, None] * self._frequencies[:, None, None]
        # Of each kind of layers.
        turns = list(zip(angles_T1P.cos().unbind(), angles_T1P.sin().unbind(), strict=True))
        reach = max(group.reach for group in groups)
        windows = [window if 0 < window < reach else 0 for window in config.windows]
        sights = {
            window: [self._look(positions_T, group, window) for group in groups] for window in {*windows}
        }
        x_TE = self._embedding_VE.index_select(0, tokens_T).float() * config.embedding_scale
        for index, layer in enumerate(self._layers):
            keys, values = self._pool[2 * index], self._pool[2 * index + 1]
            normed_TE = self._norm_of(x_TE, layer.attention_norm)
            q_THD, k_TKD, v_TKD = self._project(normed_TE, layer, turns[config.rope_kinds[index]])
            keys.index_copy_(0, slots_T, k_TKD)
            values.index_copy_(0, slots_T, v_TKD)
            mixed = [attend_group(q_THD, keys, values, sight, config) for sight in sights[windows[index]]]
            mixed_TE = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
            if order_T is not None:
                mixed_TE = mixed_TE.index_select(0, order_T)
            added_TE = self._linear(mixed_TE, layer.output)
            if layer.post_attention_norm is not None:
                added_TE = self._norm_of(added_TE, layer.post_attention_norm)
            x_TE = x_TE + added_TE

            gate, up = self._linear(self._norm_of(x_TE, layer.ffn_norm), layer.gate_up).chunk(2, dim=-1)
            added_TE = self._linear(self._activate(gate) * up, layer.down)
            if layer.post_ffn_norm is not None:
                added_TE = self._norm_of(added_TE, layer.post_ffn_norm)
            x_TE = x_TE + added_TE
        return x_TE

    def _logits(self, x_LE: torch.Tensor) -> torch.Tensor:
        return capped(
            self._linear(self._norm_of(x_LE, self._norm), self._head_VE), self._config.logit_softcap
        )

    def _linear(self, x_TI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
        return F.linear(x_TI.to(self.dtype), weight_OI).float()

    def _norm_of(self, x_TE: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_TE, (self._config.hidden_size,), weight, self._config.norm_epsilon)

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        if self._config.activation is Activation.GELU_TANH:
            return F.gelu(gate, approximate="tanh")
        return F.silu(gate)

    def _project(
        self, x_TE: torch.Tensor, layer: LayerTensors, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values, as they are kept."""
        config = self._config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = self._linear(x_TE, layer.qkv)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        qkv_THD = qkv.view(len(qkv), num_rotated + config.num_kv_heads, config.head_dim)
        qk_THD = qkv_THD[:, :num_rotated]
        if layer.qk_norm_HD is not None:
            qk_THD = F.rms_norm(qk_THD, (config.head_dim,), None, config.norm_epsilon) * layer.qk_norm_HD
        rotated_THD = _rotate(qk_THD, *turns, interleaved=config.interleaved_rope).to(self.dtype)
        values_TKD = qkv_THD[:, num_rotated:].to(self.dtype)
        return rotated_THD[:, : config.num_heads], rotated_THD[:, config.num_heads :], values_TKD

    # --- attention ---------------------------------------------------------------

    def _look(self, positions_T: torch.Tensor, group: _Group, window: int) -> AttentionGroup:
        """Find what each query of a group sees; positions count from the first that its row's first sees."""
        queries_RQ, tables_RW, reach = group
        rows, num_queries = queries_RQ.shape
        heads_per_kv_head = self._config.num_heads // self._config.num_kv_heads
        positions_RQ = positions_T.index_select(0, queries_RQ.flatten()).view(rows, num_queries)
        last_R1 = positions_RQ.amax(dim=1, keepdim=True)
        length = min(reach, window + num_queries - 1) if window else reach
        places_RC = self._ordinals[:length].expand(rows, length)
        if window:
            places_RC = places_RC + (positions_RQ[:, :1] - window + 1).clamp(min=0)
        visible_RQC = places_RC[:, None] <= positions_RQ[:, :, None]
        if window:
            visible_RQC = visible_RQC & (places_RC[:, None] > positions_RQ[:, :, None] - window)
        visible_RQGC = visible_RQC[:, :, None].expand(-1, -1, heads_per_kv_head, -1)
        own_RC = torch.minimum(places_RC, last_R1)
        blocks_RC = tables_RW.gather(1, own_RC // BLOCK_SIZE)
        return AttentionGroup(
            queries_RQ,
            blocks_RC * BLOCK_SIZE + own_RC % BLOCK_SIZE,
            visible_RQGC.reshape(rows, 1, num_queries * heads_per_kv_head, length),
        )


def _rotate(
    x_THD: torch.Tensor, cos_T1P: torch.Tensor, sin_T1P: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """Rotate each pair of values: neighbours, or values half a head apart."""
    left_THP, right_THP = (x_THD[..., ::2], x_THD[..., 1::2]) if interleaved else x_THD.chunk(2, dim=-1)
    turned = (left_THP * cos_T1P - right_THP * sin_T1P, left_THP * sin_T1P + right_THP * cos_T1P)
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def _doubled(count: int, most: int) -> int:
    """Return the power of two from `count` on, or `most` if that is less."""
    return min(1 << (count - 1).bit_length(), most)


def _doublings(least: int, most: int) -> list[int]:
    """Return all sizes that counts up to `most` are filled up to, if none is below `least`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]
