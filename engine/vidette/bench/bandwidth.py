"""How fast memory is read: the floor of a step that reads all weights for one token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import torch

from vidette.kernels.bindings import bind

if TYPE_CHECKING:
    from vidette.kernels.library import Kernels

BYTES: Final = 512 << 20
"""What is read: far more than any cache holds."""
TRIES: Final = 3


class Bandwidth(Protocol):
    """A way to read memory."""

    def measure(self) -> float:
        """Return bytes a second, of the fastest of a few tries: a floor is what nothing gets below."""
        ...


class TorchBandwidth:
    """Memory read by torch's sum, on all of its threads.

    Args:
        nbytes: how much.
    """

    def __init__(self, *, nbytes: int = BYTES) -> None:
        self._data = torch.ones(nbytes // 4)

    def measure(self) -> float:
        """Return bytes a second, of the fastest of a few tries."""
        return self._data.nbytes / min(self._time() for _ in range(TRIES))

    def _time(self) -> float:
        started = time.perf_counter()
        torch.sum(self._data)
        return time.perf_counter() - started


class NativeBandwidth:
    """Memory read by the native kernels.

    Args:
        kernels: the library.
        threads: how many read.
        nbytes: how much.
    """

    def __init__(self, kernels: Kernels, threads: int, *, nbytes: int = BYTES) -> None:
        self._read = bind(kernels.library)["read_bandwidth"]
        self._threads = threads
        self._data = torch.ones(nbytes // 4)

    def measure(self) -> float:
        """Return bytes a second, of the fastest of a few tries."""
        return float(self._read(self._data.data_ptr(), self._data.nbytes, self._threads))
