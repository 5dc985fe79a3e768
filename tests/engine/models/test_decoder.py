"""The decoder's forward over the paged pool against a dense one written here, for every switch it has."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vidette.models import BLOCK_SIZE, ModelSource, StepPlan, load_model, paging
from vidette.models.decoder import Decoder, linear
from vidette.models.decoder_config import Activation, DecoderConfig, decoder_info
from vidette.models.load import read_decoder
from vidette.models.quants import TensorType
from vidette.models.weights import DecoderLayer, DecoderWeights, Matrix, Vector

Array = NDArray[np.float64]
pytestmark = pytest.mark.usefixtures("one_thread")

NUM_BLOCKS = 24
VOCABULARY = 60


class DenseDecoder:
    """The same model the plain way: float64, one sequence at a time, no cache, a loop over heads."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.embedding = weights.embedding.dequantized().astype(np.float64)
        self.head = (weights.head or weights.embedding).dequantized().astype(np.float64)
        self.norm = weights.norm
        self.layers = [
            {
                name: (part.dequantized() if isinstance(part, Matrix) else part).astype(np.float64)
                for name, part in layer._asdict().items()
                if part is not None
            }
            for layer in weights.layers
        ]

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return [len(tokens), vocabulary]."""
        config = self.config
        x = self.embedding[list(tokens)] * config.embedding_scale
        for index, layer in enumerate(self.layers):
            added = self._attention(index, self._norm(x, layer["attention_norm"]))
            x = x + (self._norm(added, layer["post_attention_norm"]) if config.post_norms else added)
            y = self._norm(x, layer["ffn_norm"])
            added = (self._activate(y @ layer["gate"].T) * (y @ layer["up"].T)) @ layer["down"].T
            x = x + (self._norm(added, layer["post_ffn_norm"]) if config.post_norms else added)
        return _capped(self._norm(x, self.norm) @ self.head.T, config.logit_softcap)

    def _activate(self, x: Array) -> Array:
        if self.config.activation is Activation.SILU:
            return np.asarray(x / (1 + np.exp(-x)))
        return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))

    def _norm(self, x: Array, weight: NDArray[Any]) -> Array:
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config.norm_epsilon)
        normed: Array = x / scale * weight
        return normed

    def _attention(self, index: int, x: Array) -> Array:
        config, layer = self.config, self.layers[index]
        q, k, v = (x @ layer[name].T for name in ("query", "key", "value"))
        if config.qkv_bias:
            q, k, v = q + layer["query_bias"], k + layer["key_bias"], v + layer["value_bias"]
        distances = np.arange(len(x))[:, None] - np.arange(len(x))
        visible = (distances >= 0) & (distances < (config.windows[index] or len(x)))
        heads = []
        for head in range(config.num_heads):
            shared = head // (config.num_heads // config.num_kv_heads)
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            kept = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
            query, key = q[:, own], k[:, kept]
            if config.qk_norm:
                query, key = self._norm(query, layer["query_norm"]), self._norm(key, layer["key_norm"])
            scores = self._rotate(index, query) @ self._rotate(index, key).T * config.query_scale
            scores = np.where(visible, _capped(scores, config.attention_softcap), -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ v[:, kept])
        mixed: Array = np.concatenate(heads, axis=-1) @ layer["output"].T
        return mixed

    def _rotate(self, index: int, x: Array) -> Array:
        config = self.config
        angles = np.arange(len(x))[:, None] * config.rope_frequencies[config.rope_kinds[index]].astype(float)
        cos, sin = np.cos(angles), np.sin(angles)
        if config.interleaved_rope:
            rotated = np.empty_like(x)
            rotated[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
            rotated[:, 1::2] = x[:, 1::2] * cos + x[:, 0::2] * sin
            return rotated
        left, right = np.split(x, 2, axis=-1)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _capped(x: Array, cap: float) -> Array:
    return cap * np.tanh(x / cap) if cap else x


def random_decoder(seed: int, *, tied: bool = False, **switches: Any) -> tuple[DecoderConfig, DecoderWeights]:
    """Return a decoder of odd sizes with random weights."""
    rng = np.random.default_rng(seed)
    config = DecoderConfig(
        architecture="odd",
        num_layers=2,
        hidden_size=36,
        ffn_size=44,
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        vocab_size=VOCABULARY,
        context_len=400,
        norm_epsilon=1e-5,
        rope_frequencies=np.stack([base ** (-np.arange(5) / 5) for base in (500, 40)]).astype(np.float32),
        rope_kinds=(1, 0),
        windows=(0, 0),
        query_scale=0.4,
    )._replace(**switches)

    def matrix(rows: int, columns: int) -> Matrix:
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        return Matrix((rows, columns), TensorType.F32, values.reshape(-1).view(np.uint8))

    def vector(size: int, mean: float) -> Vector:
        return np.float32(mean) + np.float32(0.2) * rng.standard_normal(size, dtype=np.float32)

    def bias(size: int) -> Vector | None:
        return vector(size, 0) if config.qkv_bias else None

    def norm(size: int, *, there: bool = True) -> Vector | None:
        return vector(size, 1) if there else None

    def layer() -> DecoderLayer:
        hidden, q_size, kv_size = config.hidden_size, 60, 20
        return DecoderLayer(
            vector(hidden, 1),
            matrix(q_size, hidden),
            matrix(kv_size, hidden),
            matrix(kv_size, hidden),
            matrix(hidden, q_size),
            vector(hidden, 1),
            matrix(config.ffn_size, hidden),
            matrix(config.ffn_size, hidden),
            matrix(hidden, config.ffn_size),
            bias(q_size),
            bias(kv_size),
            bias(kv_size),
            norm(config.head_dim, there=config.qk_norm),
            norm(config.head_dim, there=config.qk_norm),
            norm(hidden, there=config.post_norms),
            norm(hidden, there=config.post_norms),
        )

    weights = DecoderWeights(
        matrix(VOCABULARY, config.hidden_size),
        [layer() for _ in range(config.num_layers)],
        vector(config.hidden_size, 1),
        None if tied else matrix(VOCABULARY, config.hidden_size),
    )
    return config, weights


def build(config: DecoderConfig, weights: DecoderWeights) -> Decoder:
    """Return the decoder with a pool of what recycled blocks might hold at worst."""
    model = Decoder(config, weights, decoder_info(config, "odd", frozenset(), None))
    model.allocate(NUM_BLOCKS)
    poison(model)
    return model


def poison(model: Decoder) -> None:
    for pool in (pool for layer in model._pools for pool in layer):
        pool.fill_(float("nan"))


def check(logits: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(logits.numpy(), expected, atol=2e-4, rtol=0)


@pytest.fixture(scope="module")
def model(tiny_llama_path: Path) -> Decoder:
    loaded = load_model(ModelSource("tiny", tiny_llama_path))
    assert isinstance(loaded, Decoder)
    loaded.allocate(NUM_BLOCKS)
    return loaded


@pytest.fixture(scope="module")
def dense(tiny_llama_path: Path) -> DenseDecoder:
    config, weights, _ = read_decoder(tiny_llama_path, "tiny")
    return DenseDecoder(config, weights)


def test_one_prompt_at_once(model: Decoder, dense: DenseDecoder, make_plan: Callable[..., StepPlan]) -> None:
    tokens = list(np.random.default_rng(1).integers(0, 260, 100))
    poison(model)
    logits = model.forward(make_plan([(tokens, 0, range(7))], every_logit=True)).logits
    assert logits.dtype == torch.float32
    check(logits, dense.logits(tokens))


SWITCHES = st.fixed_dictionaries(
    {
        "tied": st.booleans(),
        "windows": st.tuples(*[st.sampled_from([0, 1, 2, 7, 16, 33, 1000])] * 2),
        "activation": st.sampled_from(Activation),
        "embedding_scale": st.sampled_from([1.0, 3.5]),
        "interleaved_rope": st.booleans(),
        "qkv_bias": st.booleans(),
        "qk_norm": st.booleans(),
        "post_norms": st.booleans(),
        "attention_softcap": st.sampled_from([0.0, 1.5]),
        "logit_softcap": st.sampled_from([0.0, 2.0]),
    }
)


@settings(deadline=None, max_examples=100)
@given(
    switches=SWITCHES,
    rows=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    short_context=st.sampled_from([8, 512]),
)
def test_any_schedule_of_any_decoder_gives_the_dense_logits(
    switches: dict[str, Any],
    rows: list[list[int]],
    seed: int,
    short_context: int,
    make_plan: Callable[..., StepPlan],
) -> None:
    """Chunks of any size, decodes and extends in one step, in any order and in any blocks."""
    rng = random.Random(seed)
    config, weights = random_decoder(seed, **switches)
    dense, model = DenseDecoder(config, weights), build(config, weights)
    free = list(range(NUM_BLOCKS))
    rng.shuffle(free)
    blocks = [[free.pop() for _ in range(-(-len(row) // BLOCK_SIZE))] for row in rows]
    expected = [dense.logits(row) for row in rows]
    done = [0] * len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_SHORT_CONTEXT", short_context)
        while unfinished := [index for index, row in enumerate(rows) if done[index] < len(row)]:
            chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
            chunks, wanted = [], []
            for index in chosen:
                start = done[index]
                done[index] = rng.choice([start + 1, rng.randint(start + 1, len(rows[index]))])
                chunks.append((rows[index][start : done[index]], start, blocks[index]))
                wanted.append(expected[index][start : done[index]])
            check(model.forward(make_plan(chunks, every_logit=True)).logits, np.concatenate(wanted))


@pytest.mark.parametrize(
    "switch",
    [
        {"windows": (0, 5)},
        {"rope_kinds": (0, 0)},
        {"activation": Activation.GELU_TANH},
        {"embedding_scale": 2.0},
        {"interleaved_rope": True},
        {"attention_softcap": 1.5},
        {"logit_softcap": 2.0},
        {"query_scale": 0.5},
    ],
)
def test_every_switch_changes_the_logits(switch: dict[str, Any], make_plan: Callable[..., StepPlan]) -> None:
    config, weights = random_decoder(3)
    plan = make_plan([(range(20), 0, [0, 1])])
    logits = [build(each, weights).forward(plan).logits for each in (config, config._replace(**switch))]
    difference = logits[0] - logits[1]
    assert difference.abs().max() > 1e-2


def test_what_lies_before_the_windows_is_not_read(make_plan: Callable[..., StepPlan]) -> None:
    config, weights = random_decoder(4, windows=(16, 16))
    model = build(config, weights)
    tokens = [*range(40), 7, 8]
    model.forward(make_plan([(tokens[:40], 0, [0, 1, 2])]))
    # The blocks of positions 0 to 15 have been given away: no token from position 40 on sees them.
    model.import_blocks([0], np.full_like(model.export_blocks([0]), np.nan))
    logits = model.forward(make_plan([(tokens[40:], 40, [0, 1, 2])], every_logit=True)).logits
    check(logits, DenseDecoder(config, weights).logits(tokens)[40:])


def test_logits_only_where_they_are_wanted(model: Decoder, make_plan: Callable[..., StepPlan]) -> None:
    plan = make_plan([([1, 2, 3], 0, [4]), ([9], 0, [5])], every_logit=True)
    every = model.forward(plan).logits
    for wanted in ([3, 0], [2], []):
        some = model.forward(plan._replace(logit_tokens=np.array(wanted, dtype=np.int32))).logits
        assert some.shape == (len(wanted), 260)
        torch.testing.assert_close(some, every[wanted], atol=1e-5, rtol=0)


def test_a_poisoned_row_does_not_touch_the_others(
    model: Decoder, dense: DenseDecoder, make_plan: Callable[..., StepPlan]
) -> None:
    poison(model)
    tokens = list(range(20))
    model.forward(make_plan([(tokens, 0, [0, 1])]))
    # The second row goes on from blocks nobody wrote: all its keys are no numbers. It is padded together with
    # the first one, and longer than it.
    logits = model.forward(make_plan([([20], 20, [0, 1]), ([7], 40, [2, 3, 4])])).logits
    check(logits[0], dense.logits([*tokens, 20])[-1])
    assert logits[1].isnan().all()


def test_copied_blocks_are_as_good_as_computed_ones(
    model: Decoder, make_plan: Callable[..., StepPlan]
) -> None:
    tokens = list(np.random.default_rng(2).integers(0, 260, 40))
    poison(model)
    model.forward(make_plan([(tokens, 0, [7, 2, 9])]))
    expected = model.forward(make_plan([([5], 40, [7, 2, 9])])).logits
    copies = model.export_blocks([7, 2, 9])
    assert copies.shape == (3, 2 * 2, BLOCK_SIZE * 2 * 8)
    assert copies[:2].nbytes == 2 * BLOCK_SIZE * model.info.kv_bytes_per_token
    poison(model)
    model.import_blocks([4, 8], copies[:2])
    model.import_blocks([1], copies[2:])
    assert torch.equal(model.forward(make_plan([([5], 40, [4, 8, 1])])).logits, expected)
    assert model.export_blocks([8, 4])[::-1].tobytes() == copies[:2].tobytes()


def test_progress_counts_the_matrices(tiny_llama_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    source = ModelSource("tiny", tiny_llama_path)
    model = load_model(source, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(done, 16) for done in range(1, 17)]
    assert model.info.name == "tiny"


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 33])
def test_linear_is_the_product_with_the_transpose(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, 12, generator=generator), torch.randn(7, 12, generator=generator)
    result = linear(x, weight)
    assert result.shape == (rows, 7)
    assert result.is_contiguous()
    torch.testing.assert_close(result, x @ weight.T)
