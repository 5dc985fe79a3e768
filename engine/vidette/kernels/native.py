"""A decoder computed by the native kernels: one call per step, over all layers, without the GIL."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vidette.errors import KernelError
from vidette.kernels.bindings import (
    MATRICES,
    MAX_THREADS,
    PHASES,
    UNKNOWN_TOKEN,
    VECTORS,
    ShapeStruct,
    StepStruct,
    bind,
)
from vidette.kernels.processors import usable_processors
from vidette.models.interface import BLOCK_SIZE, ModelInfo, StepPlan, StepResult
from vidette.models.weights import DecoderWeights, Matrix

if TYPE_CHECKING:
    from vidette.kernels.library import Kernels
    from vidette.models.decoder_config import DecoderConfig

_BYTES_PER_VALUE: Final = 2

LANES: Final = 16
"""Head sizes are multiples of it."""
MAX_GROUP: Final = 48
"""Most heads that share a key-value head."""


def why_not(config: DecoderConfig) -> str | None:
    """Return what of a decoder the kernels do not compute; None: they compute all of it."""
    if config.head_dim % LANES:
        return f"heads of {config.head_dim} values; the kernels need a multiple of {LANES}"
    if config.num_heads // config.num_kv_heads > MAX_GROUP:
        return f"more than {MAX_GROUP} heads for each key-value head"
    return None


class NativeDecoder:
    """A decoder whose weights are packed for the kernels; implements `Model`.

    Keys and values are kept as float16. A request's logits are the same bits whatever else is in its steps,
    however its prompt is cut into them, and with any number of threads.

    Args:
        kernels: the library.
        config: what is computed; `why_not` has no objection.
        weights: read once, and not needed after that.
        info: what the engine is told.
        threads: how many compute, at most MAX_THREADS; None: `usable_processors()`.
        force_int8: whether every matrix is rounded to 8 bits; else what has 4 bits in its file keeps them.
        progress: called with (matrices packed, matrices in all).

    Raises:
        KernelError: there is no memory, or a matrix is of a type that the kernels do not know.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: DecoderConfig,
        weights: DecoderWeights,
        info: ModelInfo,
        *,
        threads: int | None = None,
        force_int8: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if (reason := why_not(config)) is not None:
            raise KernelError(f"{config.architecture} has {reason}")
        values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        self.info = info._replace(kv_bytes_per_token=values_per_token * _BYTES_PER_VALUE)
        self.overlaps = False
        self.threads = min(threads or usable_processors(), MAX_THREADS)
        self._config = config
        self._functions = bind(kernels.library)
        self._pool: NDArray[np.float16] | None = None
        self._logits = torch.empty((0, config.vocab_size), dtype=torch.float32)
        frequencies = np.ascontiguousarray(config.rope_frequencies, dtype=np.float32)
        kinds, windows = np.array(config.rope_kinds, np.int32), np.array(config.windows, np.int32)
        shape = ShapeStruct.of(config, len(frequencies), self.threads)
        handle = self._functions["open"](
            ctypes.byref(shape), frequencies.ctypes.data, kinds.ctypes.data, windows.ctypes.data
        )
        if not handle:
            raise KernelError("there is not enough memory for the model")
        self._handle = ctypes.c_void_p(handle)
        self._close = weakref.finalize(self, _close, self._functions["close"], self._handle, os.getpid())
        self._pack(weights, force_int8=force_int8, progress=progress or (lambda _done, _total: None))

    def close(self) -> None:
        """Give weights and threads back; nothing may be called after it."""
        self._close()

    @property
    def _open_handle(self) -> ctypes.c_void_p:
        assert self._close.alive, "the decoder was closed"
        return self._handle

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that the step of one token reads."""
        return int(self._functions["weight_bytes"](self._open_handle))

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool: per layer and block the keys, then the values, of each key-value head."""
        config = self._config
        width = 2 * config.num_kv_heads * BLOCK_SIZE * config.head_dim
        self._pool = np.zeros((config.num_layers, num_blocks, width), dtype=np.float16)
        self._functions["set_pool"](self._open_handle, self._pool.ctypes.data, num_blocks)

    def export_blocks(self, blocks: Sequence[int]) -> NDArray[np.float16]:
        """Return copies of what these blocks hold: float16 [blocks, layers, values of a block]."""
        assert self._pool is not None, "allocate() comes first"
        return np.ascontiguousarray(self._pool[:, list(blocks)].swapaxes(0, 1))

    def import_blocks(self, blocks: Sequence[int], payload: NDArray[Any]) -> None:
        """Put copies of keys and values into these blocks."""
        assert self._pool is not None, "allocate() comes first"
        self._pool[:, list(blocks)] = payload.swapaxes(0, 1)

    def forward(self, plan: StepPlan) -> StepResult:
        """Compute one step, as `Model.forward` says; the next step overwrites the logits."""
        assert self._pool is not None, "allocate() comes first"
        count = len(plan.logit_tokens)
        if count > len(self._logits):  # kept, since fresh pages cost more than all else here
            self._logits = torch.empty((count, self._config.vocab_size), dtype=torch.float32)
        logits = self._logits[:count]
        best = np.empty(len(plan.best_tokens), dtype=np.int64)
        step = StepStruct.of(plan)
        outcome = self._functions["step"](
            self._open_handle, ctypes.byref(step), logits.data_ptr(), best.ctypes.data
        )
        if outcome == UNKNOWN_TOKEN:
            raise ValueError(f"a token is none of the model's, 0 to {self._config.vocab_size - 1}")
        if outcome:
            raise KernelError("there is not enough memory for a step")
        return StepResult(logits, torch.from_numpy(best))

    def start_profile(self) -> None:
        """Begin to measure where the time of steps goes."""
        self._functions["profile"](self._open_handle, 1)

    def profile(self) -> Mapping[str, float]:
        """Return the seconds of each phase since `start_profile`, and stop measuring."""
        spent = (ctypes.c_double * len(PHASES))()
        count = self._functions["profiled"](self._open_handle, spent)
        assert count == len(PHASES), "both sides name the same phases"
        self._functions["profile"](self._open_handle, 0)
        return dict(zip(PHASES, spent, strict=True))

    def _pack(
        self, weights: DecoderWeights, *, force_int8: bool, progress: Callable[[int, int], None]
    ) -> None:
        functions, handle = self._functions, self._handle
        total = len(weights.layers) * len(MATRICES) + (1 if weights.head is None else 2)
        done = 0

        def place(function: Any, matrix: Matrix, *where: int) -> None:
            nonlocal done
            data = np.ascontiguousarray(matrix.data)
            if function(handle, *where, int(matrix.type), data.ctypes.data, *matrix.shape, int(force_int8)):
                raise KernelError(f"a {matrix.type.name} matrix of shape {matrix.shape} cannot be packed")
            done += 1
            progress(done, total)

        place(functions["set_embedding"], weights.embedding)
        for index, layer in enumerate(weights.layers):
            parts = layer._asdict()
            for role, name in enumerate(MATRICES):
                place(functions["set_layer_matrix"], parts[name], index, role)
            for role, name in enumerate(VECTORS):
                if (vector := parts[name]) is not None:
                    values = np.ascontiguousarray(vector, dtype=np.float32)
                    _check(
                        functions["set_layer_vector"](handle, index, role, values.ctypes.data, values.size)
                    )
        norm = np.ascontiguousarray(weights.norm, dtype=np.float32)
        _check(functions["set_norm"](handle, norm.ctypes.data))
        if weights.head is not None:
            place(functions["set_head"], weights.head)


def _close(close: Callable[[ctypes.c_void_p], None], handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:  # a fork has none of the threads that it would wait for
        close(handle)


def _check(status: int) -> None:
    if status:
        raise KernelError("there is not enough memory for the model")
