"""Products with packed matrices against the reference, and the bits of a row whatever is beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.kernels.native import Native, same_bits, some_data, some_matrix

from vidette.kernels.reference import (
    BLOCK,
    PackedMatrix,
    Packing,
    linear,
    quantize_rows,
    quants_of,
    unpack,
)
from vidette.models.quants import TensorType

Floats = NDArray[np.float32]

SOME = settings(max_examples=25, deadline=None)
EPSILON = 2.0**-24
seeds = st.integers(0, 2**32 - 1)
outputs_of = st.integers(1, 70)
inputs_of = st.integers(1, 300)
packings = st.sampled_from(Packing)


def room_of(x: Floats, matrix: PackedMatrix) -> NDArray[np.float64]:
    """Return how far float32 sums of the same terms may lie apart, [rows, outputs]."""
    a = quantize_rows(x)
    q, d, m = (part.astype(np.float64) for part in quants_of(matrix))
    scales = a.scales_NB.astype(np.float64)
    dots = np.abs(np.einsum("nbk,obk->nob", a.quants_NBI.astype(np.float64), q)) * np.abs(d)
    sums = np.abs(a.sums_NB.astype(np.float64))[:, None] * np.abs(m)
    terms = np.einsum("nb,nob->no", scales, dots + sums)
    # Four roundings of a term, and one of each sum; then as much of the other side's.
    room: NDArray[np.float64] = 2 * (4 + q.shape[1]) * EPSILON * terms[:, : matrix.shape[0]] + 1e-36
    return room


def assert_product(y: Floats, x: Floats, matrix: PackedMatrix) -> None:
    """Check a product: integers are exact, so it is as near the reference as rounding allows."""
    expected = linear(x, matrix)
    error = np.abs(y.astype(np.float64) - expected)
    assert (error <= room_of(x, matrix)).all()


@SOME
@given(
    seed=seeds,
    packing=packings,
    outputs=outputs_of,
    inputs=inputs_of,
    rows=st.integers(1, 20),
    scale=st.sampled_from([1e-25, 1e-6, 1.0, 1e4, 1e30]),
)
def test_products(
    kernels: Native, seed: int, packing: Packing, outputs: int, inputs: int, rows: int, scale: float
) -> None:
    """Any product is that of the reference but for roundings of float32 sums; padding has no part in it."""
    rng = np.random.default_rng(seed)
    matrix = some_matrix(rng, packing, outputs, inputs)
    x = rng.normal(scale=scale, size=(rows, inputs)).astype(np.float32)
    assert_product(kernels.linear(x, matrix), x, matrix)


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 64, 255, 256])
def test_numbers_of_rows(kernels: Native, packing: Packing, rows: int) -> None:
    rng = np.random.default_rng(rows)
    matrix = some_matrix(rng, packing, 33, 96)
    x = rng.normal(size=(rows, 96)).astype(np.float32)
    assert_product(kernels.linear(x, matrix, threads=2), x, matrix)


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integers(kernels: Native, packing: Packing, sign: int) -> None:
    # Whatever a kernel sums products in has to hold the sum of a whole block.
    for quant in (0, 255) if packing is Packing.P4 else (1, 255):
        drawn = some_matrix(np.random.default_rng(0), packing, 16, 64)
        matrix = drawn._replace(quants=np.full_like(drawn.quants, quant))
        x = np.full((5, 64), sign * 2.5, dtype=np.float32)
        assert_product(kernels.linear(x, matrix), x, matrix)
        x[:, ::2] *= -1
        assert_product(kernels.linear(x, matrix), x, matrix)


@pytest.mark.parametrize(
    "tensor_type", [TensorType.Q4_0, TensorType.Q4_1, TensorType.Q4_K, TensorType.Q8_0, TensorType.F32]
)
def test_products_with_weights_of_files(kernels: Native, tensor_type: TensorType) -> None:
    """What is computed is x @ w.T, as far from it as the quantisation of x explains."""
    rng = np.random.default_rng(tensor_type)
    matrix = kernels.pack(tensor_type, some_data(rng, tensor_type, 50, 512), 50, 512)
    assert matrix is not None
    x = rng.normal(size=(6, 512)).astype(np.float32)
    weights = unpack(matrix).astype(np.float64)
    half_steps = np.repeat(quantize_rows(x).scales_NB, BLOCK, axis=1) * 0.5001
    error = np.abs(kernels.linear(x, matrix) - x @ weights.T)
    assert (error <= half_steps @ np.abs(weights).T + room_of(x, matrix)).all()


@SOME
@given(data=st.data(), seed=seeds, packing=packings, outputs=outputs_of, inputs=inputs_of)
def test_a_row_has_the_same_bits_in_any_batch(
    kernels: Native, data: st.DataObject, seed: int, packing: Packing, outputs: int, inputs: int
) -> None:
    """A row's product is bitwise the same alone, in any batch and order, and on any number of threads."""
    rng = np.random.default_rng(seed)
    matrix = some_matrix(rng, packing, outputs, inputs)
    x = rng.normal(size=(data.draw(st.integers(1, 40)), inputs)).astype(np.float32)
    together = kernels.linear(x, matrix)
    alone = np.concatenate([kernels.linear(row[None], matrix) for row in x])
    assert same_bits(together, alone)
    batch = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=40))
    assert same_bits(kernels.linear(x[batch], matrix, threads=data.draw(st.integers(1, 3))), alone[batch])


@SOME
@given(
    data=st.data(),
    seed=seeds,
    packing=packings,
    inputs=inputs_of,
    bad=st.sampled_from([np.inf, -np.inf, np.nan]),
)
def test_rows_that_are_no_numbers_touch_no_other(
    kernels: Native, data: st.DataObject, seed: int, packing: Packing, inputs: int, bad: float
) -> None:
    """A row with a value that is not finite is no number as a whole; all others keep their bits."""
    rng = np.random.default_rng(seed)
    matrix = some_matrix(rng, packing, 20, inputs)
    x = rng.normal(size=(data.draw(st.integers(1, 12)), inputs)).astype(np.float32)
    good = kernels.linear(x, matrix)
    row = data.draw(st.integers(0, len(x) - 1))
    x[row, data.draw(st.integers(0, inputs - 1))] = bad
    y = kernels.linear(x, matrix)
    assert np.isnan(y[row]).all()
    assert same_bits(np.delete(y, row, axis=0), np.delete(good, row, axis=0))


@pytest.mark.parametrize("packing", list(Packing))
def test_zeros(kernels: Native, packing: Packing) -> None:
    matrix = some_matrix(np.random.default_rng(5), packing, 40, 70)
    for tiny in (0.0, -0.0, 1e-45, 9e-31):
        x = np.full((3, 70), tiny, dtype=np.float32)
        assert not kernels.linear(x, matrix).any()
        assert not linear(x, matrix).any()


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("scale", [1.1e-30, 1e-25, 1e38, 3.4e38])
def test_extremes(kernels: Native, packing: Packing, scale: float) -> None:
    rng = np.random.default_rng(6)
    matrix = some_matrix(rng, packing, 40, 70, scale=1e-4)
    x = (rng.uniform(-1, 1, size=(5, 70)) * scale).astype(np.float32)
    x[:, 0] = x[:, 40] = scale
    assert_product(kernels.linear(x, matrix), x, matrix)


@pytest.mark.parametrize("packing", list(Packing))
def test_a_weight_that_is_no_number_shows(kernels: Native, packing: Packing) -> None:
    matrix = some_matrix(np.random.default_rng(7), packing, 20, 64)
    scales = matrix.scales.reshape(2, 2, -1).copy()
    scales[1, 1, 2] = 0x7E00
    x = np.random.default_rng(8).normal(size=(9, 64)).astype(np.float32)
    x[4] = 0
    y = kernels.linear(x, matrix._replace(scales=scales.reshape(-1)))
    assert np.isnan(y[:, 18]).all()
    assert same_bits(np.delete(y, 18, axis=1), np.delete(kernels.linear(x, matrix), 18, axis=1))
