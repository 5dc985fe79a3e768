"""`Overlapping`: a model of the CPU that computes as a device does, while the host goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map_only

from vidette.models.interface import Model, StepPlan, StepResult


class Overlapping:
    """A model whose `forward` returns before it has computed; implements `Model`.

    It computes when it is told that it has done so. What is returned fails if it is looked at before, and so
    does a second launch, and a copy of blocks.

    Args:
        model: what computes.
    """

    def __init__(self, model: Model) -> None:
        self.info = model.info
        self.overlaps = True
        self._model = model
        self._flight: StepPlan | None = None
        self._result: StepResult | None = None

    def allocate(self, num_blocks: int) -> None:
        """Create the pool."""
        self._model.allocate(num_blocks)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        """Return copies of blocks."""
        self._refuse("blocks are copied")
        return self._model.export_blocks(blocks)

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of blocks back."""
        self._refuse("blocks are copied")
        self._model.import_blocks(blocks, payload)

    def forward(self, plan: StepPlan) -> StepResult:
        """Launch one step."""
        self._refuse("another batch is launched")
        self._flight = StepPlan(*(array.copy() for array in plan))
        self._result = None
        return StepResult(Due.of(lambda: self.result.logits), Due.of(lambda: self.result.best))

    def finish(self) -> None:
        """Have computed what is in flight."""
        if self._flight is not None:
            self._result = self._model.forward(self._flight)
            self._flight = None

    @property
    def result(self) -> StepResult:
        """What the last step has computed."""
        self._refuse("its result is looked at")
        assert self._result is not None, "nothing was launched"
        return self._result

    def _refuse(self, what: str) -> None:
        if self._flight is not None:
            raise RuntimeError(f"{what} while a batch is in flight")


class Due(torch.Tensor):
    """Numbers that are there as soon as a model has computed them."""

    _look: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, look: Callable[[], torch.Tensor]) -> Self:
        """Return numbers that are looked up when they are looked at."""
        due = torch.empty(0).as_subclass(cls)
        due._look = look
        return due

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func == torch.Tensor.device.__get__:
            return torch.device("cpu")
        args, kwargs = tree_map_only(cls, lambda due: due._look(), (args, kwargs or {}))
        return func(*args, **kwargs)
