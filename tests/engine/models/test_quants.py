"""Dequantisation against the reference library: equal bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from vidette.models import ModelSource
from vidette.models.gguf import GGUFFile
from vidette.models.quants import FORMATS, TensorType, dequantize


def test_every_format_is_described() -> None:
    assert set(FORMATS) == set(TensorType)


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda kind: kind.name)
def test_block_sizes_are_those_of_the_reference(tensor_type: TensorType) -> None:
    values, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor_type.name]]
    assert (values, nbytes) == FORMATS[tensor_type][:2]
    assert gguf.GGMLQuantizationType[tensor_type.name].value == tensor_type.value


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_blocks", [1, 3, 70_001])
def test_random_blocks_equal_the_reference(tensor_type: TensorType, num_blocks: int) -> None:
    # Any bytes are blocks; some scales are infinite or no numbers, which must come out the same as well.
    num_blocks = min(num_blocks, 300_000 // FORMATS[tensor_type].values)
    rng = np.random.default_rng(num_blocks)
    data = rng.integers(0, 256, num_blocks * FORMATS[tensor_type].nbytes, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[tensor_type.name])
    result = dequantize(data, tensor_type)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected.reshape(-1))


def test_dequantising_does_not_alias_its_input() -> None:
    data = np.zeros(8, dtype=np.uint8)
    result = dequantize(data, TensorType.F32)
    result[:] = 1.0
    assert not data.any()


@pytest.mark.real_model
def test_tensors_of_the_real_file_equal_the_reference(real_source: ModelSource) -> None:
    assert real_source.path is not None
    file = GGUFFile(real_source.path)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(str(real_source.path)).tensors}
    assert set(file.tensors) == set(reference)
    of_each_type = {info.type: name for name, info in file.tensors.items()}
    assert {kind.name for kind in of_each_type} == {"F32", "Q4_1", "Q8_0"}
    for name in of_each_type.values():
        tensor = reference[name]
        assert file.tensors[name].offset == tensor.data_offset
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.tensor(name), expected)
