"""What is particular to devices that compute by themselves while the host goes on.

Nothing here waits for a device but what loads weights. What is uploaded lies in pinned memory, from which the
device fetches it on its own; torch keeps such memory until that is done, so it may be dropped at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from vidette.errors import UsageError

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Runs a function once, and returns what does the same again to whatever then lies in the same tensors."""


def find_device(name: str, dtype: str = "auto") -> torch.device:
    """Return the device of a name.

    Args:
        name: "cpu", "cuda", "cuda:N", or "auto": CUDA where there is some, unless dtype is "int8".
        dtype: see `EngineConfig.dtype`.

    Raises:
        UsageError: there is no such device, or it does not compute in this dtype.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise UsageError(f"device is {name!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'", param="device")
    there = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and (dtype == "int8" or not there)):
        return torch.device("cpu")
    if dtype == "int8":
        raise UsageError(f"dtype is 'int8', which device {name!r} does not compute in", param="dtype")
    if not there:
        build = "has no CUDA in it" if torch.version.cuda is None else "finds no CUDA device"
        raise UsageError(f"device is {name!r}, but torch {torch.__version__} {build}", param="device")
    index = int(name.partition(":")[2] or torch.cuda.current_device())
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"device is {name!r}; there are {torch.cuda.device_count()} CUDA devices", param="device"
        )
    return torch.device("cuda", index)


def find_dtype(device: torch.device, dtype: str) -> torch.dtype:
    """Return what matrices are computed in: bfloat16 where a CUDA device has it, unless float32 is wanted."""
    if device.type == "cpu" or dtype == "float32":
        return torch.float32
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if native else torch.float32


def place(values: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Put weights where they stay."""
    return values.to(device).to(dtype)


def upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy from host memory to a device; on the CPU these are the same."""
    if device.type == "cpu":
        return values
    return send(values, torch.empty(values.shape, dtype=values.dtype, device=device))


def send(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy from host memory into a tensor of the same type, and return that."""
    if target.device.type == "cpu" or not values.numel():
        return target.copy_(values)
    with torch.cuda.device(target.device):  # else the memory is pinned by, and for, the first device
        return target.copy_(values.pin_memory(), non_blocking=True)


class Fetched(NamedTuple):
    """Values on their way to host memory.

    Args:
        values: where they will be.
        arrived: what to wait for before they are read; None: they are there.
    """

    values: torch.Tensor
    arrived: torch.cuda.Event | None = None

    def wait(self) -> torch.Tensor:
        """Return the values as soon as they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.values


def fetch(values: torch.Tensor) -> Fetched:
    """Begin to copy from a device to host memory, behind all that it has to do before."""
    if not values.is_cuda:
        return Fetched(values)
    with torch.cuda.device(values.device):
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        target.copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return Fetched(target, arrived)


def capture_on(device: torch.device) -> Capture:
    """Return what captures CUDA graphs on a device; their memory is shared, since no two run at once.

    A function that is captured waits for nothing, takes its sizes from Python alone, and keeps nothing that
    it made but what it wrote into tensors which were there before.
    """
    with torch.cuda.device(device):
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                run()  # libraries set themselves up in a first call, which cannot be captured
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads of an embedding program may use their devices meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                run()

        def replay() -> None:
            with torch.cuda.device(device):
                graph.replay()

        return replay

    return capture
