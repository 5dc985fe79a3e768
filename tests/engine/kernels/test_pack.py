"""Packed weights against those of the file, and that nothing of a file can do harm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from tests.engine.kernels.native import HALF_SCALES, P4_TYPES, Native, same_bits, some_data

from vidette.kernels.reference import (
    BLOCK,
    TILE,
    PackedMatrix,
    Packing,
    quants_of,
    round_to_p8,
    unpack,
)
from vidette.models.quants import FORMATS, TensorType, dequantize

EXACT = (TensorType.Q4_0, TensorType.Q4_1, TensorType.Q8_0, TensorType.Q5_0)
ROUNDED = (TensorType.Q5_1, TensorType.Q6_K, TensorType.F16, TensorType.BF16, TensorType.F32)
UNBLOCKED = (TensorType.F16, TensorType.BF16, TensorType.F32)

SOME = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
rows_of = st.integers(1, 70)
scales_of = st.sampled_from([1e-7, 1e-5, 1e-2, 1.0, 300.0])


def cols_of(tensor_type: TensorType) -> st.SearchStrategy[int]:
    """Return widths that a matrix of this type may have."""
    step = FORMATS[tensor_type].values
    return st.integers(1, 200) if step == 1 else st.integers(1, 6 if step == BLOCK else 3).map(step.__mul__)


def packed(
    native: Native, tensor_type: int, data: NDArray[np.uint8], *size: int, **options: bool
) -> PackedMatrix:
    """Pack a matrix that is to be taken."""
    matrix = native.pack(tensor_type, data, *size, **options)
    assert matrix is not None
    return matrix


def padded_blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows as blocks of 32, their ends padded with zeros: [rows, blocks, 32]."""
    rows, cols = values.shape
    blocks = np.zeros((rows, -(-cols // BLOCK) * BLOCK), dtype=np.float32)
    blocks[:, :cols] = values
    return blocks.reshape(rows, -1, BLOCK)


def assert_rounded(matrix: PackedMatrix, values: NDArray[np.float32]) -> None:
    """Check that a matrix is what `round_to_p8` makes of these values, padding included."""
    rows = len(values)
    u, d = round_to_p8(padded_blocks(values))
    quants, scales, _ = quants_of(matrix)
    np.testing.assert_array_equal(quants[:rows] + 128, u)
    np.testing.assert_array_equal(scales[:rows], d.astype(np.float32))
    assert not quants[rows:].any()
    assert not scales[rows:].any()


@pytest.mark.parametrize("tensor_type", EXACT, ids=lambda kind: kind.name)
@SOME
@given(data=st.data(), seed=seeds, rows=rows_of, scale=scales_of)
def test_types_that_fit_are_exact(
    kernels: Native, tensor_type: TensorType, data: st.DataObject, seed: int, rows: int, scale: float
) -> None:
    """The packed weights are those of the file, each of them; padding is zero."""
    cols = data.draw(cols_of(tensor_type))
    content = some_data(np.random.default_rng(seed), tensor_type, rows, cols, scale=scale)
    matrix = packed(kernels, tensor_type, content, rows, cols)
    np.testing.assert_array_equal(unpack(matrix), dequantize(content, tensor_type).reshape(rows, cols))
    for part in quants_of(matrix):
        assert not part[rows:].any()
    if matrix.packing is Packing.P8:
        assert matrix.quants.min() >= 1


@SOME
@given(seed=seeds, rows=rows_of, parts=st.integers(1, 3), scale=scales_of)
def test_q4_k_keeps_its_quants(kernels: Native, seed: int, rows: int, parts: int, scale: float) -> None:
    """Each weight of Q4_K is within half a float16 step of d times its quant, and half a step of m."""
    cols = 256 * parts
    content = some_data(np.random.default_rng(seed), TensorType.Q4_K, rows, cols, scale=min(scale, 30.0))
    matrix = packed(kernels, TensorType.Q4_K, content, rows, cols)
    q, d, m = (part[:rows].astype(np.float64) for part in quants_of(matrix))
    expected = dequantize(content, TensorType.Q4_K).reshape(rows, -1, BLOCK)
    steps = [np.maximum(np.abs(scale) * 2**-11, 2**-25)[:, :, None] * (1 + 1e-6) for scale in (d, m)]
    error = np.abs(d[:, :, None] * q + m[:, :, None] - expected)
    assert (error <= steps[0] * q + steps[1]).all()
    blocks = content.reshape(-1, 144)[:, 16:].reshape(rows, parts, 4, 1, 32)
    nibbles = np.concatenate([blocks & 15, blocks >> 4], axis=3)
    np.testing.assert_array_equal(q.reshape(nibbles.shape), nibbles)


@pytest.mark.parametrize("tensor_type", ROUNDED, ids=lambda kind: kind.name)
@SOME
@given(data=st.data(), seed=seeds, rows=rows_of, scale=scales_of)
def test_other_types_are_rounded(
    kernels: Native, tensor_type: TensorType, data: st.DataObject, seed: int, rows: int, scale: float
) -> None:
    """Types without an exact form have the stated one, at most half a step (or what is clipped) away."""
    cols = data.draw(cols_of(tensor_type))
    content = some_data(np.random.default_rng(seed), tensor_type, rows, cols, scale=scale)
    values = dequantize(content, tensor_type).reshape(rows, cols)
    matrix = packed(kernels, tensor_type, content, rows, cols)
    assert_rounded(matrix, values)
    steps = np.repeat(quants_of(matrix)[1], BLOCK, axis=1)[:rows, :cols]
    error = np.abs(unpack(matrix) - values)
    assert (error <= np.maximum(steps / 2, np.abs(values) - 127 * steps) * np.float32(1 + 1e-6)).all()


@pytest.mark.parametrize("scale", [0.005, 0.02, 1.0, 300.0])
@pytest.mark.parametrize("tensor_type", [*EXACT, *ROUNDED], ids=lambda kind: kind.name)
def test_weights_are_as_close_as_the_guide_says(
    kernels: Native, tensor_type: TensorType, scale: float
) -> None:
    """Exact, or within 0.004 of the largest weight of a block where that is 0.01 or more."""
    rows, cols = 100, 512
    rng = np.random.default_rng(7)
    content = some_data(rng, tensor_type, rows, cols, scale=scale)
    if tensor_type is TensorType.F32:  # with blocks that begin where the bound begins to hold
        blocks = content.view(np.float32).reshape(-1, BLOCK)
        largest = np.abs(blocks).max(axis=1, keepdims=True)
        blocks *= np.geomspace(0.01, 100 * scale, len(blocks), dtype=np.float32)[:, None] / largest
    values = padded_blocks(dequantize(content, tensor_type).reshape(rows, cols))
    error = np.abs(padded_blocks(unpack(packed(kernels, tensor_type, content, rows, cols))) - values)
    largest = np.abs(values).max(axis=2)
    stated = largest >= 0.01
    assert stated.sum() > 400
    bound = 0.0 if tensor_type in EXACT else 0.004
    assert (error.max(axis=2)[stated] <= bound * largest[stated]).all()


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda kind: kind.name)
@SOME
@given(data=st.data(), seed=seeds, rows=rows_of, scale=scales_of)
def test_every_type_can_be_forced_to_p8(
    kernels: Native, tensor_type: TensorType, data: st.DataObject, seed: int, rows: int, scale: float
) -> None:
    """Forced, a type goes through the very floats that the file stands for."""
    cols = data.draw(cols_of(tensor_type))
    content = some_data(np.random.default_rng(seed), tensor_type, rows, cols, scale=scale)
    matrix = packed(kernels, tensor_type, content, rows, cols, force_p8=True)
    assert_rounded(matrix, dequantize(content, tensor_type).reshape(rows, cols))


@settings(max_examples=60, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.floats(width=32) | st.sampled_from([3e38, 1e-45, 8.3e6, 8.32e6, 7.5e-6, 3.8e-6]),
    )
)
def test_any_floats(kernels: Native, values: NDArray[np.float32]) -> None:
    """Any floats, be they infinite, no numbers, too large or too small for float16, are rounded as stated."""
    content = values.view(np.uint8).reshape(-1)
    assert_rounded(packed(kernels, TensorType.F32, content, *values.shape), values)


@pytest.mark.parametrize("force_p8", [False, True])
@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda kind: kind.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=seeds, rows=rows_of)
def test_any_bytes(
    kernels: Native, tensor_type: TensorType, force_p8: bool, data: st.DataObject, seed: int, rows: int
) -> None:
    """Any bytes are packed; a block with a value that is not finite is no number as a whole."""
    cols = data.draw(cols_of(tensor_type))
    format_ = FORMATS[tensor_type]
    content = np.random.default_rng(seed).integers(
        0, 256, rows * cols // format_.values * format_.nbytes, dtype=np.uint8
    )
    matrix = packed(kernels, tensor_type, content, rows, cols, force_p8=force_p8)
    values = dequantize(content, tensor_type).reshape(rows, cols)
    blocks = padded_blocks(values)
    numbers = np.isfinite(padded_blocks(unpack(matrix)))
    # All of a block or, in a column of padding, nothing.
    held = padded_blocks(np.ones_like(values)) != 0
    assert (~numbers[~numbers.all(axis=2)] == held[~numbers.all(axis=2)]).all()
    assert not numbers[~np.isfinite(blocks).all(axis=2)].all(axis=1).any()
    if matrix.packing is Packing.P8:
        assert matrix.quants.min() >= 1
    small = np.isfinite(blocks).all(axis=2) & (np.abs(blocks).max(axis=2) < 30_000)
    if tensor_type is TensorType.Q4_0:  # whose m is 8 times d, however small its weights
        small &= np.abs(quants_of(matrix)[1][:rows]) < 8_000
    if tensor_type is not TensorType.Q4_K:  # whose scales may be too large though its weights are not
        assert numbers[small].all()


@pytest.mark.parametrize("tensor_type", sorted(HALF_SCALES), ids=lambda kind: kind.name)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_damaged_scale_is_not_lost(kernels: Native, tensor_type: TensorType, bad: float) -> None:
    for place in HALF_SCALES[tensor_type]:
        values, nbytes, _ = FORMATS[tensor_type]
        content = some_data(np.random.default_rng(0), tensor_type, 20, 2 * values)
        blocks = content.reshape(20, 2, nbytes)
        good = unpack(packed(kernels, tensor_type, content, 20, 2 * values))
        blocks[17, 1, place : place + 2] = np.array([bad], dtype=np.float16).view(np.uint8)
        blocks[17, 1, 4:16] |= 1  # a scale of zero would hide it
        result = unpack(packed(kernels, tensor_type, content, 20, 2 * values))
        assert np.isnan(result[17, values:]).all()
        result[17, values:] = good[17, values:]
        np.testing.assert_array_equal(result, good)


def test_a_q4_0_scale_whose_minimum_is_too_large_is_no_number(kernels: Native) -> None:
    block = np.zeros((2, 18), dtype=np.uint8)
    block[:, :2] = np.array([[8188.0], [8192.0]], dtype=np.float16).view(np.uint8)
    result = unpack(packed(kernels, TensorType.Q4_0, block.reshape(-1), 2, 32))
    assert (result[0] == -8 * 8188).all()
    assert np.isnan(result[1]).all()


def test_a_q8_0_block_with_minus_128_is_rounded(kernels: Native) -> None:
    rng = np.random.default_rng(1)
    content = some_data(rng, TensorType.Q8_0, 3, 64)
    content.reshape(3, 2, 34)[1, 1, 2 + 7] = 0x80
    values = dequantize(content, TensorType.Q8_0).reshape(3, 64)
    result = unpack(packed(kernels, TensorType.Q8_0, content, 3, 64))
    u, d = round_to_p8(values[1, 32:])
    np.testing.assert_array_equal(result[1, 32:], (u.astype(np.int32) - 128) * np.float32(d))
    result[1, 32:] = values[1, 32:]
    np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda kind: kind.name)
def test_data_need_not_be_aligned(kernels: Native, tensor_type: TensorType) -> None:
    cols = FORMATS[tensor_type].values if FORMATS[tensor_type].values > 1 else 45
    content = some_data(np.random.default_rng(2), tensor_type, 19, cols)
    moved = np.concatenate([np.zeros(1, dtype=np.uint8), content])[1:]
    first = packed(kernels, tensor_type, content, 19, cols)
    second = packed(kernels, tensor_type, moved, 19, cols)
    assert same_bits(first.quants, second.quants)
    assert same_bits(first.scales, second.scales)


def test_every_type_has_the_packing_that_is_said(kernels: Native) -> None:
    for tensor_type in TensorType:
        # The guards after the results would be overwritten, or stay within them, if it were the other.
        cols = max(FORMATS[tensor_type].values, BLOCK)
        matrix = packed(
            kernels, tensor_type, some_data(np.random.default_rng(3), tensor_type, TILE, cols), TILE, cols
        )
        assert (matrix.packing is Packing.P4) == (tensor_type in P4_TYPES)


@pytest.mark.parametrize(
    ("tensor_type", "rows", "cols"),
    [
        (4, 16, 32),
        (-1, 16, 32),
        (2, 16, 33),
        (8, 16, 31),
        (12, 16, 32),
        (14, 16, 128),
        (0, -1, 32),
        (0, 1, -32),
    ],
)
def test_what_is_refused(kernels: Native, tensor_type: int, rows: int, cols: int) -> None:
    content = np.zeros(10_000, dtype=np.uint8)
    assert kernels.pack(tensor_type, content, rows, cols) is None


@pytest.mark.parametrize("size", [(0, 32), (16, 0), (0, 0)])
def test_a_matrix_without_weights(kernels: Native, size: tuple[int, int]) -> None:
    matrix = packed(kernels, TensorType.F32, np.zeros(0, dtype=np.uint8), *size)
    assert not matrix.quants.size
