"""A whole decoder in one call: what it computes, and that bits depend on nothing but their request."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.kernels.native import Native, Part, make_plan

from vidette.errors import KernelError
from vidette.kernels.library import Kernels
from vidette.kernels.native import NativeDecoder, why_not
from vidette.kernels.reference import (
    PackedMatrix,
    PagedRows,
    attend,
    best_tokens,
    gated,
    linear,
    pool_shape,
    rms_norm,
    rotate,
    softcap,
    unpack,
    write_pool,
)
from vidette.models import ModelInfo, StepPlan
from vidette.models.decoder_config import Activation, DecoderConfig
from vidette.models.quants import TensorType
from vidette.models.weights import DecoderLayer, DecoderWeights, Matrix

Floats = NDArray[np.float32]

VOCAB = 203  # neither whole tiles nor whole blocks
BLOCKS = 64
INFO = ModelInfo("small", "llama", VOCAB, 512, frozenset(), 0)

FREQUENCIES = (1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)).astype(np.float32)
PLAIN = DecoderConfig(
    architecture="llama",
    num_layers=2,
    hidden_size=48,
    ffn_size=80,
    num_heads=3,
    num_kv_heads=1,
    head_dim=16,
    vocab_size=VOCAB,
    context_len=512,
    norm_epsilon=1e-5,
    rope_frequencies=FREQUENCIES[None],
    rope_kinds=(0, 0),
    windows=(0, 0),
    query_scale=0.25,
    interleaved_rope=True,
)
RICH = PLAIN._replace(
    architecture="gemma3",
    hidden_size=40,
    num_heads=4,
    num_kv_heads=2,
    rope_frequencies=np.stack([FREQUENCIES, FREQUENCIES / 8]),
    rope_kinds=(0, 1),
    windows=(19, 0),
    activation=Activation.GELU_TANH,
    embedding_scale=6.0,
    interleaved_rope=False,
    qkv_bias=True,
    qk_norm=True,
    post_norms=True,
    attention_softcap=5.0,
    logit_softcap=4.0,
)
CONFIGS = {"plain": PLAIN, "rich": RICH}


def make_weights(config: DecoderConfig, seed: int = 0) -> DecoderWeights:
    """Random weights, float32."""
    rng = np.random.default_rng(seed)
    hidden, ffn = config.hidden_size, config.ffn_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def matrix(rows: int, cols: int) -> Matrix:
        values = rng.normal(0, cols**-0.5, (rows, cols)).astype(np.float32)
        return Matrix((rows, cols), TensorType.F32, values.reshape(-1).view(np.uint8))

    def norm(size: int) -> Floats:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    def layer() -> DecoderLayer:
        return DecoderLayer(
            norm(hidden),
            *(matrix(q, hidden), matrix(kv, hidden), matrix(kv, hidden), matrix(hidden, q)),
            norm(hidden),
            *(matrix(ffn, hidden), matrix(ffn, hidden), matrix(hidden, ffn)),
            *((norm(q) - 1, norm(kv) - 1, norm(kv) - 1) if config.qkv_bias else (None, None, None)),
            *((norm(config.head_dim), norm(config.head_dim)) if config.qk_norm else (None, None)),
            *((norm(hidden), norm(hidden)) if config.post_norms else (None, None)),
        )

    layers = [layer() for _ in range(config.num_layers)]
    head = matrix(VOCAB, hidden) if config is RICH else None
    return DecoderWeights(matrix(VOCAB, hidden), layers, norm(hidden), head)


Make = Callable[..., NativeDecoder]


@pytest.fixture(scope="module")
def make(kernels: Native) -> Make:
    """Make decoders with a pool, of each target."""

    def make(config: DecoderConfig, weights: DecoderWeights, *, threads: int = 2) -> NativeDecoder:
        loaded = Kernels(kernels.library, Path("kernels.so"), "any")
        decoder = NativeDecoder(loaded, config, weights, INFO, threads=threads)
        decoder.allocate(BLOCKS)
        return decoder

    return make


class Reference:
    """The same decoder in the words of `vidette.kernels.reference`, over a pool of its own."""

    def __init__(self, native: Native, config: DecoderConfig, weights: DecoderWeights) -> None:
        self._native = native
        self._config = config
        self._weights = weights
        self._packed: dict[int, PackedMatrix] = {}
        shape = pool_shape(BLOCKS, config.num_kv_heads, config.head_dim)
        self._pools = [np.zeros(shape, dtype=np.float16) for _ in range(config.num_layers)]

    def pack(self, matrix: Matrix) -> PackedMatrix:
        packed = self._packed.get(id(matrix))
        if packed is None:
            packed = self._native.pack(matrix.type, matrix.data, *matrix.shape)
            assert packed is not None
            self._packed[id(matrix)] = packed
        return packed

    def forward(self, plan: StepPlan) -> Floats:
        config, weights = self._config, self._weights
        rows = PagedRows(plan.positions, plan.row_starts, plan.block_tables)
        x = unpack(self.pack(weights.embedding))[plan.token_ids] * np.float32(config.embedding_scale)
        for index, layer in enumerate(weights.layers):
            normed = rms_norm(x, layer.attention_norm, config.norm_epsilon)
            q = self._heads(normed, layer.query, layer.query_bias, layer.query_norm)
            k = self._heads(normed, layer.key, layer.key_bias, layer.key_norm)
            v = self._heads(normed, layer.value, layer.value_bias, None)
            frequencies = config.rope_frequencies[config.rope_kinds[index]]
            q, k = (
                rotate(heads, plan.positions, frequencies, interleaved=config.interleaved_rope)
                for heads in (q, k)
            )
            write_pool(self._pools[index], k, v, rows)
            mixed = attend(
                q,
                self._pools[index],
                rows,
                config.num_kv_heads,
                scale=config.query_scale,
                window=config.windows[index],
                cap=config.attention_softcap,
            )
            added = linear(mixed.reshape(len(x), -1), self.pack(layer.output))
            x = x + self._post(added, layer.post_attention_norm)
            normed = rms_norm(x, layer.ffn_norm, config.norm_epsilon)
            gate, up = (linear(normed, self.pack(matrix)) for matrix in (layer.gate, layer.up))
            added = linear(gated(gate, up, config.activation), self.pack(layer.down))
            x = x + self._post(added, layer.post_ffn_norm)
        normed = rms_norm(x[plan.logit_tokens], weights.norm, config.norm_epsilon)
        logits = linear(normed, self.pack(weights.head or weights.embedding))
        return softcap(logits, config.logit_softcap) if config.logit_softcap else logits

    def _heads(self, x: Floats, matrix: Matrix, bias: Floats | None, norm: Floats | None) -> Floats:
        y = linear(x, self.pack(matrix))
        if bias is not None:
            y = y + bias
        heads = y.reshape(-1, self._config.head_dim)
        if norm is not None:
            heads = rms_norm(heads, norm, self._config.norm_epsilon)
        return heads.reshape(len(x), -1, self._config.head_dim)

    def _post(self, x: Floats, norm: Floats | None) -> Floats:
        return x if norm is None else rms_norm(x, norm, self._config.norm_epsilon)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_specification(name: str, make: Make, kernels: Native) -> None:
    """Chunks and decodes, past the window: equal but for activations that fall on the edge of rounding."""
    config = CONFIGS[name]
    weights = make_weights(config)
    decoder, reference = make(config, weights), Reference(kernels, config, weights)
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, VOCAB, 70).tolist() for _ in range(2)]
    tables = rng.permutation(BLOCKS)[:10].reshape(2, 5).tolist()
    for parts in (
        [Part(tokens[0][:33], 0, tables[0])],
        [Part(tokens[1][:50], 0, tables[1]), Part(tokens[0][33:34], 33, tables[0])],
        [Part(tokens[0][34:60], 34, tables[0]), Part(tokens[1][50:70], 50, tables[1])],
        [Part(tokens[0][60:61], 60, tables[0])],
    ):
        plan = make_plan(parts, all_logits=True)
        ours, expected = decoder.forward(plan).logits.numpy(), reference.forward(plan)
        assert np.abs(ours - expected).max() < 0.03 * np.abs(expected).max()
        assert np.square(ours - expected).mean() < 1e-5 * np.square(expected).mean()


@settings(max_examples=12, deadline=None)
@given(data=st.data(), name=st.sampled_from(list(CONFIGS)), threads=st.sampled_from([1, 2, 3]))
def test_bits_depend_on_the_request_alone(data: st.DataObject, name: str, threads: int, make: Make) -> None:
    """However a row is cut into steps, whatever else is in them, with any threads: the same bits."""
    config = CONFIGS[name]
    weights = make_weights(config)
    tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=90), "tokens")
    alone = make(config, weights, threads=1)
    expected = alone.forward(make_plan([Part(tokens, 0, list(range(6)))], all_logits=True)).logits.numpy()

    blocks = data.draw(st.permutations(range(BLOCKS)), "blocks")
    decoder = make(config, weights, threads=threads)
    done = 0
    while done < len(tokens):
        count = data.draw(st.integers(1, min(40, len(tokens) - done)), "chunk")
        others = [
            Part(others, 0, blocks[6 + 2 * i : 8 + 2 * i])
            for i, others in enumerate(
                data.draw(
                    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), max_size=9),
                    "others",
                )
            )
        ]
        place = data.draw(st.integers(0, len(others)), "place")
        parts = [*others[:place], Part(tokens[done : done + count], done, blocks[:6]), *others[place:]]
        logits = decoder.forward(make_plan(parts, all_logits=True)).logits.numpy()
        first = sum(len(part.tokens) for part in parts[:place])
        assert logits[first : first + count].tobytes() == expected[done : done + count].tobytes()
        done += count


@settings(max_examples=15, deadline=None)
@given(data=st.data(), name=st.sampled_from(list(CONFIGS)), threads=st.sampled_from([1, 2, 3]))
def test_best_tokens_are_those_of_the_logits(
    data: st.DataObject, name: str, threads: int, make: Make
) -> None:
    """Whichever are wanted of which tokens: logits keep their bits, the best are the first of the largest."""
    config = CONFIGS[name]
    weights = make_weights(config)
    matrix = weights.head or weights.embedding
    rows = matrix.data.view(np.float32).reshape(matrix.shape)
    rows[101:202] = rows[:101]  # every logit is there twice
    decoder = make(config, weights, threads=threads)
    count = data.draw(st.integers(1, 70), "tokens")
    tokens = np.random.default_rng(count).integers(0, VOCAB, count).tolist()
    if data.draw(st.booleans(), "faulty"):
        decoder.import_blocks([9], np.full_like(decoder.export_blocks([9]), np.nan))
    parts = [Part(tokens, 0, list(range(5))), Part([3], 16, [9, 8]), Part([4], 0, [10])]
    plan = make_plan(parts, all_logits=True)
    every = decoder.forward(plan).logits.clone().numpy()
    places = st.lists(st.integers(0, count + 1), max_size=64)
    logits, best = (np.array(data.draw(places, which), dtype=np.int32) for which in ("logits", "best"))
    result = decoder.forward(plan._replace(logit_tokens=logits, best_tokens=best))
    assert result.logits.numpy().tobytes() == every[logits].tobytes()
    assert result.best.tolist() == best_tokens(every[best]).tolist()
    assert set(best_tokens(every).tolist()) <= {-1, *range(101), 202}


def test_what_recycled_blocks_hold_reaches_nobody(make: Make) -> None:
    weights = make_weights(PLAIN)
    clean, used = make(PLAIN, weights), make(PLAIN, weights)
    used.import_blocks(range(BLOCKS), np.full_like(used.export_blocks(range(BLOCKS)), np.nan))
    plan = make_plan([Part([5, 6, 7], 0, [3])])
    assert torch.equal(clean.forward(plan).logits.clone(), used.forward(plan).logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_not_finite_stays_with_its_own_row(name: str, make: Make) -> None:
    """A row that sees keys that are no numbers has such logits; those beside and after it have their own."""
    config = CONFIGS[name]
    weights = make_weights(config)
    decoder, fresh = make(config, weights), make(config, weights)
    sane, other = Part([1, 2], 0, [0]), Part([5], 0, [3])
    expected, expected_other = (fresh.forward(make_plan([part])).logits.clone() for part in (sane, other))
    decoder.import_blocks([1], np.full_like(decoder.export_blocks([1]), np.nan))
    logits = decoder.forward(make_plan([Part([9], 16, [1, 2]), sane])).logits
    assert not logits[0].isfinite().any()
    assert torch.equal(logits[1], expected[0])
    # Another request's token is in its place now.
    assert torch.equal(decoder.forward(make_plan([other])).logits, expected_other)


def test_blocks_come_back_as_they_left(make: Make) -> None:
    """A context that was copied out of the pool, and into other blocks, goes on with the same bits."""
    decoder = make(RICH, make_weights(RICH))
    tokens = list(range(40))
    decoder.forward(make_plan([Part(tokens, 0, [4, 9, 2])]))
    expected = decoder.forward(make_plan([Part([7], 40, [4, 9, 2])])).logits.clone()
    payload = decoder.export_blocks([4, 9, 2])
    assert payload.dtype == np.float16
    assert len(payload) == 3
    decoder.import_blocks([4, 9, 2], np.zeros_like(payload))
    decoder.import_blocks([30, 31, 32], payload)
    assert torch.equal(decoder.forward(make_plan([Part([7], 40, [30, 31, 32])])).logits, expected)


def test_a_step_may_want_no_logits(make: Make) -> None:
    decoder = make(PLAIN, make_weights(PLAIN))
    plan = make_plan([Part([1, 2, 3], 0, [0])])._replace(logit_tokens=np.zeros(0, dtype=np.int32))
    assert decoder.forward(plan).logits.shape == (0, VOCAB)


def test_a_profile_says_where_the_time_went(make: Make) -> None:
    decoder = make(PLAIN, make_weights(PLAIN))
    decoder.start_profile()
    decoder.forward(make_plan([Part([1, 2, 3], 0, [0])]))
    spent = decoder.profile()
    assert all(seconds > 0 for seconds in spent.values())
    decoder.forward(make_plan([Part([1, 2, 3], 0, [0])]))
    assert set(decoder.profile().values()) == {0.0}


def test_weights_in_8_bits_take_more_room_than_in_4(make: Make, kernels: Native) -> None:
    """A file's own 4 bits are kept, unless 8 are asked for; what is counted is what a step reads."""
    rng = np.random.default_rng(0)
    config = PLAIN._replace(hidden_size=64, ffn_size=64)

    def four_bits(matrix: Matrix) -> Matrix:
        rows, cols = matrix.shape
        if cols % 32:
            return matrix
        blocks = rng.integers(0, 256, (rows * cols // 32, 20), dtype=np.uint8)
        blocks[:, :4] = np.array([0.01, -0.05], dtype=np.float16).view(np.uint8)
        return Matrix(matrix.shape, TensorType.Q4_1, blocks.reshape(-1))

    weights = make_weights(config)
    layers = [
        layer._replace(gate=four_bits(layer.gate), up=four_bits(layer.up), down=four_bits(layer.down))
        for layer in weights.layers
    ]
    weights = weights._replace(layers=layers)
    loaded = Kernels(kernels.library, Path("kernels.so"), "any")
    sizes = [
        NativeDecoder(loaded, config, weights, INFO, threads=1, force_int8=forced).weight_bytes
        for forced in (False, True)
    ]
    packed = config.num_layers * 3 * 64 * 64
    assert sizes[1] - sizes[0] == packed * (8.5 - 5) / 8


def test_progress_counts_matrices(kernels: Native) -> None:
    seen: list[tuple[int, int]] = []
    loaded = Kernels(kernels.library, Path("kernels.so"), "any")
    weights = make_weights(RICH)
    NativeDecoder(loaded, RICH, weights, INFO, progress=lambda *pair: seen.append(pair))
    assert seen == [(done, 16) for done in range(1, 17)]


def test_threads_end_with_the_decoder(make: Make, until: Callable[[Callable[[], bool]], None]) -> None:
    def tasks() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    others = tasks()  # which may end meanwhile: threads that made calls wait a while for the next one
    decoder = make(PLAIN, make_weights(PLAIN), threads=4)
    assert len(tasks() - others) == 3
    decoder.close()
    until(lambda: tasks() <= others)  # the system lists them for a moment after they were joined
    decoder = make(PLAIN, make_weights(PLAIN), threads=4)
    del decoder
    gc.collect()
    until(lambda: tasks() <= others)


def test_threads_of_an_idle_decoder_take_no_time(
    make: Make, until: Callable[[Callable[[], bool]], None]
) -> None:
    others = {task.name for task in Path("/proc/self/task").iterdir()}
    decoder = make(PLAIN, make_weights(PLAIN), threads=3)
    workers = [task for task in Path("/proc/self/task").iterdir() if task.name not in others]
    assert len(workers) == 2

    def times() -> list[str]:
        return [(worker / "schedstat").read_text() for worker in workers]

    def asleep() -> bool:
        # The time of one that runs is brought up to date now and then only, that of one that sleeps is right.
        before = times()
        states = [(worker / "stat").read_text().rpartition(")")[2].split()[0] for worker in workers]
        return states == ["S", "S"] and times() == before

    decoder.forward(make_plan([Part([1, 2, 3], 0, [0])]))
    until(asleep)
    before = times()
    for _ in range(20):
        sum(range(100_000))  # time in which they could take some
        assert times() == before
    decoder.close()


def test_what_the_kernels_do_not_compute_is_said(make: Make) -> None:
    config = PLAIN._replace(head_dim=24)
    assert why_not(PLAIN) is None
    assert why_not(config) == "heads of 24 values; the kernels need a multiple of 16"
    assert why_not(PLAIN._replace(num_heads=64)) == "more than 48 heads for each key-value head"
    with pytest.raises(KernelError, match="llama has heads of 24 values"):
        make(config, make_weights(PLAIN))


def test_a_plan_of_another_type_is_refused(make: Make) -> None:
    decoder = make(PLAIN, make_weights(PLAIN))
    plan = make_plan([Part([1], 0, [0])])
    with pytest.raises(ValueError, match="int32 and contiguous, not int64"):
        decoder.forward(plan._replace(positions=plan.positions.astype(np.int64)))


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_token_that_is_none_of_the_models_is_refused(token: int, make: Make) -> None:
    decoder = make(PLAIN, make_weights(PLAIN))
    with pytest.raises(ValueError, match="a token is none of the model's, 0 to 202"):
        decoder.forward(make_plan([Part([1, token], 0, [0])]))


def test_a_matrix_that_is_not_made_of_whole_blocks_is_refused(make: Make) -> None:
    weights = make_weights(PLAIN)
    broken = Matrix((VOCAB, PLAIN.hidden_size), TensorType.Q4_0, np.zeros(VOCAB * 27, dtype=np.uint8))
    with pytest.raises(KernelError, match="cannot be packed"):
        make(PLAIN, weights._replace(embedding=broken))


def test_nothing_is_called_after_the_end(make: Make) -> None:
    decoder = make(PLAIN, make_weights(PLAIN))
    decoder.close()
    decoder.close()
    for call in (lambda: decoder.weight_bytes, decoder.start_profile, decoder.profile):
        with pytest.raises(AssertionError, match="closed"):
            call()
    with pytest.raises(AssertionError, match="closed"):
        decoder.forward(make_plan([Part([1], 0, [0])]))


def test_the_c_structs_have_the_sizes_that_ctypes_gives_them() -> None:
    from vidette.kernels.bindings import ShapeStruct, StepStruct

    assert ctypes.sizeof(ShapeStruct) == 8 * 8 + 4 * 4 + 5 * 4 + 4
    assert ctypes.sizeof(StepStruct) == 5 * 8 + 6 * 8
