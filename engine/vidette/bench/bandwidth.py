"""How fast memory is read: the floor of a step that reads all weights for one token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

BYTES: Final = 512 << 20
"""What is read: far more than any cache holds."""
TRIES: Final = 5

Reader = Callable[[torch.Tensor], object]
"""Reads a float32 tensor once, with the threads that a model uses."""


class Bandwidth:
    """Memory, and a way to read it.

    Args:
        read: reads it; torch's sum does no more, on all of its threads.
        nbytes: how much there is.
    """

    def __init__(self, read: Reader = torch.sum, *, nbytes: int = BYTES) -> None:
        self._read = read
        self._data = torch.ones(nbytes // 4)

    def measure(self) -> float:
        """Return bytes a second, of the fastest of a few tries: a floor is what nothing gets below."""
        return self._data.nbytes / min(self._time() for _ in range(TRIES))

    def _time(self) -> float:
        started = time.perf_counter()
        self._read(self._data)
        return time.perf_counter() - started
