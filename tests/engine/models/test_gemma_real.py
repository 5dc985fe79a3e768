"""The forward on a real Gemma 3, past its window, against transformers on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engine.models.families import read_state

from vidette.errors import ModelError
from vidette.models import BLOCK_SIZE, Model, ModelSource, StepPlan, load_model, load_tokenizer, resolve
from vidette.models.gguf import GGUFFile

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

NUM_BLOCKS = 64
WINDOW = 512
CHUNK = 90
PROMPT = " ".join(
    f"In {1790 + 7 * year} the brigade had {3 * year + 5} videttes and {11 * year + 2} horses."
    for year in range(30)
)


@pytest.fixture(scope="module")
def source() -> ModelSource:
    try:
        return resolve("gemma3-270m")
    except ModelError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def model(source: ModelSource) -> Model:
    loaded = load_model(source, dtype="float32")
    loaded.allocate(NUM_BLOCKS)
    return loaded


@pytest.fixture(scope="module")
def reference(source: ModelSource) -> Any:
    """transformers' Gemma with the tensors of the file; the config is the one its makers publish."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    assert source.path is not None
    config = Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32_768,
        sliding_window=WINDOW,
        query_pre_attn_scalar=256,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    with torch.device("meta"):
        model: Any = Gemma3ForCausalLM(config)
    model.load_state_dict(read_state(GGUFFile(source.path), config), assign=True)
    # Made on "meta", what is no weight has no values yet.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)
    return model.eval()


def test_greedy_text_and_logits_equal_those_of_transformers(
    model: Model, reference: Any, source: ModelSource, make_plan: Callable[..., StepPlan]
) -> None:
    prompt = load_tokenizer(source).encode(PROMPT).tolist()
    assert WINDOW < len(prompt) < NUM_BLOCKS * BLOCK_SIZE - 40
    blocks = list(reversed(range(NUM_BLOCKS)))
    # Logits are compared from the last chunk on, whose tokens no longer see the first ones in most layers.
    for start in range(0, len(prompt) - CHUNK, CHUNK):
        model.forward(make_plan([(prompt[start : start + CHUNK], start, blocks)]))
    last = start + CHUNK
    logits = [model.forward(make_plan([(prompt[last:], last, blocks)], every_logit=True)).logits]
    generated = [int(logits[-1][-1].argmax())]
    for step in range(31):
        plan = make_plan([(generated[-1:], len(prompt) + step, blocks)])
        logits.append(model.forward(plan).logits)
        generated.append(int(logits[-1][-1].argmax()))
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt + generated[:-1]]), use_cache=False).logits[0, last:]
    assert expected[len(prompt) - last - 1 :].argmax(-1).tolist() == generated
    largest = float((torch.cat(logits) - expected).abs().max())
    assert largest < 1e-3, f"the largest difference of two logits is {largest:.2e}"
