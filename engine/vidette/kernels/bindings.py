"""The C side as ctypes sees it: structs, signatures, and the order of what `source/decoder.hpp` numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vidette.models.decoder_config import DecoderConfig

if TYPE_CHECKING:
    from vidette.models.interface import StepPlan

Function = Callable[..., Any]

MATRICES: Final = ("query", "key", "value", "output", "gate", "up", "down")
"""Fields of `DecoderLayer`; the place of each is its number."""
VECTORS: Final = (
    *("attention_norm", "ffn_norm", "query_bias", "key_bias", "value_bias", "query_norm", "key_norm"),
    *("post_attention_norm", "post_ffn_norm"),
)
PHASES: Final = (
    *(
        "embedding",
        "norms",
        "qkv",
        "rotation and cache",
        "attention",
        "output",
        "gate and up",
        "gate",
        "down",
    ),
    "head",
)
"""What a step's time is divided into."""
UNKNOWN_TOKEN: Final = 2
"""What `step` returns for a token that is none of the model's."""
MAX_THREADS: Final = 64
"""Most threads of a step."""


class ShapeStruct(ctypes.Structure):
    """`Shape` of decoder.hpp."""

    _fields_ = (
        *((name, c_int64) for name in ("num_layers", "hidden_size", "ffn_size", "num_heads", "num_kv_heads")),
        *((name, c_int64) for name in ("head_dim", "vocab_size", "rope_kinds")),
        *((name, c_int32) for name in ("activation", "interleaved_rope", "threads", "reserved")),
        *((name, c_float) for name in ("norm_epsilon", "query_scale", "embedding_scale")),
        *((name, c_float) for name in ("attention_softcap", "logit_softcap")),
    )

    @classmethod
    def of(cls, config: DecoderConfig, rope_kinds: int, threads: int) -> ShapeStruct:
        """Return the shape of a decoder."""
        own = {"rope_kinds": rope_kinds, "threads": threads, "reserved": 0}
        values = config._asdict() | own
        return cls(*(values[name] for name, *_ in cls._fields_))


class StepStruct(ctypes.Structure):
    """`Step` of decoder.hpp; its pointers are good as long as the plan is."""

    _fields_ = (
        *((name, c_int64) for name in ("tokens", "rows", "table_stride", "logits", "best")),
        *((name, c_void_p) for name in ("token_ids", "positions", "row_starts", "block_tables")),
        *((name, c_void_p) for name in ("logit_tokens", "best_tokens")),
    )

    @classmethod
    def of(cls, plan: StepPlan) -> StepStruct:
        """Return a plan as the kernels read it.

        Raises:
            ValueError: an array is not int32 in one piece; a block table may be part of a wider one.
        """
        tables = plan.block_tables
        for array in plan:
            whole = tables.strides[1] == tables.itemsize if array is tables else array.flags.c_contiguous
            if array.dtype != np.int32 or not whole:
                raise ValueError(f"the arrays of a plan are int32 and contiguous, not {array.dtype}")
        return cls(
            len(plan.token_ids),
            len(plan.row_starts) - 1,
            tables.strides[0] // tables.itemsize,
            len(plan.logit_tokens),
            len(plan.best_tokens),
            *(a.ctypes.data for a in (plan.token_ids, plan.positions, plan.row_starts, tables)),
            *(a.ctypes.data for a in (plan.logit_tokens, plan.best_tokens)),
        )


def bind(library: ctypes.CDLL) -> Mapping[str, Function]:
    """Return a library's functions, by name without the prefix; calls release the GIL.

    Raises:
        AttributeError: the library has no such function.
    """
    p, i32, i64 = c_void_p, c_int32, c_int64
    signatures: dict[str, tuple[Any, ...]] = {  # what is returned, then the arguments
        "open": (p, POINTER(ShapeStruct), p, p, p),
        "close": (None, p),
        "set_layer_matrix": (i32, p, i64, i32, i32, p, i64, i64, i32),
        "set_layer_vector": (i32, p, i64, i32, p, i64),
        "set_embedding": (i32, p, i32, p, i64, i64, i32),
        "set_head": (i32, p, i32, p, i64, i64, i32),
        "set_norm": (i32, p, p),
        "set_pool": (None, p, p, i64),
        "step": (i32, p, POINTER(StepStruct), p, p),
        "weight_bytes": (i64, p),
        "profile": (None, p, i32),
        "profiled": (i32, p, POINTER(c_double)),
        "read_bandwidth": (c_double, p, i64, i32),
    }
    return {
        name: ctypes.CFUNCTYPE(*signature)((f"vidette_{name}", library))
        for name, signature in signatures.items()
    }
