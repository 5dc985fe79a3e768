"""A memory-mapped reader of safetensors files: the directory of tensors, and their bytes on demand.

The contract for files nobody vouches for is that of the reader of GGUF files: a file is read, or
`ModelError` names the file and what is wrong with it; nothing is allocated that is larger than the file.
The data is the tensors one after the other, without gaps and without overlaps, as the format demands.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models.json_object import JSONObject, parse_json
from vidette.models.quants import FORMATS, TensorType
from vidette.models.tensors import TensorInfo

_HEADER_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER_BYTES: Final = 100_000_000  # the format's own bound
_METADATA: Final = "__metadata__"
_TYPES: Final[Mapping[str, TensorType]] = {
    "F32": TensorType.F32,
    "F16": TensorType.F16,
    "BF16": TensorType.BF16,
}
_MAX_DIMENSIONS: Final = 8


class SafetensorsFile:
    """The directory of a safetensors file; the mapping lives as long as the object or a view of a tensor.

    Args:
        path: the file.

    Raises:
        ModelError: the file cannot be read, is damaged, or has a tensor of a type that is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped: ValueError.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as exc:
            raise ModelError(f"cannot read the model file {path}: {exc}") from exc
        self.tensors: Mapping[str, TensorInfo] = self._read_directory()

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, a read-only view of the mapped file.

        Raises:
            ModelError: the file has no such tensor.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: there is no tensor {name!r}")
        return np.frombuffer(self._data, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def _read_directory(self) -> dict[str, TensorInfo]:
        size, start = len(self._data), _HEADER_LENGTH.size
        if size < start:
            self._fail(f"it has {size} bytes: it is truncated")
        length: int = _HEADER_LENGTH.unpack_from(self._data)[0]
        if length > min(size - start, _MAX_HEADER_BYTES):
            self._fail(f"its header claims {length} bytes, of {size} in all: it is truncated or damaged")
        header = parse_json(self.path, self._data[start : start + length])
        names = [name for name in header.values if name != _METADATA]
        start += length
        entries = sorted((self._entry(name, header.child(name)) for name in names), key=_place)
        end = 0
        for entry in entries:
            if entry.offset != end:
                where = "overlaps with others" if entry.offset < end else "leaves a gap before it"
                self._fail(f"the tensor {entry.name!r} at {entry.offset} {where}")
            end += entry.nbytes
        if start + end != size:
            self._fail(
                f"its tensors end at byte {start + end}, but it has {size} bytes: it is truncated or damaged"
            )
        return {entry.name: entry._replace(offset=start + entry.offset) for entry in entries}

    def _entry(self, name: str, entry: JSONObject) -> TensorInfo:
        """Read one entry of the directory; its offset is still relative to the data."""
        dtype = entry.string("dtype")
        if dtype not in _TYPES:
            self._fail(f"the tensor {name!r} has type {dtype[:20]!r}; supported are {', '.join(_TYPES)}")
        shape, offsets = entry.integers("shape"), entry.integers("data_offsets")
        if len(shape) > _MAX_DIMENSIONS or any(not 0 <= length <= len(self._data) for length in shape):
            self._fail(f"the tensor {name!r} has an impossible shape")
        nbytes = math.prod(shape) * FORMATS[_TYPES[dtype]].nbytes
        begin, end = offsets if len(offsets) == 2 else (-1, -1)
        if not 0 <= begin <= end <= len(self._data) or end - begin != nbytes:
            self._fail(f"the tensor {name!r} of shape {shape} and type {dtype} has the wrong data_offsets")
        return TensorInfo(name, tuple(shape), _TYPES[dtype], begin, nbytes)

    def _fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.path} is not a usable safetensors file: {problem}")


def _place(entry: TensorInfo) -> tuple[int, int]:
    # An empty tensor may share its offset with the one that follows.
    return entry.offset, entry.nbytes
