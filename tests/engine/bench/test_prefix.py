"""What is counted of a shared prefix, through a whole engine."""

from __future__ import annotations

import math

import pytest

from vidette.bench.prefix import bench_prefix
from vidette.config import Topology
from vidette.models.interface import BLOCK_SIZE


@pytest.mark.parametrize(
    ("anyio_backend", "topology"), [("asyncio", "inline"), ("trio", "inline"), ("asyncio", "processes")]
)
async def test_a_prefix_is_computed_once(topology: Topology) -> None:
    said: list[str] = []
    results = await bench_prefix(
        "toy", topology=topology, requests=6, prefix=100, runs=2, seed=3, say=said.append
    )
    ratio, computed = results.findings
    assert (ratio.name, ratio.unit) == ("ttft_warm_vs_cold", "x")
    assert all(0 < value < math.inf for value in ratio.values)
    whole = 7 * BLOCK_SIZE
    assert (computed.name, computed.unit, computed.values) == (
        "prefix_tokens_computed",
        "tokens",
        [whole, whole],
    )
    assert f"6 requests share {whole} tokens" in results.notes[0]
    for way in ("one by one", "all at once"):
        assert f"tokens of the prefix computed {way}: [{whole}, {whole}]" in results.notes
    assert len(said) == 3
