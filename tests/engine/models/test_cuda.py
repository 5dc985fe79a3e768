"""The decoder on a CUDA device: what eager steps, graphs and the CPU compute is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.models.test_decoder import NUM_BLOCKS, VOCABULARY, DenseDecoder, random_decoder
from tests.engine.models.test_device_decoder import FAMILIES
from tests.engine.scheduler.conftest import Heard, request

from vidette.models import ModelSource, StepPlan, TokenTable, load_model
from vidette.models.accelerator import capture_on, fetch
from vidette.models.best import take_best
from vidette.models.decoder_config import decoder_info
from vidette.models.device_decoder import DeviceDecoder
from vidette.scheduler.loop import StepLoop
from vidette.scheduler.options import LoopOptions
from vidette.scheduler.sampler import begin, sample
from vidette.scheduler.sampling import SamplingRow
from vidette_protocol.messages import BatchTokenIDOutput, SamplingParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@pytest.mark.parametrize("captured", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("switches", FAMILIES, ids=str)
def test_decodes_of_changing_company_give_the_dense_logits(
    switches: dict[str, Any], dtype: torch.dtype, captured: bool, make_plan: Callable[..., StepPlan]
) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    config, weights = random_decoder(5, **switches)
    dense = DenseDecoder(config, weights)
    model = DeviceDecoder(
        *(config, weights, decoder_info(config, "odd", frozenset(), None)),
        device=device,
        dtype=dtype,
        capture=capture_on(device) if captured else None,
    )
    model.allocate(NUM_BLOCKS)
    model._pool.fill_(float("nan"))
    rng = np.random.default_rng(8)
    lengths = [1, 3, 15, 16, 17, 40]
    texts = [rng.integers(0, VOCABULARY, length + 12).tolist() for length in lengths]
    blocks = [[4 * row + place for place in (2, 0, 3, 1)] for row in range(len(texts))]
    expected = [dense.logits(text) for text in texts]
    model.forward(make_plan([(t[:n], 0, own) for t, n, own in zip(texts, lengths, blocks, strict=True)]))
    for turn in range(24):
        company = rng.permutation(6)[: rng.integers(1, 7)].tolist()
        company = [row for row in company if lengths[row] < len(texts[row])]
        if not company:
            continue
        count = 1 if turn % 4 else 2
        plan, wanted = [], []
        for row in company:
            start, end = lengths[row], min(lengths[row] + count, len(texts[row]))
            plan.append((texts[row][start:end], start, blocks[row]))
            wanted.append(expected[row][end - 1])
            lengths[row] = end
        error = np.abs(model.forward(make_plan(plan)).logits.cpu().numpy() - np.array(wanted))
        assert error.mean() < (1e-4 if dtype is torch.float32 else 0.03 * expected[5].std())


def test_a_step_is_launched_and_not_waited_for(tiny_llama_path: Path, make_plan: Any) -> None:
    """Whatever waits for the device raises: choosing tokens is sent along, and they are read later."""
    model = load_model(ModelSource("tiny", tiny_llama_path), device="cuda", max_running=8)
    model.allocate(NUM_BLOCKS)
    decodes = [([5], 20, [0, 1]), *(([6], 0, [block]) for block in (2, 3, 4))]
    plans = [(make_plan([(range(20), 0, [0, 1])]), 1), (make_plan(decodes), 4)]
    rows = [
        SamplingRow(SamplingParams(**params, sampling_seed=3), (), eos_ids={1}, vocab_size=260)
        for params in ({"temperature": 0.0}, {"top_k": 20}, {"top_p": 0.9}, {})
    ]
    assert model.overlaps
    told = [sample(model.forward(plan).logits, rows[:count], [0] * count) for plan, count in plans]
    for (plan, count), expected in zip(plans, told, strict=True):
        torch.cuda.set_sync_debug_mode("error")
        try:
            wanted = plan.logit_tokens
            best = fetch(model.forward(plan._replace(logit_tokens=wanted[:0], best_tokens=wanted)).best)
            sampling = begin(model.forward(plan).logits, rows[:count], [0] * count)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        sampling.wait()
        assert sampling.tokens() == expected
        assert best.wait()[0] == expected[0]


def test_a_loop_says_the_same_whether_it_waits_or_not(tiny_llama_path: Path) -> None:
    heard = []
    for overlaps in (True, False):
        model = load_model(ModelSource("tiny", tiny_llama_path), device="cuda", max_running=8)
        model.overlaps = overlaps
        options = LoopOptions(num_blocks=64, step_tokens=64, max_running=8)
        loop, rows = StepLoop(model, options, table=TokenTable([b"x"] * 260, frozenset())), Heard()
        commands = [
            request(vid, range(3, 20 + vid), max_new_tokens=30, temperature=heat, top_p=0.9, ignore_eos=True)
            for vid, heat in enumerate([0.0, 1.0, 1.0])
        ]
        busy = True
        while busy:
            loop.wait()
            effects = loop.step(commands, 0.0)
            busy, commands = effects.busy, []
            assert effects.in_flight == (overlaps and busy)
            for message in effects.messages:
                assert isinstance(message, BatchTokenIDOutput)
                rows.hear(message)
        heard.append(rows.tokens)
    assert heard[0] == heard[1]


def test_best_tokens_are_those_of_the_logits() -> None:
    logits = torch.randint(-4, 4, (33, 1001), generator=torch.Generator().manual_seed(1)).float()
    for row, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        logits[row, 500] = value
    logits[3] = -torch.inf
    best = take_best(logits.to("cuda"))
    assert best.is_cuda
    assert best.tolist() == take_best(logits).tolist()


def test_blocks_go_to_host_memory_and_come_back(tiny_llama_path: Path, make_plan: Any) -> None:
    model = load_model(ModelSource("tiny", tiny_llama_path), device="cuda", cuda_graphs="start")
    model.allocate(NUM_BLOCKS)
    model.forward(make_plan([(range(40), 0, [7, 2, 9])]))
    expected = model.forward(make_plan([([5], 40, [7, 2, 9])])).logits.clone()
    copies = model.export_blocks([7, 2, 9])
    model.import_blocks([4, 8, 1], copies)
    assert torch.equal(model.forward(make_plan([([5], 40, [4, 8, 1])])).logits, expected)
