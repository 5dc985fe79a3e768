"""Stand-ins for what only a machine with a device can do."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Does on the CPU what the capture of a CUDA graph does: it notes operations and the memory they work on.

    A replay repeats them on that very memory, whatever Python would do by then. What no graph can hold fails:
    reading a value, and operations whose results have a size that depends on values.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        for refused in ("_local_scalar_dense", "nonzero", "masked_select", "unique"):
            assert refused not in name, f"{name} cannot be captured"
        chooses = func is torch.ops.aten.index.Tensor and any(
            index.dtype is torch.bool for index in tensors(args[1])
        )
        assert not chooses, f"{name} by a mask cannot be captured"
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        made = [tensor for tensor in tensors(result) if tensor.untyped_storage().data_ptr() not in known]
        if made or func._schema.is_mutable:  # else it is a view, and will be there already
            self.calls.append((func, args, kwargs, made))
        return result

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(made, tensors(again) if made else (), strict=True):
                old.copy_(new)


class Elsewhere(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands for a device, in tensors without values.

    What reads a value fails, and so does what works with tensors that lie elsewhere.
    """

    device = torch.device("meta")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name() not in ("aten::lift_fresh", "aten::detach_"):  # as torch makes tensors of numbers
            for tensor in tensors((args, kwargs, result)):
                assert tensor.device == self.device, f"{func.name()} works on the CPU"
        return result


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
