"""Tensors as files hold them: by name, with a shape and a type, mapped and not copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from vidette.models.quants import TensorType


class TensorInfo(NamedTuple):
    """Where a tensor lies in its file and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Row-major: the last dimension is the contiguous one."""
    type: TensorType
    offset: int
    """First byte, from the start of the file."""
    nbytes: int


class TensorFile(Protocol):
    """A file of tensors, or a folder of such files."""

    @property
    def path(self) -> Path:
        """Where it is: messages name it."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, a read-only view of the mapped file.

        Raises:
            ModelError: there is no such tensor.
        """
        ...
