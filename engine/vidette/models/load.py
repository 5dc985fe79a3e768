"""Load the part of a model that a process needs, and import nothing else.

The scheduler loads the model (torch); the front loads the tokenizer (tokenizers and jinja2, no torch); the
detokenizer loads the token table (NumPy alone). So each import sits in the function that needs it.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable

from vidette.models.interface import Model, ModelInfo, Tokenizer, TokenTable
from vidette.models.store import ModelSource
from vidette.models.toy_tokenizer import ToyTokenizer, toy_info, toy_token_table


def load_model(source: ModelSource, *, progress: Callable[[int, int], None] | None = None) -> Model:
    """Load weights for the scheduler; imports torch.

    Args:
        source: from `resolve`.
        progress: called with (tensors done, tensors in all) while weights load.

    Raises:
        ModelError: the file is missing, damaged or of a kind we do not support.
    """
    if source.path is None:
        from vidette.models.toy import ToyModel

        return ToyModel()
    from vidette.models.llama import load_llama

    return load_llama(source.path, name=source.name, progress=progress)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer for the front; imports tokenizers and jinja2, not torch.

    Raises:
        ModelError: the file is missing or damaged, or its tokenizer is of a kind we do not support.
    """
    if source.path is None:
        return ToyTokenizer()
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
    from vidette.models.gguf import GGUFFile
    from vidette.models.llama_config import read_llama_info

    return read_llama_info(GGUFFile(source.path), source.name)
