"""Tiny random models of every family as transformers makes them, and what becomes of them in GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from vidette.models import BLOCK_SIZE, Model, StepPlan
from vidette.models.decoder import Decoder
from vidette.models.gguf import GGUFFile

VOCAB_SIZE: Final = 260
WINDOW: Final = 17
"""Of layers that have one: odd, and longer than a block."""
LENGTH: Final = 100
"""Tokens of the sequences that are compared."""


class Family(NamedTuple):
    """Which class of transformers it is, and what its config says beside the sizes."""

    model_type: str
    options: Mapping[str, Any]


_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_ALTERNATING: Final = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
    "llama3": Family("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": Family(
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}}
    ),
    "mistral": Family("mistral", {"sliding_window": WINDOW}),
    "qwen2": Family("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": Family(
        "qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    "qwen3": Family("qwen3", {"head_dim": 14}),
    "gemma3": Family(
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "layer_types": _ALTERNATING,
            "query_pre_attn_scalar": 10,
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-capped": Family(
        "gemma3_text",
        {"sliding_window": WINDOW, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    ),
}

WRITTEN: Final = ("llama", "llama3", "llama-linear", "mistral", "qwen2", "qwen3", "gemma3")
"""Families whose every switch a GGUF file can tell."""


def make_model(name: str, **other_sizes: Any) -> Any:
    """Return a random model of transformers, in evaluation mode.

    Args:
        name: of the family.
        other_sizes: values of its config that replace those of here.
    """
    import transformers

    classes: dict[str, Any] = {
        "llama": transformers.LlamaForCausalLM,
        "mistral": transformers.MistralForCausalLM,
        "qwen2": transformers.Qwen2ForCausalLM,
        "qwen3": transformers.Qwen3ForCausalLM,
        "gemma3_text": transformers.Gemma3ForCausalLM,
    }
    family = FAMILIES[name]
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    }
    model_class = classes[family.model_type]
    torch.manual_seed(20)
    model = model_class(model_class.config_class(**(sizes | dict(family.options) | other_sizes)))
    for parameter_name, parameter in model.named_parameters():
        # Norms and biases begin as ones and zeros: nobody would notice which is which.
        if "norm" in parameter_name or parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
    return model.eval()


def largest_difference(decoder: Decoder, reference: Any, make_plan: Callable[..., StepPlan]) -> float:
    """Return the largest difference of two logits, over two sequences in chunks and single tokens.

    Args:
        decoder: computes as `paged_logits` says.
        reference: the model of transformers; sees each sequence at once.
        make_plan: the fixture.
    """
    found = paged_logits(decoder, make_plan)
    with torch.inference_mode():
        expected = reference(torch.tensor(_sequences()), use_cache=False).logits
    assert expected.abs().max() > 2
    return float((found - expected).abs().max())


def paged_logits(decoder: Model, make_plan: Callable[..., StepPlan]) -> torch.Tensor:
    """Return logits [2, LENGTH, vocabulary] of two sequences in chunks and single tokens.

    Args:
        decoder: computes through its pool, both sequences together, in blocks far from each other.
        make_plan: the fixture.
    """
    sequences = _sequences()
    blocks = np.random.default_rng(6).permutation(2 * -(-LENGTH // BLOCK_SIZE)).reshape(2, -1).tolist()
    decoder.allocate(2 * len(blocks[0]))
    found: list[list[torch.Tensor]] = [[], []]
    done = [0, 0]
    # One begins with a long chunk and the other with a single token; from 60 on both are decoded.
    steps = [(40, 1), (1, 30), (5, 13), (14, 16), *[(1, 1)] * (LENGTH - 60)]
    for step in steps:
        chunks = []
        for row, count in enumerate(step):
            chunks.append((sequences[row][done[row] : done[row] + count], done[row], blocks[row]))
            done[row] += count
        logits = decoder.forward(make_plan(chunks, every_logit=True)).logits.clone()
        found[0].append(logits[: step[0]])
        found[1].append(logits[step[0] :])
    assert done == [LENGTH, LENGTH]
    return torch.stack([torch.cat(parts) for parts in found])


def _sequences() -> list[list[int]]:
    sequences: list[list[int]] = np.random.default_rng(5).integers(0, VOCAB_SIZE, (2, LENGTH)).tolist()
    return sequences


_NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS: Final = {"post_attention_layernorm": "ffn_norm"}
_GEMMA_NORMS: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_model(path: Path, model: Any, vocabulary: list[str]) -> Path:
    """Write a model of transformers as the GGUF file that converters make of it."""
    config = model.config
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch == "gemma3" or config.model_type == "mistral":
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([1] * len(vocabulary))
    if arch == "gemma3":
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        # Its layers alternate: every second one sees all.
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    if rope["rope_type"] == "llama3":
        plain = rope["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        factors = plain / model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(*_converted(name, tensor.numpy(), config, arch))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(
    name: str, values: NDArray[np.float32], config: Any, arch: str
) -> tuple[str, NDArray[np.float32]]:
    """Return a tensor under its other name, its rows in the order and its norms as GGUF files have them."""
    names = _NAMES | (_GEMMA_NORMS if arch == "gemma3" else _NORMS)
    stem, _, kind = name.rpartition(".")
    if arch == "gemma3" and "norm" in name:
        values = values + 1
    if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
        # Row i of the first half of a head and row i of the second become neighbours.
        halves = values.reshape(-1, 2, config.head_dim // 2, values.shape[-1])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{names[part]}.{kind}", values
    return f"{names[stem]}.{kind}", values


def read_state(file: GGUFFile, config: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a GGUF file as the model of transformers with this config has them."""
    gemma = config.model_type == "gemma3_text"
    names = {ours: hf for hf, ours in (_NAMES | (_GEMMA_NORMS if gemma else _NORMS)).items()}
    state: dict[str, torch.Tensor] = {}
    for name in file.tensors:
        stem, _, kind = name.rpartition(".")
        tensor = torch.from_numpy(file.tensor(name))
        if gemma and "norm" in name:
            tensor = tensor - 1
        if stem.startswith("blk."):
            _, layer, part = stem.split(".", 2)
            if config.model_type == "llama" and part in {"attn_q", "attn_k"}:
                # Row 2i of a head goes to row i, row 2i + 1 to row i of the second half.
                order = torch.arange(len(tensor)).view(-1, config.head_dim)
                tensor = tensor[torch.cat([order[:, 0::2], order[:, 1::2]], dim=1).flatten()]
            state[f"model.layers.{layer}.{names[part]}.{kind}"] = tensor
        else:
            state[f"{names[stem]}.{kind}"] = tensor
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state
