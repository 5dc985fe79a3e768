"""`bench_model`, with models and a peer whose speed is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from vidette.bench.bandwidth import TorchBandwidth
from vidette.bench.looped import LoopSteps, TimedModel
from vidette.bench.model import bench_model, weight_bytes_of
from vidette.bench.others import Patience
from vidette.bench.scheduler import IdleModel
from vidette.bench.steps import DECODE_8, PREFILL, WORKLOADS
from vidette.models import StepPlan, StepResult, TokenTable
from vidette.models.interface import NOT_FINITE
from vidette.models.quants import TensorType
from vidette.models.store import ModelSource
from vidette.models.weights import DecoderLayer, DecoderWeights, Matrix

TABLE = TokenTable([b"x"] * 1024, frozenset({0}))


class Fake(IdleModel):
    """A model that has its answers ready, counts its steps, and says where its time went."""

    weight_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__(256)
        self.plans: list[StepPlan] = []
        self.blocks: list[int] = []

    def allocate(self, num_blocks: int) -> None:
        self.blocks.append(num_blocks)

    def forward(self, plan: StepPlan) -> StepResult:
        assert plan.block_tables.max() < self.blocks[0]
        self.plans.append(plan)
        return super().forward(plan)

    def start_profile(self) -> None:
        self.profiled_from = len(self.plans)

    def profile(self) -> Mapping[str, float]:
        steps = len(self.plans) - self.profiled_from
        return {"linear": 1e-9 * steps, "attention": 2e-9 * steps}


class Speeds(NamedTuple):
    prefill: float
    decode: float


class Peer:
    """Another engine; it notes what it was asked, and how many steps ours had made by then."""

    def __init__(self, model: Fake) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.steps: list[int] = []
        self._model = model

    def measure(self, *, prompt: int, new: int, streams: int) -> Speeds:
        self.asked.append((prompt, new, streams))
        self.steps.append(len(self._model.plans))
        return Speeds(100.0, 10.0 * streams)


def measure(model: IdleModel, **options: Any) -> Any:
    bandwidth = TorchBandwidth(nbytes=1 << 16)
    said: list[str] = []
    found = bench_model(
        model,
        TABLE,
        runs=2,
        say=said.append,
        bandwidth=bandwidth,
        quick=True,
        **{"weight_bytes": None} | options,
    )
    assert any("run 2 of 2" in line for line in said)
    return found


def test_everything_is_found_under_its_name() -> None:
    model = Fake()
    results, profiles = measure(model, weight_bytes=model.weight_bytes, profile=True)
    found = {finding.name: finding for finding in results.findings}
    assert set(found) == {
        *(f"{workload.name}_tok_s" for workload in WORKLOADS),
        *("loop_prefill_tok_s", "loop_decode_b1_tok_s", "loop_decode_b8_tok_s", "loop_decode_b32_tok_s"),
        *("scheduler_share_b1", "scheduler_share_b8", "scheduler_share_b32"),
        *("bandwidth_floor_b1", "read_bandwidth_gb_s", "weight_mib"),
    }
    assert found["weight_mib"].values == [1.0]
    for name in set(found) - {"weight_mib"}:
        assert len(found[name].values) == 2
        assert all(value > 0 for value in found[name].values), name
    for share in ("scheduler_share_b1", "scheduler_share_b32"):
        assert all(value < 1 for value in found[share].values)
    # A share of the floor is bytes by bandwidth, over the time of a step.
    for share, speed, bandwidth in zip(
        *(found[name].values for name in ("bandwidth_floor_b1", "decode_b1_tok_s", "read_bandwidth_gb_s")),
        strict=True,
    ):
        assert share == pytest.approx((1 << 20) / (1e9 * bandwidth) * speed)
    assert len(model.blocks) == 1, "the pool is allocated once"
    assert set(profiles) == {"prefill", "decode_b1", "decode_b8", "decode_b32"}
    for profile in profiles.values():
        assert list(profile) == ["linear", "attention", "forward, other", "scheduler"]
        assert profile["linear"] == pytest.approx(1e-9)
        assert profile["attention"] == pytest.approx(2e-9)
    assert results.details["profile"] == profiles
    assert [set(shares) for shares in results.details["others"]] == [{w.name for w in WORKLOADS}] * 2


def test_what_is_not_known_is_left_out_and_said() -> None:
    model = IdleModel(256)
    model.info = model.info._replace(context_len=256)
    results, profiles = measure(model)
    names = [finding.name for finding in results.findings]
    assert not {"bandwidth_floor_b1", "weight_mib", "prefill_2048_tok_s"} & set(names)
    assert any(note.startswith("1 left out: the model's context is 256") for note in results.notes)
    assert any(note.startswith("no floor") for note in results.notes)
    assert list(profiles["decode_b1"]) == ["forward", "scheduler"]


def test_the_peer_is_asked_for_the_same_in_turns_with_ours() -> None:
    model = Fake()
    peer = Peer(model)
    results, _ = measure(model, peer=peer)
    found = {finding.name: finding.values for finding in results.findings}
    each = [(128, 4, 1), (128, 4, 8), (128, 4, 32), (2048, 1, 1)]
    assert peer.asked == each * 2
    first, second = peer.steps[:4], peer.steps[4:]
    assert first == sorted(set(first)), "in the first run ours goes before each"
    assert second[0] == first[-1], "and in the second the peer does"
    assert second == sorted(set(second))
    assert found["llama_decode_b8_tok_s"] == [80.0, 80.0]
    assert found["llama_prefill_2048_tok_s"] == [100.0, 100.0]
    for ratio, name, theirs in (
        ("decode_b1_vs_llama", "decode_b1_tok_s", 10.0),
        ("decode_b8_vs_llama", "decode_b8_tok_s", 80.0),
        ("decode_b32_vs_llama", "decode_b32_tok_s", 320.0),
        ("prefill_128_vs_llama", "prefill_tok_s", 100.0),
        ("prefill_2048_vs_llama", "prefill_2048_tok_s", 100.0),
    ):
        assert found[ratio] == pytest.approx([ours / theirs for ours in found[name]])


class Busy(Patience):
    """Nothing is quiet but the first of each run."""

    def __init__(self) -> None:
        super().__init__(0)
        self.calls = 0

    def measure(self, call: Callable[[], Any]) -> tuple[Any, float]:
        self.calls += 1
        return call(), 0.01 if self.calls % 4 == 1 else 0.25


def test_what_was_disturbed_is_said() -> None:
    results, _ = measure(Fake(), patience=Busy())
    quiet = {"prefill": 0.01, "decode_b1": 0.01}
    rest = dict.fromkeys(("decode_b8", "decode_b32", "prefill_2048"), 0.25)
    assert results.details["others"] == [quiet | rest] * 2
    said = (
        "other programs took up to 25% of the machine: do not quote decode_b8, decode_b32, prefill_2048, nor"
    )
    assert any(note.startswith(said) for note in results.notes)


def test_the_loop_times_decodes_alone_and_finds_its_prompts_again() -> None:
    model = Fake()
    timed = TimedModel(model, spare=3)
    workload = DECODE_8.quick()
    with torch.inference_mode():
        loop = LoopSteps(timed, TABLE, [PREFILL, workload], rng=np.random.default_rng(0))
        for run in range(2):
            before = len(model.plans)
            times = loop.time(workload)
            plans = model.plans[before:]
            assert [len(plan.token_ids) for plan in plans[-times.steps :]] == [8] * times.steps
            assert times.steps == workload.steps
            assert plans[-1].context_lens.max() <= workload.length + 32
            prompts = sum(len(plan.token_ids) for plan in plans if len(plan.token_ids) > 8)
            assert prompts >= 8 * 128 if run == 0 else prompts < 8 * 32
        assert model.blocks == [loop.num_blocks + 3]
        before = len(model.plans)
        assert loop.time(PREFILL).forward > 0
        assert [len(plan.token_ids) for plan in model.plans[before:]] == [128]


def test_a_model_without_logits_does_not_hang_it() -> None:
    model = IdleModel(256)
    model._best.fill_(NOT_FINITE)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="not finite"):
        LoopSteps(TimedModel(model), TABLE, [DECODE_8], rng=np.random.default_rng(0)).time(DECODE_8)


def test_weights_are_as_large_as_the_model_says() -> None:
    assert weight_bytes_of(Fake(), ModelSource("fake", None)) == 1 << 20
    assert weight_bytes_of(IdleModel(1), ModelSource("idle", None)) is None


@pytest.mark.parametrize("tied", [True, False])
def test_else_all_that_a_token_reads_is_float32(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def matrix(rows: int, columns: int) -> Matrix:
        return Matrix((rows, columns), TensorType.Q4_1, np.empty(0, np.uint8))

    layer = DecoderLayer(
        *(np.ones(4, np.float32), matrix(8, 4), matrix(2, 4), matrix(2, 4), matrix(4, 8)),
        *(np.ones(4, np.float32), matrix(16, 4), matrix(16, 4), matrix(4, 16)),
    )
    weights = DecoderWeights(matrix(10, 4), [layer], np.ones(4, np.float32), None if tied else matrix(11, 4))
    monkeypatch.setattr("vidette.bench.model.read_decoder", lambda *_: (None, weights, None))
    head = 40 if tied else 44
    assert weight_bytes_of(IdleModel(1), ModelSource("model", Path("model.gguf"))) == 4 * (
        head + 4 + (4 + 32 + 8 + 8 + 32) + (4 + 3 * 64)
    )
