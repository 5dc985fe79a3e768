"""What a GGUF header says of a Llama: its sizes, checked, and a refusal of what we do not compute."""

from __future__ import annotations

from typing import Final, NamedTuple

from vidette.errors import ModelError
from vidette.models.gguf import GGUFFile
from vidette.models.interface import ModelInfo
from vidette.models.vocabulary import read_end_tokens, read_start_token, read_vocabulary

ARCHITECTURE: Final = "llama"

_BYTES_PER_VALUE: Final = 4  # keys and values are kept as float32


class LlamaConfig(NamedTuple):
    """Sizes and constants of a Llama."""

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    rope_theta: float
    norm_epsilon: float


def read_llama_config(file: GGUFFile) -> LlamaConfig:
    """Read and check the sizes of a Llama.

    Raises:
        ModelError: another architecture, sizes that do not fit together, or a variant that is not supported
            (mixture of experts, scaled rotary embeddings, partial rotation, a file in several parts).
    """
    architecture = file.value("general.architecture", str)
    if architecture != ARCHITECTURE:
        raise ModelError(f"{file.path}: architecture {architecture!r} is not supported; {ARCHITECTURE!r} is")
    _refuse_variants(file)

    def size(key: str, default: int | None = None) -> int:
        value = file.value(f"llama.{key}", int, default)
        if value <= 0:
            raise ModelError(f"{file.path}: llama.{key} is {value}, not a positive number")
        return value

    hidden_size = size("embedding_length")
    num_heads = size("attention.head_count")
    num_kv_heads = size("attention.head_count_kv", num_heads)
    head_dim = size("attention.key_length", max(1, hidden_size // num_heads))
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelError(
            f"{file.path}: {num_heads} heads of {head_dim} values do not fit {num_kv_heads} key-value heads"
        )
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head_dim) != head_dim:
            raise ModelError(
                f"{file.path}: llama.{key} is not the {head_dim} values of a head: not supported"
            )

    embedding = file.tensors.get("token_embd.weight")
    vocab_size = embedding.shape[0] if embedding else 0
    num_tokens = len(read_vocabulary(file).tokens)
    if vocab_size != num_tokens:
        raise ModelError(f"{file.path}: {num_tokens} tokens, but embeddings of {vocab_size}")
    return LlamaConfig(
        num_layers=size("block_count"),
        hidden_size=hidden_size,
        ffn_size=size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_len=size("context_length"),
        rope_theta=file.value("llama.rope.freq_base", float, 10_000.0),
        norm_epsilon=file.value("llama.attention.layer_norm_rms_epsilon", float),
    )


def llama_info(
    config: LlamaConfig, name: str, eos_token_ids: frozenset[int], bos_token_id: int | None = None
) -> ModelInfo:
    """Return what the engine has to know of a Llama."""
    values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return ModelInfo(
        name=name,
        architecture=ARCHITECTURE,
        vocab_size=config.vocab_size,
        context_len=config.context_len,
        eos_token_ids=eos_token_ids,
        kv_bytes_per_token=values_per_token * _BYTES_PER_VALUE,
        bos_token_id=bos_token_id,
    )


def read_llama_info(file: GGUFFile, name: str) -> ModelInfo:
    """Read what the engine has to know of a Llama from its header.

    Raises:
        ModelError: as `read_llama_config` and `read_end_tokens` do.
    """
    return llama_info(read_llama_config(file), name, read_end_tokens(file), read_start_token(file))


def _refuse_variants(file: GGUFFile) -> None:
    scaling = file.value("llama.rope.scaling.type", str, "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise ModelError(f"{file.path}: scaled rotary embeddings ({scaling!r}) are not supported")
    if file.value("llama.expert_count", int, 0):
        raise ModelError(f"{file.path}: mixtures of experts are not supported")
    if file.value("split.count", int, 1) > 1:
        raise ModelError(f"{file.path}: models in several files are not supported; merge them first")
