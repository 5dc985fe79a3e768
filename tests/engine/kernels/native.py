"""The native kernels with NumPy arrays for arguments, and what to feed them."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidette.kernels.reference import (
    PackedMatrix,
    Packing,
    PagedRows,
    packed_sizes,
)
from vidette.models import StepPlan
from vidette.models.quants import FORMATS, TensorType

Floats = NDArray[np.float32]

P4_TYPES = frozenset({TensorType.Q4_0, TensorType.Q4_1, TensorType.Q4_K})
HALF_SCALES = {
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q6_K: (208,),
}
"""Bytes of a block where its float16 scales begin."""

_GUARD = 64
_STALE = 0xA5


class AttentionArguments(ctypes.Structure):
    """What `vidette_test_attention` takes."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "window")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("rows", "tokens", "blocks_per_row", "num_blocks")),
        *((name, ctypes.c_int32) for name in ("threads", "reserved")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "positions", "row_starts", "block_tables")),
        *((name, ctypes.c_void_p) for name in ("pool", "out")),
    )


class Native:
    """The kernels of one target; each call checks that nothing was written past the end of a result."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def pack(
        self, tensor_type: int, data: NDArray[np.uint8], rows: int, cols: int, *, force_p8: bool = False
    ) -> PackedMatrix | None:
        """Pack a matrix; None: refused, and nothing was written."""
        packing = Packing.P4 if tensor_type in P4_TYPES and not force_p8 else Packing.P8
        num_quants, num_scales = packed_sizes(packing, max(rows, 0), max(cols, 0))
        quants, scales = _stale(num_quants, np.uint8), _stale(num_scales, np.uint16)
        refused = self.library.vidette_pack(
            ctypes.c_int32(tensor_type),
            _pointer(data),
            ctypes.c_int64(rows),
            ctypes.c_int64(cols),
            ctypes.c_int32(force_p8),
            _pointer(quants),
            _pointer(scales),
        )
        if refused:
            _check_stale(quants, 0)
            _check_stale(scales, 0)
            return None
        _check_stale(quants, num_quants)
        _check_stale(scales, num_scales)
        return PackedMatrix(packing, (rows, cols), quants[:num_quants], scales[:num_scales])

    def linear(self, x: Floats, matrix: PackedMatrix, *, threads: int = 1) -> Floats:
        """Return x @ weights.T."""
        rows, cols = matrix.shape
        assert x.shape[1] == cols
        y = _stale(len(x) * rows, np.float32)
        failed = self.library.vidette_test_linear(
            ctypes.c_int32(matrix.packing),
            _pointer(matrix.quants),
            _pointer(matrix.scales),
            ctypes.c_int64(rows),
            ctypes.c_int64(cols),
            _pointer(np.ascontiguousarray(x)),
            ctypes.c_int64(len(x)),
            _pointer(y),
            ctypes.c_int32(threads),
        )
        assert not failed
        _check_stale(y, len(x) * rows)
        return y[: len(x) * rows].reshape(len(x), rows)

    def attend(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        pool: NDArray[np.float16],
        rows: PagedRows,
        *,
        scale: float,
        window: int = 0,
        cap: float = 0.0,
        threads: int = 1,
    ) -> Floats:
        """Write the new keys and values into the pool, then attend."""
        num_tokens, num_heads, head_dim = q.shape
        out = _stale(q.size, np.float32)
        inputs: tuple[NDArray[Any], ...] = (q, k, v, rows.positions_T, rows.row_starts, rows.block_tables)
        kept = [np.ascontiguousarray(array) for array in inputs]
        arguments = AttentionArguments(
            *(num_heads, k.shape[1], head_dim, window, scale, cap),
            *(len(rows.block_tables), num_tokens, rows.block_tables.shape[1], len(pool), threads, 0),
            *(_pointer(array) for array in (*kept, pool, out)),
        )
        assert not self.library.vidette_test_attention(ctypes.byref(arguments))
        _check_stale(out, q.size)
        return out[: q.size].reshape(q.shape)

    def rms_norm(self, x: Floats, weight: Floats, epsilon: float) -> Floats:
        """Return the normed rows of x."""
        y = _stale(x.size, np.float32)
        rows, size = x.shape
        assert not self.library.vidette_test_norm(
            _pointer(x),
            _pointer(weight),
            ctypes.c_int64(rows),
            ctypes.c_int64(size),
            ctypes.c_float(epsilon),
            _pointer(y),
        )
        _check_stale(y, x.size)
        return y[: x.size].reshape(x.shape)

    def rotate(
        self, x: Floats, positions: NDArray[np.int32], frequencies: Floats, *, interleaved: bool
    ) -> Floats:
        """Return rotated heads."""
        rotated = x.copy()
        assert not self.library.vidette_test_rotate(
            _pointer(rotated),
            _pointer(positions),
            _pointer(frequencies),
            *(ctypes.c_int64(size) for size in x.shape),
            ctypes.c_int32(interleaved),
        )
        return rotated

    def gated(self, gate: Floats, up: Floats, activation: int) -> Floats:
        """Return activation(gate) * up."""
        y = _stale(gate.size, np.float32)
        assert not self.library.vidette_test_gate(
            _pointer(gate), _pointer(up), ctypes.c_int64(gate.size), ctypes.c_int32(activation), _pointer(y)
        )
        _check_stale(y, gate.size)
        return y[: gate.size]

    def best(self, logits: Floats, *, threads: int = 1) -> NDArray[np.int64]:
        """Return the best token of each row."""
        rows, vocab = logits.shape
        tokens = _stale(rows, np.int64)
        assert not self.library.vidette_test_best(
            _pointer(logits),
            ctypes.c_int64(rows),
            ctypes.c_int64(vocab),
            _pointer(tokens),
            ctypes.c_int32(threads),
        )
        _check_stale(tokens, rows)
        return tokens[:rows]

    def exp(self, x: Floats) -> Floats:
        """Return e^x."""
        y = _stale(x.size, np.float32)
        assert not self.library.vidette_test_exp(_pointer(x), ctypes.c_int64(x.size), _pointer(y))
        _check_stale(y, x.size)
        return y[: x.size]


class Part(NamedTuple):
    """Some tokens of one row."""

    tokens: list[int]
    start: int
    table: list[int]


def make_plan(parts: list[Part], *, all_logits: bool = False) -> StepPlan:
    """A step of these parts, with the logits after the last token of each, or after all."""
    counts = [len(part.tokens) for part in parts]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tables = np.zeros((len(parts), max(len(part.table) for part in parts)), dtype=np.int32)
    for row, part in enumerate(parts):
        tables[row, : len(part.table)] = part.table
    return StepPlan(
        token_ids=np.array([token for part in parts for token in part.tokens], dtype=np.int32),
        positions=np.concatenate(
            [np.arange(p.start, p.start + len(p.tokens), dtype=np.int32) for p in parts]
        ),
        row_starts=starts,
        context_lens=np.array([part.start + len(part.tokens) for part in parts], dtype=np.int32),
        block_tables=tables,
        logit_tokens=np.arange(starts[-1], dtype=np.int32) if all_logits else starts[1:] - 1,
        best_tokens=np.zeros(0, dtype=np.int32),
    )


def some_data(
    rng: np.random.Generator, tensor_type: TensorType, rows: int, cols: int, *, scale: float = 0.01
) -> NDArray[np.uint8]:
    """Return a matrix as a file has it: any quants, scales around `scale`."""
    values, nbytes, _ = FORMATS[tensor_type]
    weights = rng.normal(scale=scale, size=(rows, cols)).astype(np.float32)
    if tensor_type is TensorType.F32:
        return weights.view(np.uint8).reshape(-1)
    if tensor_type is TensorType.F16:
        return weights.astype(np.float16).view(np.uint8).reshape(-1)
    if tensor_type is TensorType.BF16:
        return (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    blocks = rng.integers(0, 256, (rows * cols // values, nbytes), dtype=np.uint8)
    for place in HALF_SCALES[tensor_type]:
        scales = rng.normal(scale=scale, size=len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if tensor_type is TensorType.Q8_0:  # whose writers leave out -128
        blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81
    return blocks.reshape(-1)


def some_matrix(
    rng: np.random.Generator, packing: Packing, rows: int, cols: int, *, scale: float = 0.01
) -> PackedMatrix:
    """Return a packed matrix of any quants, padding included, which must not matter."""
    num_quants, num_scales = packed_sizes(packing, rows, cols)
    quants = rng.integers(1 if packing is Packing.P8 else 0, 256, num_quants, dtype=np.uint8)
    scales = rng.normal(scale=scale, size=num_scales).astype(np.float16).view(np.uint16)
    return PackedMatrix(packing, (rows, cols), quants, scales)


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether two arrays are the same, bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _stale(size: int, dtype: type) -> NDArray[Any]:
    """Return memory that holds something, with a guard after its end."""
    item = np.dtype(dtype).itemsize
    return np.full((size + _GUARD) * item, _STALE, dtype=np.uint8).view(dtype)


def _check_stale(array: NDArray[Any], end: int) -> None:
    assert (array[end:].view(np.uint8) == _STALE).all()


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)
