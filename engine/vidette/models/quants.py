"""Block formats of GGUF tensors and their vectorised dequantisation to float32.

One function per format, `[blocks, bytes per block]` in and `[blocks, values per block]` out, in the same
order of float32 operations as the reference implementation, so that results are equal bit for bit.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Blocks = NDArray[np.uint8]
_Values = NDArray[np.float32]

# A chunk of this many values (and its temporaries) stays in the second-level cache.
_CHUNK_VALUES: Final = 1 << 16


class TensorType(enum.IntEnum):
    """Storage formats of GGUF tensors that we read; the values are the file format's."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q6_K = 14
    BF16 = 30


class BlockFormat(NamedTuple):
    """How many values a block holds, and in how many bytes."""

    values: int
    nbytes: int
    decode: Callable[[_Blocks], _Values]


def dequantize(data: NDArray[np.uint8], tensor_type: TensorType) -> NDArray[np.float32]:
    """Return the values of a tensor as float32.

    Args:
        data: uint8 [n], whole blocks of the format.
        tensor_type: the format.

    Returns:
        A new float32 array [values].
    """
    block = FORMATS[tensor_type]
    blocks = data.reshape(-1, block.nbytes)
    values = np.empty((len(blocks), block.values), dtype=np.float32)
    step = max(1, _CHUNK_VALUES // block.values)
    # A damaged scale may be infinite or no number; the engine notices such logits, NumPy need not warn.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = block.decode(blocks[start : start + step])
    return values.reshape(-1)


def _half(blocks: _Blocks, start: int) -> _Values:
    """Read the float16 at byte `start` of each block as a float32 column."""
    return blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: _Blocks) -> _Blocks:
    """Unpack bytes into their low halves followed by their high halves."""
    return np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=-1)


def _fifth_bits(blocks: _Blocks, start: int) -> _Blocks:
    """Unpack the 32 bits at byte `start`, lowest first, each at the place of the fifth bit of a value."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: _Blocks) -> _Values:
    return blocks.copy().view(np.float32)


def _f16(blocks: _Blocks) -> _Values:
    return blocks.copy().view(np.float16).astype(np.float32)


def _bf16(blocks: _Blocks) -> _Values:
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: _Blocks) -> _Values:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: _Blocks) -> _Values:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * quants.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: _Blocks) -> _Values:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q4_k(blocks: _Blocks) -> _Values:
    # Bytes: d, dmin (float16), 12 of packed scales, 128 of nibbles; 8 sub-blocks of 32 values.
    # Scales and minima have 6 bits each: the first four lie in the low bits of bytes 0-3 and 4-7, the last
    # four are split between the halves of bytes 8-11 and the two top bits of bytes 0-7.
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, middle, high = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | (middle >> 6 << 4)], axis=1)
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    scaled = _half(blocks, 0) * scales.astype(np.float32)
    offset = _half(blocks, 2) * minima.astype(np.float32)
    values = scaled[:, :, None] * quants.astype(np.float32) - offset[:, :, None]
    return values.reshape(-1, 256).astype(np.float32, copy=False)


def _q6_k(blocks: _Blocks) -> _Values:
    # Bytes: 128 of low nibbles, 64 of two-bit high parts, 16 scales (int8), d (float16); 16 values per scale.
    # Each half of 128 values takes 64 bytes of nibbles (low halves, then high halves) and 32 of high parts.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 0x03
    quants = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values: _Values = scales[:, :, None] * quants.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


FORMATS: Final[Mapping[TensorType, BlockFormat]] = MappingProxyType(
    {
        TensorType.F32: BlockFormat(1, 4, _f32),
        TensorType.F16: BlockFormat(1, 2, _f16),
        TensorType.BF16: BlockFormat(1, 2, _bf16),
        TensorType.Q4_0: BlockFormat(32, 18, _q4_0),
        TensorType.Q4_1: BlockFormat(32, 20, _q4_1),
        TensorType.Q5_0: BlockFormat(32, 22, _q5_0),
        TensorType.Q5_1: BlockFormat(32, 24, _q5_1),
        TensorType.Q8_0: BlockFormat(32, 34, _q8_0),
        TensorType.Q4_K: BlockFormat(256, 144, _q4_k),
        TensorType.Q6_K: BlockFormat(256, 210, _q6_k),
    }
)
