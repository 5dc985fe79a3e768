"""How fast the values of a head rotate with the position, with the scalings that stretch a context.

Everything here is float64; a `DecoderConfig` keeps the frequencies as float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Llama3Scaling(NamedTuple):
    """Slow rotations are slowed down further, fast ones are left alone, those between are blended."""

    factor: float
    """What slow frequencies are divided by."""
    low_freq_factor: float
    """Rotations with fewer turns than this in the original context are slow."""
    high_freq_factor: float
    """Rotations with more turns than this in the original context are fast."""
    original_context: int
    """Tokens of the context before it was stretched."""


def rope_frequencies(head_dim: int, theta: float) -> NDArray[np.float64]:
    """Return theta ** (-2 i / head_dim) for each pair i, in radians per position, [head_dim / 2]."""
    with np.errstate(over="ignore"):
        frequencies: NDArray[np.float64] = float(theta) ** (-np.arange(0, head_dim, 2) / head_dim)
    return frequencies


def scale_linearly(frequencies: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return the frequencies for positions that lie `factor` times closer together."""
    with np.errstate(over="ignore", divide="ignore"):
        return frequencies / factor


def scale_llama3(frequencies: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    """Return the frequencies as Llama 3.1 and later stretch them."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def pack_frequencies(kinds: Sequence[NDArray[np.float64]]) -> NDArray[np.float32]:
    """Return one row for each kind, as a `DecoderConfig` has them; what float32 cannot hold is infinite."""
    with np.errstate(over="ignore"):
        return np.stack(kinds).astype(np.float32)
