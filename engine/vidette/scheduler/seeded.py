"""The numbers that belong to a seed and a position of the output: what tokens are drawn by."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that belongs to a seed and a position of the output.

    SplitMix64's finaliser over both (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014), upper 53 bits.
    """
    return float(uniforms(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))[0])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64], draw: int = 0) -> NDArray[np.float64]:
    """Return the numbers of seeds and positions; `draw` counts further ones for the same token."""
    x = _mix(seeds + (positions + np.uint64(1)) * _GAMMA)
    if draw:
        x = _mix(x + np.array([draw], dtype=np.uint64) * _GAMMA)
    return (x >> np.uint64(11)) / float(1 << 53)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for _ in range(2):  # twice, so that neighbouring seeds share nothing visible
        x = (x ^ (x >> np.uint64(30))) * _MULTIPLIERS[0]
        x = (x ^ (x >> np.uint64(27))) * _MULTIPLIERS[1]
        x = x ^ (x >> np.uint64(31))
    return x
