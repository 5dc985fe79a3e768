"""Files, plans and oracles that several tests of the models use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from vidette.errors import ModelError
from vidette.models import BLOCK_SIZE, Model, ModelSource, StepPlan, resolve

REAL_MODEL = "smollm2-135m-instruct"


Chunk = tuple[Sequence[int], int, Sequence[int]]
"""Part of a sequence that one step computes: its tokens, the position of the first, the sequence's blocks."""


class TinyLlama(NamedTuple):
    """Sizes of the random Llama that `tiny_llama_path` writes."""

    layers: int = 2
    hidden: int = 32
    ffn: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    context: int = 512
    theta: float = 5000.0
    epsilon: float = 1e-5


@pytest.fixture(scope="session")
def real_source() -> ModelSource:
    """The default model; it is a failure, not a skip, if nobody pulled it."""
    try:
        return resolve(REAL_MODEL)
    except ModelError as exc:
        pytest.fail(str(exc))


@pytest.fixture(scope="session")
def gemma_source() -> ModelSource:
    """A model that only a person who wants it has pulled."""
    try:
        return resolve("gemma3-270m")
    except ModelError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: with two, on a busy machine, each small product waits for the other thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def hf_tokenizer(real_source: ModelSource) -> Any:
    """What transformers makes of the same file."""
    transformers = pytest.importorskip("transformers")
    assert real_source.path is not None
    return transformers.AutoTokenizer.from_pretrained(
        str(real_source.path.parent), gguf_file=real_source.path.name
    )


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Any]:
    """Return a function that gives the tiny random model of a family, as transformers makes it."""
    pytest.importorskip("transformers")
    from tests.engine.models.families import make_model

    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            made[name] = make_model(name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., StepPlan]:
    return _make_plan


def _make_plan(chunks: Sequence[Chunk], *, every_logit: bool = False) -> StepPlan:
    """Write the plan of one step; logits for the last token of each chunk, or for all tokens."""
    tokens = [np.asarray(chunk, dtype=np.int32) for chunk, _, _ in chunks]
    starts = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
    ends = [start + len(chunk) for chunk, start, _ in chunks]
    tables = np.zeros((len(chunks), max(len(blocks) for _, _, blocks in chunks)), dtype=np.int32)
    for row, (_, _, blocks) in enumerate(chunks):
        assert len(blocks) * BLOCK_SIZE >= ends[row]
        tables[row, : len(blocks)] = blocks
    return StepPlan(
        token_ids=np.concatenate(tokens),
        positions=np.concatenate(
            [np.arange(start, end, dtype=np.int32) for (_, start, _), end in zip(chunks, ends, strict=True)]
        ),
        row_starts=starts,
        context_lens=np.asarray(ends, dtype=np.int32),
        block_tables=tables,
        logit_tokens=np.arange(starts[-1], dtype=np.int32) if every_logit else starts[1:] - 1,
        best_tokens=np.zeros(0, dtype=np.int32),
    )


@pytest.fixture(scope="session")
def generate_greedily() -> Callable[[Model, Sequence[int], int], list[int]]:
    return _generate_greedily


def _generate_greedily(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """Continue a prompt, one token per step, in the pool's first blocks."""
    blocks = range(-(-(len(prompt) + count) // BLOCK_SIZE))
    generated: list[int] = []
    feed, start = list(prompt), 0
    for _ in range(count):
        logits = model.forward(_make_plan([(feed, start, blocks)])).logits
        start += len(feed)
        feed = [int(logits[0].argmax())]
        generated += feed
    return generated


@pytest.fixture(scope="session")
def tiny_vocabulary() -> list[str]:
    """Bytes in byte-level spelling, two merged words, a control and a user-defined token."""
    # Written out rather than taken from the code under test: printable Latin-1 stands for itself.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }
    return [*(spelled[byte] for byte in range(256)), "th", "Ġth", "<|im_end|>", "<user é>"]


@pytest.fixture(scope="session")
def write_gguf(
    tiny_vocabulary: list[str],
) -> Callable[..., Path]:
    """Return a function that writes a small Llama with the reference library.

    `metadata` replaces or removes (None) values; `tensors` replaces, adds or removes (None) tensors.
    """

    def write(
        path: Path,
        *,
        metadata: dict[str, Any] | None = None,
        tensors: dict[str, NDArray[np.float32] | None] | None = None,
        arch: str = "llama",
        tied: bool = False,
    ) -> Path:
        writer = gguf.GGUFWriter(str(path), arch)
        for key, value in (_tiny_metadata(tiny_vocabulary) | (metadata or {})).items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif value is not None:
                writer.add_array(key, value)
        for name, tensor in (_tiny_tensors(len(tiny_vocabulary), tied=tied) | (tensors or {})).items():
            if tensor is None:
                continue
            if name.endswith("ffn_down.weight"):
                writer.add_tensor(name, tensor.astype(np.float16))
            elif name.endswith("ffn_up.weight"):
                packed = gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0)
                writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture(scope="session")
def tiny_llama_path(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def _tiny_metadata(vocabulary: list[str]) -> dict[str, Any]:
    size = TinyLlama()
    control, user_defined = len(vocabulary) - 2, len(vocabulary) - 1
    types = [1] * len(vocabulary)
    types[control], types[user_defined] = 3, 4
    return {
        "llama.block_count": size.layers,
        "llama.context_length": size.context,
        "llama.embedding_length": size.hidden,
        "llama.feed_forward_length": size.ffn,
        "llama.attention.head_count": size.heads,
        "llama.attention.head_count_kv": size.kv_heads,
        "llama.rope.freq_base": size.theta,
        "llama.attention.layer_norm_rms_epsilon": size.epsilon,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["t h", "Ġ th"],
        "tokenizer.ggml.eos_token_id": control,
        "tokenizer.ggml.bos_token_id": control,
    }


def _tiny_tensors(vocab_size: int, *, tied: bool) -> dict[str, NDArray[np.float32] | None]:
    size, rng = TinyLlama(), np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(2 / np.sqrt(columns))

    def norm() -> NDArray[np.float32]:
        return 1 + np.float32(0.2) * rng.standard_normal(size.hidden, dtype=np.float32)

    tensors: dict[str, NDArray[np.float32] | None] = {
        "token_embd.weight": matrix(vocab_size, size.hidden) * 4,
        "output_norm.weight": norm(),
    }
    if not tied:
        tensors["output.weight"] = matrix(vocab_size, size.hidden)
    for layer in range(size.layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": norm(),
            f"blk.{layer}.attn_q.weight": matrix(size.heads * size.head_dim, size.hidden),
            f"blk.{layer}.attn_k.weight": matrix(size.kv_heads * size.head_dim, size.hidden),
            f"blk.{layer}.attn_v.weight": matrix(size.kv_heads * size.head_dim, size.hidden),
            f"blk.{layer}.attn_output.weight": matrix(size.hidden, size.heads * size.head_dim),
            f"blk.{layer}.ffn_norm.weight": norm(),
            f"blk.{layer}.ffn_gate.weight": matrix(size.ffn, size.hidden),
            f"blk.{layer}.ffn_up.weight": matrix(size.ffn, size.hidden),
            f"blk.{layer}.ffn_down.weight": matrix(size.hidden, size.ffn),
        }
    return tensors
