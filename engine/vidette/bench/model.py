"""`vidette bench model`: how fast a model computes steps, against the floor of memory and against llama.cpp.

Everything is measured in turns: a run takes each workload once, and llama.cpp's like right beside it, in the
other order every other run. A ratio is made of what was measured side by side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch

from vidette.bench.bandwidth import Bandwidth, TorchBandwidth
from vidette.bench.looped import LoopSteps, LoopTimes, Profiled, TimedModel
from vidette.bench.others import NOTICEABLE, Patience
from vidette.bench.profile import Profile
from vidette.bench.results import Finding, Results
from vidette.bench.steps import (
    DECODE_1,
    DECODE_8,
    DECODE_32,
    LONG_PREFILL,
    PREFILL,
    WORKLOADS,
    ForwardSteps,
    Workload,
    blocks_of,
)
from vidette.models.interface import Model, TokenTable
from vidette.models.load import read_decoder
from vidette.models.store import ModelSource

SEED: Final = 0


class PeerSpeeds(Protocol):
    """What a peer answers: tokens a second of all streams."""

    @property
    def prefill(self) -> float:
        """Of the prompts."""
        ...

    @property
    def decode(self) -> float:
        """Of what is decoded behind them."""
        ...


class Peer(Protocol):
    """Another engine, measured on the same machine in the same run."""

    def measure(self, *, prompt: int, new: int, streams: int) -> PeerSpeeds:
        """Compute so many prompts, and so many tokens behind each."""
        ...


class Group(NamedTuple):
    """Workloads that are ours, and one call of the peer that is their like.

    Args:
        workloads: measured one after the other.
        prompt: tokens of each prompt of the peer's.
        compared: names of ratios, by the workload that is compared.
    """

    workloads: tuple[Workload, ...]
    prompt: int
    compared: Mapping[str, str]


GROUPS: Final = (
    Group(
        (PREFILL, DECODE_1),
        PREFILL.length,
        {PREFILL.name: "prefill_128_vs_llama", DECODE_1.name: "decode_b1_vs_llama"},
    ),
    Group((DECODE_8,), DECODE_8.context, {DECODE_8.name: "decode_b8_vs_llama"}),
    Group((DECODE_32,), DECODE_32.context, {DECODE_32.name: "decode_b32_vs_llama"}),
    Group((LONG_PREFILL,), LONG_PREFILL.length, {LONG_PREFILL.name: "prefill_2048_vs_llama"}),
)


@dataclass
class Run:
    """What one run has found.

    Args:
        speeds: tokens a second of the model alone, by workload.
        looped: the same through the scheduler's loop.
        peer: tokens a second of the peer, by workload.
        bandwidth: bytes a second, measured beside the decode of one stream.
        others: what other programs took of the machine meanwhile, as a share of all cores, by workload.
    """

    speeds: dict[str, float] = field(default_factory=dict)
    looped: dict[str, LoopTimes] = field(default_factory=dict)
    peer: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    others: dict[str, float] = field(default_factory=dict)

    def add(self, part: Run, others: float) -> None:
        """Take in what was found of a group."""
        self.speeds |= part.speeds
        self.looped |= part.looped
        self.peer |= part.peer
        self.bandwidth = self.bandwidth or part.bandwidth
        self.others |= dict.fromkeys(part.speeds, others)


def bench_model(
    model: Model,
    table: TokenTable,
    *,
    weight_bytes: int | None,
    runs: int,
    say: Callable[[str], None],
    bandwidth: Bandwidth | None = None,
    peer: Peer | None = None,
    patience: Patience | None = None,
    quick: bool = False,
    profile: bool = False,
) -> tuple[Results, dict[str, Profile]]:
    """Measure the steps of a model.

    Args:
        model: nobody has allocated its pool.
        table: of its tokens.
        weight_bytes: what a step of one token reads of weights; None: nobody knows.
        runs: values of each kind.
        say: told what is measured next.
        bandwidth: of memory (default: as torch reads it).
        peer: what it is compared with.
        patience: how long to wait for a quiet machine (default: not at all).
        quick: whether few steps are enough.
        profile: whether the model is asked where its time goes.

    Returns:
        Numbers by name; and of each workload the seconds of one step, by what they are spent on.
    """
    before = os.getloadavg()[0]
    with torch.inference_mode():
        bench = _Bench(
            model, table, bandwidth or TorchBandwidth(), peer, patience or Patience(0), quick=quick
        )
        say("warming up")
        bench.warm_up()
        found = []
        for number in range(runs):
            say(f"run {number + 1} of {runs}: " + ", ".join(workload.name for workload in bench.workloads))
            found.append(bench.run(reverse=bool(number % 2)))
        looped = [run.looped for run in found]
        if profile and isinstance(model, Profiled):
            say("where the time goes")
            looped = [bench.profile(model) for _ in range(runs)]
    findings = _find_speeds(found, weight_bytes) + _find_loop(found) + _find_peer(found)
    if weight_bytes is not None:
        findings.append(Finding("weight_mib", "MiB", [weight_bytes / (1 << 20)]))
    profiles = _profiles(looped)
    load = {"before": before, "after": os.getloadavg()[0]}
    details = {"profile": profiles, "load_average": load, "others": [run.others for run in found]}
    notes = [
        *_notes(model, bench, weight_bytes),
        f"load average at the start: {before:.1f}",
        _disturbed(found),
    ]
    return Results(findings, notes, details), profiles


class _Bench:
    """All that a run measures, ready for it."""

    def __init__(
        self,
        model: Model,
        table: TokenTable,
        bandwidth: Bandwidth,
        peer: Peer | None,
        patience: Patience,
        *,
        quick: bool,
    ) -> None:
        rng = np.random.default_rng(SEED)
        fitting = [w for w in WORKLOADS if w.length <= model.info.context_len]
        self._chosen = {w.name: w.quick() if quick else w for w in fitting}
        self.workloads = list(self._chosen.values())
        self._bandwidth, self._peer, self._patience = bandwidth, peer, patience
        timed = TimedModel(model, spare=blocks_of(self.workloads))
        looped = [w for w in self.workloads if w.decodes or w.name == PREFILL.name]
        self._looped_names = {w.name for w in looped}
        self._loop = LoopSteps(timed, table, looped, rng=rng)
        self._forward = ForwardSteps(model, self.workloads, first_block=self._loop.num_blocks, rng=rng)

    def warm_up(self) -> None:
        """Compute everything once: code is compiled, memory is touched, prompts are in the cache."""
        for workload in self.workloads:
            self._forward.time(workload)
            if workload.name in self._looped_names:
                self._loop.time(workload)

    def run(self, *, reverse: bool) -> Run:
        """Measure everything once; in reverse, the peer before ours."""
        run = Run()
        for group in GROUPS:
            if any(workload.name in self._chosen for workload in group.workloads):
                run.add(*self._patience.measure(partial(self._group, group, reverse=reverse)))
        return run

    def _group(self, group: Group, *, reverse: bool) -> Run:
        run = Run()
        workloads = [self._chosen[w.name] for w in group.workloads if w.name in self._chosen]
        turns = (self._measure, partial(self._ask, group))
        for turn in reversed(turns) if reverse else turns:
            turn(workloads, run)
        return run

    def profile(self, model: Profiled) -> dict[str, LoopTimes]:
        """Have a model say where the time of its steps goes, in steps that are not measured otherwise."""
        looped = [workload for workload in self.workloads if workload.name in self._looped_names]
        return {workload.name: self._loop.time(workload, model) for workload in looped}

    def _measure(self, workloads: Sequence[Workload], run: Run) -> None:
        for workload in workloads:
            if workload.name == DECODE_1.name:
                run.bandwidth = self._bandwidth.measure()
            run.speeds[workload.name] = workload.tokens / self._forward.time(workload)
        for workload in workloads:
            if workload.name in self._looped_names:
                run.looped[workload.name] = self._loop.time(workload)

    def _ask(self, group: Group, workloads: Sequence[Workload], run: Run) -> None:
        if self._peer is None:
            return
        decode = next((workload for workload in workloads if workload.decodes), None)
        new, streams = (decode.steps, decode.rows) if decode else (1, 1)
        speeds = self._peer.measure(prompt=group.prompt, new=new, streams=streams)
        for workload in workloads:
            run.peer[workload.name] = speeds.decode if workload.decodes else speeds.prefill


def threads_of(model: Model) -> int:
    """Return how many threads compute: what the model says, else torch's."""
    said = getattr(model, "threads", None)
    return said if isinstance(said, int) else torch.get_num_threads()


def weight_bytes_of(model: Model, source: ModelSource) -> int | None:
    """Return the bytes of weights that a step of one token reads.

    Args:
        model: says so itself, if it has `weight_bytes`; else all its weights are float32.
        source: where they are.

    Returns:
        None: there are no weights.
    """
    said = getattr(model, "weight_bytes", None)
    if isinstance(said, int):
        return said
    if source.path is None:
        return None
    _, weights, _ = read_decoder(source.path, source.name)
    # Of the embedding a token reads one row, unless it is the head as well.
    parts = [
        weights.norm,
        weights.head or weights.embedding,
        *(part for layer in weights.layers for part in layer),
    ]
    return 4 * sum(math.prod(part.shape) for part in parts if part is not None)


def _find_speeds(found: Sequence[Run], weight_bytes: int | None) -> list[Finding]:
    findings = [
        Finding(f"{name}_tok_s", "tok/s", [run.speeds[name] for run in found]) for name in found[0].speeds
    ]
    if weight_bytes and DECODE_1.name in found[0].speeds:
        # Of the time that a step takes: how much the bandwidth of the same run allows at best.
        shares = [weight_bytes / run.bandwidth * run.speeds[DECODE_1.name] for run in found]
        findings.append(Finding("bandwidth_floor_b1", "", shares))
    if found[0].bandwidth:
        findings.append(Finding("read_bandwidth_gb_s", "GB/s", [run.bandwidth / 1e9 for run in found]))
    return findings


def _find_loop(found: Sequence[Run]) -> list[Finding]:
    tokens = {workload.name: workload.rows * workload.chunk for workload in WORKLOADS}
    findings = []
    for name in found[0].looped:
        times = [run.looped[name] for run in found]
        speeds = [tokens[name] * one.steps / one.seconds for one in times]
        findings.append(Finding(f"loop_{name}_tok_s", "tok/s", speeds))
    for workload in (DECODE_1, DECODE_8, DECODE_32):
        if workload.name in found[0].looped:
            shares = [run.looped[workload.name].scheduler_share for run in found]
            findings.append(Finding(f"scheduler_share_b{workload.rows}", "", shares))
    return findings


def _find_peer(found: Sequence[Run]) -> list[Finding]:
    names = {name: ratio for group in GROUPS for name, ratio in group.compared.items()}
    compared = [name for name in names if name in found[0].peer]
    ratios = [
        Finding(names[name], "x", [run.speeds[name] / run.peer[name] for run in found]) for name in compared
    ]
    return ratios + [
        Finding(f"llama_{name}_tok_s", "tok/s", [run.peer[name] for run in found]) for name in compared
    ]


def _profiles(found: Sequence[Mapping[str, LoopTimes]]) -> dict[str, Profile]:
    """Return seconds of one step, by workload and by what they are spent on: medians over the runs."""
    profiles: dict[str, Profile] = {}
    for name in found[0]:
        steps = [run[name].per_step() for run in found]
        profiles[name] = {phase: median(step[phase] for step in steps) for phase in steps[0]}
    return profiles


def _disturbed(found: Sequence[Run]) -> str:
    """Return what is to be said of other programs."""
    most = max(share for run in found for share in run.others.values())
    said = f"other programs took up to {most:.0%} of the machine"
    names = dict.fromkeys(name for run in found for name, share in run.others.items() if share >= NOTICEABLE)
    return f"{said}: do not quote {', '.join(names)}, nor their ratios" if names else said


def _notes(model: Model, bench: _Bench, weight_bytes: int | None) -> list[str]:
    notes = [f"{model.info.name}, {threads_of(model)} threads"]
    notes += [
        f"{w.name}: {w.rows} rows, from {w.context} to {w.length} tokens, {w.chunk} of each a step"
        for w in bench.workloads
    ]
    left_out = len(WORKLOADS) - len(bench.workloads)
    if left_out:
        notes.append(f"{left_out} left out: the model's context is {model.info.context_len} tokens")
    if weight_bytes is None:
        notes.append("no floor: how many bytes of weights a step reads is not known")
    return notes
