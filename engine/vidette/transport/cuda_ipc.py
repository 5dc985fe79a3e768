"""Tensors in the memory of a CUDA device, handed to another process: what a `CudaIpcHandle` points at.

The owner shares one pool for as long as the link lives, and lends extents of it. An extent is free again when
its reader has acknowledged it, when the message is dropped, or when the pool closes. Sharing each tensor by
itself would leave that to torch's counters, which a message that is never decoded does not count down: its
memory would stay taken.

torch is imported inside the functions: this package is imported where there is none.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from vidette_protocol.errors import RemoteProtocolError
from vidette_protocol.ext import CudaIpcHandle, CudaIpcMemory
from vidette_protocol.ext.tensors import as_bytes, find_dtype, name_dtype

if TYPE_CHECKING:
    import torch

GRANULE: Final = 512
"""Extents begin at multiples of this, as torch's allocator has them; so every dtype is aligned."""

MAX_POOLS: Final = 16
"""How many pools of other processes a reader keeps open."""


class Extents:
    """Which parts of a pool are lent: first fit, in granules.

    Args:
        nbytes: how long the pool is.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._lent: dict[str, tuple[int, int]] = {}  # name to (begin, end), in the order of begin

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, name: str, nbytes: int) -> int | None:
        """Return where `nbytes` are free, and lend them under a name; None: nowhere."""
        size = max(-(-nbytes // GRANULE), 1) * GRANULE
        begin = 0
        for taken, end in self._lent.values():
            if taken - begin >= size:
                break
            begin = end
        if begin + size > self._nbytes:
            return None
        lent = [*self._lent.items(), (name, (begin, begin + size))]
        self._lent = dict(sorted(lent, key=lambda item: item[1]))
        return begin

    def give_back(self, name: str) -> bool:
        """Return whether a name was lent something; it is not any more."""
        return self._lent.pop(name, None) is not None


class CudaPool:
    """The memory that one process shares with one other, and what it has lent of it.

    Args:
        nbytes: how much memory of the device it takes.
        device: index of the device.

    Raises:
        RuntimeError: the device does not share memory, or has not enough.
    """

    def __init__(self, nbytes: int, *, device: int = 0) -> None:
        import torch

        self._device = torch.device("cuda", device)
        self._pool = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        handle = self._pool.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        self._handle = tuple(handle)
        self._extents = Extents(nbytes)

    def share(self, value: torch.Tensor) -> CudaIpcHandle:
        """Copy a tensor into the pool; return a handle, or, without room or on another device, a copy.

        Raises:
            TypeError: its dtype does not travel.
        """
        import torch

        dtype, name = name_dtype(value.dtype), secrets.token_hex(16)
        nbytes = value.numel() * value.element_size()
        begin = self._extents.lend(name, nbytes) if value.device == self._device else None
        if begin is None:
            return CudaIpcHandle({"ipc_extra": None, "tensor_data": value}, {})
        try:
            plain = value.detach().resolve_conj().resolve_neg().contiguous()
            self._pool[begin : begin + nbytes].copy_(as_bytes(plain))
            # The reader copies in a stream of its own, which knows nothing of ours.
            torch.cuda.current_stream(self._device).synchronize()
        except BaseException:
            self._extents.give_back(name)
            raise
        extra = {
            "pool_handle": self._handle,
            "pool_byte_offset": begin,
            "pool_device_index": self._device.index,
            "device_index": self._device.index,
            "shape": plain.shape,
            "stride": plain.stride(),
            "dtype": plain.dtype,
            "storage_offset": 0,
            "nbytes": nbytes,
            "recons_shape": plain.shape,
            "recons_dtype": plain.dtype,
        }
        meta = {"handle": name, "shape": tuple(plain.shape), "dtype": dtype}
        return CudaIpcHandle({"ipc_extra": extra, "tensor_data": None}, meta)

    def acknowledge(self, name: str) -> bool:
        """Free what was lent under a name; return whether it was, which after a drop is not so."""
        return self._extents.give_back(name)

    def drop(self, name: str) -> bool:
        """Free what was lent, when its message will not be read any more.

        Call it only then: who reads it late reads what was put there since.
        """
        return self._extents.give_back(name)

    def close(self) -> None:
        """Free everything, as when the reader is gone; idempotent."""
        self._extents = Extents(0)
        self._pool = self._pool[:0].clone()


# --- the reader ------------------------------------------------------------------------------------


class CudaReader:
    """Takes tensors out of the pools of one other process.

    Args:
        devices: those whose memory may be opened, such as `cuda:0`. How long that memory is, only its owner
            knows; so this is for processes that are trusted with it.
    """

    def __init__(self, *, devices: Collection[str]) -> None:
        self._devices = frozenset(devices)
        self._pools: dict[tuple[bytes, int], torch.UntypedStorage] = {}

    def materialise(
        self, handle: CudaIpcHandle, device: torch.device | str, acknowledge: Callable[[str], object]
    ) -> torch.Tensor:
        """Return the tensor of a handle, on a device of the reader's choice, and acknowledge the handle.

        Args:
            handle: as decoded.
            device: where the tensor is wanted.
            acknowledge: called once with the name the owner knows the memory by, also when this fails; not
                called when the handle carries the tensor itself.

        Raises:
            LocalProtocolError: the handle was acknowledged before; nothing is read.
            RemoteProtocolError: it names a device that is not allowed, or its memory cannot be opened.
        """
        import torch

        handle.acknowledgement.take()
        memory = handle.memory()
        if memory is None:
            value = handle.proxy_state["tensor_data"]
            if not isinstance(value, torch.Tensor):
                raise RemoteProtocolError(f"a {type(value).__name__} as tensor_data")
            return value.to(device)
        try:
            if f"cuda:{memory.device_index}" not in self._devices:
                raise RemoteProtocolError(f"memory of cuda:{memory.device_index}, which may not be opened")
            return self._copy(memory, torch.device(device))
        finally:
            acknowledge(handle.name)

    def _copy(self, memory: CudaIpcMemory, device: torch.device) -> torch.Tensor:
        import torch

        source = torch.device("cuda", memory.device_index)
        dtype = find_dtype(memory.dtype)
        with torch.cuda.device(source):
            storage = self._open(memory)
            begin = memory.pool_byte_offset // dtype.itemsize + memory.storage_offset
            shared = torch.empty(0, dtype=dtype, device=source)
            shared.set_(storage, begin, memory.shape, memory.stride)
            copy = torch.empty(memory.recons_shape, dtype=find_dtype(memory.recons_dtype), device=device)
            as_bytes(copy).copy_(as_bytes(shared.contiguous()))
            # Only now may the owner lend this memory to another tensor.
            torch.cuda.current_stream(source).synchronize()
        return copy

    def _open(self, memory: CudaIpcMemory) -> torch.UntypedStorage:
        import torch

        _, name, nbytes, offset, *_ = memory.opened
        storage = self._pools.get((name, offset))
        if storage is not None:
            if storage.nbytes() != nbytes:
                raise RemoteProtocolError(f"a pool of {storage.nbytes()} bytes now has {nbytes}")
            return storage
        if len(self._pools) >= MAX_POOLS:
            raise RemoteProtocolError(f"more than {MAX_POOLS} pools of one process")
        try:
            storage = torch.UntypedStorage._new_shared_cuda(*memory.opened)
        except RuntimeError as error:
            raise RemoteProtocolError(f"a CUDA handle cannot be opened: {error}") from error
        if memory.pool_handle is not None:
            self._pools[name, offset] = storage
        return storage

    def discard(self, handle: CudaIpcHandle, acknowledge: Callable[[str], object]) -> None:
        """Acknowledge a handle that will not be read; do nothing if it was acknowledged."""
        if not handle.acknowledgement.taken:
            handle.acknowledgement.take()
            if handle.memory() is not None:
                acknowledge(handle.name)

    def close(self) -> None:
        """Close the pools; idempotent."""
        self._pools.clear()
