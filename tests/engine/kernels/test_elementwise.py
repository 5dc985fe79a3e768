"""Norms, rotation, gates and exponentials against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.kernels.native import Native, same_bits

from vidette.kernels.reference import gated, rms_norm, rotate

Floats = NDArray[np.float32]

SOME = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def some_floats(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Floats:
    return rng.normal(scale=scale, size=shape).astype(np.float32)


@SOME
@given(
    seed=seeds,
    rows=st.integers(1, 9),
    size=st.integers(1, 700),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e5, 1e17]),
    epsilon=st.sampled_from([1e-6, 1e-5]),
)
def test_norms(kernels: Native, seed: int, rows: int, size: int, scale: float, epsilon: float) -> None:
    """A norm is that of the reference but for roundings, and each row has the same bits alone."""
    rng = np.random.default_rng(seed)
    x, weight = some_floats(rng, rows, size, scale=scale), some_floats(rng, size)
    y = kernels.rms_norm(x, weight, epsilon)
    np.testing.assert_allclose(y, rms_norm(x, weight, epsilon), rtol=3e-6, atol=1e-30)
    for row in range(rows):
        assert same_bits(kernels.rms_norm(x[row : row + 1], weight, epsilon)[0], y[row])


def test_the_norm_of_zeros_is_zero(kernels: Native) -> None:
    x = np.zeros((2, 50), dtype=np.float32)
    assert not kernels.rms_norm(x, np.ones(50, dtype=np.float32), 1e-6).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_norm_of_what_is_no_number_touches_no_other_row(kernels: Native, bad: float) -> None:
    rng = np.random.default_rng(0)
    x, weight = some_floats(rng, 4, 50), some_floats(rng, 50)
    good = kernels.rms_norm(x, weight, 1e-6)
    x[2, 49] = bad
    y = kernels.rms_norm(x, weight, 1e-6)
    assert np.isnan(y[2, 49])
    assert same_bits(np.delete(y, 2, axis=0), np.delete(good, 2, axis=0))


@SOME
@given(
    seed=seeds,
    tokens=st.integers(1, 5),
    heads=st.integers(1, 4),
    half=st.integers(1, 70),
    base=st.sampled_from([1e4, 1e6]),
    interleaved=st.booleans(),
)
def test_rotations(
    kernels: Native, seed: int, tokens: int, heads: int, half: int, base: float, interleaved: bool
) -> None:
    """A rotation, up to position 131071, is that of the reference, and each token's depends on it alone."""
    rng = np.random.default_rng(seed)
    x = some_floats(rng, tokens, heads, 2 * half)
    positions = rng.integers(0, 131_072, tokens, dtype=np.int32)
    frequencies = (base ** (-np.arange(half) / half)).astype(np.float32)
    y = kernels.rotate(x, positions, frequencies, interleaved=interleaved)
    np.testing.assert_allclose(y, rotate(x, positions, frequencies, interleaved=interleaved), atol=2e-6)
    token = int(rng.integers(tokens))
    alone = kernels.rotate(
        x[token : token + 1], positions[token : token + 1], frequencies, interleaved=interleaved
    )
    assert same_bits(alone[0], y[token])


@pytest.mark.parametrize("interleaved", [False, True])
def test_position_zero_is_not_rotated(kernels: Native, interleaved: bool) -> None:
    x = some_floats(np.random.default_rng(0), 1, 3, 64)
    y = kernels.rotate(x, np.zeros(1, dtype=np.int32), np.ones(32, dtype=np.float32), interleaved=interleaved)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("activation", [0, 1])
@SOME
@given(seed=seeds, size=st.integers(1, 70), scale=st.sampled_from([1e-6, 0.1, 3.0, 30.0, 1e4]))
def test_gates(kernels: Native, activation: int, seed: int, size: int, scale: float) -> None:
    """A gate is that of the reference, and each value's bits depend on it alone, not on its place."""
    rng = np.random.default_rng(seed)
    gate, up = some_floats(rng, size, scale=scale), some_floats(rng, size)
    y = kernels.gated(gate, up, activation)
    np.testing.assert_allclose(y, gated(gate, up, activation), rtol=2e-6, atol=2e-6)
    start = int(rng.integers(size))
    assert same_bits(kernels.gated(gate[start:].copy(), up[start:].copy(), activation), y[start:])


@pytest.mark.parametrize("activation", [0, 1])
def test_gates_at_the_ends(kernels: Native, activation: int) -> None:
    gate = np.array([0.0, 1e-30, 1e15, 1e30, -100.0, -1e6, -1e15, np.nan], dtype=np.float32)
    y = kernels.gated(gate, np.ones_like(gate), activation)
    np.testing.assert_allclose(y[:7], [0.0, 5e-31, 1e15, 1e30, 0.0, 0.0, 0.0], rtol=1e-6, atol=1e-20)
    assert np.isnan(y[7])


def test_exponentials(kernels: Native) -> None:
    x = np.concatenate(
        [
            np.linspace(-87, 88, 400_001),
            np.linspace(-1, 1, 100_001),
            np.random.default_rng(0).normal(scale=1e-4, size=1000),
        ]
    ).astype(np.float32)
    y, exact = kernels.exp(x), np.exp(x.astype(np.float64))
    assert (np.abs(y - exact) <= 2 * np.spacing(exact.astype(np.float32)) + 1e-45).all()
    # The same numbers from wherever in a vector, the last of an odd number of them included.
    assert same_bits(kernels.exp(x[7:]), y[7:])


def test_exponentials_at_the_ends(kernels: Native) -> None:
    x = np.array([-np.inf, -1e30, -104.0, -87.1, 0.0, -0.0, 89.0, 1e30, np.inf, np.nan], dtype=np.float32)
    y = kernels.exp(x)
    assert not y[:4].any()
    assert (y[4:6] == 1).all()
    assert (y[6:9] > 1e38).all()
    assert np.isnan(y[9])
