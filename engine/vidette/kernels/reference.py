"""What the native kernels compute, in NumPy: the specification that they are tested against.

Arrays are float32 unless said otherwise. Where the order of float32 operations decides a bit, it is stated;
sums that a kernel may take in an order of its own are taken in float64 here.

A packed matrix [outputs, inputs] is a row of tiles of 16 outputs, a tile a row of blocks of 32 inputs, padded
with weights of zero (`source/pack.hpp` has the places of the bytes). In P4 a weight is d * q + m with q in
0..15, in P8 it is d * (u - 128) with u in 1..255; d and m are float16, one of each for an output and block.
"""

# ruff: noqa: N803, N806, N815  array names end in their shape: N rows, T tokens, H heads, K key-value heads, D values
# of a head, O outputs, B blocks of a row of a matrix, I inputs of a block, S slots of a context

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]

TILE: Final = 16
"""Outputs that are computed together."""
BLOCK: Final = 32
"""Inputs that share a scale."""
SLOTS: Final = 16
"""Tokens of one block of a KV pool."""
TINIEST: Final = np.float32(1e-30)
"""A block of activations none of which is as large counts as zero."""


class Packing(enum.IntEnum):
    """Forms of a packed matrix; the values are those of the native kernels."""

    P4 = 0
    P8 = 1


class PackedMatrix(NamedTuple):
    """A packed matrix."""

    packing: Packing
    shape: tuple[int, int]
    """Outputs and inputs, without padding."""
    quants: NDArray[np.uint8]
    """[tiles * blocks * 256] of P4, twice as many of P8."""
    scales: NDArray[np.uint16]
    """float16 bits, [tiles * blocks * 32] of P4 (d of 16 outputs, then m), half as many of P8 (d)."""


class Quantized(NamedTuple):
    """Rows of activations in 8 bits: a value is about its block's scale times its quant."""

    quants_NBI: NDArray[np.int8]
    scales_NB: Floats
    sums_NB: Integers
    """Of the quants."""


def packed_sizes(packing: Packing, rows: int, cols: int) -> tuple[int, int]:
    """Return how many bytes of quants and how many scales a packed matrix has."""
    blocks = -(-rows // TILE) * -(-cols // BLOCK)
    return (blocks * 256, blocks * 32) if packing is Packing.P4 else (blocks * 512, blocks * 16)


def quants_of(matrix: PackedMatrix) -> tuple[NDArray[np.int32], Floats, Floats]:
    """Take a packed matrix apart, padding included.

    Returns:
        q [O, B, 32], int32 (of P8: u - 128); d and m [O, B] (of P8 m is 0): weights are d * q + m.
    """
    blocks = -(-matrix.shape[1] // BLOCK)
    scales = matrix.scales.view(np.float16).astype(np.float32)
    if matrix.packing is Packing.P4:
        # Bytes are [tile, block, chunk, output, i]; a further axis, their halves: input 8 chunk + 4 half + i.
        packed = matrix.quants.reshape(-1, blocks, 4, TILE, 4)
        halves = np.stack([packed & 0x0F, packed >> 4], axis=3)
        q = halves.transpose(0, 4, 1, 2, 3, 5).reshape(-1, blocks, BLOCK).astype(np.int32)
        d, m = scales.reshape(-1, blocks, 2, TILE).transpose(2, 0, 3, 1).reshape(2, -1, blocks)
        return q, d, m
    packed = matrix.quants.reshape(-1, blocks, 8, TILE, 4)
    q = packed.transpose(0, 3, 1, 2, 4).reshape(-1, blocks, BLOCK).astype(np.int32) - 128
    d = scales.reshape(-1, blocks, TILE).transpose(0, 2, 1).reshape(-1, blocks)
    return q, d, np.zeros_like(d)


def unpack(matrix: PackedMatrix) -> Floats:
    """Return the weights, [outputs, inputs]: d * q + m, in this order."""
    q, d, m = quants_of(matrix)
    rows, cols = matrix.shape
    weights: Floats = d[:, :, None] * q.astype(np.float32) + m[:, :, None]
    return weights.reshape(len(q), -1)[:rows, :cols]


def round_to_p8(values: Floats) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Round weights as the formats that have no exact P8 form are rounded.

    d = float16(max|w| / 127), u = 128 + rint(w / d), clipped to 1..255, since a subnormal d may be too small;
    u = 128 where d is 0. A block with a value that is not finite, or whose d would not be, has d = nan and
    u = 128.

    Args:
        values: [..., 32].

    Returns:
        u [..., 32] and d [...].
    """
    with np.errstate(all="ignore"):
        d = (np.abs(values).max(axis=-1) / np.float32(127)).astype(np.float16)
        d = np.where(np.isfinite(d), d, np.float16(np.nan))
        usable = np.isfinite(d) & (d != 0)
        steps = np.where(usable, d, 1).astype(np.float32)[..., None]
        quants = np.where(usable[..., None], np.rint(values / steps), 0).clip(-127, 127)
    return (quants + 128).astype(np.uint8), d


def quantize_rows(x: Floats) -> Quantized:
    """Quantise activations [N, inputs], each block of 32 of each row by itself.

    With s = max|x| / 127: q = rint(x * (1 / s)), half to even, clipped to +-127. A block below `TINIEST` is
    zero, s = 0. A block with a value that is not finite has s = nan and q = 0: the row's outputs are all nan.
    """
    num_rows, width = x.shape
    padded = np.zeros((num_rows, -(-width // BLOCK) * BLOCK), dtype=np.float32)
    padded[:, :width] = x
    blocks = padded.reshape(num_rows, -1, BLOCK)
    most = np.abs(blocks).max(axis=2)
    finite = np.isfinite(most)
    usable = finite & (most >= TINIEST)
    scales: Floats = (np.where(usable, most, 127) / np.float32(127)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        quants = np.rint(blocks * (np.float32(1) / scales)[:, :, None]).clip(-127, 127)
    quants = np.where(usable[:, :, None], quants, 0).astype(np.int8)
    scales = np.where(usable, scales, np.where(finite, 0, np.nan)).astype(np.float32)
    return Quantized(quants, scales, quants.sum(axis=2, dtype=np.int32))


def linear(x: Floats, matrix: PackedMatrix) -> Floats:
    """Return y [N, outputs] = x @ weights.T with `quantize_rows(x)` in the place of x.

    y[o] = sum over blocks b, first to last, of
        s[b] * (d[o, b] * sum_k q[o, b, k] * a[b, k] + m[o, b] * sum_k a[b, k])
    in float32; the sums over k are of integers and exact. A kernel may fuse a product with the sum after it.
    """
    activations = quantize_rows(x)
    q_OBI, d_OB, m_OB = quants_of(matrix)
    y = np.zeros((len(x), len(q_OBI)), dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for b in range(q_OBI.shape[1]):
            # Products of integers below 2^24 are exact in float64, and their multiplication is fast.
            dots = activations.quants_NBI[:, b].astype(np.float64) @ q_OBI[:, b].T.astype(np.float64)
            sums = activations.sums_NB[:, b, None].astype(np.float32)
            terms = d_OB[:, b] * dots.astype(np.float32) + m_OB[:, b] * sums
            y += activations.scales_NB[:, b, None] * terms
    return y[:, : matrix.shape[0]]


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """Return x * f * weight for rows x [N, size], in this order, f = 1 / sqrt(mean(x^2) + epsilon).

    Squares are float32; the order of their sum is the kernel's own, and that of one row whatever the others.
    """
    mean = np.square(x.astype(np.float64)).mean(axis=1, keepdims=True)
    factor: Floats = (1.0 / np.sqrt(mean + epsilon)).astype(np.float32)
    return x * factor * weight


def rotate(x_THD: Floats, positions: Integers, frequencies: Floats, *, interleaved: bool) -> Floats:
    """Rotate pairs (a, b) of each head by angle t: (a cos t - b sin t, a sin t + b cos t).

    Args:
        x_THD: queries or keys.
        positions: of each token.
        frequencies: [D / 2]; t = float32(position) * frequency, one float32 product.
        interleaved: whether a pair is two neighbours; else its second is half a head after its first.
    """
    angles = (positions.astype(np.float32)[:, None] * frequencies)[:, None, :].astype(np.float64)
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    half = x_THD.shape[2] // 2
    first, second = (
        (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    )
    a, b = x_THD[:, :, first], x_THD[:, :, second]
    result = np.empty_like(x_THD)
    result[:, :, first] = a * cosines - b * sines
    result[:, :, second] = a * sines + b * cosines
    return result


def softcap(x: Floats, cap: float) -> Floats:
    """Return cap * tanh(x / cap)."""
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def best_tokens(logits: Floats) -> NDArray[np.int64]:
    """Return the token with the largest logit of each row, of equal ones the first.

    It is -1 if the largest is not finite, or one of them is not a number.

    Args:
        logits: [N, vocabulary], softcapped if that is to be.
    """
    tokens = logits.argmax(axis=1)
    largest = logits.max(axis=1)  # not a number if one is none
    return np.where(np.isfinite(largest), tokens, -1)


def gated(gate: Floats, up: Floats, activation: int) -> Floats:
    """Return activation(gate) * up.

    Args:
        gate: any shape.
        up: the same.
        activation: 0 is SiLU, g / (1 + e^-g); 1 is GELU by its approximation with tanh,
            g / 2 * (1 + tanh(z)), z = sqrt(2 / pi) * (g + 0.044715 g^3).
    """
    g = gate.astype(np.float64)
    if activation == 0:
        # g / (1 + e^-g) without the overflow of e^-g.
        activated = g * (0.5 + 0.5 * np.tanh(g / 2))
    else:
        activated = g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    return activated.astype(np.float32) * up


class PagedRows(NamedTuple):
    """The rows of a step, and where their contexts lie in a KV pool."""

    positions_T: Integers
    """Place of each token in its own row's context."""
    row_starts: Integers
    """[rows + 1]: row r has tokens row_starts[r] up to row_starts[r + 1]."""
    block_tables: Integers
    """[rows, blocks]: block of the pool with positions 16 * i up to 16 * i + 16 of the row."""


def pool_shape(num_blocks: int, num_kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """Return the shape of the KV pool (float16) of one layer: of each block keys, then values."""
    return (num_blocks, 2, num_kv_heads * SLOTS * head_dim)


def write_pool(pool: NDArray[np.float16], k_TKD: Floats, v_TKD: Floats, rows: PagedRows) -> None:
    """Write the keys and values of new tokens where they belong, rounded to float16."""
    _, num_kv_heads, head_dim = k_TKD.shape
    keys = pool[:, 0].reshape(-1, num_kv_heads, head_dim, SLOTS)
    values = pool[:, 1].reshape(-1, num_kv_heads, SLOTS, head_dim)
    row_of_T = np.repeat(np.arange(len(rows.block_tables)), np.diff(rows.row_starts))
    blocks, slots = rows.block_tables[row_of_T, rows.positions_T // SLOTS], rows.positions_T % SLOTS
    with np.errstate(over="ignore"):
        keys[blocks, :, :, slots] = k_TKD.astype(np.float16)
        values[blocks, :, slots] = v_TKD.astype(np.float16)


def attend(
    q_THD: Floats,
    pool: NDArray[np.float16],
    rows: PagedRows,
    num_kv_heads: int,
    *,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
) -> Floats:
    """Return, of each token and head, the mean of values weighted by softmax(scores), [T, H, D].

    A token at position p sees positions 0..p of its own row, or the last `window` of these; what slots beyond
    the row's context hold, be it no numbers, has no part in it. Its score for a key is scale * (q . k), then
    softcapped. Head h reads key-value head h // (H / K).

    The order of sums is the kernel's own, but depends on position and window alone: a token's result is the
    same bits alone or among others, in whatever chunks its row was written, on any number of threads.

    Args:
        q_THD: queries.
        pool: float16, shaped as `pool_shape` says; the step's own keys and values are in it.
        rows: where to look.
        num_kv_heads: K.
        scale: of the scores.
        window: positions a token sees, its own included; 0: all.
        cap: of the softcap; 0: none.
    """
    num_tokens, num_heads, head_dim = q_THD.shape
    keys = pool[:, 0].reshape(-1, num_kv_heads, head_dim, SLOTS)
    values = pool[:, 1].reshape(-1, num_kv_heads, SLOTS, head_dim)
    row_of_T = np.repeat(np.arange(len(rows.block_tables)), np.diff(rows.row_starts))
    result = np.empty_like(q_THD)
    for token in range(num_tokens):
        end = int(rows.positions_T[token]) + 1
        start = max(0, end - window) if window else 0
        seen = np.arange(start, end)
        blocks, slots = rows.block_tables[row_of_T[token], seen // SLOTS], seen % SLOTS
        k_SKD = keys[blocks, :, :, slots].astype(np.float64)
        v_SKD = values[blocks, :, slots].astype(np.float64)
        q_KGD = q_THD[token].reshape(num_kv_heads, -1, head_dim).astype(np.float64)
        scores = scale * np.einsum("kgd,skd->kgs", q_KGD, k_SKD)
        if cap:
            scores = cap * np.tanh(scores / cap)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        result[token] = np.einsum("kgs,skd->kgd", weights, v_SKD).reshape(num_heads, head_dim)
    return result
