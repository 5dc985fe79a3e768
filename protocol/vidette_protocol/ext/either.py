"""What is done alike with arrays and tensors, whichever package they are of; neither is imported to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vidette_protocol.ext import ndarrays, tensors
from vidette_protocol.ext.layout import Flat
from vidette_protocol.ext.outside import Outside


def is_of(kind: type, package: str) -> bool:
    """Return whether a class is of a package, or of one in it, without importing that.

    Args:
        kind: the class of an object in hand.
        package: such as `torch`.
    """
    return kind.__module__.partition(".")[0] == package


def encode(value: object, outside: Outside | None = None) -> object:
    """Return what is encoded in place of a value of NumPy's or torch's.

    Args:
        value: the value.
        outside: where a large buffer goes; None: into the message.

    Raises:
        TypeError: it does not travel.
    """
    kind = type(value)
    if is_of(kind, "numpy"):
        return ndarrays.encode_numpy(value, outside)
    if is_of(kind, "torch"):
        return tensors.encode_torch(value, outside)
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} does not travel: arrays, tensors, NumPy scalars and what "
        "MessagePack has do, and tuples, dtypes and devices do inside ModelData"
    )


def flatten(value: object) -> Flat:
    """Return what an array or tensor is made of, its dtype under torch's name.

    Raises:
        TypeError: it is neither, or does not travel.
    """
    if is_of(type(value), "numpy"):
        return ndarrays.flatten_ndarray(value)
    return tensors.flatten_tensor(value)


def new_array(
    kind: Literal["torch", "numpy"], shape: Sequence[int], dtype: str, raw: memoryview | None
) -> object:
    """Return a tensor or array that is to be filled.

    Args:
        kind: which of them.
        shape: its dimensions.
        dtype: its element type, by torch's name.
        raw: the memory that it is a view of, as long as it has to be; None: memory of its own.

    Raises:
        LocalProtocolError: there are no such elements.
        ImportError: what makes it is not installed here.
    """
    if kind == "numpy":
        return ndarrays.new_ndarray(shape, dtype, raw)
    return tensors.new_tensor(shape, dtype, raw)


def stack(values: Sequence[object]) -> object:
    """Join arrays, or tensors, of one shape along a new first axis.

    Raises:
        TypeError: they are neither, or not all the same, or none.
        ValueError: their shapes differ.
    """
    kinds = {type(value) for value in values}
    if kinds and all(is_of(kind, "numpy") for kind in kinds):
        return ndarrays.stack_ndarrays(values)
    if kinds and all(is_of(kind, "torch") for kind in kinds):
        return tensors.stack_tensors(values)
    raise TypeError(f"neither arrays nor tensors: {sorted(kind.__qualname__ for kind in kinds)}")
