"""Load the part of a model that a process needs, and import nothing else.

The scheduler loads the model (torch); the front loads the tokenizer (tokenizers and jinja2, no torch); the
detokenizer loads the token table (NumPy alone). So each import sits in the function that needs it.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vidette.models.interface import Model, ModelInfo, Tokenizer, TokenTable
from vidette.models.store import ModelSource
from vidette.models.toy_tokenizer import ToyTokenizer, toy_info, toy_token_table

if TYPE_CHECKING:
    from vidette.models.decoder_config import DecoderConfig
    from vidette.models.weights import DecoderWeights

logger = logging.getLogger(__name__)


def load_model(
    source: ModelSource,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    cuda_graphs: str = "lazy",
    max_running: int = 64,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load weights for the scheduler; imports torch.

    Args:
        source: from `resolve`.
        dtype: "auto" or "int8" for native kernels where there are some, "float32" for torch (see
            `EngineConfig.dtype`).
        device: "cpu", "cuda", "cuda:N" or "auto" (see `EngineConfig.device`).
        cuda_graphs: "lazy", "start" or "off" (see `EngineConfig.cuda_graphs`).
        max_running: most rows of a step for which there are CUDA graphs.
        threads: how many compute with native kernels; None: as many as there are processors. Those of torch
            are set by `torch.set_num_threads`.
        progress: called with (matrices done, matrices in all) while weights load.

    Raises:
        ModelError: something is missing, damaged or of a kind we do not support.
        KernelError: there is not enough memory.
        UsageError: there is no such device, or it does not compute in this dtype.
    """
    if source.path is None:
        from vidette.models.toy import ToyModel

        return ToyModel()
    if device != "cpu":
        from vidette.models.accelerator import capture_on, find_device, find_dtype

        where = find_device(device, dtype)
        if where.type != "cpu":
            from vidette.models.device_decoder import DeviceDecoder

            decoder = DeviceDecoder(
                *read_decoder(source.path, source.name),
                device=where,
                dtype=find_dtype(where, dtype),
                capture=None if cuda_graphs == "off" else capture_on(where),
                ahead=cuda_graphs == "start",
                max_rows=max_running,
                progress=progress,
            )
            logger.info("%s is computed on %s, in %s", source.name, where, decoder.dtype)
            return decoder
    config, weights, info = read_decoder(source.path, source.name)
    if dtype != "float32":
        from vidette.kernels.library import open_kernels
        from vidette.kernels.native import NativeDecoder, why_not

        reason = why_not(config)
        if reason is not None:
            logger.warning("%s is computed by torch alone, several times slower: %s", source.name, reason)
        elif (kernels := open_kernels().kernels) is not None:
            return NativeDecoder(
                *(kernels, config, weights, info),
                threads=threads,
                force_int8=dtype == "int8",
                progress=progress,
            )
    from vidette.models.decoder import Decoder

    return Decoder(config, weights, info, progress=progress)


def read_decoder(path: Path, name: str) -> tuple[DecoderConfig, DecoderWeights, ModelInfo]:
    """Read what a decoder is and map its weights; imports no torch.

    Args:
        path: a GGUF file, or a folder with config.json and safetensors files.
        name: name under which it is served.

    Raises:
        ModelError: something is missing, damaged or of a kind we do not support.
    """
    if path.is_dir():
        from vidette.models.folder import read_folder_decoder
        from vidette.models.tokenizer_json import folder_start_token

        return read_folder_decoder(path, name, folder_start_token(path))
    from vidette.models.gguf import GGUFFile
    from vidette.models.gguf_decoder import read_gguf_decoder

    return read_gguf_decoder(GGUFFile(path), name)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer for the front; imports tokenizers and jinja2, not torch.

    Raises:
        ModelError: the file is missing or damaged, or its tokenizer is of a kind we do not support.
    """
    if source.path is None:
        return ToyTokenizer()
    if source.path.is_dir():
        from vidette.models.folder_tokenizer import build_folder_tokenizer

        return build_folder_tokenizer(source.path)
    from vidette.models.gguf import GGUFFile
    from vidette.models.tokenizer import build_tokenizer

    return build_tokenizer(GGUFFile(source.path))


def load_token_table(source: ModelSource) -> TokenTable:
    """Load the bytes of every token for the detokenizer; imports neither torch nor tokenizers.

    Raises:
        ModelError: the file is missing or damaged, or its tokenizer is of a kind we do not support.
    """
    if source.path is None:
        return toy_token_table()
    if source.path.is_dir():
        from vidette.models.tokenizer_json import folder_token_table, read_folder_tokenizer

        return folder_token_table(read_folder_tokenizer(source.path))
    from vidette.models.gguf import GGUFFile
    from vidette.models.vocabulary import read_token_table

    return read_token_table(GGUFFile(source.path))


def read_info(source: ModelSource) -> ModelInfo:
    """Read what the engine has to know of a model from its header; imports no torch.

    Raises:
        ModelError: the file is missing, damaged or of a kind we do not support.
    """
    if source.path is None:
        return toy_info()
    if source.path.is_dir():
        from vidette.models.folder import read_folder_info
        from vidette.models.tokenizer_json import folder_start_token

        return read_folder_info(source.path, source.name, folder_start_token(source.path))
    from vidette.models.gguf import GGUFFile
    from vidette.models.gguf_decoder import read_gguf_info

    return read_gguf_info(GGUFFile(source.path), source.name)
