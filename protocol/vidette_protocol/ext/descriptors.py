"""Extensions 4 and 5: pointers to memory outside the frame. Decoded, they are inert: nothing is opened.

The side that creates such memory owns it and lets go of it when it hears an acknowledgement, or when the
message will never be read. The side that receives a pointer acknowledges it exactly once, whether it read
the memory or not. Both sides' work is `vidette.transport`'s; what is here only knows whether it was done.

The classes are plain, not structs: a struct would be encoded in place, and no hook would see it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from vidette_protocol.errors import LocalProtocolError
from vidette_protocol.ext.dtypes import TORCH_DTYPES
from vidette_protocol.ext.layout import MAX_DIMS, Dim, Shape, nbytes_of

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")

HASH_MASK: Final = (1 << 64) - 1
"""Hashes keep their low 64 bits: what MessagePack's integers hold."""


class Acknowledgement:
    """Whether a pointer was acknowledged: not yet, when it comes off the wire, and once, in the end."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = False

    @property
    def taken(self) -> bool:
        """Whether it was."""
        return self._taken

    def take(self) -> None:
        """Take it, to send it.

        Raises:
            LocalProtocolError: it was taken before; a second one could free memory that is in use again.
        """
        if self._taken:
            raise LocalProtocolError("a pointer is acknowledged once, and this one was")
        self._taken = True

    def __repr__(self) -> str:
        return f"<Acknowledgement {'taken' if self._taken else 'not taken'}>"


class ShmPointer:
    """A tensor in a segment of shared memory.

    Args:
        shm_name: the segment's name: letters, digits, `_`, `-`, and `.` but not first.
        shape: its dimensions.
        dtype: its dtype, without `torch.`.
        precomputed_hash: of its contents, kept to its low 64 bits; None: not known.

    Raises:
        ValueError: one of them is not as it should be.
    """

    __slots__ = ("acknowledgement", "dtype", "precomputed_hash", "shape", "shm_name")

    def __init__(
        self, shm_name: str, shape: tuple[int, ...], dtype: str, precomputed_hash: int | None = None
    ) -> None:
        if not _NAME.fullmatch(shm_name):
            raise ValueError(f"{shm_name!r} is no name of a segment")
        if len(shape) > MAX_DIMS or any(dim < 0 for dim in shape):
            raise ValueError(f"{shape} is no shape")
        if dtype not in TORCH_DTYPES:
            raise ValueError(f"dtype {dtype!r} is not allowed")
        nbytes_of(shape, TORCH_DTYPES[dtype])
        self.shm_name = shm_name
        self.shape = shape
        self.dtype = dtype
        self.precomputed_hash = None if precomputed_hash is None else precomputed_hash & HASH_MASK
        self.acknowledgement = Acknowledgement()

    @property
    def nbytes(self) -> int:
        """How long the segment has to be."""
        return nbytes_of(self.shape, TORCH_DTYPES[self.dtype])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShmPointer) and self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShmPointer({', '.join(map(repr, self._state()))})"

    def _state(self) -> tuple[str, tuple[int, ...], str, int | None]:
        return self.shm_name, self.shape, self.dtype, self.precomputed_hash


_IpcHandle = tuple[
    Annotated[int, Meta(ge=0, le=255)],  # device index
    Annotated[bytes, Meta(min_length=1, max_length=4096)],  # handle of the allocation
    Dim,  # bytes of the storage
    Dim,  # where the storage begins in the allocation
    Annotated[bytes, Meta(max_length=4096)],  # handle of the reference counter
    Dim,  # which counter of that
    Annotated[bytes, Meta(max_length=4096)],  # handle of the event that says it was written
    bool,  # whether to wait for that
]


class CudaIpcMemory(Struct, kw_only=True, frozen=True):
    """The memory that a `CudaIpcHandle` points at, checked.

    Just one of `handle` and `pool_handle` is given: the memory of one tensor, or a pool of which the
    tensor is `nbytes` from `pool_byte_offset` on.

    Args:
        handle: as `UntypedStorage._share_cuda_()` returns it.
        pool_handle: the same, of a pool.
        pool_byte_offset: where the tensor begins in the pool, in bytes.
        pool_device_index: the pool's device.
        device_index: the tensor's device.
        shape: dimensions of what is shared.
        stride: as many, in elements.
        dtype: its dtype, without `torch.`.
        storage_offset: where it begins in its storage, in elements.
        nbytes: how much of the pool it takes.
        recons_shape: dimensions of the tensor that is made from its bytes.
        recons_dtype: dtype of that tensor.
    """

    handle: _IpcHandle | None = None
    pool_handle: _IpcHandle | None = None
    pool_byte_offset: Dim = 0
    pool_device_index: int | None = None
    device_index: int
    shape: Shape
    stride: Shape
    dtype: str
    storage_offset: Dim = 0
    nbytes: Dim | None = None
    recons_shape: Shape
    recons_dtype: str

    @property
    def opened(self) -> _IpcHandle:
        """The handle that is given."""
        opened = self.handle or self.pool_handle
        assert opened is not None
        return opened

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.pool_handle is None):
            raise ValueError("just one of handle and pool_handle is needed")
        if self.dtype not in TORCH_DTYPES or self.recons_dtype not in TORCH_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} or {self.recons_dtype!r} is not allowed")
        if len(self.shape) != len(self.stride):
            raise ValueError(f"{len(self.shape)} dimensions with {len(self.stride)} strides")
        itemsize = TORCH_DTYPES[self.dtype]
        nbytes = nbytes_of(self.shape, itemsize)
        if nbytes != nbytes_of(self.recons_shape, TORCH_DTYPES[self.recons_dtype]):
            raise ValueError(f"{nbytes} bytes are no {self.recons_dtype} of shape {self.recons_shape}")
        if self.opened[0] != self.device_index or self.pool_device_index not in (None, self.device_index):
            raise ValueError(f"a handle of another device than {self.device_index}")
        self._check_extent(itemsize)

    def _check_extent(self, itemsize: int) -> None:
        """See that every element lies within the storage that the handle opens."""
        last = sum((dim - 1) * stride for dim, stride in zip(self.shape, self.stride, strict=True))
        end = 0 if 0 in self.shape else (self.storage_offset + last + 1) * itemsize
        size = self.opened[2]
        if self.handle is None:
            room = size - self.pool_byte_offset
            size = room if self.nbytes is None else self.nbytes
            if size > room or self.pool_byte_offset % itemsize:
                raise ValueError(f"no {size} bytes at {self.pool_byte_offset} of a pool of {self.opened[2]}")
        if end > size:
            raise ValueError(f"the last element ends at byte {end} of {size}")


class CudaIpcHandle:
    """A tensor in the memory of a CUDA device, reachable by a handle; or, failing that, a copy of it.

    Args:
        proxy_state: `ipc_extra`, the fields of `CudaIpcMemory`, or None; and then `tensor_data`, the tensor.
        sync_data_meta: what identifies the memory to its owner: `handle`, its name; `shape`; `dtype`.
    """

    __slots__ = ("acknowledgement", "proxy_state", "sync_data_meta")

    def __init__(self, proxy_state: Mapping[str, object], sync_data_meta: Mapping[str, object]) -> None:
        self.proxy_state = dict(proxy_state)
        self.sync_data_meta = dict(sync_data_meta)
        self.acknowledgement = Acknowledgement()

    @property
    def name(self) -> str:
        """What its owner knows the memory by.

        Raises:
            ValueError: it is no name.
        """
        name = self.sync_data_meta.get("handle")
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"{name!r} is no name of shared memory")
        return name

    def check(self) -> None:
        """See that what it says fits together.

        Raises:
            ValueError: it does not.
        """
        if self.memory() is not None:
            _ = self.name

    def memory(self) -> CudaIpcMemory | None:
        """Return the memory that it points at, or None if it carries the tensor itself.

        Raises:
            ValueError: it has neither, or what it points at does not fit together.
        """
        extra = self.proxy_state.get("ipc_extra")
        if extra is None:
            if self.proxy_state.get("tensor_data") is None:
                raise ValueError("neither ipc_extra nor tensor_data is given")
            return None
        if not isinstance(extra, Mapping):
            raise ValueError(f"a {type(extra).__name__} as ipc_extra")  # noqa: TRY004  it may be a peer's
        named = {key: _plain(value) for key, value in extra.items()}
        try:
            return msgspec.convert(named, CudaIpcMemory)
        except msgspec.ValidationError as error:
            raise ValueError(f"ipc_extra: {error}") from error

    def __repr__(self) -> str:
        return f"CudaIpcHandle({self.proxy_state!r}, {self.sync_data_meta!r})"


def _plain(value: object) -> object:
    """Return the name of a torch.dtype, which is not imported for that; anything else as it is."""
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value
