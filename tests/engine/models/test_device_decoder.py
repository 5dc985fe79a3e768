"""The decoder for devices, on the CPU: the dense logits, and steps that can be captured."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.models.devices import Elsewhere, Recorder
from tests.engine.models.test_decoder import (
    NUM_BLOCKS,
    SWITCHES,
    VOCABULARY,
    DenseDecoder,
    check,
    random_decoder,
)
from tests.engine.scheduler.conftest import Driver, request

from vidette.models import BLOCK_SIZE, StepPlan, accelerator, paging
from vidette.models.decoder import Decoder
from vidette.models.decoder_config import decoder_info
from vidette.models.device_decoder import DeviceDecoder

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
FAMILIES: list[dict[str, Any]] = [
    {"interleaved_rope": True},
    {"qkv_bias": True, "tied": True},
    {"qk_norm": True, "windows": (0, 20)},
    {"windows": (7, 0), "qk_norm": True, "post_norms": True, "attention_softcap": 1.5, "logit_softcap": 2.0},
]


class Captures:
    """A `Capture` that counts."""

    def __init__(self) -> None:
        self.made = 0
        self.replayed = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.made += 1
        with Recorder() as recorder:
            run()

        def replay() -> None:
            self.replayed += 1
            recorder.replay()

        return replay


def build(switches: dict[str, Any], seed: int = 5, **options: Any) -> tuple[DenseDecoder, DeviceDecoder]:
    """Return a decoder with a pool of what recycled blocks might hold at worst, and its dense oracle."""
    config, weights = random_decoder(seed, **switches)
    info = decoder_info(config, "odd", frozenset(), None)
    model = DeviceDecoder(
        config, weights, info, **{"device": CPU, "dtype": torch.float32, "max_rows": 6, **options}
    )
    model.allocate(NUM_BLOCKS)
    model._pool.fill_(float("nan"))
    return DenseDecoder(config, weights), model


@settings(deadline=None, max_examples=80)
@given(
    switches=SWITCHES,
    rows=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    short_context=st.sampled_from([8, 512]),
    max_rows=st.sampled_from([1, 3, 6]),
)
def test_any_schedule_of_any_decoder_gives_the_dense_logits(
    switches: dict[str, Any],
    rows: list[list[int]],
    seed: int,
    short_context: int,
    max_rows: int,
    make_plan: Callable[..., StepPlan],
) -> None:
    """Chunks of any size, decodes and extends, in one step or each in its own, in any order and blocks."""
    rng = random.Random(seed)
    dense, model = build(switches, seed, max_rows=max_rows)
    free = list(range(NUM_BLOCKS))
    rng.shuffle(free)
    blocks = [[free.pop() for _ in range(-(-len(row) // BLOCK_SIZE))] for row in rows]
    expected = [dense.logits(row) for row in rows]
    done = [0] * len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_SHORT_CONTEXT", short_context)
        while unfinished := [index for index, row in enumerate(rows) if done[index] < len(row)]:
            chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
            longest = rng.choice([1, 1, 50])
            chunks, wanted = [], []
            for index in chosen:
                start = done[index]
                done[index] = rng.randint(start + 1, min(start + longest, len(rows[index])))
                chunks.append((rows[index][start : done[index]], start, blocks[index]))
                wanted.append(expected[index][start : done[index]])
            check(model.forward(make_plan(chunks, every_logit=True)).logits, np.concatenate(wanted))


@pytest.mark.parametrize("switches", FAMILIES, ids=str)
def test_a_captured_step_computes_whatever_lies_in_its_tensors(
    switches: dict[str, Any], make_plan: Callable[..., StepPlan]
) -> None:
    captures = Captures()
    dense, model = build(switches, capture=captures)
    rng = np.random.default_rng(8)
    lengths = [1, 3, 15, 16, 17, 40]
    texts = [rng.integers(0, VOCABULARY, length + 9).tolist() for length in lengths]
    blocks = [[4 * row + place for place in (2, 0, 3, 1)] for row in range(len(texts))]
    expected = [dense.logits(text) for text in texts]
    for text, length, own in zip(texts, lengths, blocks, strict=True):
        model.forward(make_plan([(text[:length], 0, own)]))
    captures.made = captures.replayed = 0
    # The rows of a step change, and so do their numbers, places and lengths; the graphs do not.
    for turn, company in enumerate(([0, 1, 2, 5], [5, 3, 1], [4, 3, 2, 1], [0, 1, 5, 4], [3, 0, 2])):
        plan, wanted = [], []
        for row in company:
            plan.append(([texts[row][lengths[row]]], lengths[row], blocks[row]))
            wanted.append(expected[row][lengths[row]])
            lengths[row] += 1
        check(model.forward(make_plan(plan)).logits, np.array(wanted))
        assert (captures.made, captures.replayed) == (1, turn + 1)


def test_the_emulated_capture_notices_what_no_graph_can_hold() -> None:
    x = torch.arange(4.0)
    for run in (lambda: bool(x.sum() > 1), lambda: x[x > 1], lambda: x.sum().item()):
        with pytest.raises(AssertionError, match="cannot be captured"), Recorder():
            run()


def test_the_emulated_capture_freezes_what_python_decided() -> None:
    x, out, factor = torch.ones(2), torch.zeros(2), [2.0]

    def run() -> None:
        out.copy_(x * factor[0])

    replay = Captures()(run)
    factor[0], x[1] = 100.0, 3.0
    replay()
    assert out.tolist() == [2.0, 6.0]


def test_a_graph_for_each_shape_and_none_twice(make_plan: Callable[..., StepPlan]) -> None:
    captures = Captures()
    _, model = build({}, capture=captures)
    model._pool.zero_()
    blocks = range(20)
    for position, made in [(0, 1), (100, 1), (127, 1), (128, 2), (255, 2), (256, 3), (7, 3)]:
        model.forward(make_plan([([3], position, blocks)]))
        assert captures.made == made
    for rows, made in [(2, 4), (3, 5), (4, 5), (5, 6), (6, 6), (1, 6)]:
        model.forward(make_plan([([3], 0, [row]) for row in range(rows)]))
        assert captures.made == made
    model.forward(make_plan([([3], 0, [row]) for row in range(7)]))  # more than are ever captured
    model.forward(make_plan([([3, 4], 0, [1])]))
    assert captures.made == 6


def test_ahead_captures_every_shape_before_the_first_step(make_plan: Callable[..., StepPlan]) -> None:
    captures = Captures()
    dense, model = build({}, capture=captures, ahead=True)
    assert captures.made == 4 * 3  # 1, 2, 4, 6 rows; contexts of 128, 256, 400
    check(model.forward(make_plan([([9], 0, [4])])).logits, dense.logits([9]))
    for rows in range(1, 7):
        for position in (0, 128, 383):
            model.forward(make_plan([([3], position, range(NUM_BLOCKS))] * rows))
    assert captures.made == 12


@pytest.mark.parametrize(("context_len", "made"), [(20, 1), (128, 1), (129, 2)])
def test_ahead_with_short_contexts(context_len: int, made: int) -> None:
    captures = Captures()
    build({"context_len": context_len}, capture=captures, ahead=True, max_rows=1)
    assert captures.made == made


def test_what_fills_a_step_up_touches_no_block_of_anybody(make_plan: Callable[..., StepPlan]) -> None:
    dense, model = build({"windows": (0, 3)})
    before = model._pool.clone()
    logits = model.forward(make_plan([([5], 0, [7]), ([6], 0, [9]), ([5], 0, [0])])).logits
    check(logits, np.concatenate([dense.logits([5]), dense.logits([6]), dense.logits([5])]))
    written = (model._pool.isfinite() & ~before.isfinite()).any(dim=(2, 3)).any(dim=0).nonzero()[:, 0]
    assert written.tolist() == [slot * BLOCK_SIZE for slot in (0, 7, 9, NUM_BLOCKS)]


def test_logits_only_where_they_are_wanted(make_plan: Callable[..., StepPlan]) -> None:
    _, model = build({})
    plan = make_plan([([1], 0, [4]), ([9], 0, [5]), ([3], 0, [6])])
    every = model.forward(plan).logits.clone()
    for wanted in ([2, 0], [1], [], [2, 2, 1, 0]):
        some = model.forward(plan._replace(logit_tokens=np.array(wanted, dtype=np.int32))).logits
        assert some.shape == (len(wanted), VOCABULARY)
        assert torch.equal(some, every[wanted])


def test_a_poisoned_row_does_not_touch_the_others(make_plan: Callable[..., StepPlan]) -> None:
    dense, model = build({})
    tokens = list(range(20))
    model.forward(make_plan([(tokens, 0, [0, 1])]))
    # The second row goes on from blocks nobody wrote: all its keys are no numbers.
    logits = model.forward(make_plan([([20], 20, [0, 1]), ([7], 40, [2, 3, 4])])).logits
    check(logits[0], dense.logits([*tokens, 20])[-1])
    assert logits[1].isnan().all()


def test_what_lies_before_the_windows_is_not_read(make_plan: Callable[..., StepPlan]) -> None:
    dense, model = build({"windows": (16, 16)})
    tokens = [*range(40), 7, 8, 9]
    model.forward(make_plan([(tokens[:40], 0, [0, 1, 2])]))
    model.import_blocks([0], np.full_like(model.export_blocks([0]), np.nan))
    check(model.forward(make_plan([(tokens[40:42], 40, [0, 1, 2])])).logits, dense.logits(tokens[:42])[-1:])
    check(model.forward(make_plan([(tokens[42:], 42, [0, 1, 2])])).logits, dense.logits(tokens)[-1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copied_blocks_are_as_good_as_computed_ones(
    dtype: torch.dtype, make_plan: Callable[..., StepPlan]
) -> None:
    _, model = build({}, dtype=dtype)
    tokens = np.random.default_rng(2).integers(0, VOCABULARY, 40)
    model.forward(make_plan([(tokens, 0, [7, 2, 9])]))
    expected = model.forward(make_plan([([5], 40, [7, 2, 9])])).logits.clone()
    assert expected.isfinite().all()
    copies = model.export_blocks([7, 2, 9])
    assert copies.shape == (3, 2 * 2, BLOCK_SIZE * 2 * 10)
    assert copies[0].nbytes == BLOCK_SIZE * model.info.kv_bytes_per_token
    assert copies.nbytes == copies.size * dtype.itemsize
    model._pool.fill_(float("nan"))
    model.import_blocks([4, 8], copies[:2])
    copies.flags.writeable = False
    model.import_blocks([1], copies[2:])
    assert torch.equal(model.forward(make_plan([([5], 40, [4, 8, 1])])).logits, expected)
    assert model.export_blocks([8, 4])[::-1].tobytes() == copies[:2].tobytes()


@pytest.mark.parametrize("switches", FAMILIES, ids=str)
def test_bfloat16_is_near_by(switches: dict[str, Any], make_plan: Callable[..., StepPlan]) -> None:
    dense, model = build(switches, dtype=torch.bfloat16)
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 40).tolist()
    expected = dense.logits(tokens)
    first = model.forward(make_plan([(tokens[:39], 0, [3, 1, 2])], every_logit=True)).logits
    last = model.forward(make_plan([(tokens[39:], 39, [3, 1, 2])])).logits
    assert first.dtype == last.dtype == torch.float32
    # Eight bits of every number: about one in a hundred of what logits are spread over.
    error = np.abs(np.concatenate([first.numpy(), last.numpy()]) - expected)
    assert error.mean() < 0.03 * expected.std()


@pytest.mark.parametrize("length", [1, 3])
def test_best_tokens_are_those_of_the_logits(length: int, make_plan: Callable[..., StepPlan]) -> None:
    """In steps of decodes and in others."""
    _, model = build({})
    plan = make_plan([(range(length), 0, [4]), ([9], 0, [5]), ([3], 0, [6])])
    every = model.forward(plan).logits.clone()
    rows = plan.logit_tokens
    for logits, best in ([[], [0, 1, 2]], [[2, 0], [1]], [[1], [0, 2]], [[0, 1], [2]]):
        result = model.forward(plan._replace(logit_tokens=rows[logits], best_tokens=rows[best]))
        assert torch.equal(result.logits, every[logits])
        assert result.best.tolist() == every[best].argmax(dim=1).tolist()


@pytest.mark.parametrize("switches", FAMILIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_device_no_value_is_read_and_nothing_lies_elsewhere(
    switches: dict[str, Any],
    dtype: torch.dtype,
    make_plan: Callable[..., StepPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerator, "send", lambda _values, target: target)
    config, weights = random_decoder(1, **switches)
    info = decoder_info(config, "odd", frozenset(), None)
    model = DeviceDecoder(config, weights, info, device=Elsewhere.device, dtype=dtype)
    model.allocate(NUM_BLOCKS)
    plans: Sequence[StepPlan] = [
        make_plan([([1], 3, [4]), ([9], 20, [5, 6]), ([3], 0, [7])]),
        make_plan([([1, 2, 3], 3, [4]), ([9], 20, [5, 6]), ([3] * 20, 0, [7, 8])]),
    ]
    with Elsewhere():
        for plan in plans:
            for first in range(3):
                wanted, best = plan.logit_tokens[first:], plan.logit_tokens[:first]
                result = model.forward(plan._replace(logit_tokens=wanted, best_tokens=best))
                assert result.logits.shape == (len(wanted), VOCABULARY)
                assert result.logits.dtype == torch.float32
                assert result.best.shape == (first,)


def test_the_stand_in_for_a_device_can_fail() -> None:
    values = torch.empty(2, device=Elsewhere.device)
    with pytest.raises(RuntimeError, match="meta"), Elsewhere():
        values.sum().item()
    with pytest.raises(AssertionError, match="works on the CPU"), Elsewhere():
        values.index_select(0, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("switches", FAMILIES[2:], ids=str)
def test_a_loop_says_what_it_says_with_the_plain_decoder(switches: dict[str, Any]) -> None:
    """With drafts, retractions and a second pool; rows come and go, and are captured in company and alone."""
    captures = Captures()
    _, device = build(switches, capture=captures, max_rows=3)
    config, weights = random_decoder(5, **switches)
    rng = np.random.default_rng(9)
    begin = rng.integers(0, VOCABULARY, 20).tolist()
    requests = [
        request(vid, [*begin, *rng.integers(0, VOCABULARY, vid * 7 % 30 + 1)], max_new_tokens=30)
        for vid in range(1, 8)
    ]
    requests.append(request(8, begin, max_new_tokens=25, temperature=0.8, repetition_penalty=1.3))
    drivers: list[Driver] = []
    for model in (device, Decoder(config, weights, device.info)):
        loop_model: Any = model
        driver = Driver(
            loop_model, num_blocks=9, step_tokens=24, max_running=5, host_blocks=20, draft_tokens=2
        )
        with torch.inference_mode():
            driver.run(*requests)
        driver.assert_blocks_are_conserved()
        drivers.append(driver)
    assert drivers[0].heard.tokens == drivers[1].heard.tokens
    assert len(drivers[0].heard.ends) == len(requests)
    assert drivers[0].totals.retracted
    assert captures.made < 8 < captures.replayed
