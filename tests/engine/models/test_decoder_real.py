"""The forward on the default model, against transformers on the same weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.models.families import read_state

from vidette.models import (
    BLOCK_SIZE,
    Model,
    ModelSource,
    StepPlan,
    Tokenizer,
    TokenTable,
    load_model,
    load_token_table,
    load_tokenizer,
)
from vidette.models.gguf import GGUFFile

pytestmark = [pytest.mark.real_model, pytest.mark.usefixtures("one_thread")]

NUM_BLOCKS = 64
PROMPT = (
    "A vidette is a mounted sentry posted ahead of the line. It watches the roads, counts what passes, and "
    "rides back before anybody else knows. In 1862 there were 42 of them in one brigade; how many horses did "
    "they need?"
)


@pytest.fixture(scope="module")
def model(real_source: ModelSource) -> Model:
    loaded = load_model(real_source, dtype="float32")
    loaded.allocate(NUM_BLOCKS)
    return loaded


@pytest.fixture(scope="module")
def tokenizer(real_source: ModelSource) -> Tokenizer:
    return load_tokenizer(real_source)


@pytest.fixture(scope="module")
def hf_model(real_source: ModelSource) -> Any:
    """transformers' Llama with the tensors of the file, its rotary layout undone in our own words."""
    from transformers import LlamaConfig, LlamaForCausalLM

    assert real_source.path is not None
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        hf: Any = LlamaForCausalLM(config)
    hf.load_state_dict(read_state(GGUFFile(real_source.path), config), assign=True)
    # Made on "meta", the frequencies have no values yet.
    hf.model.rotary_emb = type(hf.model.rotary_emb)(config)
    return hf.eval()


def test_greedy_text_and_logits_equal_those_of_transformers(
    model: Model, hf_model: Any, tokenizer: Tokenizer, make_plan: Callable[..., StepPlan]
) -> None:
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": PROMPT}])).tolist()
    blocks = random.Random(0).sample(range(NUM_BLOCKS), 16)
    feed, start = prompt, 0
    logits: list[torch.Tensor] = []
    generated: list[int] = []
    for _ in range(64):
        logits.append(model.forward(make_plan([(feed, start, blocks)], every_logit=True)).logits)
        start += len(feed)
        feed = [int(logits[-1][-1].argmax())]
        generated += feed
    # One look at the whole text tells what they would have chosen after each prefix of it.
    with torch.inference_mode():
        reference = hf_model(torch.tensor([prompt + generated[:-1]]), use_cache=False).logits[0]
    assert reference[len(prompt) - 1 :].argmax(-1).tolist() == generated
    largest = float((torch.cat(logits) - reference).abs().max())
    assert largest < 1e-3, f"the largest difference of two logits is {largest:.2e}"


def test_it_knows_the_capital_of_france(
    model: Model,
    tokenizer: Tokenizer,
    real_source: ModelSource,
    generate_greedily: Callable[[Model, Sequence[int], int], list[int]],
) -> None:
    table: TokenTable = load_token_table(real_source)
    ids = generate_greedily(model, tokenizer.encode("The capital of France is").tolist(), 3)
    assert b"".join(table.token_bytes[token_id] for token_id in ids).startswith(b" Paris.")


@pytest.mark.parametrize("seed", range(3))
def test_chunks_and_company_do_not_change_the_logits(
    seed: int, model: Model, tokenizer: Tokenizer, make_plan: Callable[..., StepPlan]
) -> None:
    rng = random.Random(seed)
    tokens = tokenizer.encode(PROMPT).tolist()
    alone = model.forward(make_plan([(tokens, 0, range(NUM_BLOCKS))], every_logit=True)).logits

    free = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    blocks = [[free.pop() for _ in range(-(-len(tokens) // BLOCK_SIZE))] for _ in range(4)]
    # The others hold a rotation of the tokens, so that nothing of theirs could pass for ours.
    rows = [tokens, *(tokens[7 * step :] + tokens[: 7 * step] for step in (1, 2, 3))]
    done = [0, 0, 0, 0]
    found: list[torch.Tensor] = []
    while done[0] < len(tokens):
        # Ours always takes part, the others often; each as a decode or as a chunk.
        chosen = [0, *(row for row in (1, 2, 3) if done[row] < len(tokens) and rng.random() < 0.8)]
        rng.shuffle(chosen)
        chunks = []
        for row in chosen:
            start = done[row]
            done[row] = min(len(tokens), start + rng.choice([1, 1, 2, 9, 30]))
            chunks.append((rows[row][start : done[row]], start, blocks[row]))
        plan = make_plan(chunks, every_logit=True)
        logits = model.forward(plan).logits
        row = chosen.index(0)
        found.append(logits[plan.row_starts[row] : plan.row_starts[row + 1]])
    together = torch.cat(found)
    difference = float((together - alone).abs().max())
    assert difference < 1e-3, f"the largest difference of two logits is {difference:.2e}"
    assert np.array_equal(together.argmax(-1), alone.argmax(-1))
